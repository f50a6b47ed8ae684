"""posthoc: explanations made after training, beside the evidence of the wrapper (paper, post-hoc table).

Per method and network, at the size of the recovered evidence (or at a budget): S/N/R as in budget.py, figures against
truth, the areas of the flipping curves with SRG (perturbation.py), and

  runtime_ratio   median over bags of the time of the scores over the median time of one pass of the same host

Passes and methods take turns on the same bag, so that a busy machine slows both. A pass is embedding and pooling without
gradients. gce_soft is timed as the wrapper's pass, which gives both predictions, gce_discrete with the
recovery on top; random and oracle cost nothing and have no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TypeVar

import torch

from gcemil.diagnostics.answers import answers_of
from gcemil.diagnostics.attribution.predicted import predict_bag
from gcemil.diagnostics.attribution.table import Attribution
from gcemil.diagnostics.bench import FoldBag, TrainedFold
from gcemil.diagnostics.budget import RECOVERED, Figures, RuleOnBag, RuleTable, bag_sizes
from gcemil.diagnostics.perturbation import REMOVED_SHARES, FlippingCurves, flipping_curves
from gcemil.diagnostics.prefixes import network_view
from gcemil.diagnostics.rules import choose_attributions, rule_scores
from gcemil.diagnostics.verdicts import own_budget
from gcemil.explain import recover_evidence
from gcemil.findings import Finding
from gcemil.hosts.host import Host
from gcemil.model import GceMil
from gcemil.recovery.rules import ranking
from gcemil.shapes import Scores

Clock = Callable[[], float]
T = TypeVar("T")


def measure_posthoc(
    fold: TrainedFold,
    *,
    budget: float | str | None = None,
    attributions: Sequence[str] | None = None,
    clock: Clock = time.perf_counter,
) -> Finding:
    """Every method on the test bags; `budget` None is the size of the recovered evidence, where there is any."""
    if budget is None:
        budget = RECOVERED if fold.model is not None else own_budget(fold)
    chosen = {network: choose_attributions(fold.host_of(network), attributions) for network in fold.networks}
    table = RuleTable(fold)
    generator = torch.Generator().manual_seed(fold.seed)
    for bag in fold.bags("test"):
        random = torch.rand(len(bag), generator=generator)
        sizes = bag_sizes(bag, (budget,))
        for network in fold.networks:
            view, answers = network_view(fold, bag, network), answers_of(fold, network)
            attributed, ratios = time_attributions(bag, view.host, chosen[network], clock)
            if network == "wrapped" and fold.model is not None:
                ratios |= time_evidence(bag, fold.model, clock)
            for rule, scores in rule_scores(bag, network, attributed, random=random, smooths=False).items():
                curves = flipping_curves(view, ranking(scores), answers)
                more = {**curve_figures(curves), "runtime_ratio": ratios.get(rule)}
                table.add(bag, view, RuleOnBag(rule, network, scores, more), sizes)
    return Finding(
        name="posthoc",
        rows=tuple(table.rows()),
        slides=tuple(table.slides),
        notes=tuple(table.notes()),
        settings={
            "budget": budget,
            "attributions": {network: list(names) for network, names in chosen.items()},
            "removed_shares": list(REMOVED_SHARES),
            "seed": fold.seed,
        },
    )


def time_attributions(
    bag: FoldBag, host: Host, attributions: Mapping[str, Attribution], clock: Clock
) -> tuple[dict[str, Scores], Figures]:
    """What each attribution says of a bag, and its time in passes of the host."""
    # The first pass over a bag meets cold caches, which would flatter whatever is compared with it.
    predict_bag(host, bag.features, bag.coords)
    scores: dict[str, Scores] = {}
    passes: list[float] = []
    seconds: dict[str, float] = {}
    for name, one in attributions.items():
        passes.append(time_pass(bag, host, clock))
        scores[name], seconds[name] = time_call(partial(predict_and_attribute, one, host, bag), clock)
    return scores, {name: time_ratio(one, passes) for name, one in seconds.items()}


def predict_and_attribute(attribution: Attribution, host: Host, bag: FoldBag) -> Scores:
    """The attribution with the pass it starts from."""
    return attribution.scores(predict_bag(host, bag.features, bag.coords))


@torch.no_grad()
def time_evidence(bag: FoldBag, model: GceMil, clock: Clock) -> Figures:
    """The wrapper's pass, without and with recovery, in passes of its host."""
    before = time_pass(bag, model.host, clock)
    output, soft = time_call(lambda: model(bag.features, bag.coords, step=bag.bag.patch_size), clock)
    _, recovery = time_call(lambda: recover_evidence(model, output), clock)
    passes = [before, time_pass(bag, model.host, clock)]
    return {"gce_soft": time_ratio(soft, passes), "gce_discrete": time_ratio(soft + recovery, passes)}


def time_pass(bag: FoldBag, host: Host, clock: Clock) -> float:
    return time_call(lambda: predict_bag(host, bag.features, bag.coords), clock)[1]


def time_call(call: Callable[[], T], clock: Clock) -> tuple[T, float]:
    start = clock()
    result = call()
    return result, clock() - start


def time_ratio(seconds: float, passes: Sequence[float]) -> float | None:
    """None where the clock is too coarse to see a pass."""
    typical = median(passes)
    return seconds / typical if typical > 0 else None


def curve_figures(curves: FlippingCurves) -> Figures:
    return {
        "srg": curves.symmetric_gain,
        "most_first_area": curves.most_first_area,
        "least_first_area": curves.least_first_area,
    }
