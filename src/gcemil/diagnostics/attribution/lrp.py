"""Layer-wise relevance propagation: the predicted output f shared out over the patches, layer by layer.

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
the classes. A host names the parts that make its pooling weights (`lrp_constants`). Hosts without a rule for one of their parts are not supported: hdmil (Chebyshev head), camil (its fusion
of two branches by a product of both).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gcemil.diagnostics.attribution.gradient import row_products, slope_scores
from gcemil.diagnostics.attribution.predicted import Predicted
from gcemil.errors import UsageError
from gcemil.hosts.host import Host, shortcut
from gcemil.hosts.nystrom import NystromAttention
from gcemil.shapes import Scores


def has_rules(host: Host) -> bool:
    """Whether its class says which of its parts are held constant: every other part has a rule then."""
    return shortcut(host, "lrp_constants") is not None


def lrp(bag: Predicted) -> Scores:
    """The relevance of every patch for the predicted output."""
    if not (isinstance(bag.host, nn.Module) and has_rules(bag.host)):
        raise UsageError(
            f"{type(bag.host).__name__} has no rules of relevance propagation ('lrp_constants')."
        )
    with held_constant(bag.host):
        return slope_scores(bag, row_products, at_tokens=True)


@contextmanager
def held_constant(host: nn.Module) -> Iterator[None]:
    """Within, the host computes the same values but passes relevance instead of gradients."""
    with ExitStack() as stack:
        for name in shortcut(host, "lrp_constants"):
            stack.callback(host.get_submodule(name).register_forward_hook(without_gradient).remove)
        for module in host.modules():
            if (handle := rule_of(module)) is not None:
                stack.callback(handle.remove)
        yield


def rule_of(module: nn.Module) -> RemovableHandle | None:
    """The rule for a kind of layer, put on this one."""
    if isinstance(module, NystromAttention):
        # Queries and keys, which make the attention, pass nothing on.
        return module.attention_inputs.register_forward_hook(without_gradient)
    if isinstance(module, nn.LayerNorm):
        return module.register_forward_hook(constant_deviation)
    return None


def without_gradient(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.detach()


def constant_deviation(module: nn.LayerNorm, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """The same values, the standard deviation being a constant."""
    (rows,) = inputs
    centred = rows - rows.mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + module.eps).sqrt().detach()
    scaled = centred / deviation * module.weight
    return scaled if module.bias is None else scaled + module.bias
