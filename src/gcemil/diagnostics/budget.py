"""budget: every subset rule at the same sizes, put to the same interventions (paper, same-budget table).

A size is max(1, round(budget N)) patches of every bag, or "recovered": as many as the bag's recovered evidence has.
A row has labels rule, network, budget and comparison. The comparison says what X_S is held against, so that the two gaps
of the contract never meet in one row:

  full-kept   X against X_S and X_notS, for every rule
  soft-kept   X_pi against X_S, for the two rules that are made from gates

Figures of M (Macro-F1, R2 or C-index) are over all bags, the others means over bags. A signed difference of risks or
values has no better side, so survival and regression have the absolute ones only. Rules: rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from gcemil.diagnostics.measurements import RECOVERED, Groups, MeasuredGroup, measure_prefixes
from gcemil.diagnostics.rules import RANKED, attribute_patches, choose_attributions, score_rules
from gcemil.diagnostics.snr import score_where_defined
from gcemil.diagnostics.trained_fold import FoldBag, Measure, NetworkName, Pass, TrainedFold
from gcemil.diagnostics.truth import NO_TRUTH, TRUTH_FIGURES
from gcemil.errors import UsageError
from gcemil.findings import Figures, Finding, Labels, Row, mean_row
from gcemil.recovery import subset_size
from gcemil.rules import GATED_RULES
from gcemil.shapes import Scores

BUDGETS = (0.01, 0.05, 0.1)
FIGURES = (
    "full_kept_gap", "removal_gap", "removal_effect", "cd_gap", "evidence_fraction", *TRUTH_FIGURES
)  # fmt: skip
NO_WRAPPER = (
    "The run has no wrapper: 'wrapped' is its own host, and there is no evidence to compare with."
)


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
    chosen = {
        network: choose_attributions(fold.host_of(network), attributions)
        for network in fold.networks
    }
    table = RuleTable(fold)
    while (bag := (yield "test")) is not None:
        sizes = bag_sizes(bag, budgets)
        for network in fold.networks:
            attributed = attribute_patches(bag.predict(network), chosen[network])
            scores = score_rules(
                bag, network, random=bag.random, attributions=attributed, ours=RANKED, smooth=True
            )
            for rule, values in scores.items():
                table.add(bag, network, rule, values, sizes)
        # A large bag must be gone before the next one is read.
        del bag
    named = {network: list(names) for network, names in chosen.items()}
    return table.to_finding("budget", {"budgets": list(budgets), "attributions": named})


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
                f"A budget is a share of the bag, or '{RECOVERED}' for a run with a wrapper, got '{budget}'."
            )
    return sizes


class RuleTable:
    """Rankings over the test bags of a fold, one line for each rule, network and budget."""

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
        groups, n_bags = list(self._groups.items()), len(self._fold.specs())
        rules = dict.fromkeys(labels["rule"] for labels, _ in groups)
        # A rule over some of the bags cannot be compared with rules over all.
        complete = [(labels, group) for labels, group in groups if len(group.outcomes) == n_bags]
        dropped = dict.fromkeys(
            labels["rule"] for labels, group in groups if len(group.outcomes) < n_bags
        )
        remarks = [
            *(
                [f"Left out, because some bags cannot have them: {', '.join(dropped)}."]
                if dropped
                else []
            ),
            *([] if "oracle" in rules else [NO_TRUTH]),
            *([] if self._fold.model is not None else [NO_WRAPPER]),
            *self._groups.explain_missing_metric(self._fold.task),
        ]
        return Finding(
            name=name,
            rows=tuple(row for labels, group in complete for row in self._rows(labels, group)),
            slides=tuple(self._slides),
            notes=(*notes, *remarks),
            settings=settings,
        )

    def _rows(self, labels: Labels, group: MeasuredGroup) -> Iterator[Row]:
        """Two rows for a rule with gates, one for any other."""
        score = score_where_defined(self._fold.task)
        own = [
            {name: value for name, value in bag.items() if name != "cd_gap"}
            for bag in group.records
        ]
        values = {**group.metrics(score), "cd_gap": None}
        row = mean_row({**labels, "comparison": "full-kept"}, own, values)
        if ratios := [one for bag in own if (one := bag.get("runtime_ratio")) is not None]:
            # The median, so that one interrupted bag does not decide.
            row.values["runtime_ratio"] = median(ratios)
        yield row
        if labels["rule"] in GATED_RULES:
            own = [
                {name: bag[name] for name in ("cd_gap", "evidence_fraction")}
                for bag in group.records
            ]
            values = {**group.gated_metrics(score), "full_kept_gap": None}
            yield mean_row({**labels, "comparison": "soft-kept"}, own, values)
