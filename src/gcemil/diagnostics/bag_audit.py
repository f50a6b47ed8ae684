"""Any explanation of any model on one bag in memory: the patches it selects, and what keeping and removing them does.

`gcemil.audit` makes a table of these; the command of the same name (diagnostics/audit.py) audits a cohort on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.memory import as_array
from gcemil.diagnostics.snr import BagOutcome, OutputScale, Tolerances, bag_outcome, judge_subset
from gcemil.errors import UsageError
from gcemil.explanation import Interventions, bag_tensors, explain_bag
from gcemil.findings import Count, compare_counts
from gcemil.hosts.host import check_gates, find_device, log_with_zero
from gcemil.model import GceMil
from gcemil.recovery import subset_size, top_k

Scoring = Callable[[Any], Any]
"""From a bag, as the caller gave it, to one score per patch or a boolean mask over its patches."""


@torch.no_grad()
def try_rules(
    network: Any,
    item: Any,
    bag: Bag,
    asked: Mapping[str, Scoring],
    budget: float,
    gates: bool,
    seed: int,
) -> Iterator[tuple[str, Tensor, BagOutcome]]:
    """Every rule on one bag: its name, the patches it selects, and the predictions."""
    device = find_device(network)
    features, coords = bag_tensors(bag, device)
    size, n_patches = subset_size(len(bag), budget), len(bag)
    chosen: dict[str, tuple[Tensor, Tensor | None]] = {}
    if isinstance(network, GceMil):
        found = explain_bag(network, bag)
        interventions = Interventions(
            network.explained, features, coords, embedded=found.output.embedded
        )
        full = found.output.answer
        own = {"evidence": (found.recovery.selected, found.output.log_gates)}
    else:
        interventions = Interventions(network, features, coords)
        full, own = interventions.full(), {}
    if not asked:
        chosen = {**own, "attention": (top_k(full.scores, size), None)}
    for rule, function in asked.items():
        with torch.enable_grad():
            values = torch.from_numpy(as_array(function(item)).reshape(-1)).to(device)
        if len(values) != n_patches or not bool(torch.isfinite(values).all()):
            raise UsageError(
                f"Explanation '{rule}' must give {n_patches} finite scores, got {len(values)} values."
            )
        if gates:
            check_gates(values.float(), n_patches=n_patches)
        selected = values if values.dtype == torch.bool else top_k(values.double(), size)
        chosen[rule] = selected, log_with_zero(values.float()) if gates else None
    first = next(iter(chosen.values()))[0]
    draw = np.random.default_rng([seed, *bag.bag_id.encode()]).random(n_patches)
    chosen["random"] = top_k(torch.from_numpy(draw).to(device), int(first.sum())), None
    for rule, (selected, log_gates) in chosen.items():
        yield rule, selected, bag_outcome(interventions, selected, log_gates, full=full.logits)


def judge_outcome(
    output_scale: OutputScale, outcome: BagOutcome, tolerances: Sequence[float]
) -> dict[str, Any]:
    """Outputs, gaps and verdicts of one rule on one bag."""
    outputs = output_scale.read(outcome)
    found: dict[str, Any] = {f"phi_{name}": value for name, value in vars(outputs).items()}
    found["sufficiency_gap"] = outputs.full_kept_gap
    found["necessity_gap"] = outputs.removal_gap
    found["recoverability_gap"] = outputs.cd_gap
    for tolerance in tolerances:
        verdict = judge_subset(outputs, Tolerances(tolerance, tolerance, tolerance))
        found |= {f"{name}@{tolerance:g}": value for name, value in vars(verdict).items()}
    return {
        name: math.nan if value is None and "@" not in name else value
        for name, value in found.items()
    }


def describe_table(table: pd.DataFrame, tolerances: Sequence[float]) -> str:
    """The verdict on every rule in one sentence, at the tolerance nearest to that of the method."""
    tolerance = min(tolerances, key=lambda one: abs(one - Tolerances().sufficiency), default=None)
    if tolerance is None:
        return ""
    holds = table[f"sufficient@{tolerance:g}"].astype(bool) & table[
        f"necessary@{tolerance:g}"
    ].astype(bool)
    counts = {
        rule: Count(int(rows.sum()), len(rows))
        for rule, rows in holds.groupby(table["rule"], sort=False)
    }
    rules = [rule for rule in counts if rule != "random"]
    return " ".join(compare_counts(str(rule), counts[rule], counts["random"]) for rule in rules)
