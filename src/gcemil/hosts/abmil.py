"""ABMIL: gated-attention pooling (Ilse, Tomczak and Welling, 2018).

  m_i = relu(E h_i),  z_i = w (tanh(V m_i) * sigmoid(U m_i)),  a = softmax(z),  M = sum a_i m_i,  logits = head(M)
There is no official whole-slide version; ours embeds to 512 and attends with 128 hidden units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.hosts.attention import (
    ClosedForm,
    GatedAttention,
    LinearPooling,
    attention_weights,
    head_readings,
    linear_closed_form,
    patch_values,
    value_contributions,
)
from gcemil.hosts.host import Embedded, GateMode, HostOutput, MilHost
from gcemil.shapes import Coords, Features, LogGates, Scores


@dataclass(frozen=True)
class AttentionEmbedded(Embedded):
    attention_logits: Scores


@dataclass(frozen=True)
class ValuedEmbedded(AttentionEmbedded):
    values: Float[Tensor, "n c"]
    """What the head says of each patch alone: pooling twice need not ask it twice."""


class Abmil(MilHost[ValuedEmbedded]):
    lrp_constants = ("attention",)

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        hidden: int = 128,
        dropout: float = 0.25,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        self.project = nn.Sequential(nn.Linear(in_dim, width), nn.ReLU(), nn.Dropout(dropout))
        self.attention = GatedAttention(width, hidden)
        self.head = nn.Linear(width, n_outputs)

    def embed(self, features: Features) -> ValuedEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        return ValuedEmbedded(tokens, self.attention(tokens).squeeze(1), patch_values(tokens, self.head))

    def pool(
        self,
        embedded: ValuedEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        weights = attention_weights(embedded.attention_logits, log_gates)
        bag_feature = weights @ embedded.tokens
        logits = self.head(bag_feature)
        return HostOutput(
            logits=logits,
            bag_feature=bag_feature,
            scores=embedded.attention_logits,
            contributions=value_contributions(weights, embedded.values, logits),
        )

    def linear_form(self, embedded: ValuedEmbedded) -> LinearPooling:
        values = None if torch.is_grad_enabled() else embedded.values
        return head_readings(embedded.attention_logits, embedded.tokens, self.head, values)

    def closed_form(self) -> ClosedForm:
        return linear_closed_form(self.head)
