"""Baselines without attention: mean pooling, the linear probe and max pooling.

  mean     m_i = relu(E h_i),  M = sum_i pi_i m_i / sum_j pi_j,  logits = head(M)
  linear   the same with m_i = h_i: one linear layer on the mean of the features
  max      s_i = head(m_i),  logit_c = max_i (s_ic + log pi_i - max_j log pi_j)
Mean and linear look nowhere in particular: a patch's score is the head's reading of it for the
predicted output, centred over the outputs where there are several. In max pooling, where a gate
lowers the logits of its patch by its logarithm relative to the widest open gate, it is the patch's
own logit for the predicted output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.hosts.attention import (
    AttentionEmbedded,
    AttentionPoolHost,
    create_projection,
    predicted_column,
    value_contributions,
)
from gcemil.hosts.host import ClosedForm, Embedded, GateMode, HostOutput, MilHost
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores, Selected


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
        equal = tokens.new_zeros(tokens.shape[0])
        return AttentionEmbedded(tokens, equal, self.read_patches(tokens))

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


@dataclass(frozen=True)
class MaxEmbedded(Embedded):
    instance_logits: Float[Tensor, "n c"]


class Max(MilHost[MaxEmbedded]):
    lrp_constants = ()

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

    def embed(self, features: Features) -> MaxEmbedded:
        tokens = self.project(features)
        return MaxEmbedded(tokens, self.head(tokens))

    def pool(
        self,
        embedded: MaxEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        gated = embedded.instance_logits
        if log_gates is not None:
            gated = gated + (log_gates - log_gates.max()).unsqueeze(1)
        logits, critical = gated.max(dim=0)
        # The patch that gave the predicted output stands for the bag.
        patch = critical.index_select(0, logits.argmax().unsqueeze(0))
        return HostOutput(
            logits=logits,
            bag_feature=embedded.tokens.index_select(0, patch).squeeze(0),
            scores=predicted_column(embedded.instance_logits, logits),
        )

    def subset_form(
        self, embedded: MaxEmbedded, coords: Coords | None
    ) -> Callable[[Selected], Logits]:
        return lambda selected: embedded.instance_logits[selected].amax(dim=0)

    def closed_form(self) -> ClosedForm:
        """Without the patch that gave the maximum, the second largest is the maximum."""

        def without(embedded: MaxEmbedded, coords: Coords | None, index: int) -> Scores:
            alone = embedded.instance_logits[:, index]
            best = alone.argmax()
            second = alone.index_fill(0, best, -torch.inf).max()
            return alone.max().expand(len(alone)).index_fill(0, best, second)

        return ClosedForm(without, lambda embedded, index: embedded.instance_logits[:, index])
