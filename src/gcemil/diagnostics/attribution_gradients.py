"""Attribution by gradients: scores from the slope of the predicted output f, and layer-wise relevance propagation.

  saliency              sum_d |df / dh_id|                               how much a patch could move f, without a sign
  gradient_x_input      sum_d h_id df / dh_id
  integrated_gradients  sum_d h_id integral_0^1 df(t h) / dh_id dt       sums to f(X) - f(0) where f is continuous
The path of the integral starts at a bag of zero vectors; 16 points of the Gauss-Legendre rule.
Without coordinates dtfd groups patches by the bits of their features, so that its groups change along the path.

A large bag passes in blocks of patches. A host treats every patch on its own before it pools, so with u_i the tensors that
are pooled, df / dh_i = (du_i / dh_i)^T df / du_i: the bag is mapped to u without a graph, pooling gives df / du, and each
block is mapped again to turn that into its slopes. Where the host pools linearly, u is a few numbers of each patch.

Relevance propagation (lrp): the predicted output f shared out over the patches, layer by layer.

  linear      R_i = sum_j x_i w_ij / (sum_i' x_i' w_i'j + b_j) R_j      the 0-rule; a bias keeps its share
  attention   y = A(x) V x: A is held constant, relevance flows through the values alone
  LayerNorm   y = (x - mean x) / sd: the denominator is held constant, the centring is linear
  gated pools likewise: the weights of the patches are held constant
With these rules the network is linear in what is not held, and relevance is gradient times input (Ali et al., 2022;
xMIL, Hense et al., 2024). So the host's own forward pass runs, with hooks that cut the gradient where a rule holds
something constant. No division, hence no epsilon.

Relevance is read at the embedded patches. Below them every patch is on its own, and a rule that conserves relevance
cannot move any from one patch to another. The sum over patches is f minus the share of biases and of the class token.

For softmax pooling with a linear head this is R_i = a_i w_c m_i: the host's contribution, before it is centred over
the classes. A host names the parts that make its pooling weights (`lrp_constants`). Hosts without a rule for one of their
parts are not supported: hdmil (Chebyshev head), camil (its fusion of two branches by a product of both).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gcemil.diagnostics.network_view import PredictedBag, linear_form
from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.attention import LinearPooling
from gcemil.hosts.host import Host, shortcut
from gcemil.hosts.nystrom import NystromAttention
from gcemil.row_blocks import is_large, mapped_rows, row_blocks, widened
from gcemil.shapes import Logits, Scores

N_STEPS = 16
BLOCK_ROWS = 2048
"""Patches of a large bag whose activations are kept for one backward pass."""

Rows = Float[Tensor, "k w"]
OfRows = Callable[[Rows, Rows], Tensor]
"""(rows, df / drows) -> one number per row."""


def is_differentiable(host: Host) -> bool:
    """Whether the host passes gradients to its features; a black box says so by scoring patches by slope."""
    return not isinstance(host, CallableHost) or host.score_source == "slope"


def saliency(bag: PredictedBag) -> Scores:
    return slope_scores(bag, lambda rows, slopes: slopes.abs().sum(dim=1))


def gradient_x_input(bag: PredictedBag) -> Scores:
    return slope_scores(bag, row_products)


def integrated_gradients(bag: PredictedBag) -> Scores:
    nodes, weights = np.polynomial.legendre.leggauss(N_STEPS)
    total = bag.logit.new_zeros(len(bag))
    # The rule is for [-1, 1].
    for at, share in zip((1 + nodes) / 2, weights / 2, strict=True):
        total += share * slope_scores(bag, row_products, scale=float(at))
    return total


def row_products(rows: Rows, slopes: Rows) -> Float[Tensor, "k"]:
    return (rows * slopes).sum(dim=1)


def slope_scores(
    bag: PredictedBag, of_rows: OfRows, *, scale: float = 1.0, at_tokens: bool = False
) -> Scores:
    """What `of_rows` makes of every patch and the slope of f there, f being taken at `scale` times the features.

    The slope is that of the features, or of the tokens embedded from them.
    """
    seam, features = find_seam(bag), bag.features
    parts = list(row_blocks(len(bag), BLOCK_ROWS if is_large(len(bag)) else len(bag)))
    with torch.inference_mode(False), torch.enable_grad():
        if len(parts) == 1:
            part = PatchRows(seam, widened(features), scale)
            (slopes,) = torch.autograd.grad(seam.logits(part.mapped)[bag.index], part.at(at_tokens))
            return of_rows(part.values(at_tokens), slopes)
        pooled_slopes = slope_of_pooled(bag, seam, scale)
        # Made before the blocks: a small tensor left behind by each would keep the heap from closing its gaps.
        scores = bag.logit.new_empty(len(bag))
        for where in parts:
            part = PatchRows(seam, widened(features[where]), scale)
            passed = [(u, s[where]) for u, s in zip(part.mapped, pooled_slopes, strict=True) if s is not None]
            mapped, given = zip(*passed, strict=True)
            (slopes,) = torch.autograd.grad(mapped, part.at(at_tokens), given)
            scores[where] = of_rows(part.values(at_tokens), slopes)
    return scores


def slope_of_pooled(bag: PredictedBag, seam: Seam, scale: float) -> list[Tensor | None]:
    """df / du of the whole bag; None for a tensor that f does not depend on, or not smoothly."""
    with torch.no_grad():
        mapped = mapped_rows(lambda rows: seam.mapped(scale * rows)[1], bag.features)
    probe = PatchRows(seam, widened(bag.features[:1]), scale)
    leaves = [u.requires_grad_(one.requires_grad) for u, one in zip(mapped, probe.mapped, strict=True)]
    asked = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(seam.logits(leaves)[bag.index], asked, allow_unused=True))
    return [next(found) if leaf.requires_grad else None for leaf in leaves]


@dataclass(frozen=True, eq=False)
class Seam:
    """A host as two steps: every patch on its own, then all of them together."""

    mapped: Callable[[Tensor], tuple[Tensor, list[Tensor]]]
    """The tokens of some rows, and what is pooled of them."""
    logits: Callable[[Sequence[Tensor]], Logits]


def find_seam(bag: PredictedBag) -> Seam:
    """The narrowest seam there is: readings where the host pools linearly, the embedding elsewhere."""
    host, kind = bag.host, bag.embedded
    form = linear_form(host)
    if form is None:

        def embedded(rows: Tensor) -> tuple[Tensor, list[Tensor]]:
            found = host.embed(rows)
            return found.tokens, list(found.present().values())

        def pooled(tensors: Sequence[Tensor]) -> Logits:
            named = dict(zip(kind.present(), tensors, strict=True))
            return host.aggregate(replace(kind, **named), bag.coords).logits

        return Seam(embedded, pooled)

    read_out = form(kind.rows(torch.zeros(1, dtype=torch.long))).read_out

    def readings(rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        found = host.embed(rows)
        pooling = form(found)
        return found.tokens, [pooling.attention_logits, pooling.readings]

    def pooled_readings(tensors: Sequence[Tensor]) -> Logits:
        return LinearPooling(tensors[0], tensors[1], read_out).logits()

    return Seam(readings, pooled_readings)


class PatchRows:
    """Some patches with the graph from their features to what is pooled of them."""

    def __init__(self, seam: Seam, features: Tensor, scale: float) -> None:
        self._features = features
        self._rows = (scale * features.detach()).requires_grad_()
        self._tokens, self.mapped = seam.mapped(self._rows)

    def at(self, at_tokens: bool) -> Tensor:
        """Where the slope is taken."""
        return self._tokens if at_tokens else self._rows

    def values(self, at_tokens: bool) -> Tensor:
        """The tokens, or the features before they were scaled."""
        return self._tokens.detach() if at_tokens else self._features


def has_lrp_rules(host: Host) -> bool:
    """Whether its class says which of its parts are held constant: every other part has a rule then."""
    return shortcut(host, "lrp_constants") is not None


def lrp(bag: PredictedBag) -> Scores:
    """The relevance of every patch for the predicted output."""
    if not (isinstance(bag.host, nn.Module) and has_lrp_rules(bag.host)):
        raise UsageError(
            f"{type(bag.host).__name__} has no rules of relevance propagation ('lrp_constants')."
        )
    with hold_constant(bag.host):
        return slope_scores(bag, row_products, at_tokens=True)


@contextmanager
def hold_constant(host: nn.Module) -> Iterator[None]:
    """Within, the host computes the same values but passes relevance instead of gradients."""
    with ExitStack() as stack:
        for name in shortcut(host, "lrp_constants"):
            stack.callback(host.get_submodule(name).register_forward_hook(stop_gradient).remove)
        for module in host.modules():
            if (handle := add_rule(module)) is not None:
                stack.callback(handle.remove)
        yield


def add_rule(module: nn.Module) -> RemovableHandle | None:
    """The rule for a kind of layer, put on this one."""
    if isinstance(module, NystromAttention):
        # Queries and keys, which make the attention, pass nothing on.
        return module.attention_inputs.register_forward_hook(stop_gradient)
    if isinstance(module, nn.LayerNorm):
        return module.register_forward_hook(normalise_by_constant)
    return None


def stop_gradient(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.detach()


def normalise_by_constant(module: nn.LayerNorm, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The same values, the standard deviation being a constant."""
    (rows,) = inputs
    centred = rows - rows.mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + module.eps).sqrt().detach()
    scaled = centred / deviation * module.weight
    return scaled if module.bias is None else scaled + module.bias
