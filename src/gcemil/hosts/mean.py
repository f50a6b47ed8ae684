"""Mean pooling and the linear probe: the baselines without attention.

  mean     m_i = relu(E h_i),  M = sum_i pi_i m_i / sum_j pi_j,  logits = head(M)
  linear   the same with m_i = h_i: one linear layer on the mean of the features
Neither looks anywhere in particular. A patch's score is what the head reads of it for the predicted output, centred over
the outputs where there are several.
"""

from __future__ import annotations

import torch
from torch import nn

from gcemil.hosts.attention import (
    AttentionEmbedded,
    AttentionPoolHost,
    create_projection,
    value_contributions,
)
from gcemil.hosts.host import GateMode
from gcemil.shapes import Features, Logits, Scores


class Mean(AttentionPoolHost):
    lrp_constants = ()
    linear_form = AttentionPoolHost.linear_form

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        dropout: float = 0.25,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        self.project = create_projection(in_dim, width, dropout)
        self.head = nn.Linear(width, n_outputs)

    def embed(self, features: Features) -> AttentionEmbedded:
        tokens = self.project(features)
        return AttentionEmbedded(
            tokens, tokens.new_zeros(tokens.shape[0]), self.read_patches(tokens)
        )

    def patch_scores(self, embedded: AttentionEmbedded, logits: Logits) -> Scores:
        values = self.head(embedded.tokens) if embedded.values is None else embedded.values
        return value_contributions(torch.ones_like(values[:, 0]), values, logits)


class Linear(Mean):
    lrp_constants = ()
    linear_form = AttentionPoolHost.linear_form

    def __init__(self, in_dim: int, n_outputs: int, gate_mode: GateMode = "paper") -> None:
        AttentionPoolHost.__init__(self, in_dim, n_outputs, gate_mode)
        self.project = nn.Identity()
        self.head = nn.Linear(in_dim, n_outputs)
