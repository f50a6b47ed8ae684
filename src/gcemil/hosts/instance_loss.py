"""The instance loss that CLAM and HDMIL share.

The smooth top-1 SVM of two classes with margin and temperature 1 is softplus(1 + x_other - x_target).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F


def smooth_svm(scores: Float[Tensor, "... 2"], positive: Bool[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The loss of every row; column 1 is the target where `positive`, column 0 elsewhere."""
    margin = scores[..., 1] - scores[..., 0]
    return F.softplus(1 + torch.where(positive, -margin, margin))
