"""CAMIL: Nyström context, neighbour-constrained attention, gated pooling (Fourkioti et al., 2024).

  x_i = relu(P h_i),   G = Nystrom(x) + x
  e_i = sum_{j in nb(i)} A_ij <Wq G_i, Wk G_j> / 16,   l_i = softmax(e)_i (Wv x_i + b)
  w = sigmoid(-l)^2,   t = 2 l w + 2 G (1 - w)                                         elementwise
  z_i = v (tanh(V t_i) * sigmoid(U t_i)),   a = softmax(z),   M = sum a_i t_i,   logits = head(M)
Graph, from coordinates and raw features: self and the 7 nearest of the 15 nearest patches; their
cosine distances over the L2 norm of all 15 give A_ij = exp(-distance); A_ii is the largest of the
row, 1 for a lone patch. Directed.

Deviations: a projection in front, because the original reads 512-d features only (width=None leaves
it out); the value convolution runs along the sequence, as the paper draws it, where the original
code runs it across heads (convolution="heads" does); a KD-tree and a weighted gather in place of N
x N matrices, the same numbers; equally distant neighbours are ranked by their offset (row, then
column), so the graph does not depend on the order of rows; identical features are similarity 1
where the original divides 0 by 0. Without coordinates the rows count as one line of patches, since
bags are stored in raster order. The graph comes from ungated features, and is built again on what
is left when rows are removed.

In deletion mode gates act in the Nyström layer (see nystrom.py), scale a neighbour's share A_ij by
pi_j, and enter both softmaxes as log pi.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.attention import attention_weights, patch_values, value_contributions
from gcemil.hosts.host import Embedded, GateMode, HostOutput, MilHost
from gcemil.hosts.nystrom import Convolution, NystromAttention
from gcemil.row_blocks import to_float32
from gcemil.shapes import Coords, Features, Gates, LogGates, Scores

N_NEAREST = 15
"""Patches whose distances normalise a row; the nearest 7 of them are neighbours."""
N_NEIGHBOURS = 7


@dataclass(frozen=True)
class ContextEmbedded(Embedded):
    values: Float[Tensor, "n w"]
    projected: Float[Tensor, "n p"]
    """Query, key and value of the context layer, which no gate touches."""
    raw: Features
    """Ungated features, for the graph."""


class Camil(MilHost[ContextEmbedded]):
    paper_gate = "feature"

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int | None = 512,
        hidden: int = 128,
        heads: int = 8,
        landmarks: int = 256,
        convolution: Convolution = "sequence",
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        # Without a width the features are read as they are, as in the original.
        projects, width = width is not None, width or in_dim
        if convolution not in get_args(Convolution):
            raise UsageError(f"CAMIL's convolution is sequence or heads, got '{convolution}'.")
        if width % (2 * heads):
            raise UsageError(
                f"CAMIL's width must be a multiple of twice its {heads} heads, got {width}."
            )
        self.project = (
            nn.Sequential(nn.Linear(in_dim, width), nn.ReLU()) if projects else nn.Identity()
        )
        self.context = NystromAttention(
            width,
            heads=heads,
            head_width=width // heads,
            landmarks=landmarks,
            convolution=convolution,
        )
        self.query = nn.Linear(width, width // 2, bias=False)
        self.key = nn.Linear(width, width // 2, bias=False)
        self.value = nn.Linear(width, width)
        self.pool_content = nn.Linear(width, hidden, bias=False)
        self.pool_gate = nn.Linear(width, hidden, bias=False)
        self.pool_score = nn.Linear(hidden, 1, bias=False)
        self.head = nn.Linear(width, n_outputs)
        self.apply(initialise)

    def embed(self, features: Features) -> ContextEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        return ContextEmbedded(
            tokens, self.value(tokens), self.context.qkv(tokens), features.detach()
        )

    def pool(
        self,
        embedded: ContextEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        glob = self.context.attend([embedded.projected], log_gates) + embedded.tokens
        neighbour_logits = self.neighbour_logits(
            glob, neighbour_graph(embedded.raw, coords), log_gates
        )
        local = attention_weights(neighbour_logits, log_gates).unsqueeze(1) * embedded.values
        fused = fusion(local, glob)
        attention_logits = self.attention_logits(fused)
        weights = attention_weights(attention_logits, log_gates)
        bag_feature = weights @ fused
        logits = self.head(bag_feature)
        return HostOutput(
            logits=logits,
            bag_feature=bag_feature,
            scores=attention_logits,
            contributions=value_contributions(weights, patch_values(fused, self.head), logits),
        )

    def embed_scaled(
        self, features: Features, factors: Gates, plain: ContextEmbedded | None
    ) -> ContextEmbedded:
        # The cosine of a row scaled by 0 is undefined, so the graph never sees the factor.
        scaled = super().embed_scaled(features, factors, plain)
        return replace(scaled, raw=to_float32(features).detach())

    def neighbour_logits(
        self, glob: Float[Tensor, "n w"], graph: Graph, log_gates: LogGates | None
    ) -> Scores:
        shares = graph.shares
        if log_gates is not None:
            shares = shares * log_gates.exp()[graph.neighbours]
        query: Float[Tensor, "n q"] = self.query(glob)
        keys = self.key(glob)
        # A product in half precision gives keys of another type than the shares.
        shares = shares.to(keys.dtype)
        context = F.embedding_bag(graph.neighbours, keys, mode="sum", per_sample_weights=shares)
        return (query * context).sum(dim=1) * query.shape[1] ** -0.5

    def attention_logits(self, fused: Float[Tensor, "n w"]) -> Scores:
        hidden = torch.tanh(self.pool_content(fused)) * torch.sigmoid(self.pool_gate(fused))
        return self.pool_score(hidden).squeeze(1)


@dataclass(frozen=True)
class Graph:
    neighbours: Int[Tensor, "n k"]
    """The first column is the patch itself."""
    shares: Float[Tensor, "n k"]


def fusion(local: Float[Tensor, "n w"], glob: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
    weight = torch.sigmoid(-local).square()
    return 2 * (glob + weight * (local - glob))


def neighbour_graph(features: Features, coords: Coords | None) -> Graph:
    """Self and the nearest patches with their similarities, on the CPU."""
    if coords is None:
        line = torch.arange(len(features))
        coords = torch.stack([line, torch.zeros_like(line)], dim=1)
    nearest = torch.from_numpy(nearest_patches(coords.cpu().numpy()))
    itself, others = nearest[:, :1], nearest[:, 1:]
    if others.shape[1] == 0:
        return Graph(itself.to(features.device), features.new_ones(len(features), 1))
    similarities = torch.exp(-F.normalize(cosine_distances(features.cpu().float(), others), dim=1))
    shares = torch.cat(
        [similarities.amax(dim=1, keepdim=True), similarities[:, :N_NEIGHBOURS]], dim=1
    )
    return Graph(nearest[:, : shares.shape[1]].to(features.device), shares.to(features))


def nearest_patches(coords: Int[np.ndarray, "n 2"]) -> Int[np.ndarray, "n k"]:
    """Each patch, then up to 15 others by distance; ties by offset (row, column), index."""
    coords = coords.astype(np.int64)
    # Twice as many candidates as needed: on a grid a ring of equal distances is then never cut.
    candidates = cKDTree(coords).query(
        coords, k=np.arange(1, min(2 * N_NEAREST + 2, len(coords)) + 1)
    )[1]
    itself = candidates == np.arange(len(coords))[:, None]
    # Where more patches share one place than there are candidates, a patch may miss itself.
    missing = np.flatnonzero(~itself.any(axis=1))
    candidates[missing, -1], itself[missing, -1] = missing, True
    offsets = coords[candidates] - coords[:, None]
    squared = np.where(itself, -1, (offsets**2).sum(axis=2))
    order = np.lexsort((candidates, offsets[..., 0], offsets[..., 1], squared), axis=1)
    return np.take_along_axis(candidates, order, axis=1)[:, : N_NEAREST + 1]


def cosine_distances(features: Features, others: Int[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """1 - cos to each of the others, by a product sampled at those places only."""
    n_patches, n_others = others.shape
    unit = F.normalize(features, dim=1)
    columns, order = others.sort(dim=1)
    with warnings.catch_warnings():
        # The layout is called beta; the sampled product gathers nothing and is ten times as fast.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        places = torch.sparse_csr_tensor(
            torch.arange(0, columns.numel() + 1, n_others),
            columns.flatten(),
            unit.new_zeros(columns.numel()),
            (n_patches, n_patches),
            check_invariants=False,
        )
        sampled = torch.sparse.sampled_addmm(places, unit, unit.T).values().view_as(columns)
    cosines = torch.empty_like(sampled).scatter_(1, order, sampled)
    # Below this a distance is rounding, which the norm of the row would blow up.
    return F.threshold(1 - cosines, 1e-6, 0.0)


def initialise(module: nn.Module) -> None:
    """Glorot-uniform kernels and zero biases, the original's."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
