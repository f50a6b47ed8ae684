"""adaptive: as many patches as each bag needs, and every rule at these very sizes.

The size of a bag is that of the first prefix of the selector's ranking, in steps of 1 % up to 10 %
of the bag, that is

  sufficient   |Phi(X) - Phi(X_S)| <= tolerance
  necessary    X_notS and X disagree: another class, or a risk that moves by more than
               risk_tolerance training deviations (snr.py). A whole bag is necessary.

If no prefix is both (capped), it is the first that is sufficient, else the largest: a slide of the
host's default class keeps its prediction whatever is removed. The validation bags choose the
tolerance: the smallest of a ladder under which their mean share of patches is at most mean_budget,
or else the largest. Necessity does not depend on it, so a larger one never needs more patches.

Rows are those of measurements.py with the budget "adaptive". Rivals have sizes that were chosen for
another ranking than theirs; `reached_share` and `capped_share` belong to the row of the selector,
or to the host's attention in a run without the wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import fmean

from gcemil.diagnostics.measurements import RuleTable
from gcemil.diagnostics.rules import choose_attributions, score_rules
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
from gcemil.recovery import ranking, subset_size

ADAPTIVE = "adaptive"
TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.2)
ROUNDING = 1e-9
NO_SELECTOR = (
    "The run has no selector: its host's attention gives the sizes, and has the row of the walk."
)


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
    """The adaptive evidence of the test bags, and every other rule at its size on every bag."""
    ladder = sorted(set(tolerances))
    if not ladder or ladder[0] < 0.0:
        raise UsageError(f"tolerances are one or more numbers of at least 0, got {ladder}.")
    if not 0.0 < mean_budget <= 1.0:
        raise UsageError(f"mean_budget is a share of the bag in (0, 1], got {mean_budget}.")
    if not 0.0 < step_fraction <= max_fraction <= 1.0:
        raise UsageError(
            "Sizes need 0 < step_fraction <= max_fraction <= 1, "
            f"got {step_fraction} and {max_fraction}."
        )
    fold.require_parts("an adaptive size is calibrated on val and measured on test")
    scale = fold.output_scale("wrapped", risk_tolerance=risk_tolerance)

    def walk(bag: FoldBag, tolerances: Sequence[float]) -> list[tuple[int, bool]]:
        scores = bag.view.full.scores if bag.explanation is None else bag.explanation.output.scores
        sizes = list_sizes(len(bag), step_fraction, max_fraction)
        return find_sizes(bag.view, ranking(scores), scale, sizes, tolerances)

    shares = []
    while (bag := (yield "val")) is not None:
        shares.append([size / len(bag) for size, _ in walk(bag, ladder)])
    tolerance, mean_share = choose_tolerance(ladder, shares, mean_budget=mean_budget)
    own_rule = "attention" if fold.model is None else "gce_soft"
    chosen = choose_attributions(fold, attributions)
    table = RuleTable(fold)
    while (bag := (yield "test")) is not None:
        ((size, is_reached),) = walk(bag, [tolerance])
        figures: Figures = {
            "reached_share": float(is_reached),
            "capped_share": float(not is_reached),
        }
        for network in fold.networks:
            scored = score_rules(
                bag, network, attributions=chosen[network], ours=("gce_soft",), smooth=True
            )
            for rule, scores in scored.items():
                is_own = network == "wrapped" and rule == own_rule
                table.add(bag, network, rule, scores, {ADAPTIVE: size}, figures if is_own else None)
    listed = ", ".join(f"{one:g}" for one in ladder)
    shown = f"({len(shares)} validation bags, mean share of patches {mean_share:.4f})"
    note = (
        f"Fold {fold.fold}: tolerance {tolerance:g}, the smallest of {listed} that keeps the mean "
        f"budget of {mean_budget:g} {shown}."
        if mean_share <= mean_budget + ROUNDING
        else f"Fold {fold.fold}: no tolerance of {listed} keeps the mean budget of "
        f"{mean_budget:g}; the largest, {tolerance:g}, is used {shown}."
    )
    notes = [note] if fold.model is not None else [note, NO_SELECTOR]
    return table.to_finding("adaptive", {"tolerances": ladder}, notes)


def list_sizes(n_patches: int, step_fraction: float, max_fraction: float) -> list[int]:
    """The numbers of patches that are tried, each once."""
    n_steps = max(1, round(max_fraction / step_fraction))
    shares = (max_fraction * (step + 1) / n_steps for step in range(n_steps))
    return list(dict.fromkeys(subset_size(n_patches, share) for share in shares))


def choose_tolerance(
    tolerances: Sequence[float], shares: Sequence[Sequence[float]], *, mean_budget: float
) -> tuple[float, float]:
    """The smallest tolerance whose mean share keeps the budget, else the last, and that share.

    `shares` are those of each bag under every tolerance.
    """
    means = [fmean(column) for column in zip(*shares, strict=True)]
    # The mean of equal shares may exceed them in the last digit.
    kept = (
        pair for pair in zip(tolerances, means, strict=True) if pair[1] <= mean_budget + ROUNDING
    )
    return next(kept, (tolerances[-1], means[-1]))


def find_sizes(
    view: PredictedBag,
    order: Order,
    output_scale: OutputScale,
    sizes: Sequence[int],
    tolerances: Sequence[float],
) -> list[tuple[int, bool]]:
    """For each tolerance the smallest sufficient and necessary size, and whether there is one.

    Where none is, the smallest that is sufficient, or the largest.
    """
    full = view.full.logits
    whole = output_scale.output(full, full)
    outputs = output_scale.outputs(full, prefix_logits(view, order, sizes)).tolist()
    gaps = {size: abs(whole - output) for size, output in zip(sizes, outputs, strict=True)}
    # The closed form of a whole bag may differ from its prediction by rounding.
    gaps |= {len(order): 0.0} if len(order) in gaps else {}

    @cache
    def is_necessary(size: int) -> bool:
        if size == len(order):
            return True
        # The complement of the first k is the first N - k of the ranking turned round.
        rest = prefix_logits(view, order.flip(0), [len(order) - size])
        return not bool(output_scale.agree(full, rest))

    reached_sets = []
    for tolerance in tolerances:
        # Written so that NaN does not suffice.
        sufficient = [size for size in sizes if gaps[size] <= tolerance]
        reached = next((size for size in sufficient if is_necessary(size)), None)
        fallback = sufficient[0] if sufficient else sizes[-1]
        reached_sets.append((reached or fallback, reached is not None))
    return reached_sets
