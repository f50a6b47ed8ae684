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
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from gcemil.diagnostics.rules import attribute_patches, choose_attributions, rule_scores
from gcemil.diagnostics.snr import (
    BagOutcome,
    explain_missing_metric,
    gated_metrics,
    score_where_defined,
    subset_metrics,
)
from gcemil.diagnostics.trained_fold import (
    FoldBag,
    Measure,
    NetworkName,
    Pass,
    PredictedBag,
    TrainedFold,
    prefix_logits,
)
from gcemil.diagnostics.truth import NO_TRUTH, truth_figures
from gcemil.errors import UsageError
from gcemil.findings import Figures, Finding, Row, mean_row
from gcemil.recovery.recover import members, ranking, subset_size
from gcemil.rules import GATED_RULES
from gcemil.shapes import Logits, Scores

BUDGETS = (0.01, 0.05, 0.1)
RECOVERED = "recovered"


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


@Measure
def measure_budget(
    fold: TrainedFold,
    *,
    budgets: Sequence[float | str] | None = None,
    attributions: Sequence[str] | None = None,
) -> Pass[Finding]:
    """Every rule at every budget on the test bags; `attributions` None takes all that can explain the hosts."""
    if budgets is None:
        budgets = BUDGETS if fold.model is None else (*BUDGETS, RECOVERED)
    chosen = {network: choose_attributions(fold.host_of(network), attributions) for network in fold.networks}
    table = RuleTable(fold)
    generator = torch.Generator().manual_seed(fold.seed)
    while (bag := (yield "test")) is not None:
        random = torch.rand(len(bag), generator=generator)
        sizes = bag_sizes(bag, budgets)
        for network in fold.networks:
            view = bag.predict(network)
            scores = rule_scores(bag, network, attribute_patches(view, chosen[network]), random=random)
            for rule, values in scores.items():
                table.add(bag, network, view, rule, values, sizes)
        # A large bag and its embedding must be gone before the next one is read.
        del bag, view
    named = {network: list(names) for network, names in chosen.items()}
    return table.to_finding("budget", {"budgets": list(budgets), "attributions": named, "seed": fold.seed})


def bag_sizes(bag: FoldBag, budgets: Sequence[float | str]) -> dict[str, int]:
    """Patches of a subset of this bag under each budget, a share of the bag or "recovered"."""
    found = {}
    for budget in budgets:
        if not isinstance(budget, str):
            found[f"{budget:g}"] = subset_size(len(bag), budget)
        elif budget == RECOVERED and bag.explanation is not None:
            found[budget] = int(bag.explanation.recovery.selected.sum())
        else:
            raise UsageError(
                f"A budget is a share of the bag, or '{RECOVERED}' for a run with a wrapper, got '{budget}'."
            )
    return found


class RuleTable:
    """Rules over the test bags of a fold, one line for each rule, network and budget."""

    def __init__(self, fold: TrainedFold) -> None:
        self.tallies: dict[RuleKey, RuleOutcomes] = {}
        self.slides: list[dict[str, Any]] = []
        self._fold = fold

    def add(
        self,
        bag: FoldBag,
        network: NetworkName,
        view: PredictedBag,
        rule: str,
        scores: Scores,
        sizes: Mapping[str, int],
        more: Figures | None = None,
    ) -> None:
        """Put one rule's subsets of one bag to the test; `slides` gets the record of the last size.

        `more` are figures of the ranking itself, whatever the size.
        """
        explained = bag.explanation if rule in GATED_RULES else None
        gated = None if explained is None else explained.output.soft.logits
        order, output_scale = ranking(scores), self._fold.output_scale(network)
        outcomes = prefix_outcomes(view, scores, list(sizes.values()), gated)
        for (budget, size), outcome in zip(sizes.items(), outcomes, strict=True):
            outputs = output_scale.read(outcome)
            removed = outputs.removed if self._fold.task.n_outputs > 1 else None
            figures: Figures = {
                "full_kept_gap": outputs.full_kept_gap,
                "removal_gap": outputs.removal_gap,
                "removal_effect": None if removed is None else outputs.full - removed,
                "cd_gap": outputs.cd_gap,
                "evidence_fraction": outcome.fraction,
                **truth_figures(members(order[:size], n_patches=len(bag)), scores, bag.truth, bag.regions),
                **(more or {}),
            }
            key = RuleKey(rule, network, budget)
            tally = self.tallies.setdefault(key, RuleOutcomes())
            tally.outcomes.append(outcome)
            tally.figures.append(figures)
        self.slides.append({"bag_id": bag.spec.bag_id, **vars(key), "n_selected": size, **figures})

    def to_finding(self, name: str, settings: dict[str, Any], notes: Sequence[str] = ()) -> Finding:
        """Rows, slides and notes of what was added; `notes` come first."""
        return Finding(
            name=name,
            rows=tuple(self.rows()),
            slides=tuple(self.slides),
            notes=(*notes, *self.notes()),
            settings=settings,
        )

    @property
    def complete(self) -> dict[RuleKey, RuleOutcomes]:
        """The lines that every bag has: over some of the bags, a rule would be compared with rules over all."""
        n_bags = len(self._fold.specs())
        return {key: tally for key, tally in self.tallies.items() if len(tally.outcomes) == n_bags}

    def rows(self) -> Iterator[Row]:
        """Two rows per rule with gates, one per any other."""
        targets, score = self._fold.targets(), score_where_defined(self._fold.task)
        for key, tally in self.complete.items():
            own = [{name: one for name, one in bag.items() if name != "cd_gap"} for bag in tally.figures]
            values = {**subset_metrics(tally.outcomes, targets, score), "cd_gap": None}
            row = mean_row({**vars(key), "comparison": "full-kept"}, own, values)
            if ratios := [one for bag in own if (one := bag.get("runtime_ratio")) is not None]:
                # One interrupted bag must not speak for all.
                row.values["runtime_ratio"] = median(ratios)
            yield row
            if key.rule in GATED_RULES:
                own = [{name: bag[name] for name in ("cd_gap", "evidence_fraction")} for bag in tally.figures]
                values = {**gated_metrics(tally.outcomes, targets, score), "full_kept_gap": None}
                yield mean_row({**vars(key), "comparison": "soft-kept"}, own, values)

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
