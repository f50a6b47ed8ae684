"""Every rule on every bag: its patches, and the predictions when they are kept, removed or gated.

Diagnostics that compare rules measure here, so that a subset of a bag is predicted once in a pass.
Measurements on the test bags are written as one long table, one line per bag, network, rule and
size: fold_<k>/diagnostics/measurements.csv.gz.

  bag_id, network, rule       what was measured
  size                        a share of the bag, "recovered" (as the evidence) or "adaptive"
  n_selected, n_patches       patches of the subset and of the bag
  phi_full, phi_kept,         Phi of X, X_S, X_notS and X_pi (snr.py); empty if there is no such
  phi_removed, phi_gated      prediction
  class_full, class_kept,     number of the predicted class on X, X_S and X_notS; empty for numbers
  class_removed
  precision                   share of the subset that is true evidence, where the truth is known
  average_precision           of the ranking that the subset was taken from
  model                       the checkpoint, as the first digits of its hash

`RuleTable` makes the rows of a diagnostic that compares rankings (budget, adaptive, posthoc). The
label `comparison` keeps the two gaps apart:

  full-kept   X against X_S and X_notS, for every rule
  soft-kept   X_pi against X_S, for the rules that are made from gates

Task metrics M (Macro-F1, R2 or C-index) are over all bags, other figures means over bags. A signed
difference of risks or values has no better side, so only absolute ones are given for numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gcemil.diagnostics.attribution import Attribution
from gcemil.diagnostics.rules import RuleSubset, take_subsets
from gcemil.diagnostics.snr import (
    BagOutcome,
    BagOutputs,
    gated_metrics,
    score_where_defined,
    subset_metrics,
    task_metric,
)
from gcemil.diagnostics.trained_fold import (
    FoldBag,
    MeasurementKey,
    NetworkName,
    PredictedBag,
    TrainedFold,
    prefix_logits,
)
from gcemil.diagnostics.truth import NO_TRUTH, TRUTH_FIGURES, truth_figures
from gcemil.errors import InputError, UsageError
from gcemil.files import atomic_write
from gcemil.findings import Figures, Finding, Labels, Row, mean_row
from gcemil.recovery import members, ranking, subset_size
from gcemil.rules import GATED_RULES
from gcemil.shapes import Logits, Scores
from gcemil.tasks.task import Task

RECOVERED = "recovered"
"""The size of the recovered evidence."""
FILE = "measurements.csv.gz"
KEY_COLUMNS = ("bag_id", "network", "rule", "size")


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement(RuleSubset):
    """A subset of one bag under one network, with its predictions; not kept beyond the bag."""

    network: NetworkName
    outcome: BagOutcome
    outputs: BagOutputs
    truth: Figures

    @property
    def figures(self) -> Figures:
        """Gaps and effects of keeping and removing, size and truth."""
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
    """Every rule under every network at the size of the evidence, or of the budget."""
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
    """The first patches of one ranking, for each named size."""
    order = ranking(scores)
    outcomes = prefix_outcomes(
        bag.predict(network), scores, list(sizes.values()), gated_logits(bag, rule)
    )
    for (size, count), outcome in zip(sizes.items(), outcomes, strict=True):
        subset = RuleSubset(rule, members(order[:count], n_patches=len(bag)), scores)
        yield _add_measurement(bag, network, subset, size, outcome)


def gated_logits(bag: FoldBag, rule: str) -> Logits | None:
    """The prediction under the gates, for a rule that is made from them."""
    if bag.explanation is None or rule not in GATED_RULES:
        return None
    return bag.explanation.output.soft.logits


@torch.no_grad()
def prefix_outcomes(
    view: PredictedBag, scores: Scores, sizes: Sequence[int], gated: Logits | None
) -> list[BagOutcome]:
    """The four predictions for the first patches of a ranking, for each number of them."""
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
    """Read the outputs of a subset, and add them to the table of the bag."""
    outputs = bag.fold.output_scale(network).read(outcome)
    truth = truth_figures(subset.selected, subset.scores, bag.truth, bag.regions)
    key = (bag.spec.bag_id, network, subset.rule, size)
    line: dict[str, Any] = dict(zip(KEY_COLUMNS, key, strict=True))
    line |= {"n_selected": int(subset.selected.sum()), "n_patches": len(bag)}
    line |= {f"phi_{name}": value for name, value in vars(outputs).items()}
    for name in ("full", "kept", "removed"):
        logits = getattr(outcome, name)
        has_class = logits is not None and len(logits) > 1
        line[f"class_{name}"] = int(logits.argmax()) if has_class else None
    bag.measurements[key] = line | {n: truth[n] for n in ("precision", "average_precision")}
    return Measurement(
        **vars(subset), network=network, outcome=outcome, outputs=outputs, truth=truth
    )


def write_measurements(
    folder: Path, measurements: Mapping[MeasurementKey, dict[str, Any]], model_hash: str
) -> Path:
    """Write the table of a fold; earlier lines of the same checkpoint stay."""
    import pandas as pd

    path = folder / FILE
    table = pd.DataFrame(list(measurements.values())).assign(model=model_hash[:12])
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
class Group:
    """The measurements of one rule over the bags: predictions, targets and figures, no patches."""

    labels: Labels
    outcomes: list[BagOutcome] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)


class Groups(dict[tuple[str, ...], Group]):
    """Measurements by the values of their labels, in the order in which they come."""

    def add(
        self, labels: Labels, target: Tensor, outcome: BagOutcome, record: dict[str, Any]
    ) -> None:
        """Add one bag to the group with these labels."""
        group = self.setdefault(tuple(labels.values()), Group(labels))
        group.outcomes.append(outcome)
        group.targets.append(target)
        group.records.append(record)

    def explain_missing_metric(self, task: Task) -> list[str]:
        """Why the task metric does not exist on these bags, if so."""
        group = next(iter(self.values()))
        try:
            task_metric(task, torch.stack(group.targets), [one.full for one in group.outcomes])
        except InputError as error:
            return [f"No task metric on these bags: {error}"]
        return []


# Tables of rankings at given sizes

FIGURES = (
    "full_kept_gap", "removal_gap", "removal_effect", "cd_gap", "evidence_fraction", *TRUTH_FIGURES
)  # fmt: skip
NO_WRAPPER = (
    "The run has no wrapper: 'wrapped' is its own host, and there is no evidence to compare with."
)


def bag_sizes(bag: FoldBag, budgets: Sequence[float | str]) -> dict[str, int]:
    """Patches of a subset of this bag under each budget, a share of the bag or "recovered"."""
    sizes = {}
    for budget in budgets:
        if not isinstance(budget, str):
            sizes[f"{budget:g}"] = subset_size(len(bag), budget)
        elif budget == RECOVERED and bag.explanation is not None:
            sizes[budget] = int(bag.explanation.recovery.selected.sum())
        else:
            raise UsageError(
                f"A budget is a share of the bag, or '{RECOVERED}' for a run with a wrapper, "
                f"got '{budget}'."
            )
    return sizes


class RuleTable:
    """Rankings over the test bags of a fold: rows by rule, network, budget and comparison."""

    def __init__(self, fold: TrainedFold) -> None:
        self._fold = fold
        self._groups = Groups()
        self._slides: list[dict[str, Any]] = []

    def add(
        self,
        bag: FoldBag,
        network: NetworkName,
        rule: str,
        scores: Scores,
        sizes: Mapping[str, int],
        more: Figures | None = None,
    ) -> None:
        """Measure one ranking of one bag at these sizes; `slides` gets the record of the last.

        `more` are figures of the ranking itself, whatever the size.
        """
        measured = measure_prefixes(bag, network, rule, scores, sizes)
        for budget, one in zip(sizes, measured, strict=True):
            own = one.figures
            figures = {name: own[name] for name in FIGURES} | dict(more or {})
            labels: Labels = {"rule": rule, "network": network, "budget": budget}
            self._groups.add(labels, bag.target, one.outcome, figures)
        self._slides.append(
            {"bag_id": bag.spec.bag_id, **labels, "n_selected": sizes[budget], **figures}
        )

    def to_finding(self, name: str, settings: dict[str, Any], notes: Sequence[str] = ()) -> Finding:
        """Rows, slides and notes of what was added; `notes` come first."""
        # A rule over some of the bags cannot be compared with rules over all.
        n_bags, groups = len(self._fold.specs()), list(self._groups.values())
        complete = [group for group in groups if len(group.outcomes) == n_bags]
        dropped = dict.fromkeys(one.labels["rule"] for one in groups if one not in complete)
        notes = list(notes)
        if dropped:
            notes.append(f"Left out, because some bags cannot have them: {', '.join(dropped)}.")
        if not any(group.labels["rule"] == "oracle" for group in groups):
            notes.append(NO_TRUTH)
        if self._fold.model is None:
            notes.append(NO_WRAPPER)
        return Finding(
            name=name,
            rows=tuple(row for group in complete for row in self._rows(group)),
            slides=tuple(self._slides),
            notes=(*notes, *self._groups.explain_missing_metric(self._fold.task)),
            settings=settings,
        )

    def _rows(self, group: Group) -> Iterator[Row]:
        """Two rows for a rule with gates, one for any other."""
        score, labels = score_where_defined(self._fold.task), group.labels
        own = [
            {name: value for name, value in record.items() if name != "cd_gap"}
            for record in group.records
        ]
        values = {**subset_metrics(group.outcomes, group.targets, score), "cd_gap": None}
        row = mean_row({**labels, "comparison": "full-kept"}, own, values)
        if ratios := [one for bag in own if (one := bag.get("runtime_ratio")) is not None]:
            # The median, so that one interrupted bag does not decide.
            row.values["runtime_ratio"] = median(ratios)
        yield row
        if labels["rule"] in GATED_RULES:
            own = [
                {name: one[name] for name in ("cd_gap", "evidence_fraction")}
                for one in group.records
            ]
            values = {**gated_metrics(group.outcomes, group.targets, score), "full_kept_gap": None}
            yield mean_row({**labels, "comparison": "soft-kept"}, own, values)
