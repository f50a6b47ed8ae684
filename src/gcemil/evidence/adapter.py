"""The low-rank residual adapter of the paper's section on anchor grounding.

  e = LayerNorm((I + U V^T) h),   U, V of shape (d, r), r = 32, near zero at the start

`linear` folds L(e) for a linear map L, so that e is never held. With C the centring matrix, z = V^T h and y = C h + C U z,
  e = g * y / sqrt(|y|^2 / d + eps) + beta
  |y|^2 = |C h|^2 + 2 (U^T C h) . z + z^T (U^T C U) z
so L(e) is one narrow matrix product and a scale per patch.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.evidence.fold import Fold, SquaredNorms
from gcemil.shapes import Features


class LowRankAdapter(nn.Module):
    """e = LayerNorm((I + U V^T) h); the host keeps seeing h."""

    def __init__(self, in_dim: int, *, adapter_rank: int = 32, initial_std: float = 0.01) -> None:
        super().__init__()
        if in_dim < 1 or adapter_rank < 1:
            raise UsageError(f"An adapter needs in_dim >= 1 and rank >= 1, got {in_dim} and {adapter_rank}.")
        self.in_dim = in_dim
        # Both near zero as the paper says; exactly zero would leave no gradient to either.
        self.up = nn.Parameter(torch.randn(in_dim, adapter_rank) * initial_std)
        self.down = nn.Parameter(torch.randn(in_dim, adapter_rank) * initial_std)
        self.norm = nn.LayerNorm(in_dim)

    def forward(self, features: Features) -> Features:
        return self.norm(features + (features @ self.down) @ self.up.T)

    def linear(self, weight: Float[Tensor, "h d"], bias: Float[Tensor, "h"]) -> Fold:
        """weight @ e + bias for every patch, at the cost of h + 2 r + 1 rows."""
        up = self.up - self.up.mean(dim=0)
        scaled = weight * self.norm.weight
        centred = scaled - scaled.mean(dim=1, keepdim=True)
        outputs = centred + (centred @ self.up) @ self.down.T
        mean = weight.new_full((1, self.in_dim), 1 / self.in_dim)
        rows = torch.cat([outputs, self.down.T, up.T, mean])
        constant = weight @ self.norm.bias + bias
        finish = partial(self._normalised, overlap_gram=up.T @ up, constant=constant)
        return Fold(rows, rows.new_zeros(len(rows)), finish)

    def _normalised(
        self,
        products: Float[Tensor, "n r"],
        squared_norms: SquaredNorms,
        *,
        overlap_gram: Float[Tensor, "k k"],
        constant: Float[Tensor, "h"],
    ) -> Float[Tensor, "n h"]:
        rank = len(overlap_gram)
        outputs, z, overlap, means = torch.split(products, [len(constant), rank, rank, 1], dim=1)
        # Tensor.var would be exact however far the mean lies, and forty times slower than the norm; features of an
        # encoder are near enough to centred for the difference |h|^2 - d mean^2 to keep its digits.
        squared = squared_norms() - self.in_dim * means.squeeze(1).square()
        squared = squared + ((2 * overlap + z @ overlap_gram) * z).sum(dim=1)
        scale = (squared.clamp_min(0) / self.in_dim + self.norm.eps).rsqrt()
        return torch.addcmul(constant, outputs, scale.unsqueeze(1))
