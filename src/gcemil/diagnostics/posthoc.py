"""posthoc: explanations made after training, beside the evidence of the wrapper.

The post-hoc table of the paper. Per method and network, at the size of the recovered evidence (or
at a budget): the rows of measurements.py, the areas of the flipping curves with SRG, and

  runtime_ratio   median over bags of the time of the scores over the median time of one pass of
                  the same host

Passes and methods take turns on the same bag, so that a busy machine slows both. A pass is
embedding and pooling without gradients. gce_soft is timed as the wrapper's pass, gce_discrete with
the recovery on top; random and oracle cost nothing and have no time.

Flipping curves: patches leave a bag in the order of a ranking, and Phi is read on the way.

  most relevant first    Phi(X without the k highest): falls at once if the ranking finds what is
                         necessary
  least relevant first   Phi(X without the k lowest), that is Phi of the n - k highest alone: stays
                         up if the ranking finds what is sufficient
  area                   mean height of a curve over the share removed, by the trapezoid rule
  SRG                    area(least first) - area(most first); 0 for a random ranking

Patches are really removed; an empty bag has no prediction, so a curve ends with the last patch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.attribution import Attribution
from gcemil.diagnostics.measurements import RECOVERED, RuleTable, bag_sizes
from gcemil.diagnostics.rules import RANKED, choose_attributions, score_rules
from gcemil.diagnostics.snr import OutputScale
from gcemil.diagnostics.trained_fold import (
    FoldBag,
    Measure,
    Pass,
    PredictedBag,
    TrainedFold,
    predict_bag,
    prefix_logits,
)
from gcemil.errors import UsageError
from gcemil.explanation import read_evidence_output, recover_evidence
from gcemil.findings import Figures, Finding
from gcemil.model import GceMil
from gcemil.recovery import ranking

Clock = Callable[[], float]
T = TypeVar("T")


@Measure
def measure_posthoc(
    fold: TrainedFold,
    *,
    budget: float | str | None = None,
    attributions: Sequence[str] | None = None,
    clock: Clock = time.perf_counter,
) -> Pass[Finding]:
    """Every method on the test bags; `budget` None is the size of the evidence, if there is any."""
    if budget is None:
        budget = RECOVERED if fold.model is not None else fold.own_budget
    chosen = choose_attributions(fold, attributions)
    table = RuleTable(fold)
    while (bag := (yield "test")) is not None:
        sizes = bag_sizes(bag, (budget,))
        for network in fold.networks:
            view, output_scale = bag.predict(network), fold.output_scale(network)
            ratios = _time_attributions(view, chosen[network], clock)
            if network == "wrapped" and fold.model is not None:
                ratios |= _time_evidence(bag, fold.model, clock)
            rules = score_rules(bag, network, attributions=chosen[network], ours=RANKED)
            for rule, scores in rules.items():
                figures = curve_figures(*flipping_curves(view, ranking(scores), output_scale))
                more = {**figures, "runtime_ratio": ratios.get(rule)}
                table.add(bag, network, rule, scores, sizes, more)
    named = {network: list(names) for network, names in chosen.items()}
    settings = {"budget": budget, "attributions": named, "removed_shares": list(REMOVED_SHARES)}
    return table.to_finding("posthoc", settings)


def _time_attributions(
    view: PredictedBag, attributions: Mapping[str, Attribution], clock: Clock
) -> Figures:
    """The time of each attribution in passes of the host, its own pass included."""

    def run_pass() -> PredictedBag:
        return predict_bag(view.host, view.features, view.coords)

    # The first pass over a bag has cold caches, which would favour what is timed after it.
    run_pass()
    passes: list[float] = []
    seconds: dict[str, float] = {}
    for name, one in attributions.items():

        def attribute(one: Attribution = one) -> Tensor:
            return one.scores(run_pass())

        passes.append(_time_call(run_pass, clock)[1])
        view.attributed[name], seconds[name] = _time_call(attribute, clock)
    return {name: time_ratio(one, passes) for name, one in seconds.items()}


@torch.no_grad()
def _time_evidence(bag: FoldBag, model: GceMil, clock: Clock) -> Figures:
    """The wrapper's pass, without and with recovery, in passes of its host."""

    def run_pass() -> PredictedBag:
        return predict_bag(model.host, bag.features, bag.coords)

    passes = [_time_call(run_pass, clock)[1]]
    output, soft = _time_call(
        lambda: read_evidence_output(model, bag.features, bag.coords, bag.bag.patch_size), clock
    )
    _, recovery = _time_call(lambda: recover_evidence(model, output, bag.coords), clock)
    passes.append(_time_call(run_pass, clock)[1])
    return {
        "gce_soft": time_ratio(soft, passes),
        "gce_discrete": time_ratio(soft + recovery, passes),
    }


def _time_call(call: Callable[[], T], clock: Clock) -> tuple[T, float]:
    start = clock()
    result = call()
    return result, clock() - start


def time_ratio(seconds: float, passes: Sequence[float]) -> float | None:
    """None if the clock is too coarse for a pass."""
    typical = median(passes)
    return seconds / typical if typical > 0 else None


REMOVED_SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Dense at both ends: few patches are evidence."""

Curve = Float[Tensor, "s"]


@torch.no_grad()
def flipping_curves(
    view: PredictedBag,
    order: Int[Tensor, "n"],
    output_scale: OutputScale,
    *,
    removed_shares: Sequence[float] = REMOVED_SHARES,
) -> tuple[Curve, Curve, Curve]:
    """Shares removed, and Phi without the highest and without the lowest patches."""
    if wrong := [share for share in removed_shares if not 0 <= share <= 1]:
        raise UsageError(f"A share of removed patches lies in [0, 1], got {wrong[0]}.")
    n_patches, full = len(order), view.full.logits
    counts = sorted(
        {0, n_patches - 1, *(min(round(s * n_patches), n_patches - 1) for s in removed_shares)}
    )
    left = [n_patches - count for count in counts]
    most_first = output_scale.outputs(full, prefix_logits(view, order.flip(0), left))
    least_first = output_scale.outputs(full, prefix_logits(view, order, left))
    return torch.tensor(counts, dtype=torch.float64) / n_patches, most_first, least_first


def curve_figures(removed: Curve, most_first: Curve, least_first: Curve) -> Figures:
    """Both areas, small being good where the highest scores go first, and SRG between them."""
    most, least = area(removed, most_first), area(removed, least_first)
    return {"srg": least - most, "most_first_area": most, "least_first_area": least}


def area(removed: Curve, values: Curve) -> float:
    """Mean height; a curve of one point is as high as the point."""
    span = float(removed[-1] - removed[0])
    return float(torch.trapezoid(values, removed)) / span if span > 0 else float(values[0])
