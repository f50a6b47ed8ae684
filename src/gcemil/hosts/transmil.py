"""TransMIL: a class token attends over all patches (Shao et al., 2021).

  m_i = relu(E h_i), then the first S^2 - N patches again, S = ceil(sqrt N); a class token in front
  x <- x + Nystrom(LN x);   x <- PPEG(x) on the S x S grid of rows;   x <- x + Nystrom(LN x)
  logits = head(LN x_class)
  PPEG(x) = x + conv7(x) + conv5(x) + conv3(x), depthwise, the class token passing by
Score of a patch: the class token's row of A1 pinv(A2) A3 in the second layer, mean over heads, the
repeated patches added back to their sources. It can be negative and need not sum to 1.

The order of rows matters (grid, landmarks, convolutions): bags are stored in raster order. Only the
class token leaves the second layer, so only its row is computed there. The three kernels of PPEG
are summed into one 7 x 7 kernel first. Both are exact.

In deletion mode the gates act inside the attention (see nystrom.py) and scale what PPEG reads from
neighbours. An exact 0 removes the row and lays the grid out again, so no soft gate can agree with
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.host import Embedded, GateMode, HostOutput, MilHost
from gcemil.hosts.nystrom import NystromAttention
from gcemil.shapes import Coords, Features, LogGates, Scores


@dataclass(frozen=True)
class ProjectedEmbedded(Embedded):
    projected: Float[Tensor, "n p"]
    """Query, key and value of the first layer, which no gate touches."""


class TransMil(MilHost[ProjectedEmbedded]):
    paper_gate = "feature"
    lrp_constants = ()

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        heads: int = 8,
        landmarks: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        if width % heads:
            raise UsageError(
                f"TransMIL's width must be a multiple of its {heads} heads, got {width}."
            )
        self.project = nn.Sequential(nn.Linear(in_dim, width), nn.ReLU())
        self.class_token = nn.Parameter(torch.randn(1, width))
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.first, self.second = (
            NystromAttention(
                width, heads=heads, head_width=width // heads, landmarks=landmarks, dropout=dropout
            )
            for _ in range(2)
        )
        self.position = PyramidPosition(width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_outputs)

    def embed(self, features: Features) -> ProjectedEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        return ProjectedEmbedded(tokens, self._first_projected(tokens))

    def pool(
        self,
        embedded: ProjectedEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        n_patches = len(embedded.tokens)
        sequence = torch.cat([self.class_token, squared(embedded.tokens)])
        gates = None if log_gates is None else F.pad(squared(log_gates), (1, 0))
        projected = [
            self._first_projected(self.class_token),
            embedded.projected,
            repeated(embedded.projected),
        ]
        sequence = sequence + self.first.attend(projected, gates)
        sequence = self.position(sequence, gates)
        change, rows = self.second.first_row(self.second_norm(sequence), gates)
        bag_feature = self.norm(sequence[0] + change)
        return HostOutput(
            logits=self.head(bag_feature),
            bag_feature=bag_feature,
            scores=patch_scores(rows[:, 1:], n_patches),
        )

    def _first_projected(self, tokens: Float[Tensor, "l w"]) -> Float[Tensor, "l p"]:
        projected: Float[Tensor, "l p"] = self.first.qkv(self.first_norm(tokens))
        return projected


class PyramidPosition(nn.Module):
    """PPEG: depthwise convolutions over the grid of rows as a positional encoding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.middle = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.narrow = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(
        self, sequence: Float[Tensor, "l w"], log_gates: Float[Tensor, "l"] | None
    ) -> Float[Tensor, "l w"]:
        tokens = sequence[1:]
        read = tokens if log_gates is None else tokens * log_gates[1:].exp().unsqueeze(1)
        side = isqrt(len(tokens))
        kernel = (
            self.wide.weight
            + F.pad(self.middle.weight, (1, 1, 1, 1))
            + F.pad(self.narrow.weight, (2, 2, 2, 2))
        )
        wide, middle, narrow = (
            self.get_parameter(f"{name}.bias") for name in ("wide", "middle", "narrow")
        )
        # Rows as the last axis of a channels-last image: no copy, and a faster depthwise kernel.
        grid = read.view(1, side, side, -1).permute(0, 3, 1, 2)
        bias = wide + middle + narrow
        encoding = F.conv2d(grid, kernel, bias, padding=3, groups=grid.shape[1])
        encoded = tokens + encoding.permute(0, 2, 3, 1).flatten(0, 2)
        return torch.cat([sequence[:1], encoded])


def squared(rows: Float[Tensor, "n *w"]) -> Float[Tensor, "s *w"]:
    """The rows and then the first of them again, until their number is a square."""
    return torch.cat([rows, repeated(rows)])


def repeated(rows: Float[Tensor, "n *w"]) -> Float[Tensor, "r *w"]:
    """The first rows that fill the grid."""
    side = isqrt(len(rows) - 1) + 1
    return rows[: side * side - len(rows)]


def patch_scores(rows: Float[Tensor, "heads s"], n_patches: int) -> Scores:
    """Mean over heads, each repeated patch added to its source."""
    row = rows.mean(dim=0)
    repeated = row[n_patches:]
    return row[:n_patches] + F.pad(repeated, (0, n_patches - len(repeated)))
