"""Attention pooling, shared by the hosts that pool linearly, and the shortcuts it allows.

  a = softmax_n(z + log pi),   M = sum_i a_i m_i,   logits = W M + b
A log-gate on the logit is exact deletion: weight_i = pi_i e^{z_i} / sum_j pi_j e^{z_j}.

Linear form: z_i and u_i, what the head reads of patch i, are all that the prediction of any subset needs.
Closed form of leaving one out:

  M_-i = sum_{j != i} a_j m_j / (1 - a_i) = M + a_i / (1 - a_i) (M - m_i)
The division loses every digit as a_i approaches 1: what the others hold is then the rounding error of M. So a patch of
weight above 1/2, of which a bag has at most one, is left out by pooling the others anew; for all others 1 - a_i >= 1/2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from gcemil.shapes import Coords, LogGates, Logits, Scores, Selected

CHUNK = 256
"""Pooled vectors that a head sees at once: few enough to stay in the cache."""


class GatedAttention(nn.Module):
    """w (tanh(V m) * sigmoid(U m)): one raw attention logit per patch and head."""

    def __init__(self, width: int, hidden: int, *, heads: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.content = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, heads)
        # Dropping each factor with p is dropping their product with 1 - (1 - p)^2: one mask instead of two.
        self.dropout = nn.Dropout(1 - (1 - dropout) ** 2)

    def forward(self, tokens: Float[Tensor, "n w"]) -> Float[Tensor, "n h"]:
        # Both branches in one product: the tokens are read once, forward and backward.
        weight = torch.cat([self.content.weight, self.gate.weight])
        bias = torch.cat([self.content.bias, self.gate.bias])
        content, gate = F.linear(tokens, weight, bias).chunk(2, dim=1)
        return self.score(self.dropout(torch.tanh(content) * torch.sigmoid(gate)))


def attention_weights(attention_logits: Scores, log_gates: LogGates | None) -> Scores:
    """Softmax over the patches, the gate entering before it."""
    if log_gates is not None:
        attention_logits = attention_logits + log_gates
    return torch.softmax(attention_logits, dim=0)


@torch.no_grad()
def patch_values(tokens: Float[Tensor, "n w"], head: nn.Linear) -> Float[Tensor, "n c"]:
    """The head applied to each patch alone; used by explanations, without gradients."""
    return F.linear(tokens, head.weight, head.bias)


def value_contributions(weights: Scores, values: Float[Tensor, "n c"], logits: Float[Tensor, "c"]) -> Scores:
    """Signed share of each patch in the predicted output: a_i [(w_c - mean w) m_i + b_c - mean b].

    With one output nothing is subtracted: a_i (w m_i + b). The shares sum to the (centred) logit.
    """
    if len(logits) == 1:
        return weights * values[:, 0]
    return weights * (predicted_column(values, logits) - values.mean(dim=1))


def predicted_column(values: Float[Tensor, "n c"], logits: Float[Tensor, "c"]) -> Float[Tensor, "n"]:
    """The column of the predicted output; an index would be read off the device first."""
    return values.index_select(1, logits.argmax().unsqueeze(0)).squeeze(1)


def identity(pooled: Tensor) -> Tensor:
    """The logits of pooled readings that are logits already."""
    return pooled


@dataclass(frozen=True, eq=False)
class LinearPooling:
    """A bag under a host that pools linearly; differentiable in both tensors."""

    attention_logits: Scores
    readings: Float[Tensor, "n v"]
    """By default what a linear head reads of each patch, its bias included: its reading of their mean is the mean of these."""
    read_out: Callable[[Tensor], Tensor] = identity
    """From pooled readings (k, v) to logits (k, c)."""

    def logits(self) -> Logits:
        """The prediction of the whole bag."""
        pooled = torch.softmax(self.attention_logits, dim=0) @ self.readings
        return self.read_out(pooled.unsqueeze(0))[0]

    def subset_logits(self, selected: Selected) -> Logits:
        """The prediction of these patches alone."""
        return replace(
            self, attention_logits=self.attention_logits[selected], readings=self.readings[selected]
        ).logits()

    def without_each(self, index: int) -> Scores:
        """One logit of the bag without each patch."""
        return read_means_without_each(
            self.attention_logits, self.readings, lambda means: self.read_out(means)[:, index]
        )

    def alone(self, index: int) -> Scores:
        """One logit of each patch on its own."""
        return self.read_out(self.readings)[:, index]


@dataclass(frozen=True)
class ClosedForm:
    """One logit of an embedded bag, given by its index, without and with only each patch."""

    without: Callable[[Any, Coords | None, int], Scores]
    alone: Callable[[Any, int], Scores]


def softmax(attention_logits: Scores) -> Scores:
    """The weights of ordinary attention pooling."""
    return torch.softmax(attention_logits, dim=0)


def read_means_without_each(
    attention_logits: Scores,
    rows: Float[Tensor, "n w"],
    head: Callable[[Float[Tensor, "k w"]], Float[Tensor, "k"]],
    weights_of: Callable[[Scores], Scores] = softmax,
) -> Scores:
    """The head applied to the weighted mean of the rows, once without each patch."""
    weights = weights_of(attention_logits)
    mean = weights @ rows
    odds = (weights / (1 - weights)).unsqueeze(1)
    dominant = [int(patch) for patch in (weights > 0.5).nonzero()]
    readings = []
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        means = mean + odds[part] * (mean - rows[part])
        for patch in dominant:
            if start <= patch < start + len(means):
                others = torch.arange(len(rows), device=rows.device) != patch
                means[patch - start] = weights_of(attention_logits[others]) @ rows[others]
        readings.append(head(means))
    return torch.cat(readings)
