"""The base of hosts that pool projected patches by one attention: abmil, clam_sb, ibmil, additive, mean and linear.

A subclass creates `project`, `attention` and `head`, and names linear_form in its own body if it holds (host.py, shortcuts).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.hosts.attention import (
    LinearPooling,
    attention_weights,
    patch_values,
    value_contributions,
)
from gcemil.hosts.host import Embedded, HostOutput, MilHost
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores


@dataclass(frozen=True)
class AttentionEmbedded(Embedded):
    attention_logits: Scores
    values: Float[Tensor, "n c"] | None = None
    """The head's reading of each patch alone, kept so that pooling twice does not compute it twice."""


class AttentionPoolHost(MilHost[AttentionEmbedded]):
    """a = softmax(z + log pi), M = sum a_i m_i, logits = head(M)."""

    project: nn.Module
    attention: nn.Module
    head: nn.Linear

    def embed(self, features: Features) -> AttentionEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        return AttentionEmbedded(tokens, self.attention(tokens).squeeze(1), self.read_patches(tokens))

    def read_patches(self, tokens: Float[Tensor, "n w"]) -> Float[Tensor, "n c"] | None:
        """The head's reading of each patch; None where the logits are not linear in the bag feature."""
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
