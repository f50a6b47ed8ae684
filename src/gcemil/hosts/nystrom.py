"""Nyström attention (Xiong et al., 2021): self-attention through a fixed number of landmark tokens.

  q~, k~ = means of q, k over consecutive segments of length l = ceil(L / m)
  A1 = softmax(q k~),  A2 = softmax(q~ k~),  A3 = softmax(q~ k)      each / sqrt(head width)
  output = A1 pinv(A2) (A3 v) + conv(v)
The sequence is zero-padded at the front to m l tokens. A padded key is a zero logit, so it takes
attention and gives nothing, as in the published layer. No product is L x L; A1 and A3 are not
stored.

Landmarks of padding alone are all the same one, so it is kept once and counted c times: log c on
its logits in every softmax. The numbers are those of m landmarks, while a bag of n < m patches
costs n^3 instead of m^3.

q, k and v belong to each token alone, so a host may project once and attend many times (`qkv`, then
`attend`). Where only the first token attends, q of the landmarks and v of their weighted sum are
projected after the mean.

Under log-gates a token fades from every place where it acts on others: landmark means are weighted
by the gates, log pi_j is added to the key logits of A3, and the value convolution reads pi_j v_j.
Landmarks choose the basis of the approximation only, so a segment of closed gates keeps its
landmark. Padding has gate 1.

The value convolution runs along the sequence, one kernel per head. Across the heads, it mixes the
heads of every token on its own, in as many groups of channels as there are heads, as CAMIL's
authors do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.hosts.pseudo_inverse import PseudoInverse

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
        self.head_width, self.scale = head_width, head_width**-0.5
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=False)
        channels = heads if convolution == "sequence" else head_width
        self.value_conv = nn.Conv2d(
            channels, channels, (kernel, 1), padding=(kernel // 2, 0), groups=heads, bias=False
        )
        self.project = nn.Sequential(nn.Linear(heads * head_width, width), nn.Dropout(dropout))
        # Queries and keys pass through here, so that relevance propagation can hold the attention
        # constant.
        self.attention_inputs = nn.Identity()

    def forward(
        self, tokens: Float[Tensor, "l w"], log_gates: Float[Tensor, "l"] | None = None
    ) -> Float[Tensor, "l w"]:
        """Every token attends."""
        return self.attend([self.qkv(tokens)], log_gates)

    def attend(
        self, projected: Sequence[Float[Tensor, "_ p"]], log_gates: Float[Tensor, "l"] | None = None
    ) -> Float[Tensor, "l w"]:
        """The same for tokens that went through `qkv`, as consecutive parts of the sequence."""
        n_tokens = sum(map(len, projected))
        plan = SequencePlan.of(n_tokens, self.landmarks)
        by_head = [
            rows.view(len(rows), 3, self.heads, self.head_width).permute(1, 2, 0, 3)
            for rows in projected
        ]
        front = by_head[0].new_zeros(3, self.heads, plan.padding, self.head_width)
        query, key, value = torch.cat([front, *by_head], dim=2).unbind(0)
        query, key = self.attention_inputs(query), self.attention_inputs(key)
        gates = plan.padded_gates(log_gates)
        query_landmarks, key_landmarks = (plan.means(rows, gates) for rows in (query, key))
        token_bias, landmark_bias = plan.biases(query, gates)
        inverse = self._inverse(query_landmarks, key_landmarks, landmark_bias, plan)
        summaries = inverse.times(attended(query_landmarks, key, value, token_bias))
        values = attended(query[:, plan.padding :], key_landmarks, summaries, landmark_bias)
        values = values + self._convolved(fading(value[:, plan.padding :], log_gates))
        return self.project(values.transpose(0, 1).flatten(1))

    def first_row(
        self, tokens: Float[Tensor, "l w"], log_gates: Float[Tensor, "l"] | None = None
    ) -> tuple[Float[Tensor, "w"], Float[Tensor, "heads l"]]:
        """Only the first token attends: its output, and its row of A1 pinv(A2) A3, in O(L m)."""
        plan = SequencePlan.of(len(tokens), self.landmarks)
        padded = F.pad(tokens, (0, 0, plan.padding, 0))
        gates = plan.padded_gates(log_gates)
        query_weight, key_weight, value_weight = self.qkv.weight.chunk(3)
        means = plan.means(padded.unsqueeze(0), gates).squeeze(0)
        query = self._by_head(torch.cat([tokens[:1], means]), query_weight)
        first_query, query_landmarks = self.attention_inputs(query).split([1, len(means)], dim=1)
        key_landmarks = self.attention_inputs(self._by_head(means, key_weight))
        key = self.attention_inputs(self._by_head(padded, key_weight))
        token_bias, landmark_bias = plan.biases(key, gates)
        inverse = self._inverse(query_landmarks, key_landmarks, landmark_bias, plan)
        to_landmarks = self._weights(first_query, key_landmarks, landmark_bias)
        # row A3, one head at a time: without gradients one head's m x L is all that ever exists.
        row = torch.stack(
            [
                onto @ self._weights(of_query, of_key, token_bias)
                for onto, of_query, of_key in zip(
                    inverse.under(to_landmarks), query_landmarks, key, strict=True
                )
            ]
        )
        # The row of each head weighs the tokens, and the head's own map is applied to that sum.
        pooled = (row.flatten(0, 1) @ padded).unsqueeze(2)
        values = value_weight.view(self.heads, -1, tokens.shape[1]) @ pooled
        near = tokens[: self.value_conv.weight.shape[2]]
        near_values = self._by_head(near, value_weight)
        near_gates = None if log_gates is None else log_gates[: len(near)]
        values = values.mT + self._first_convolution(fading(near_values, near_gates))
        return self.project(values.flatten()), row[:, 0, plan.padding :]

    def _by_head(
        self, rows: Float[Tensor, "r w"], weight: Float[Tensor, "h w"]
    ) -> Float[Tensor, "heads r d"]:
        return F.linear(rows, weight).view(len(rows), self.heads, -1).transpose(0, 1)

    def _weights(
        self,
        query: Float[Tensor, "*h r d"],
        key: Float[Tensor, "*h s d"],
        bias: Float[Tensor, "s"] | None,
    ) -> Float[Tensor, "*h r s"]:
        logits = self.scale * query @ key.mT
        return torch.softmax(logits if bias is None else logits + bias, dim=-1)

    def _inverse(
        self,
        query_landmarks: Float[Tensor, "heads m d"],
        key_landmarks: Float[Tensor, "heads m d"],
        landmark_bias: Float[Tensor, "m"] | None,
        plan: SequencePlan,
    ) -> PseudoInverse:
        between = self._weights(query_landmarks, key_landmarks, landmark_bias)
        return PseudoInverse(between, iterations=self.iterations, copies=max(plan.copies, 1))

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
class SequencePlan:
    """Where a sequence lies in its padding: `p` padded tokens, `m` landmarks that differ."""

    length: int
    """Tokens of a landmark."""
    padding: int
    """Zero tokens in front that are kept."""
    copies: int
    """How often the first landmark counts; 0 where none is padding alone."""

    @classmethod
    def of(cls, n_tokens: int, landmarks: int) -> SequencePlan:
        """The published layout, without the repetitions of its first landmark."""
        length = -(-n_tokens // landmarks)
        copies, front = divmod(landmarks * length - n_tokens, length)
        return cls(length, front + (length if copies else 0), copies)

    def padded_gates(self, log_gates: Float[Tensor, "l"] | None) -> Float[Tensor, "p"] | None:
        """Padding has gate 1."""
        return None if log_gates is None else F.pad(log_gates, (self.padding, 0))

    def means(
        self, rows: Float[Tensor, "heads p d"], log_gates: Float[Tensor, "p"] | None
    ) -> Float[Tensor, "heads m d"]:
        """The landmarks: means over segments, weighted by the gates."""
        segments = rows.reshape(len(rows), -1, self.length, rows.shape[2])
        if log_gates is None:
            return segments.mean(dim=2)
        # Landmarks are a basis, not evidence. The softmax within a segment renormalises: a segment
        # of closed gates would pass on their slope of a million undiminished.
        weights = torch.softmax(log_gates.detach().view(-1, 1, self.length), dim=2)
        return (weights @ segments).squeeze(2)

    def biases(
        self, like: Float[Tensor, "heads p d"], log_gates: Float[Tensor, "p"] | None
    ) -> tuple[Float[Tensor, "p"] | None, Float[Tensor, "m"] | None]:
        """Terms of the logits of tokens and landmarks: log-gates, and log c for c copies."""
        if self.copies <= 1:
            return log_gates, None
        n_tokens = like.shape[1]
        counted = like.new_zeros(n_tokens)
        counted[: self.length] = math.log(self.copies)
        landmark_bias = counted[:: self.length].clone()
        return (counted if log_gates is None else log_gates + counted), landmark_bias


def attended(
    query: Float[Tensor, "heads r d"],
    key: Float[Tensor, "heads s d"],
    value: Float[Tensor, "heads s d"],
    bias: Float[Tensor, "s"] | None = None,
) -> Float[Tensor, "heads r d"]:
    """softmax(query key / sqrt(d) + bias) value, in the fused kernel."""
    whole_bias = None if bias is None else bias.expand(1, 1, query.shape[1], -1)
    query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=whole_bias).squeeze(0)


def fading(
    value: Float[Tensor, "heads l d"], log_gates: Float[Tensor, "l"] | None
) -> Float[Tensor, "heads l d"]:
    """pi_j v_j."""
    return value if log_gates is None else value * log_gates.exp().unsqueeze(1)
