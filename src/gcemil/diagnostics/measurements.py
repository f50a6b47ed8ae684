"""Every rule on every bag: the patches it selects, and the predictions when they are kept, removed or gated.

All diagnostics that compare rules measure here, so that a subset of a bag is predicted once in a pass. What they measure on
the test bags is also written as one long table, fold_<k>/diagnostics/measurements.csv.gz, one line per bag, network, rule and size:

  bag_id, network, rule       what was measured
  size                        the requested size: a share of the bag, "recovered" (that of the evidence) or "adaptive"
  n_selected, n_patches       patches of the subset and of the bag
  phi_full, phi_kept,         Phi of X, X_S, X_notS and X_pi (snr.py); empty where there is no such prediction
  phi_removed, phi_gated
  class_full, class_kept,     number of the predicted class on X, X_S and X_notS; empty for survival
  class_removed
  precision                   share of the subset that is true evidence, where the truth is known
  average_precision           of the ranking that the subset was taken from
  model                       the checkpoint, as the first digits of its hash
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcemil.diagnostics.attribution import Attribution
from gcemil.diagnostics.rules import RuleSubset, take_subsets
from gcemil.diagnostics.snr import (
    BagOutcome,
    BagOutputs,
    Score,
    explain_missing_metric,
    gated_metrics,
    subset_metrics,
)
from gcemil.diagnostics.trained_fold import (
    FoldBag,
    MeasurementKey,
    NetworkName,
    PredictedBag,
    prefix_logits,
)
from gcemil.diagnostics.truth import truth_figures
from gcemil.files import atomic_write
from gcemil.findings import Figures, Labels
from gcemil.recovery import members, ranking
from gcemil.rules import GATED_RULES
from gcemil.shapes import Logits, Scores
from gcemil.tasks.task import Task

RECOVERED = "recovered"
"""The size of the recovered evidence."""
FILE = "measurements.csv.gz"
KEY_COLUMNS = ("bag_id", "network", "rule", "size")
VALUE_COLUMNS = (
    "n_selected", "n_patches", "phi_full", "phi_kept", "phi_removed", "phi_gated",
    "class_full", "class_kept", "class_removed", "precision", "average_precision",
)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement(RuleSubset):
    """A subset of one bag under one network, with its predictions; it holds patches, so it is not kept beyond the bag."""

    network: NetworkName
    outcome: BagOutcome
    outputs: BagOutputs
    truth: Figures

    @property
    def figures(self) -> Figures:
        """Gaps and effects of keeping and removing, size and truth; a signed difference of risks has no better side."""
        outputs, is_class = self.outputs, self.outcome.full.numel() > 1
        removed = outputs.removed
        return {
            "full_kept_gap": outputs.full_kept_gap,
            "removal_gap": outputs.removal_gap,
            "cd_gap": outputs.cd_gap,
            "kept_output": outputs.kept if is_class else None,
            "keep_only_effect": outputs.full - outputs.kept if is_class else None,
            "removal_effect": outputs.full - removed if is_class and removed is not None else None,
            "evidence_fraction": self.outcome.fraction,
            **self.truth,
        }


def measure_rules(
    bag: FoldBag,
    *,
    budget: float,
    rivals: Mapping[NetworkName, Mapping[str, Attribution]] | None = None,
) -> Iterator[Measurement]:
    """Every rule under every network, all at the size of the evidence; `budget` gives it where there is no wrapper."""
    size = f"{budget:g}" if bag.explanation is None else RECOVERED
    for network in bag.fold.networks:
        view = bag.predict(network)
        own = None if rivals is None else rivals[network]
        for subset in take_subsets(bag, network, budget=budget, rivals=own):
            outcome = view.outcome(subset.selected, gated_logits(bag, subset.rule))
            yield _add_measurement(bag, network, subset, size, outcome)


def measure_prefixes(
    bag: FoldBag, network: NetworkName, rule: str, scores: Scores, sizes: Mapping[str, int]
) -> Iterator[Measurement]:
    """The first so many patches of one ranking, for each named size."""
    order = ranking(scores)
    outcomes = prefix_outcomes(
        bag.predict(network), scores, list(sizes.values()), gated_logits(bag, rule)
    )
    for (size, count), outcome in zip(sizes.items(), outcomes, strict=True):
        subset = RuleSubset(rule, members(order[:count], n_patches=len(bag)), scores)
        yield _add_measurement(bag, network, subset, size, outcome)


def gated_logits(bag: FoldBag, rule: str) -> Logits | None:
    """The prediction under the gates, for a rule that is made from them."""
    return (
        None
        if bag.explanation is None or rule not in GATED_RULES
        else bag.explanation.output.soft.logits
    )


@torch.no_grad()
def prefix_outcomes(
    view: PredictedBag, scores: Scores, sizes: Sequence[int], gated: Logits | None
) -> list[BagOutcome]:
    """The four predictions for the first so many patches of a ranking."""
    order = ranking(scores)
    kept = prefix_logits(view, order, sizes)
    left = sorted({len(order) - size for size in sizes} - {0})
    # The complement of the first k is the first N - k of the ranking turned round.
    rest = dict(zip(left, prefix_logits(view, order.flip(0), left), strict=True)) if left else {}
    return [
        BagOutcome(view.full.logits, logits, rest.get(len(order) - size), gated, size / len(order))
        for size, logits in zip(sizes, kept, strict=True)
    ]


def _add_measurement(
    bag: FoldBag, network: NetworkName, subset: RuleSubset, size: str, outcome: BagOutcome
) -> Measurement:
    """Read the outputs of a subset, and note them in the table of the bag."""
    outputs = bag.fold.output_scale(network).read(outcome)
    truth = truth_figures(subset.selected, subset.scores, bag.truth, bag.regions)
    is_class = bag.fold.task.n_outputs > 1
    logits = (outcome.full, outcome.kept, outcome.removed)
    bag.measurements[bag.spec.bag_id, network, subset.rule, size] = (
        int(subset.selected.sum()),
        len(bag),
        outputs.full,
        outputs.kept,
        outputs.removed,
        outputs.gated,
        *(int(one.argmax()) if is_class and one is not None else None for one in logits),
        truth["precision"],
        truth["average_precision"],
    )
    return Measurement(
        **vars(subset), network=network, outcome=outcome, outputs=outputs, truth=truth
    )


def write_measurements(
    folder: Path, measurements: Mapping[MeasurementKey, tuple[Any, ...]], model_hash: str
) -> Path:
    """Write the table of a fold; lines of the same checkpoint that other diagnostics wrote before stay."""
    import pandas as pd

    path = folder / FILE
    lines = [(*key, *values, model_hash[:12]) for key, values in measurements.items()]
    table = pd.DataFrame(lines, columns=[*KEY_COLUMNS, *VALUE_COLUMNS, "model"])
    if path.is_file():
        before = pd.read_csv(path, dtype=dict.fromkeys((*KEY_COLUMNS, "model"), str))
        before = before[before["model"] == model_hash[:12]]
        table = pd.concat([one for one in (before, table) if len(one)] or [table])
        table = table.drop_duplicates(list(KEY_COLUMNS), keep="last")
    classes = ["class_full", "class_kept", "class_removed"]
    table[classes] = table[classes].astype("Int64")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        table.to_csv(part, index=False, compression="gzip")
    return path


@dataclass(eq=False)
class MeasuredGroup:
    """The measurements of one rule, bag by bag: predictions, targets and figures, no patches."""

    outcomes: list[BagOutcome] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def metrics(self, score: Score) -> Figures:
        """The task metric of X, X_S and X_notS."""
        return subset_metrics(self.outcomes, torch.stack(self.targets), score)

    def gated_metrics(self, score: Score) -> Figures:
        """The task metric of X_pi beside that of X_S."""
        return gated_metrics(self.outcomes, torch.stack(self.targets), score)


class Groups:
    """Measurements of all bags by labels such as rule and network, in the order in which they come."""

    def __init__(self) -> None:
        self._groups: dict[tuple[tuple[str, str], ...], MeasuredGroup] = {}

    def add(
        self, labels: Labels, target: Tensor, outcome: BagOutcome, record: dict[str, Any]
    ) -> None:
        """Add one bag to the group with these labels."""
        group = self._groups.setdefault(tuple(labels.items()), MeasuredGroup())
        group.outcomes.append(outcome)
        group.targets.append(target)
        group.records.append(record)

    def items(self) -> Iterator[tuple[Labels, MeasuredGroup]]:
        """Labels and group, one after another."""
        return ((dict(key), group) for key, group in self._groups.items())

    def explain_missing_metric(self, task: Task) -> list[str]:
        """Why the task metric does not exist on these bags, if so."""
        group = next(iter(self._groups.values()))
        full = [outcome.full for outcome in group.outcomes]
        return explain_missing_metric(task, torch.stack(group.targets), full)
