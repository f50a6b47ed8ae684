"""Nyström attention (Xiong et al., 2021): self-attention through a fixed number of landmark tokens.

  q~, k~ = means of q, k over consecutive segments of length l = ceil(L / m)
  A1 = softmax(q k~),  A2 = softmax(q~ k~),  A3 = softmax(q~ k)            each over sqrt(head width)
  output = A1 pinv(A2) (A3 v) + conv(v)
The sequence is zero-padded at the front to m l tokens. A padded key is a zero logit, so it takes attention and gives
nothing: part of the published layer, kept as it is. No product is ever L x L; A1 and A3 are not stored either.

Landmarks of padding alone are all the same one, so it is kept once and counted c times: log c on its logits in every
softmax. Rows and columns of copies stay equal through all products, so the numbers are those of m landmarks, while a
bag of n < m patches costs n^3 instead of m^3.

Under log-gates a token fades from every place where it acts on others: landmark means are weighted by the gates,
log pi_j is added to the key logits of A3, and the value convolution reads pi_j v_j. Landmarks choose the basis of
the approximation only, so a segment of closed gates keeps its landmark. Padding has gate 1.

The value convolution runs along the sequence, one kernel per head. Across the heads, it mixes the heads of every token
on its own, in as many groups of channels as there are heads: what CAMIL's authors compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Convolution = Literal["sequence", "heads"]


class NystromAttention(nn.Module):
    def __init__(
        self,
        width: int,
        *,
        heads: int = 8,
        head_width: int = 64,
        landmarks: int = 256,
        iterations: int = 6,
        kernel: int = 33,
        dropout: float = 0.0,
        convolution: Convolution = "sequence",
    ) -> None:
        super().__init__()
        self.convolution: Convolution = convolution
        self.heads, self.landmarks, self.iterations = heads, landmarks, iterations
        self.scale = head_width**-0.5
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=False)
        channels = heads if convolution == "sequence" else head_width
        self.value_conv = nn.Conv2d(
            channels, channels, (kernel, 1), padding=(kernel // 2, 0), groups=heads, bias=False
        )
        self.project = nn.Sequential(nn.Linear(heads * head_width, width), nn.Dropout(dropout))

    def forward(
        self, tokens: Float[Tensor, "l w"], log_gates: Float[Tensor, "l"] | None = None
    ) -> Float[Tensor, "l w"]:
        """Every token attends."""
        parts = self._parts(tokens, log_gates)
        summaries = attended(parts.query_landmarks, parts.key, parts.value, parts.token_bias)
        summaries = parts.inverse.times(summaries)
        values = attended(parts.query[:, -len(tokens) :], parts.key_landmarks, summaries, parts.landmark_bias)
        values = values + self._convolved(parts.fading_values(len(tokens)))
        return self.project(values.transpose(0, 1).flatten(1))

    def first_row(
        self, tokens: Float[Tensor, "l w"], log_gates: Float[Tensor, "l"] | None = None
    ) -> tuple[Float[Tensor, "w"], Float[Tensor, "heads l"]]:
        """Only the first token attends: its output, and its row of A1 pinv(A2) A3, in O(L m)."""
        parts = self._parts(tokens, log_gates)
        query = parts.query[:, -len(tokens)].unsqueeze(1)
        logits = self.scale * query @ parts.key_landmarks.mT
        to_landmarks = torch.softmax(_biased(logits, parts.landmark_bias), dim=-1)
        row = self._through_landmarks(parts.inverse.under(to_landmarks), parts)
        values = row @ parts.value + self._first_convolution(parts.fading_values(len(tokens)))
        return self.project(values.flatten()), row[:, 0, -len(tokens) :]

    def _parts(self, tokens: Float[Tensor, "l w"], log_gates: Float[Tensor, "l"] | None) -> Parts:
        length = -(-len(tokens) // self.landmarks)
        copies, front = divmod(self.landmarks * length - len(tokens), length)
        padding = front + (length if copies else 0)
        qkv = self.qkv(tokens).view(len(tokens), 3, self.heads, -1).permute(1, 2, 0, 3)
        query, key, value = F.pad(qkv, (0, 0, padding, 0)).unbind(0)
        padded_gates = None if log_gates is None else F.pad(log_gates, (padding, 0))
        # Landmarks are a basis, not evidence. The softmax within a segment renormalises, so a segment of closed gates
        # would pass their slope of a million on undiminished, and drown what the host learns.
        basis_gates = None if padded_gates is None else padded_gates.detach()
        query_landmarks = _landmarks(query, length, basis_gates)
        key_landmarks = _landmarks(key, length, basis_gates)
        landmark_bias = token_bias = None
        if copies > 1:
            landmark_bias = _first_counted(key_landmarks, copies, 1)
            token_bias = _first_counted(key, copies, length)
        if padded_gates is not None:
            token_bias = padded_gates if token_bias is None else padded_gates + token_bias
        between = torch.softmax(
            _biased(self.scale * query_landmarks @ key_landmarks.mT, landmark_bias), dim=-1
        )
        inverse = PseudoInverse.of(between, copies=max(copies, 1), iterations=self.iterations)
        return Parts(
            query,
            key,
            value,
            padded_gates,
            query_landmarks,
            key_landmarks,
            inverse,
            token_bias,
            landmark_bias,
        )

    def _through_landmarks(self, row: Float[Tensor, "heads 1 m"], parts: Parts) -> Float[Tensor, "heads 1 p"]:
        """row A3, one head at a time: without gradients a single head's m x L is all that ever exists."""
        rows = []
        for head, key in enumerate(parts.key):
            logits = self.scale * parts.query_landmarks[head] @ key.mT
            rows.append(row[head] @ torch.softmax(_biased(logits, parts.token_bias), dim=-1))
        return torch.stack(rows)

    def _convolved(self, value: Float[Tensor, "heads l d"]) -> Float[Tensor, "heads l d"]:
        if self.convolution == "sequence":
            return self.value_conv(value)
        return self.value_conv(value.permute(2, 0, 1)).permute(1, 2, 0)

    def _first_convolution(self, value: Float[Tensor, "heads l d"]) -> Float[Tensor, "heads 1 d"]:
        """The value convolution at the first token, whose left half is padding."""
        if self.convolution == "heads":
            return self._convolved(value[:, :1])
        kernel = self.value_conv.weight.flatten(1)
        right = kernel[:, kernel.shape[1] // 2 :][:, : value.shape[1]]
        return right.unsqueeze(1) @ value[:, : right.shape[1]]


@dataclass(frozen=True)
class Parts:
    """What both ways of attending need; `p` counts the padded tokens, `m` the landmarks that differ."""

    query: Float[Tensor, "heads p d"]
    key: Float[Tensor, "heads p d"]
    value: Float[Tensor, "heads p d"]
    log_gates: Float[Tensor, "p"] | None
    query_landmarks: Float[Tensor, "heads m d"]
    key_landmarks: Float[Tensor, "heads m d"]
    inverse: PseudoInverse
    token_bias: Float[Tensor, "p"] | None
    """Log-gates, and the logarithm of how often the first rows count."""
    landmark_bias: Float[Tensor, "m"] | None
    """Logarithm of how often the first landmark counts."""

    def fading_values(self, length: int) -> Float[Tensor, "heads l d"]:
        """pi_j v_j of the tokens themselves, without the padding."""
        value = self.value[:, -length:]
        return value if self.log_gates is None else value * self.log_gates[-length:].exp().unsqueeze(1)


@dataclass(frozen=True)
class PseudoInverse:
    """pinv(A) = z_0 c(a_0) c(a_1) ... as an operator, for the third-order iteration of the Nyströmformer paper.

      z_0 = A^T / (max row sum * max column sum),   a_i = A z_i,   z_{i+1} = z_i c(a_i)
      c(a) = (13 I - a (15 I - a (7 I - a))) / 4
    c is a polynomial, so a_{i+1} = a_i c(a_i) needs two products instead of four, and the last step none: the
    factors act on thin matrices only. The largest column sum is taken over all heads, as published.

    Where the first row and column stand for c equal ones, matrices act on vectors with c equal first entries: a
    column then holds the sum of its copies, and a transposition divides and multiplies by the counts.
    """

    start: Float[Tensor, "heads m m"]
    steps: tuple[Float[Tensor, "heads m m"], ...]

    @classmethod
    def of(cls, matrix: Float[Tensor, "heads m m"], *, iterations: int, copies: int = 1) -> PseudoInverse:
        """`matrix` is row-stochastic, so its largest row sum is 1; its first landmark counts `copies` times."""
        transposed = matrix.mT
        if copies > 1:
            counts = matrix.new_ones(matrix.shape[-1])
            counts[0] = copies
            transposed = transposed * counts / counts.unsqueeze(1)
        start = transposed / transposed.sum(dim=-1).max()
        steps = [matrix @ start]
        while len(steps) < iterations:
            step = steps[-1]
            square = step @ step
            known = torch.add(13 * step, square, alpha=-15)
            steps.append(torch.baddbmm(known, square, 7 * step - square, beta=0.25, alpha=0.25))
        return cls(start, tuple(steps))

    def times(self, right: Float[Tensor, "heads m d"]) -> Float[Tensor, "heads m d"]:
        """pinv(A) right."""
        for step in reversed(self.steps):
            inner = step @ (7 * right - step @ right)
            right = 0.25 * (13 * right - step @ (15 * right - inner))
        return self.start @ right

    def under(self, left: Float[Tensor, "heads r m"]) -> Float[Tensor, "heads r m"]:
        """left pinv(A)."""
        left = left @ self.start
        for step in self.steps:
            inner = (7 * left - left @ step) @ step
            left = 0.25 * (13 * left - (15 * left - inner) @ step)
        return left


def attended(
    query: Float[Tensor, "heads r d"],
    key: Float[Tensor, "heads s d"],
    value: Float[Tensor, "heads s d"],
    bias: Float[Tensor, "s"] | None = None,
) -> Float[Tensor, "heads r d"]:
    """softmax(query key / sqrt(d) + bias) value; the fused kernel wants a batch axis and a whole bias."""
    whole_bias = None if bias is None else bias.expand(1, 1, query.shape[1], -1)
    query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=whole_bias).squeeze(0)


def _landmarks(
    heads: Float[Tensor, "heads p d"], length: int, log_gates: Float[Tensor, "p"] | None
) -> Float[Tensor, "heads m d"]:
    segments = heads.view(len(heads), -1, length, heads.shape[2])
    if log_gates is None:
        return segments.mean(dim=2)
    # A softmax within the segment is the mean weighted by the gates, and cannot divide by a vanished sum.
    weights = torch.softmax(log_gates.view(-1, length), dim=1)
    return (segments * weights.unsqueeze(2)).sum(dim=2)


def _first_counted(rows: Float[Tensor, "heads p d"], copies: int, length: int) -> Float[Tensor, "p"]:
    """What makes the first rows count `copies` times in a softmax."""
    bias = rows.new_zeros(rows.shape[1])
    bias[:length] = math.log(copies)
    return bias


def _biased(logits: Float[Tensor, "*h r s"], bias: Float[Tensor, "s"] | None) -> Float[Tensor, "*h r s"]:
    return logits if bias is None else logits + bias
