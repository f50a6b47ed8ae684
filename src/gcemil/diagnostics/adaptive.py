"""adaptive: as many patches as each bag needs, and every rule at these very sizes.

The size of a bag is that of the first prefix of the selector's ranking, in steps of 1 % up to 10 % of the bag, that is

  sufficient   |Phi(X) - Phi(X_S)| <= tolerance
  necessary    X_notS gets another answer than X: another class, or a risk that moves by more than risk_tolerance
               training deviations (snr.py). A whole bag leaves no X_notS and is necessary.

Where no prefix is both (capped), it is the first that is sufficient, and the largest where not even one is that: a slide
of the class that the host names by default says the same whatever is removed. The validation bags choose the tolerance: the smallest of a
ladder under which their mean share of patches is at most mean_budget, or else the largest. Necessity does not depend on
the tolerance, so a larger one never asks for more patches.

Rows are those of budget.py with the budget "adaptive". The wrapped host judges the way down, so rivals have sizes that
were chosen for another ranking than theirs; `reached_share` and `capped_share` are of that way and stand in its row only.
A run without the wrapper walks down its host's attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from gcemil.diagnostics.budget import RuleTable
from gcemil.diagnostics.rules import attribute_patches, choose_attributions, score_rules
from gcemil.diagnostics.snr import RISK_TOLERANCE, OutputScale
from gcemil.diagnostics.trained_fold import (
    FoldBag,
    Measure,
    Order,
    Pass,
    PredictedBag,
    TrainedFold,
    prefix_logits,
)
from gcemil.errors import UsageError
from gcemil.findings import Figures, Finding
from gcemil.recovery.recover import ranking, subset_size
from gcemil.shapes import Logits

ADAPTIVE = "adaptive"
TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2)
ROUNDING = 1e-9
RANKING_RULE, RANKING_RULE_WITHOUT_WRAPPER = "gce_soft", "attention"
NO_SELECTOR = "The run has no selector: its host's attention gives the sizes, and has the row of the walk."


@dataclass(frozen=True)
class Steps:
    """How far one goes down a ranking, and when a risk is another answer."""

    step_fraction: float = 0.01
    max_fraction: float = 0.10
    risk_tolerance: float = RISK_TOLERANCE

    def sizes(self, n_patches: int) -> list[int]:
        """The numbers of patches that are tried, each once: in a small bag several steps round to one size."""
        if not 0.0 < self.step_fraction <= self.max_fraction:
            raise UsageError(
                f"step_fraction lies in (0, {self.max_fraction}], the largest size, got {self.step_fraction}."
            )
        n_steps = max(1, round(self.max_fraction / self.step_fraction))
        shares = (self.max_fraction * (step + 1) / n_steps for step in range(n_steps))
        return list(dict.fromkeys(subset_size(n_patches, share) for share in shares))


@dataclass(frozen=True)
class Calibration:
    """The tolerance that validation bags chose, and the mean share of patches it costs them."""

    tolerance: float
    mean_share: float
    n_bags: int
    is_within: bool
    """Whether the mean share keeps the budget."""


@Measure
def measure_adaptive(
    fold: TrainedFold,
    *,
    mean_budget: float = 0.05,
    tolerances: Sequence[float] = TOLERANCES,
    step_fraction: float = 0.01,
    max_fraction: float = 0.10,
    risk_tolerance: float = RISK_TOLERANCE,
    attributions: Sequence[str] | None = ("attention",),
) -> Pass[Finding]:
    """The adaptive evidence of the test bags, and rivals, random and oracle at its size on every bag."""
    ladder = sorted(set(tolerances))
    if not ladder:
        raise UsageError("tolerances needs at least one number, such as 0.05.")
    if wrong := [tolerance for tolerance in tolerances if not tolerance >= 0.0]:
        raise UsageError(f"A tolerance is at least 0, got {wrong[0]}.")
    if not 0.0 < mean_budget <= 1.0:
        raise UsageError(f"mean_budget is a share of the bag in (0, 1], got {mean_budget}.")
    fold.require_parts("an adaptive size is calibrated on val and measured on test")
    steps = Steps(step_fraction, max_fraction, risk_tolerance)
    shares = yield from _measure_validation_shares(fold, ladder, steps)
    chosen = choose_tolerance(ladder, shares, mean_budget=mean_budget)
    table = yield from _fill_table(fold, chosen.tolerance, steps, attributions)
    settings = {
        "mean_budget": mean_budget,
        "tolerances": ladder,
        **vars(steps),
        "attributions": None if attributions is None else list(attributions),
        "seed": fold.seed,
    }
    notes = [_calibration_note(fold, ladder, chosen, mean_budget)]
    return table.to_finding("adaptive", settings, notes if fold.model is not None else [*notes, NO_SELECTOR])


def choose_tolerance(
    tolerances: Sequence[float], shares: Sequence[Sequence[float]], *, mean_budget: float
) -> Calibration:
    """The smallest tolerance whose mean share of patches keeps the budget, else the last; `shares` bag by bag."""
    means = [fmean(column) for column in zip(*shares, strict=True)]
    for tolerance, mean_share in zip(tolerances, means, strict=True):
        # The mean of equal shares may exceed them in the last digit.
        if mean_share <= mean_budget + ROUNDING:
            return Calibration(tolerance, mean_share, len(shares), is_within=True)
    return Calibration(tolerances[-1], means[-1], len(shares), is_within=False)


def _measure_validation_shares(
    fold: TrainedFold, tolerances: Sequence[float], steps: Steps
) -> Pass[list[list[float]]]:
    """For every validation bag, the share of its patches that each tolerance asks for."""
    shares = []
    while (bag := (yield "val")) is not None:
        search = start_search(fold, bag, bag.predict("wrapped"), steps)
        shares.append([search.smallest(tolerance)[0] / len(bag) for tolerance in tolerances])
    return shares


def _fill_table(
    fold: TrainedFold,
    tolerance: float,
    steps: Steps,
    attributions: Sequence[str] | None,
) -> Pass[RuleTable]:
    """Every rule on every test bag, at the size the bag needs under the tolerance."""
    own_rule = RANKING_RULE_WITHOUT_WRAPPER if fold.model is None else RANKING_RULE
    explainers = {name: choose_attributions(fold.host_of(name), attributions) for name in fold.networks}
    table = RuleTable(fold)
    generator = torch.Generator().manual_seed(fold.seed)
    while (bag := (yield "test")) is not None:
        random = torch.rand(len(bag), generator=generator)
        views = {network: bag.predict(network) for network in fold.networks}
        size, is_reached = start_search(fold, bag, views["wrapped"], steps).smallest(tolerance)
        figures: Figures = {"reached_share": float(is_reached), "capped_share": float(not is_reached)}
        for network, view in views.items():
            rivals = attribute_patches(view, explainers[network])
            scored = score_rules(
                bag, network, random=random, attributions=rivals, ours=(RANKING_RULE,), smooth=True
            )
            for rule, scores in scored.items():
                is_own = network == "wrapped" and rule == own_rule
                table.add(bag, network, rule, scores, {ADAPTIVE: size}, figures if is_own else None)
    return table


def start_search(fold: TrainedFold, bag: FoldBag, view: PredictedBag, steps: Steps) -> _PrefixSearch:
    """The way down the selector's ranking of a bag, or down the attention of a host without a selector."""
    scores = view.full.scores if bag.explanation is None else bag.explanation.output.scores
    output_scale = fold.output_scale("wrapped", risk_tolerance=steps.risk_tolerance)
    return _PrefixSearch(view, ranking(scores), output_scale, steps)


class _PrefixSearch:
    """One ranking of one bag, walked under any number of tolerances; no prefix is asked for twice."""

    def __init__(self, view: PredictedBag, order: Order, output_scale: OutputScale, steps: Steps) -> None:
        n_patches, largest = len(order), subset_size(len(order), steps.max_fraction)
        self._n_patches, self._sizes, self._output_scale = n_patches, steps.sizes(n_patches), output_scale
        self._full: Logits = view.full.logits
        self._kept = PrefixLogits(view, order, range(1, largest + 1))
        # The complement of the first k is the first N - k of the ranking turned round.
        self._rest = PrefixLogits(view, order.flip(0), range(max(1, n_patches - largest), n_patches))

    def smallest(self, tolerance: float) -> tuple[int, bool]:
        """The size of the smallest prefix that is sufficient and necessary, and whether there is one.

        Where none is, the smallest that is sufficient, or the largest: a slide of the class that the host names by
        default says the same whatever is removed.
        """
        whole, sufficient = self._output_scale.output(self._full, self._full), None
        for size in self._sizes:
            # Written so that NaN does not suffice.
            if not abs(whole - self._output_scale.output(self._full, self._kept.logits(size))) <= tolerance:
                continue
            if size == self._n_patches or self._is_necessary(size):
                return size, True
            sufficient = sufficient or size
        return sufficient or self._sizes[-1], False

    def _is_necessary(self, size: int) -> bool:
        rest = self._rest.logits(self._n_patches - size)
        return not bool(self._output_scale.agree(self._full, rest.unsqueeze(0)))


class PrefixLogits:
    """The host on prefixes of a ranking: all at once where it pools linearly, elsewhere each when it is asked for."""

    def __init__(self, view: PredictedBag, order: Order, sizes: Sequence[int]) -> None:
        self._view, self._order = view, order
        self._known: dict[int, Logits] = {}
        if view.linear is not None and sizes:
            self._known |= zip(sizes, prefix_logits(view, order, sizes), strict=True)
        # The closed form of a whole bag differs from its prediction by rounding, which a tolerance of 0 would see.
        self._known[len(order)] = view.full.logits

    def logits(self, size: int) -> Logits:
        """The prediction from the first `size` patches, asked once."""
        if size not in self._known:
            self._known[size] = prefix_logits(self._view, self._order, [size])[0]
        return self._known[size]


def _calibration_note(
    fold: TrainedFold, tolerances: Sequence[float], chosen: Calibration, mean_budget: float
) -> str:
    """The tolerance, what it rests on, and whether the budget holds."""
    ladder = ", ".join(f"{one:g}" for one in tolerances)
    shown = f"{chosen.n_bags} validation bags, mean share of patches {chosen.mean_share:.4f}"
    if chosen.is_within:
        return (
            f"Fold {fold.fold}: tolerance {chosen.tolerance:g}, the smallest of {ladder} that keeps the mean budget of "
            f"{mean_budget:g} ({shown})."
        )
    return (
        f"Fold {fold.fold}: no tolerance of {ladder} keeps the mean budget of {mean_budget:g}; the largest, "
        f"{chosen.tolerance:g}, is used ({shown})."
    )
