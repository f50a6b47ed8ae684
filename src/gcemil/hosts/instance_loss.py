"""The instance losses of CLAM, of which HDMIL has the first.

svm             smooth top-1 SVM of two classes with margin and temperature 1: softplus(1 + x_other - x_target)
cross_entropy   the same without the margin: softplus(x_other - x_target)
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F


def smooth_svm(scores: Float[Tensor, "... 2"], positive: Bool[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The loss of every row; column 1 is the target where `positive`, column 0 elsewhere."""
    return F.softplus(1 + wrong_margin(scores, positive))


def cross_entropy(scores: Float[Tensor, "... 2"], positive: Bool[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same for the cross-entropy of the two columns."""
    return F.softplus(wrong_margin(scores, positive))


def wrong_margin(scores: Float[Tensor, "... 2"], positive: Bool[Tensor, "..."]) -> Float[Tensor, "..."]:
    """By how much the other column exceeds the target's."""
    margin = scores[..., 1] - scores[..., 0]
    return torch.where(positive, -margin, margin)


INSTANCE_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "svm": smooth_svm,
    "cross_entropy": cross_entropy,
}
