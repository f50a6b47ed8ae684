"""Attention pooling: the bases of the hosts that use it, and the shortcuts it allows.

  a = softmax_n(z + log pi),   M = sum_i a_i m_i,   logits = W M + b
A log-gate on the logit is exact deletion: weight_i = pi_i e^{z_i} / sum_j pi_j e^{z_j}.

Linear form: z_i and u_i, what the head reads of patch i, give the prediction of any subset.
Closed form of leaving one out:

  M_-i = sum_{j != i} a_j m_j / (1 - a_i) = M + a_i / (1 - a_i) (M - m_i)
The division loses every digit as a_i approaches 1: what the others hold is then the rounding error
of M. So a patch of weight above 1/2, of which a bag has at most one, is left out by pooling the
others anew.

AttentionPoolHost   one attention: abmil, clam_sb, ibmil, additive, mean, linear
BranchPoolHost      several, branch b pools with A_b = softmax(z_b): acmil, clam_mb
A subclass creates `project`, `attention` and `head`, and names linear_form in its own body if it
holds (host.py, shortcuts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from gcemil.hosts.host import Embedded, HostOutput, MilHost
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores, Selected

CHUNK = 256
"""Pooled vectors that a head sees at once: few enough to stay in the cache."""


class GatedAttention(nn.Module):
    """w (tanh(V m) * sigmoid(U m)): one raw attention logit per patch and head."""

    def __init__(self, width: int, hidden: int, *, heads: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.content = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, heads)
        # Dropping each factor with p is dropping their product with 1 - (1 - p)^2: one mask instead
        # of two.
        self.dropout = nn.Dropout(1 - (1 - dropout) ** 2)

    def forward(self, tokens: Float[Tensor, "n w"]) -> Float[Tensor, "n h"]:
        # Both branches in one product: the tokens are read once, forward and backward.
        weight = torch.cat([self.content.weight, self.gate.weight])
        bias = torch.cat([self.content.bias, self.gate.bias])
        content, gate = F.linear(tokens, weight, bias).chunk(2, dim=1)
        return self.score(self.dropout(torch.tanh(content) * torch.sigmoid(gate)))


def attention_weights(
    attention_logits: Float[Tensor, "n *b"], log_gates: LogGates | None = None
) -> Float[Tensor, "n *b"]:
    """Softmax over the patches, of every branch; the gate enters before it."""
    if log_gates is not None:
        is_one = attention_logits.ndim == 1
        attention_logits = attention_logits + (log_gates if is_one else log_gates.unsqueeze(1))
    return torch.softmax(attention_logits, dim=0)


@torch.no_grad()
def patch_values(tokens: Float[Tensor, "n w"], head: nn.Linear) -> Float[Tensor, "n c"]:
    """The head applied to each patch alone; used by explanations, without gradients."""
    return F.linear(tokens, head.weight, head.bias)


def value_contributions(
    weights: Scores, values: Float[Tensor, "n c"], logits: Float[Tensor, "c"]
) -> Scores:
    """Signed share of each patch in the predicted output: a_i [(w_c - mean w) m_i + b_c - mean b].

    With one output nothing is subtracted: a_i (w m_i + b). The shares sum to the (centred) logit.
    """
    if len(logits) == 1:
        return weights * values[:, 0]
    return weights * (predicted_column(values, logits) - values.mean(dim=1))


def predicted_column(
    values: Float[Tensor, "n c"], logits: Float[Tensor, "c"]
) -> Float[Tensor, "n"]:
    """The column of the predicted output; an index would be read off the device first."""
    return values.index_select(1, logits.argmax().unsqueeze(0)).squeeze(1)


@dataclass(frozen=True, eq=False)
class LinearPooling:
    """A bag under a host that pools linearly; differentiable in both tensors."""

    attention_logits: Scores
    readings: Float[Tensor, "n v"]
    """By default a linear head's reading of each patch, its bias included."""
    read_out: Callable[[Tensor], Tensor] = lambda pooled: pooled
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


def read_means_without_each(
    attention_logits: Scores,
    rows: Float[Tensor, "n w"],
    head: Callable[[Float[Tensor, "k w"]], Float[Tensor, "k"]],
    weights_of: Callable[[Scores], Scores] = attention_weights,
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


def mean_without_each(attention_logits: Scores, values: Scores) -> Scores:
    """The weighted mean of the values, once without each patch."""
    return read_means_without_each(attention_logits, values.unsqueeze(1), torch.ravel)


@dataclass(frozen=True)
class AttentionEmbedded(Embedded):
    attention_logits: Scores
    values: Float[Tensor, "n c"] | None = None
    """The head's reading of each patch alone; None where the logits are not linear in M."""


class AttentionPoolHost(MilHost[AttentionEmbedded]):
    """a = softmax(z + log pi), M = sum a_i m_i, logits = head(M)."""

    project: nn.Module
    attention: nn.Module
    head: nn.Linear

    def embed(self, features: Features) -> AttentionEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        return AttentionEmbedded(
            tokens, self.attention(tokens).squeeze(1), self.read_patches(tokens)
        )

    def read_patches(self, tokens: Float[Tensor, "n w"]) -> Float[Tensor, "n c"] | None:
        """The head's reading of each patch; None where the logits are not linear in M."""
        return patch_values(tokens, self.head)

    def read_bag(self, bag_feature: Float[Tensor, "w"]) -> Logits:
        """The logits of a bag feature."""
        logits: Tensor = self.head(bag_feature)
        return logits

    def patch_scores(self, embedded: AttentionEmbedded, logits: Logits) -> Scores:
        """Where the host looked, one raw number per patch."""
        return embedded.attention_logits

    def compute_losses(
        self, embedded: AttentionEmbedded, log_gates: LogGates | None, target: Tensor
    ) -> dict[str, Tensor]:
        """Losses of the host's own, already weighted."""
        return {}

    def pool(
        self,
        embedded: AttentionEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        weights = attention_weights(embedded.attention_logits, log_gates)
        bag_feature = weights @ embedded.tokens
        logits = self.read_bag(bag_feature)
        values = embedded.values
        return HostOutput(
            logits=logits,
            bag_feature=bag_feature,
            scores=self.patch_scores(embedded, logits),
            contributions=None if values is None else value_contributions(weights, values, logits),
            losses={} if target is None else self.compute_losses(embedded, log_gates, target),
        )

    def linear_form(self, embedded: AttentionEmbedded) -> LinearPooling:
        """The head's readings, made anew where gradients are to pass through them."""
        readings = embedded.values
        if readings is None or torch.is_grad_enabled():
            readings = self.head(embedded.tokens)
        return LinearPooling(embedded.attention_logits, readings)


def create_projection(in_dim: int, width: int, dropout: float) -> nn.Sequential:
    """relu(E h) with dropout: the first layer of most hosts."""
    return nn.Sequential(nn.Linear(in_dim, width), nn.ReLU(), nn.Dropout(dropout))


def init_xavier(network: nn.Module) -> None:
    """Xavier-normal weights and zero biases of all linear layers."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@dataclass(frozen=True)
class BranchPoolEmbedded(Embedded):
    attention_logits: Float[Tensor, "n b"]
    values: Float[Tensor, "n c"]


class BranchPoolHost(MilHost[BranchPoolEmbedded]):
    """Several attentions, and one head that reads every patch."""

    project: nn.Module
    attention: nn.Module
    head: nn.Linear

    def embed(self, features: Features) -> BranchPoolEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        return BranchPoolEmbedded(tokens, self.attention(tokens), patch_values(tokens, self.head))
