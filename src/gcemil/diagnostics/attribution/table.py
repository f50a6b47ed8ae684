"""Every way to score the patches of a bag for a finished host. A new one is one line here.

A score is higher where a patch speaks more for the prediction: the logit of the class predicted on the whole bag, or
the risk. Saliency and attention have no sign: they are high where a patch matters either way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gcemil.diagnostics.attribution.ablation import block_occlusion, block_single
from gcemil.diagnostics.attribution.closed_form import has_closed_form, occlusion, single
from gcemil.diagnostics.attribution.gradient import (
    gradient_x_input,
    integrated_gradients,
    is_differentiable,
    saliency,
)
from gcemil.diagnostics.attribution.lrp import has_lrp_rules, lrp
from gcemil.diagnostics.attribution.predicted import PredictedBag, predict_bag
from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.clam_sb import ClamSb
from gcemil.hosts.host import Host
from gcemil.shapes import Scores


@dataclass(frozen=True)
class Attribution:
    """A patch scorer: what it is called, how it scores, and which hosts it can explain."""

    name: str
    scores: Callable[[PredictedBag], Tensor]
    """One score per patch of a bag that the host has predicted."""
    supports: Callable[[Host], bool]
    passes: str
    """What it costs, in passes of the host over the bag, the prediction itself being the first."""


def attention(bag: PredictedBag) -> Scores:
    """The host's own raw patch scores."""
    return bag.full.scores


def contribution(bag: PredictedBag) -> Scores:
    """The host's signed share of each patch in the predicted output."""
    if bag.full.contributions is None:
        raise UsageError(f"{type(bag.host).__name__} gives no contributions: it does not pool linearly.")
    return bag.full.contributions


def explains_any_host(host: Host) -> bool:
    return True


def gives_contributions(host: Host) -> bool:
    """Asked with one zero patch, which every host of ours accepts; a black box never gives any."""
    if isinstance(host, CallableHost):
        return False
    parameters = host.parameters() if isinstance(host, nn.Module) else iter(())
    parameter = next(parameters, torch.zeros(0))
    return predict_bag(host, parameter.new_zeros(1, host.in_dim), None).full.contributions is not None


def lacks_closed_form(host: Host) -> bool:
    return not has_closed_form(host)


ATTRIBUTIONS: dict[str, Attribution] = {
    a.name: a
    for a in (
        Attribution("attention", attention, explains_any_host, "1"),
        # On clam_sb the same as attention: a row of its own, as in the paper's table over all hosts.
        Attribution("clam_attention", attention, lambda host: isinstance(host, ClamSb), "1"),
        Attribution("contribution", contribution, gives_contributions, "1"),
        Attribution("saliency", saliency, is_differentiable, "2, one backward"),
        Attribution("gradient_x_input", gradient_x_input, is_differentiable, "2, one backward"),
        Attribution("integrated_gradients", integrated_gradients, is_differentiable, "17, 16 backward"),
        Attribution("occlusion", occlusion, has_closed_form, "about 1, closed form"),
        Attribution("single", single, has_closed_form, "about 1, closed form"),
        Attribution("occlusion_blocks", block_occlusion, lacks_closed_form, "1 per block, at most 32"),
        Attribution("single_blocks", block_single, lacks_closed_form, "1 per block, at most 32"),
        Attribution("lrp", lrp, has_lrp_rules, "2, one backward"),
    )
}


def supported_attributions(host: Host) -> dict[str, Attribution]:
    """The attributions that can explain this host."""
    return {name: one for name, one in ATTRIBUTIONS.items() if one.supports(host)}
