"""Every way to score the patches of a bag for a finished host: one line of ATTRIBUTIONS each.

A score is higher for a patch that supports the prediction more: the logit of the class predicted on
the whole bag, or the risk. Saliency and attention have no sign.

Occlusion is the loss of the prediction without a patch; single is the prediction from it alone.
Patches are really removed, never zeroed: to most hosts a zero patch is still a patch. A removal
that leaves nothing scores 0. Hosts that pool by attention have both in closed form, in one pass:

  M = sum_j a_j m_j,   a = softmax(z)
  without i:  M_-i = sum_{j != i} a_j m_j / (1 - a_i) = M + a_i / (1 - a_i) (M - m_i)
  only i:     M = m_i
  occlusion_i = f(X) - f(X without i),   single_i = f({i}),   f the predicted logit or the risk

hosts/attention.py takes the means without losing digits. transmil and camil have no closed form,
since every patch changes every other, nor has dtfd with max or maxmin. They use blocks: at most 29
square pieces of the patch grid (runs of rows without coordinates), each removed or kept alone.

Gradients score by the slope of the predicted output f:

  saliency              sum_d |df / dh_id|
  gradient_x_input      sum_d h_id df / dh_id
  integrated_gradients  sum_d h_id integral_0^1 df(t h) / dh_id dt    sums to f(X) - f(0) if f is
                        continuous; 16 points of the Gauss-Legendre rule from a bag of zeros

A large bag passes in blocks of patches. A host treats every patch on its own before it pools, so
with u_i the tensors that are pooled, df / dh_i = (du_i / dh_i)^T df / du_i: the bag is mapped to u
without a graph, pooling gives df / du, and each block is mapped again to turn that into its slopes.
Where the host pools linearly, u is a few numbers per patch.

Relevance propagation (lrp): the predicted output f shared out over the patches, layer by layer.

  linear      R_i = sum_j x_i w_ij / (sum_i' x_i' w_i'j + b_j) R_j    the 0-rule
  attention   y = A(x) V x: A is held constant, relevance flows through the values alone
  LayerNorm   y = (x - mean x) / sd: the denominator is held constant, the centring is linear
  gated pools likewise: the weights of the patches are held constant

With these rules relevance is gradient times input (Ali et al., 2022; xMIL, Hense et al., 2024):
the host's own forward pass runs, with hooks that cut the gradient at what a rule holds constant.
Relevance is read at the embedded patches: below them a rule that conserves relevance cannot move
any between patches. The sum over patches is f minus the share of biases and of the class token. A
host names the parts that make its pooling weights (`lrp_constants`); hdmil and camil have no rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gcemil.diagnostics.trained_fold import PredictedBag, linear_form, predict_bag
from gcemil.errors import UsageError
from gcemil.evidence.selector import common_step
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.attention import LinearPooling
from gcemil.hosts.clam import ClamSb
from gcemil.hosts.host import ClosedForm, Host, closed_form, shortcut
from gcemil.hosts.nystrom import NystromAttention
from gcemil.row_blocks import is_large, mapped_rows, row_blocks, to_float32
from gcemil.shapes import Coords, Logits, Scores, Selected


@torch.no_grad()
def occlusion(bag: PredictedBag) -> Scores:
    """f(X) - f(X without i) of every patch; 0 for the only patch of a bag."""
    form = _find_closed_form(bag.host)
    if len(bag) == 1:
        return bag.logit.new_zeros(1)
    return bag.logit - form.without(bag.embedded, bag.coords, bag.index)


@torch.no_grad()
def single(bag: PredictedBag) -> Scores:
    """f({i}) of every patch."""
    return _find_closed_form(bag.host).alone(bag.embedded, bag.index)


def has_closed_form(host: Host) -> bool:
    """Whether the host's class gives one, and its options allow it."""
    return closed_form(host) is not None


def _find_closed_form(host: Host) -> ClosedForm:
    """The host's closed form; one without is refused."""
    form = closed_form(host)
    if form is None:
        raise UsageError(
            f"{type(host).__name__} has no closed form of leave-one-out. "
            "Use 'occlusion_blocks' or 'single_blocks'."
        )
    return form


MAX_BLOCKS = 29
"""With the whole bag, 30 passes."""


@torch.no_grad()
def block_occlusion(bag: PredictedBag) -> Scores:
    """f(X) - f(X without the block of i)."""
    return _read_blocks(bag, lambda blocks, block: bag.logit - _kept_logit(bag, blocks != block))


@torch.no_grad()
def block_single(bag: PredictedBag) -> Scores:
    """f(the block of i alone)."""
    return _read_blocks(bag, lambda blocks, block: _kept_logit(bag, blocks == block))


def _read_blocks(
    bag: PredictedBag, read: Callable[[Int[Tensor, "n"], int], Float[Tensor, ""]]
) -> Scores:
    """One number per block, given to each of its patches."""
    blocks = patch_blocks(bag.coords, len(bag)).to(bag.logit.device)
    return torch.stack([read(blocks, block) for block in range(int(blocks.max()) + 1)])[blocks]


def _kept_logit(bag: PredictedBag, kept: Selected) -> Float[Tensor, ""]:
    """The explained output on the kept patches; without any, that of the whole bag."""
    if not bool(kept.any()):
        return bag.logit
    rows = None if bag.coords is None else bag.coords[kept]
    return bag.host.aggregate(bag.embedded.rows(kept), rows).logits[bag.index]


def patch_blocks(coords: Coords | None, n_patches: int) -> Int[Tensor, "n"]:
    """The block of each patch: squares of the grid, as small as MAX_BLOCKS allows."""
    if coords is None:
        return torch.arange(n_patches) * min(MAX_BLOCKS, n_patches) // n_patches
    cells = (coords - coords.amin(dim=0)) // common_step(coords)
    side = 1
    while len(torch.unique(cells // side, dim=0)) > MAX_BLOCKS:
        side += 1
    return torch.unique(cells // side, dim=0, return_inverse=True)[1]


N_STEPS = 16
BLOCK_ROWS = 2048
"""Patches of a large bag whose activations are kept for one backward pass."""

Rows = Float[Tensor, "k w"]
OfRows = Callable[[Rows, Rows], Tensor]
"""(rows, df / drows) -> one number per row."""


def _is_differentiable(host: Host) -> bool:
    """Whether the host passes gradients to its features."""
    return not isinstance(host, CallableHost) or host.score_source == "slope"


def saliency(bag: PredictedBag) -> Scores:
    """Sum of absolute slopes of each patch."""
    return _slope_scores(bag, lambda rows, slopes: slopes.abs().sum(dim=1))


def gradient_x_input(bag: PredictedBag) -> Scores:
    """Slopes times features, summed over each patch."""
    return _slope_scores(bag, _row_products)


def integrated_gradients(bag: PredictedBag) -> Scores:
    """Slopes averaged from an empty bag to the bag, times features."""
    nodes, weights = np.polynomial.legendre.leggauss(N_STEPS)
    total = bag.logit.new_zeros(len(bag))
    # The rule is for [-1, 1].
    for at, share in zip((1 + nodes) / 2, weights / 2, strict=True):
        total += share * _slope_scores(bag, _row_products, scale=float(at))
    return total


def _row_products(rows: Rows, slopes: Rows) -> Float[Tensor, "k"]:
    return (rows * slopes).sum(dim=1)


def _slope_scores(
    bag: PredictedBag, of_rows: OfRows, *, scale: float = 1.0, at_tokens: bool = False
) -> Scores:
    """`of_rows` of every patch and the slope of f, taken at `scale` times the features.

    The slope is that of the features, or of the tokens embedded from them.
    """
    seam, features = _find_seam(bag), bag.features
    parts = list(row_blocks(len(bag), BLOCK_ROWS if is_large(len(bag)) else len(bag)))
    with torch.inference_mode(False), torch.enable_grad():
        if len(parts) == 1:
            place, values, mapped = _map_patches(seam, to_float32(features), scale, at_tokens)
            (slopes,) = torch.autograd.grad(seam.logits(mapped)[bag.index], place)
            return of_rows(values, slopes)
        pooled_slopes = _slope_of_pooled(bag, seam, scale)
        # Made before the blocks: small tensors left between them would fragment the heap.
        scores = bag.logit.new_empty(len(bag))
        for where in parts:
            place, values, mapped = _map_patches(
                seam, to_float32(features[where]), scale, at_tokens
            )
            passed = [
                (u, s[where]) for u, s in zip(mapped, pooled_slopes, strict=True) if s is not None
            ]
            (slopes,) = torch.autograd.grad([u for u, _ in passed], place, [s for _, s in passed])
            scores[where] = of_rows(values, slopes)
    return scores


def _slope_of_pooled(bag: PredictedBag, seam: _Seam, scale: float) -> list[Tensor | None]:
    """df / du of the whole bag; None for a tensor that f does not depend on, or not smoothly."""
    with torch.no_grad():
        mapped = mapped_rows(lambda rows: seam.mapped(scale * rows)[1], bag.features)
    _, _, probe = _map_patches(seam, to_float32(bag.features[:1]), scale)
    leaves = [u.requires_grad_(one.requires_grad) for u, one in zip(mapped, probe, strict=True)]
    asked = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = iter(torch.autograd.grad(seam.logits(leaves)[bag.index], asked, allow_unused=True))
    return [next(gradients) if leaf.requires_grad else None for leaf in leaves]


class _Seam(NamedTuple):
    """A host as two steps: every patch on its own, then all of them together."""

    mapped: Callable[[Tensor], tuple[Tensor, list[Tensor]]]
    """The tokens of some rows, and what is pooled of them."""
    logits: Callable[[Sequence[Tensor]], Logits]


def _find_seam(bag: PredictedBag) -> _Seam:
    """The narrowest seam: readings if the host pools linearly, else the embedding."""
    host, kind = bag.host, bag.embedded
    form = linear_form(host)
    if form is None:

        def embedded(rows: Tensor) -> tuple[Tensor, list[Tensor]]:
            embedding = host.embed(rows)
            return embedding.tokens, list(embedding.present().values())

        def pooled(tensors: Sequence[Tensor]) -> Logits:
            named = dict(zip(kind.present(), tensors, strict=True))
            return host.aggregate(kind.with_tensors(named), bag.coords).logits

        return _Seam(embedded, pooled)

    read_out = form(kind.rows(torch.zeros(1, dtype=torch.long))).read_out

    def readings(rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        embedding = host.embed(rows)
        pooling = form(embedding)
        return embedding.tokens, [pooling.attention_logits, pooling.readings]

    def pooled_readings(tensors: Sequence[Tensor]) -> Logits:
        return LinearPooling(tensors[0], tensors[1], read_out).logits()

    return _Seam(readings, pooled_readings)


def _map_patches(
    seam: _Seam, features: Tensor, scale: float, at_tokens: bool = False
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The leaf of the slope of some patches, its values before scaling, and what is pooled."""
    rows = (scale * features.detach()).requires_grad_()
    tokens, mapped = seam.mapped(rows)
    return (tokens, tokens.detach(), mapped) if at_tokens else (rows, features, mapped)


def has_lrp_rules(host: Host) -> bool:
    """Whether the class of the host names the parts that are held constant."""
    return shortcut(host, "lrp_constants") is not None


def lrp(bag: PredictedBag) -> Scores:
    """The relevance of every patch for the predicted output."""
    if not (isinstance(bag.host, nn.Module) and has_lrp_rules(bag.host)):
        raise UsageError(
            f"{type(bag.host).__name__} has no rules of relevance propagation ('lrp_constants')."
        )
    with hold_constant(bag.host):
        return _slope_scores(bag, _row_products, at_tokens=True)


@contextmanager
def hold_constant(host: nn.Module) -> Iterator[None]:
    """Within, the host computes the same values but passes relevance instead of gradients."""
    held = [host.get_submodule(name) for name in shortcut(host, "lrp_constants")]
    # Queries and keys, which make the attention, pass nothing on.
    held += [one.attention_inputs for one in host.modules() if isinstance(one, NystromAttention)]
    hooks = [one.register_forward_hook(_stop_gradient) for one in held]
    hooks += [
        one.register_forward_hook(normalise_by_constant)
        for one in host.modules()
        if isinstance(one, nn.LayerNorm)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _stop_gradient(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.detach()


def normalise_by_constant(
    module: nn.LayerNorm, inputs: tuple[Tensor, ...], output: Tensor
) -> Tensor:
    """The same values, the standard deviation being a constant."""
    (rows,) = inputs
    centred = rows - rows.mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + module.eps).sqrt().detach()
    scaled = centred / deviation * module.weight
    return scaled if module.bias is None else scaled + module.bias


def attention(bag: PredictedBag) -> Scores:
    """The host's own raw patch scores."""
    return bag.full.scores


def contribution(bag: PredictedBag) -> Scores:
    """The host's signed share of each patch in the predicted output."""
    if bag.full.contributions is None:
        raise UsageError(
            f"{type(bag.host).__name__} gives no contributions: it does not pool linearly."
        )
    return bag.full.contributions


def _gives_contributions(host: Host) -> bool:
    """Whether a host returns contributions, tried on one zero patch; a black box never does."""
    if isinstance(host, CallableHost):
        return False
    parameters = host.parameters() if isinstance(host, nn.Module) else iter(())
    parameter = next(parameters, torch.zeros(0))
    return (
        predict_bag(host, parameter.new_zeros(1, host.in_dim), None).full.contributions is not None
    )


class Attribution(NamedTuple):
    """A patch scorer: how it scores, and which hosts it can explain."""

    scores: Callable[[PredictedBag], Tensor]
    """One score per patch of a bag that the host has predicted."""
    supports: Callable[[Host], bool]


ATTRIBUTIONS: dict[str, Attribution] = {
    "attention": Attribution(attention, lambda host: True),
    # On clam_sb the same as attention: a row of its own, as in the paper's table over all hosts.
    "clam_attention": Attribution(attention, lambda host: isinstance(host, ClamSb)),
    "contribution": Attribution(contribution, _gives_contributions),
    "saliency": Attribution(saliency, _is_differentiable),
    "gradient_x_input": Attribution(gradient_x_input, _is_differentiable),
    "integrated_gradients": Attribution(integrated_gradients, _is_differentiable),
    "occlusion": Attribution(occlusion, has_closed_form),
    "single": Attribution(single, has_closed_form),
    "occlusion_blocks": Attribution(block_occlusion, lambda host: not has_closed_form(host)),
    "single_blocks": Attribution(block_single, lambda host: not has_closed_form(host)),
    "lrp": Attribution(lrp, has_lrp_rules),
}


def supported_attributions(host: Host) -> dict[str, Attribution]:
    """The attributions that can explain this host."""
    return {name: one for name, one in ATTRIBUTIONS.items() if one.supports(host)}
