"""budget: every subset rule at the same sizes, put to the same interventions (paper, same-budget table).

A size is max(1, round(budget N)) patches of every bag, or "recovered": as many as the bag's recovered evidence has.
A row has labels rule, network, budget and comparison. The comparison says what X_S is held against, so that the two gaps
of the contract never meet in one row:

  full-kept   X against X_S and X_notS, for every rule
  soft-kept   X_pi against X_S, for the two rules that are made from gates

Figures of M (Macro-F1 or C-index) are over all bags, the others means over bags. A signed difference of risks has no
better side, so survival has the absolute ones only. Rules: rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gcemil.diagnostics.rules import attribute_patches, choose_attributions, rule_scores
from gcemil.diagnostics.snr import (
    BagOutcome,
    explain_missing_metric,
    gated_metrics,
    score_where_defined,
    subset_metrics,
)
from gcemil.diagnostics.trained_fold import FoldBag, NetworkName, PredictedBag, TrainedFold, prefix_logits
from gcemil.diagnostics.truth import NO_TRUTH, truth_figures
from gcemil.errors import UsageError
from gcemil.findings import Figures, Finding, Row, mean_row
from gcemil.recovery.recover import members, ranking, subset_size
from gcemil.rules import GATED_RULES
from gcemil.shapes import Logits, Scores
from gcemil.tasks.task import Task

BUDGETS = (0.01, 0.05, 0.1)
RECOVERED = "recovered"
MEDIANS = ("runtime_ratio",)
"""Figures of which a row has the median: one interrupted bag must not speak for all."""


@dataclass(frozen=True)
class RuleKey:
    """Which line of the table."""

    rule: str
    network: NetworkName
    budget: str


@dataclass(eq=False)
class RuleOutcomes:
    """One line of the table, bag by bag: predictions and figures, no patches."""

    outcomes: list[BagOutcome] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)


def measure_budget(
    fold: TrainedFold,
    *,
    budgets: Sequence[float | str] | None = None,
    attributions: Sequence[str] | None = None,
) -> Finding:
    """Every rule at every budget on the test bags; `attributions` None takes all that can explain the hosts."""
    if budgets is None:
        budgets = BUDGETS if fold.model is None else (*BUDGETS, RECOVERED)
    chosen = {network: choose_attributions(fold.host_of(network), attributions) for network in fold.networks}
    table = RuleTable(fold)
    generator = torch.Generator().manual_seed(fold.seed)
    for bag in fold.bags("test"):
        random = torch.rand(len(bag), generator=generator)
        sizes = bag_sizes(bag, budgets)
        for network in fold.networks:
            view = bag.predict(network)
            scores = rule_scores(bag, network, attribute_patches(view, chosen[network]), random=random)
            for rule, values in scores.items():
                table.add(bag, view, RuleOnBag(rule, network, values), sizes)
        # A large bag and its embedding must be gone before the next one is read.
        del bag, view
    return Finding(
        name="budget",
        rows=tuple(table.rows()),
        slides=tuple(table.slides),
        notes=tuple(table.notes()),
        settings={
            "budgets": list(budgets),
            "attributions": {network: list(names) for network, names in chosen.items()},
            "seed": fold.seed,
        },
    )


def bag_sizes(bag: FoldBag, budgets: Sequence[float | str]) -> dict[str, int]:
    """Patches of a subset of this bag under each budget, a share of the bag or "recovered"."""
    return {_budget_name(budget): _bag_size(bag, budget) for budget in budgets}


def _budget_name(budget: float | str) -> str:
    return budget if isinstance(budget, str) else f"{budget:g}"


def _bag_size(bag: FoldBag, budget: float | str) -> int:
    if not isinstance(budget, str):
        return subset_size(len(bag), budget)
    if budget != RECOVERED or bag.explanation is None:
        raise UsageError(
            f"A budget is a share of the bag, or '{RECOVERED}' for a run with a wrapper, got '{budget}'."
        )
    return int(bag.explanation.recovery.selected.sum())


@dataclass(frozen=True, eq=False)
class RuleOnBag:
    """A rule's ranking of one bag under one network."""

    rule: str
    network: NetworkName
    scores: Scores
    more: Figures = field(default_factory=dict)
    """Figures of the ranking itself, whatever the size."""


class RuleTable:
    """Rules over the test bags of a fold, one line for each rule, network and budget."""

    def __init__(self, fold: TrainedFold) -> None:
        self.tallies: dict[RuleKey, RuleOutcomes] = {}
        self.slides: list[dict[str, Any]] = []
        self._fold = fold

    def add(self, bag: FoldBag, view: PredictedBag, ranked: RuleOnBag, sizes: Mapping[str, int]) -> None:
        """Put one rule's subsets of one bag to the test; `slides` gets the record of the last size."""
        explained = bag.explanation if ranked.rule in GATED_RULES else None
        gated = None if explained is None else explained.output.soft.logits
        outcomes = prefix_outcomes(view, ranked.scores, list(sizes.values()), gated)
        for (budget, size), outcome in zip(sizes.items(), outcomes, strict=True):
            key = RuleKey(ranked.rule, ranked.network, budget)
            tally = self.tallies.setdefault(key, RuleOutcomes())
            tally.outcomes.append(outcome)
            tally.figures.append(_rule_figures(outcome, ranked, size, bag, self._fold))
        self.slides.append({"bag_id": bag.spec.bag_id, **vars(key), "n_selected": size, **tally.figures[-1]})

    @property
    def complete(self) -> dict[RuleKey, RuleOutcomes]:
        """The lines that every bag has: over some of the bags, a rule would be compared with rules over all."""
        n_bags = len(self._fold.specs())
        return {key: tally for key, tally in self.tallies.items() if len(tally.outcomes) == n_bags}

    def rows(self) -> Iterator[Row]:
        """Two rows per rule with gates, one per any other."""
        targets = self._fold.targets()
        for key, tally in self.complete.items():
            yield _full_kept_row(key, tally, self._fold.task, targets)
            if key.rule in GATED_RULES:
                yield _soft_kept_row(key, tally, self._fold.task, targets)

    def notes(self) -> Iterator[str]:
        """What a reader of the rows must know."""
        complete = self.complete
        if dropped := dict.fromkeys(key.rule for key in self.tallies if key not in complete):
            yield f"Left out, because some bags cannot have them: {', '.join(dropped)}."
        if not any(key.rule == "oracle" for key in self.tallies):
            yield NO_TRUTH
        if self._fold.model is None:
            yield "The run has no wrapper: 'wrapped' is its own host, and there is no evidence to compare with."
        full = [outcome.full for outcome in next(iter(complete.values())).outcomes]
        yield from explain_missing_metric(self._fold.task, self._fold.targets(), full)


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


def _rule_figures(
    outcome: BagOutcome, ranked: RuleOnBag, size: int, bag: FoldBag, fold: TrainedFold
) -> Figures:
    """What one bag says of one subset."""
    outputs = fold.answers(ranked.network).read(outcome)
    removed = outputs.removed if fold.task.n_outputs > 1 else None
    selected = members(ranking(ranked.scores)[:size], n_patches=len(bag))
    return {
        "full_kept_gap": outputs.full_kept_gap,
        "removal_gap": outputs.removal_gap,
        "removal_effect": None if removed is None else outputs.full - removed,
        "cd_gap": outputs.cd_gap,
        "evidence_fraction": outcome.fraction,
        **truth_figures(selected, ranked.scores, bag.truth, bag.regions),
        **ranked.more,
    }


def _full_kept_row(key: RuleKey, tally: RuleOutcomes, task: Task, targets: Tensor) -> Row:
    values = {**subset_metrics(tally.outcomes, targets, score_where_defined(task)), "cd_gap": None}
    figures = [{name: one for name, one in bag.items() if name != "cd_gap"} for bag in tally.figures]
    row = mean_row({**vars(key), "comparison": "full-kept"}, figures, values)
    return replace(row, values={**row.values, **_median_figures(figures)})


def _median_figures(figures: Sequence[Figures]) -> Figures:
    found = {name: [one for bag in figures if (one := bag.get(name)) is not None] for name in MEDIANS}
    return {name: median(values) for name, values in found.items() if values}


def _soft_kept_row(key: RuleKey, tally: RuleOutcomes, task: Task, targets: Tensor) -> Row:
    values = {**gated_metrics(tally.outcomes, targets, score_where_defined(task)), "full_kept_gap": None}
    figures = [{name: bag[name] for name in ("cd_gap", "evidence_fraction")} for bag in tally.figures]
    return mean_row({**vars(key), "comparison": "soft-kept"}, figures, values)
