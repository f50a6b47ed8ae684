"""Every way to score the patches of a bag for a finished host. A new one is one line here.

A score is higher where a patch speaks more for the prediction: the logit of the class predicted on the whole bag, or
the risk. Saliency and attention have no sign: they are high where a patch matters either way.

Occlusion asks what the prediction loses without a patch, or what a patch says alone. Patches are really removed, never
zeroed: to most hosts a zero patch is still a patch. A removal that leaves nothing scores 0.

Hosts that pool by attention have both in closed form, exact at about one pass:

  M = sum_j a_j m_j,   a = softmax(z)
  without i:  M_-i = sum_{j != i} a_j m_j / (1 - a_i) = M + a_i / (1 - a_i) (M - m_i)
  only i:     M = m_i
  occlusion_i = f(X) - f(X without i),   single_i = f({i}),   f the predicted logit or the risk, head(M)

How the means are taken without losing digits stands in hosts/attention.py; what each host needs besides, in its own
`closed_form`. transmil and camil have none, since every patch changes every other, nor has dtfd with max or maxmin. Their
tables use blocks: at most 29 square pieces of the patch grid (runs of rows where a bag has no coordinates), each removed
or kept alone, and every patch of a block gets its score.

`leave_one_out` and `keep_one` are one pass per patch, `captum_occlusion` the same through captum's FeatureAblation: the
closed form must equal them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from captum.attr import FeatureAblation  # type: ignore[import-untyped]
from jaxtyping import Float, Int
from torch import Tensor, nn

from gcemil.diagnostics.attribution_gradients import (
    gradient_x_input,
    has_lrp_rules,
    integrated_gradients,
    is_differentiable,
    lrp,
    saliency,
)
from gcemil.diagnostics.network_view import PredictedBag, predict_bag
from gcemil.errors import UsageError
from gcemil.evidence.spatial import common_step
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.attention import ClosedForm
from gcemil.hosts.clam_sb import ClamSb
from gcemil.hosts.host import Host, shortcut
from gcemil.shapes import Coords, Scores, Selected


@torch.no_grad()
def occlusion(bag: PredictedBag) -> Scores:
    """f(X) - f(X without i) of every patch; the only patch of a bag has no complement, and scores 0."""
    form = find_closed_form(bag.host)
    if len(bag) == 1:
        return bag.logit.new_zeros(1)
    return bag.logit - form.without(bag.embedded, bag.coords, bag.index)


@torch.no_grad()
def single(bag: PredictedBag) -> Scores:
    """f({i}) of every patch."""
    return find_closed_form(bag.host).alone(bag.embedded, bag.index)


def has_closed_form(host: Host) -> bool:
    """Whether the host's class gives one, and its options allow it."""
    form = shortcut(host, "closed_form")
    return form is not None and form() is not None


def find_closed_form(host: Host) -> ClosedForm:
    """The host's closed form; one without is refused."""
    if not has_closed_form(host):
        raise UsageError(
            f"{type(host).__name__} has no closed form of leave-one-out. Use 'occlusion_blocks' or 'single_blocks'."
        )
    form: ClosedForm = shortcut(host, "closed_form")()
    return form


MAX_BLOCKS = 29
"""With the whole bag, 30 passes."""


@torch.no_grad()
def leave_one_out(bag: PredictedBag) -> Scores:
    """f(X) - f(X without i), one pass per patch."""
    patches = torch.arange(len(bag), device=bag.logit.device)
    return torch.stack([bag.logit - kept_logit(bag, patches != patch) for patch in patches])


@torch.no_grad()
def keep_one(bag: PredictedBag) -> Scores:
    """f({i}), one pass per patch."""
    patches = torch.arange(len(bag), device=bag.logit.device)
    return torch.stack([kept_logit(bag, patches == patch) for patch in patches])


def captum_occlusion(bag: PredictedBag) -> Scores:
    """f(X) - f(X without i) by captum, one pass per patch."""
    return captum_ablation(bag, torch.arange(len(bag), device=bag.logit.device))


def block_occlusion(bag: PredictedBag) -> Scores:
    """f(X) - f(X without the block of i)."""
    return captum_ablation(bag, patch_blocks(bag.coords, len(bag)).to(bag.logit.device))


@torch.no_grad()
def block_single(bag: PredictedBag) -> Scores:
    """f(the block of i alone)."""
    blocks = patch_blocks(bag.coords, len(bag)).to(bag.logit.device)
    alone = [kept_logit(bag, blocks == block) for block in range(int(blocks.max()) + 1)]
    return torch.stack(alone)[blocks]


@torch.no_grad()
def captum_ablation(bag: PredictedBag, groups: Int[Tensor, "n"]) -> Scores:
    """The fall of the predicted output when each group of patches is removed."""

    def kept_output(kept: Float[Tensor, "1 n"]) -> Float[Tensor, "1"]:
        return kept_logit(bag, kept[0] > 0).unsqueeze(0)

    present = bag.logit.new_ones(1, len(bag))
    return FeatureAblation(kept_output).attribute(present, feature_mask=groups.unsqueeze(0))[0]


def kept_logit(bag: PredictedBag, kept: Selected) -> Float[Tensor, ""]:
    """The explained output on the kept patches; without any, that of the whole bag."""
    if not bool(kept.any()):
        return bag.logit
    rows = None if bag.coords is None else bag.coords[kept]
    return bag.host.aggregate(bag.embedded.rows(kept), rows).logits[bag.index]


def patch_blocks(coords: Coords | None, n_patches: int) -> Int[Tensor, "n"]:
    """The block of each patch, numbered from 0: squares of the grid, as small as the limit on blocks allows."""
    if coords is None:
        return torch.arange(n_patches) * min(MAX_BLOCKS, n_patches) // n_patches
    cells = (coords - coords.amin(dim=0)) // common_step(coords)
    side = 1
    while len(torch.unique(cells // side, dim=0)) > MAX_BLOCKS:
        side += 1
    return torch.unique(cells // side, dim=0, return_inverse=True)[1]


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
        Attribution("occlusion_blocks", block_occlusion, lacks_closed_form, "1 per block, at most 29"),
        Attribution("single_blocks", block_single, lacks_closed_form, "1 per block, at most 29"),
        Attribution("lrp", lrp, has_lrp_rules, "2, one backward"),
    )
}


def supported_attributions(host: Host) -> dict[str, Attribution]:
    """The attributions that can explain this host."""
    return {name: one for name, one in ATTRIBUTIONS.items() if one.supports(host)}
