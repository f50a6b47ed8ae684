"""The selector score s_i (the paper's small MLP) and what we add to it.

  s = [MLP(e, coords)] + w_z z(log a) + w_k Phi^-1((rank k - 1/2) / N) + w_q logit q + l,
      then half smoothing on the grid; 3 l where no anchors act on the score

a is the host's attention on the ungated bag, z standardises it per bag and clips to [-3, 6]; k is
the signed contribution of the patch to the predicted output; q is how present the concepts of the
likely classes are in the patch; l how similar it is to the patches that decided the training slides
of these classes. All are detached. The MLP is the paper's own score; with a hundred slides it
learns the slides and not the concepts, so the default recipe leaves it out.

e comes from the low-rank residual adapter of the paper's section on anchor grounding:

  e = LayerNorm((I + U V^T) h),   U, V of shape (d, r), r = 32, near zero at the start

`linear` reads L(e) for a linear map L, so that e is never held. With C the centring matrix, z = V^T
h and y = C h + C U z,
  e = g * y / sqrt(|y|^2 / d + eps) + beta
  |y|^2 = |C h|^2 + 2 (U^T C h) . z + z^T (U^T C U) z
so L(e) is one narrow matrix product and a scale per patch.

Half smoothing, on patch coordinates as a grid:

  s~ = 1/2 s + 1/2 mean of s over the 3 x 3 cells around the patch, its own included
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gcemil.row_blocks import LinearRead, SquaredNorms
from gcemil.shapes import Coords, Features, Logits, Scores

LIKENESS_WEIGHT_WITHOUT_ANCHORS = 3.0
"""How much likeness counts where no anchors act on the score; beside them it counts once."""


class Selector(nn.Module):
    """One raw score per patch; a term whose input is None is left out."""

    def __init__(
        self,
        in_dim: int,
        *,
        adapter_rank: int = 32,
        hidden: int = 32,
        morphology: bool = True,
        smoothing: float = 0.5,
    ) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.morphology = (
            Morphology(in_dim, adapter_rank=adapter_rank, hidden=hidden) if morphology else None
        )
        self.attention_weight = nn.Parameter(torch.tensor(0.5))
        self.contribution_weight = nn.Parameter(torch.tensor(0.5))
        self.presence_weight = nn.Parameter(torch.tensor(1.0))

    def reads(self) -> list[LinearRead]:
        """Products of the features, computed together with other reads of the same bag."""
        return [] if self.morphology is None else [self.morphology.read()]

    def scores(
        self,
        hidden: list[Tensor],
        coords: Coords | None,
        *,
        n_patches: int,
        attention_logits: Scores | None = None,
        contributions: Scores | None = None,
        presence: Scores | None = None,
        likeness: Scores | None = None,
        neighbourhood: Neighbourhood | None = None,
    ) -> Scores:
        """Scores from the results of `reads`; without a neighbourhood nothing is smoothed."""
        scores = self.attention_weight.new_zeros(n_patches)
        if self.morphology is not None:
            scores = scores + self.morphology.scores(hidden[0], coords)
        if attention_logits is not None:
            scores = scores + self.attention_weight * standardised_attention(attention_logits)
        if contributions is not None:
            scores = scores + self.contribution_weight * normal_rank(contributions)
        if presence is not None:
            scores = scores + self.presence_weight * log_odds(presence)
        if likeness is not None:
            # Known after training only, so it has no learned weight.
            scores = scores + likeness
        if self.smoothing == 0 or neighbourhood is None:
            return scores
        return smoothed(scores, neighbourhood, share=self.smoothing)


@torch.no_grad()
def class_likeness(products: Float[Tensor, "n c"], probabilities: Logits) -> Scores:
    """l_i: standardised products with the class directions, weighed by how likely each class is."""
    centred = products - products.mean(dim=0)
    deviation = centred.std(dim=0, correction=0)
    tiny = torch.finfo(products.dtype).tiny
    # A class without a direction has products of 0.
    scaled = torch.where(deviation > 0, centred / deviation.clamp_min(tiny), 0.0)
    return scaled @ probabilities


class Morphology(nn.Module):
    """The paper's score: a small MLP on adapted features and coordinates."""

    def __init__(self, in_dim: int, *, adapter_rank: int, hidden: int) -> None:
        super().__init__()
        self.adapter = LowRankAdapter(in_dim, adapter_rank=adapter_rank)
        self.feature_layer = nn.Linear(in_dim, hidden)
        self.coords_layer = nn.Linear(2, hidden, bias=False)
        self.score_layer = nn.Linear(hidden, 1)

    def read(self) -> LinearRead:
        """Adapter and first layer in one linear map of the features."""
        return self.adapter.linear(self.feature_layer.weight, self.feature_layer.bias)

    def scores(self, hidden: Float[Tensor, "n h"], coords: Coords | None) -> Scores:
        if coords is not None:
            hidden = hidden + self.coords_layer(normalised_coords(coords).to(hidden.dtype))
        return self.score_layer(torch.relu(hidden)).squeeze(1)


@torch.no_grad()
def log_odds(presence: Scores) -> Scores:
    """logit q, between -7 and 7."""
    return torch.logit(presence, eps=1e-3)


@torch.no_grad()
def standardised_attention(attention_logits: Scores) -> Scores:
    """z(log a), clipped to [-3, 6], from raw logits; constant attention gives 0."""
    deviation = attention_logits.std(correction=0)
    standardised = ((attention_logits - attention_logits.mean()) / deviation).clamp(-3, 6)
    # A constant bag leaves rounding noise, which must not be blown up to unit variance.
    return torch.where(deviation > 1e-6 * attention_logits.abs().max(), standardised, 0.0)


@torch.no_grad()
def normal_rank(values: Scores) -> Scores:
    """Phi^-1((rank - 1/2) / N), ranks from the smallest; equal values share theirs."""
    n_values = len(values)
    ordered, order = values.sort()
    place = torch.arange(n_values + 1, device=values.device)
    starts = torch.ones_like(place, dtype=torch.bool)
    starts[1:-1] = ordered[1:] != ordered[:-1]
    # Equal values lie between two starts, and take the place in the middle.
    first = (place * starts)[:-1].cummax(0).values
    behind = torch.where(starts, place, n_values)[1:].flip(0).cummin(0).values.flip(0)
    middle = (first + behind).to(values.dtype) / (2 * n_values)
    return torch.special.ndtri(torch.empty_like(middle).scatter_(0, order, middle))


class LowRankAdapter(nn.Module):
    """e = LayerNorm((I + U V^T) h); the host keeps seeing h."""

    def __init__(self, in_dim: int, *, adapter_rank: int = 32, initial_std: float = 0.01) -> None:
        super().__init__()
        self.in_dim = in_dim
        # Both near zero as in the paper; exactly zero would leave no gradient to either.
        self.up = nn.Parameter(torch.randn(in_dim, adapter_rank) * initial_std)
        self.down = nn.Parameter(torch.randn(in_dim, adapter_rank) * initial_std)
        self.norm = nn.LayerNorm(in_dim)

    def forward(self, features: Features) -> Features:
        return self.norm(features + (features @ self.down) @ self.up.T)

    def linear(self, weight: Float[Tensor, "h d"], bias: Float[Tensor, "h"]) -> LinearRead:
        """weight @ e + bias for every patch, at the cost of h + 2 r + 1 rows."""
        up = self.up - self.up.mean(dim=0)
        scaled = weight * self.norm.weight
        centred = scaled - scaled.mean(dim=1, keepdim=True)
        outputs = centred + (centred @ self.up) @ self.down.T
        mean = weight.new_full((1, self.in_dim), 1 / self.in_dim)
        rows = torch.cat([outputs, self.down.T, up.T, mean])
        constant = weight @ self.norm.bias + bias
        finish = partial(self._normalised, overlap_gram=up.T @ up, constant=constant)
        return LinearRead(rows, rows.new_zeros(len(rows)), finish)

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
        # Tensor.var is forty times slower than the norm, and features are near enough to centred
        # for the difference |h|^2 - d mean^2 to keep its digits.
        squared = squared_norms() - self.in_dim * means.squeeze(1).square()
        squared = squared + ((2 * overlap + z @ overlap_gram) * z).sum(dim=1)
        scale = (squared.clamp_min(0) / self.in_dim + self.norm.eps).rsqrt()
        return torch.addcmul(constant, outputs, scale.unsqueeze(1))


# The grid of patches


@dataclass(frozen=True)
class Neighbourhood:
    """Who is next to whom in one bag: computed once, used for every smoothing of that bag."""

    cell_of_patch: Int[Tensor, "n"]
    around_cell: Int[Tensor, "cells 9"]
    """The cells around each cell; an absent one is numbered `cells`, where the sums are 0."""
    patches_around: Float[Tensor, "cells"]

    @classmethod
    def of(cls, coords: Coords, step: int | None = None) -> "Neighbourhood":
        """Neighbours on the grid of the given step, or of the coordinates' own."""
        step = common_step(coords) if step is None else step
        keys, width = _cell_keys(coords, step)
        cells, cell_of_patch, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        around = _cells_around(cells, width)
        padded = torch.cat([counts, counts.new_zeros(1)])
        return cls(cell_of_patch, around, padded[around].sum(dim=1).to(torch.float32))

    def mean(self, scores: Scores) -> Scores:
        """Mean over the 3 x 3 neighbourhood of every patch, differentiable in the scores."""
        sums = scores.new_zeros(len(self.around_cell) + 1).index_add(0, self.cell_of_patch, scores)
        means = sums[self.around_cell].sum(dim=1) / self.patches_around.to(scores.dtype)
        return means[self.cell_of_patch]


def smoothed(scores: Scores, neighbourhood: Neighbourhood, *, share: float = 0.5) -> Scores:
    """The scores, `share` of each replaced by the mean of its neighbourhood."""
    return (1 - share) * scores + share * neighbourhood.mean(scores)


def common_step(coords: Coords) -> int:
    """The smallest gap in a row or column that is at least half as frequent as the commonest gap.

    The minimum fails on slides tiled contour by contour, where two grids may lie a few pixels
    apart.
    """
    x, y = coords[:, 0], coords[:, 1]
    gaps = torch.cat([_gaps_within_lines(y, x), _gaps_within_lines(x, y)])
    if len(gaps) == 0:
        gaps = torch.cat([torch.unique(coords[:, axis]).diff() for axis in (0, 1)])
    if len(gaps) == 0:
        return 1
    sizes, counts = torch.unique(gaps, return_counts=True)
    return int(sizes[2 * counts >= counts.max()][0])


def normalised_coords(coords: Coords) -> Float[Tensor, "n 2"]:
    """Centred on the bounding box, longer side from -1 to 1."""
    low = coords.amin(dim=0)
    extent = coords.amax(dim=0) - low
    # Integers until the division, so that a shift is exact even at 200,000 pixels.
    doubled = 2 * (coords - low) - extent
    return doubled.to(torch.float32) / extent.max().clamp_min(1).to(torch.float32)


def _gaps_within_lines(line: Int[Tensor, "n"], position: Int[Tensor, "n"]) -> Int[Tensor, "g"]:
    order = position.argsort()
    order = order[line[order].argsort(stable=True)]
    gaps, same_line = position[order].diff(), line[order].diff() == 0
    return gaps[same_line & (gaps > 0)]


def _cell_keys(coords: Coords, step: int) -> tuple[Int[Tensor, "n"], int]:
    # Nearest cell rather than floor: contours tiled on their own grids are off by less than a step.
    cells = (2 * (coords.long() - coords.amin(dim=0)) + step) // (2 * step)
    # One empty column on either side keeps the end of a row from touching the start of the next.
    width = int(cells[:, 0].max()) + 3
    return (cells[:, 1] + 1) * width + cells[:, 0] + 1, width


def _cells_around(cells: Int[Tensor, "cells"], width: int) -> Int[Tensor, "cells 9"]:
    """Position in the sorted `cells` of each of the nine keys around every cell."""
    # The cells are sorted and distinct, so the three of a row lie side by side: one search finds
    # them all.
    rows = width * torch.tensor([-1, 0, 1]).to(cells)
    keys = cells.unsqueeze(1) + rows - 1
    place = torch.searchsorted(cells, keys)
    padded = torch.cat([cells, cells.new_full((1,), -1)])
    around = []
    for column in range(3):
        is_there = padded[place] == keys + column
        around.append(torch.where(is_there, place, len(cells)))
        place = place + is_there
    return torch.stack(around, dim=2).flatten(1)
