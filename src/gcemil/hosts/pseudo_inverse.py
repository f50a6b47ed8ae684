"""The pseudo-inverse of Nyström attention: six third-order steps (Xiong et al., 2021).

  z_0 = A^T / k,   a_i = A z_i,   z_{i+1} = z_i c(a_i),   pinv(A) ~ z_6
  c(a) = (13 I - a (15 I - a (7 I - a))) / 4
A is row-stochastic, so k is its largest column sum, over all heads as published. Six steps do not
always converge, so what they give is the definition, not the inverse itself.

With C = A / sqrt(k), a_0 = C C^T is symmetric and every a_i is a polynomial of it, so

  pinv(A) = C^T q(C C^T) / sqrt(k),   q = c(a_0) ... c(a_5)
and q(a_0) = V diag(q(l)) V^T for a_0 = V diag(l) V^T. For y = q(a_0) r and gradients g of y

  gradient of a_0 = V (G * (V^T g)(V^T r)^T) V^T
  G_ij = (q(l_i) - q(l_j)) / (l_i - l_j),  q'(l_i) where they coincide
This is the exact derivative of the six steps. With 8 heads of 256 landmarks on one CPU core it
takes 73 ms forward and backward, the iteration 235 ms. A GPU multiplies fast and decomposes slowly,
so it iterates.

Where the first row and column stand for c equal ones, a column holds the sum of its copies. With
the counts D, D^1/2 A D^-1/2 is then in place of A, between D^-1/2 and D^1/2.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

COINCIDENT = 1e-12
"""Eigenvalues closer than this use the derivative, because their difference has lost its digits."""


class PseudoInverse:
    """pinv(A) as an operator: D^-1/2 C^T q(C C^T) D^1/2 / k^1/2 with C = D^1/2 A D^-1/2 / k^1/2."""

    def __init__(
        self, matrix: Float[Tensor, "heads m m"], *, iterations: int, copies: int = 1
    ) -> None:
        """The first landmark counts `copies` times."""
        self.iterations = iterations
        # A matrix with NaN has no spectrum; the iteration passes it on to the check that names the
        # bag.
        self.decomposes = (
            matrix.device.type == "cpu"
            and matrix.dtype in (torch.float32, torch.float64)
            and bool(torch.isfinite(matrix.detach().sum()))
        )
        self.root_counts: Float[Tensor, "m"] | None = None
        column_sums = matrix.sum(dim=-2)
        if copies > 1:
            counts = matrix.new_ones(matrix.shape[-1])
            counts[0] = copies
            roots = self.root_counts = counts.sqrt()
            column_sums = (matrix * roots.square().unsqueeze(1)).sum(dim=-2) / roots.square()
            matrix = matrix * roots.unsqueeze(1) / roots
        self.scale = column_sums.max().rsqrt()
        self.root = matrix * self.scale

    def times(self, right: Float[Tensor, "heads m d"]) -> Float[Tensor, "heads m d"]:
        """pinv(A) right."""
        if self.root_counts is not None:
            right = right * self.root_counts.unsqueeze(1)
        product = self.scale * (self.root.mT @ self._polynomial(right))
        return product if self.root_counts is None else product / self.root_counts.unsqueeze(1)

    def under(self, left: Float[Tensor, "heads r m"]) -> Float[Tensor, "heads r m"]:
        """left pinv(A)."""
        if self.root_counts is not None:
            left = left / self.root_counts
        product = self._polynomial(self.scale * (self.root @ left.mT)).mT
        return product if self.root_counts is None else product * self.root_counts

    def _polynomial(self, right: Float[Tensor, "heads m d"]) -> Float[Tensor, "heads m d"]:
        """q(C C^T) right."""
        if self.decomposes:
            product: Tensor = GramPolynomial.apply(self.root, right, self.iterations)  # type: ignore[no-untyped-call]
            return product
        # a c(a) takes two products, and the factors act on the thin matrix only.
        steps = [self.root @ self.root.mT]
        while len(steps) < self.iterations:
            step = steps[-1]
            square = step @ step
            known = torch.add(13 * step, square, alpha=-15)
            steps.append(torch.baddbmm(known, square, 7 * step - square, beta=0.25, alpha=0.25))
        for step in reversed(steps):
            inner = step @ (7 * right - step @ right)
            right = 0.25 * (13 * right - step @ (15 * right - inner))
        return right


class GramPolynomial(torch.autograd.Function):
    """q(C C^T) r with its exact slopes, always in float32 or wider."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        root: Float[Tensor, "heads m m"],
        right: Float[Tensor, "heads m d"],
        iterations: int,
    ) -> Float[Tensor, "heads m d"]:
        values, vectors = torch.linalg.eigh(root @ root.mT)
        exact = values.double()
        factors, slopes = step_product(exact, iterations)
        narrow = factors.to(values.dtype).unsqueeze(2)
        seen = vectors.mT @ right
        ctx.save_for_backward(root, vectors, seen, exact, factors, slopes)
        return vectors @ (narrow * seen)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    @once_differentiable
    def backward(
        ctx: Any, slope: Float[Tensor, "heads m d"]
    ) -> tuple[Tensor | None, Tensor | None, None]:
        root, vectors, seen, values, factors, slopes = ctx.saved_tensors
        from_output = vectors.mT @ slope
        to_right = vectors @ (factors.to(slope.dtype).unsqueeze(2) * from_output)
        if not ctx.needs_input_grad[0]:
            return None, to_right, None
        both = from_output @ seen.mT
        both = (both + both.mT).mul_(divided_differences(values, factors, slopes).to(slope.dtype))
        return vectors @ (both @ (vectors.mT @ root)), to_right, None


def step_product(
    values: Float[Tensor, "heads m"], iterations: int
) -> tuple[Float[Tensor, "heads m"], Float[Tensor, "heads m"]]:
    """q and q' of numbers."""
    product, product_slope = torch.ones_like(values), torch.zeros_like(values)
    step, step_slope = values, torch.ones_like(values)
    for _ in range(iterations):
        factor = (13 - step * (15 - step * (7 - step))) / 4
        factor_slope = step_slope * (step * (14 - 3 * step) - 15) / 4
        product_slope = product_slope * factor + product * factor_slope
        product = product * factor
        step_slope = step_slope * factor + step * factor_slope
        step = step * factor
    return product, product_slope


def divided_differences(
    values: Float[Tensor, "heads m"],
    of_values: Float[Tensor, "heads m"],
    slopes: Float[Tensor, "heads m"],
) -> Float[Tensor, "heads m m"]:
    """(q(l_i) - q(l_j)) / (l_i - l_j), in double precision."""
    between = values.unsqueeze(2) - values.unsqueeze(1)
    quotients = of_values.unsqueeze(2) - of_values.unsqueeze(1)
    coincident = between.abs() < COINCIDENT
    quotients.div_(between.masked_fill_(coincident, 1))
    return torch.where(coincident, slopes.unsqueeze(2), quotients)
