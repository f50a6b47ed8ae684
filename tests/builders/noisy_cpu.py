"""Another CPU, pretended: every sum, product and curve of torch is off in its last bits.

    pytest --noisy-cpu tests/unit

CPUs add in different orders, fuse products or not, and have their own exponential; a test that is red here is red on one
of them. The error is a function of the value and of the size of the tensor: the same computation twice gives the same
bits, and a row alone is not quite the row in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SUMS = {
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "convolution",
    "cumsum",
    "dot",
    "mean",
    "mm",
    "mv",
    "sum",
}
CURVES = {
    "_cdist_forward", "_linalg_eigh", "_linalg_svd", "_log_softmax", "_log_softmax_backward_data", "_softmax",
    "_softmax_backward_data", "atan2", "cos", "erf", "erfinv", "exp", "expm1", "gelu", "index_add", "linalg_qr",
    "linalg_vector_norm", "log", "log1p", "log_sigmoid_forward", "logcumsumexp", "logsumexp", "native_group_norm",
    "native_layer_norm", "native_layer_norm_backward", "pow", "prod", "rsqrt", "scatter_add", "sigmoid", "silu",
    "sin", "softplus", "std", "tanh", "var", "var_mean", "xlogy",
}  # fmt: skip
PRECISIONS = {torch.float32: torch.int32, torch.float64: torch.int64}


class NoisyCpu(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        answer = function(*arguments, **options)
        name = function.__name__.partition(".")[0]
        kind = name.rstrip("_")
        if "out" in options or kind not in SUMS | CURVES:
            return answer
        if kind in SUMS and name == kind:
            # What cancels leaves an error in proportion to its terms, not to its sum.
            terms = [
                part.abs() if isinstance(part, Tensor) and part.is_floating_point() else part
                for part in arguments
            ]
            return off(
                answer, lambda value: torch.maximum(function(*terms, **options) / 2, value.abs())
            )
        if isinstance(answer, tuple):
            return tuple(off(part) for part in answer)
        return off(answer) if name == kind else answer.copy_(off(answer))


def off(value: Any, size: Callable[[Tensor], Tensor] = torch.abs) -> Any:
    """The value with an error of one last bit up, one down, or none; 0, 1 and -1 are the same everywhere."""
    if not isinstance(value, Tensor) or value.dtype not in PRECISIONS or value.numel() == 0:
        return value
    bits = value.contiguous().view(PRECISIONS[value.dtype]).long() * 2654435761 + value.numel() * 97
    draw = ((bits ^ (bits >> 13)) * 40503 >> 7) & 3
    error = ((draw == 3).to(value.dtype) - (draw == 0).to(value.dtype)) * torch.finfo(
        value.dtype
    ).eps
    known = (value == 0) | (value.abs() == 1) | ~value.isfinite()
    moved = torch.where(known, value, value + error * size(value))
    # A probability stays one.
    return moved.clamp(0, 1) if bool(((value >= 0) & (value <= 1)).all()) else moved


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    with NoisyCpu():
        return (yield)
