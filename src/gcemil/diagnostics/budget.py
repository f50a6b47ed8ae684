"""budget: every subset rule at the same sizes, put to the same interventions.

The same-budget table of the paper. A size is max(1, round(budget N)) patches of every bag, or
"recovered": as many as the evidence of the bag has. Rows: measurements.py; rules: rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcemil.diagnostics.measurements import RECOVERED, RuleTable, bag_sizes
from gcemil.diagnostics.rules import RANKED, choose_attributions, score_rules
from gcemil.diagnostics.trained_fold import Measure, Pass, TrainedFold
from gcemil.findings import Finding

BUDGETS = (0.01, 0.05, 0.1)


@Measure
def measure_budget(
    fold: TrainedFold,
    *,
    budgets: Sequence[float | str] | None = None,
    attributions: Sequence[str] | None = None,
) -> Pass[Finding]:
    """Every rule at every budget on the test bags; `attributions` None takes all possible ones."""
    if budgets is None:
        budgets = BUDGETS if fold.model is None else (*BUDGETS, RECOVERED)
    chosen = choose_attributions(fold, attributions)
    table = RuleTable(fold)
    while (bag := (yield "test")) is not None:
        sizes = bag_sizes(bag, budgets)
        for network in fold.networks:
            scores = score_rules(
                bag, network, attributions=chosen[network], ours=RANKED, smooth=True
            )
            for rule, values in scores.items():
                table.add(bag, network, rule, values, sizes)
        # A large bag must be gone before the next one is read.
        del bag
    named = {network: list(names) for network, names in chosen.items()}
    return table.to_finding("budget", {"budgets": list(budgets), "attributions": named})
