"""CLAM-MB: one attention branch and one head per class, with instance clustering (Lu et al., 2021).

  m_i = relu(W h_i),  z_ic = gated attention of branch c,  A_c = softmax_i(z_ic),  logit_c = w_c sum_i A_ic m_i + b_c
Losses, options and deviations are those of clam_sb; the patches of a class are ranked by its own branch. A patch's score
is the attention logit of the predicted class.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gcemil.hosts.attention import (
    BranchPoolEmbedded,
    BranchPoolHost,
    branch_weights,
    branch_without_each,
    centred_shares,
    create_projection,
    predicted_column,
)
from gcemil.hosts.clam_sb import InstanceClustering, clam_attention
from gcemil.hosts.host import ClosedForm, GateMode, HostOutput
from gcemil.shapes import Coords, LogGates, Logits, Selected


class ClamMb(InstanceClustering, BranchPoolHost):
    lrp_constants = ("attention",)

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        hidden: int = 256,
        dropout: float = 0.25,
        n_sampled: int = 8,
        subtyping: bool | None = None,
        instance_loss: str = "svm",
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        self.project = create_projection(in_dim, width, dropout)
        self.attention = clam_attention(width, hidden, n_outputs, dropout)
        self.head = nn.Linear(width, n_outputs)
        self.add_instance_heads(
            width, n_sampled=n_sampled, subtyping=subtyping, instance_loss=instance_loss
        )

    def pool(
        self,
        embedded: BranchPoolEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        weights = branch_weights(embedded.attention_logits, log_gates)
        bag_features = weights.T @ embedded.tokens
        logits = (bag_features * self.head.weight).sum(dim=1) + self.head.bias
        losses = {}
        if target is not None:
            ranking = embedded.attention_logits
            ranking = ranking if log_gates is None else ranking + log_gates.unsqueeze(1)
            losses = self.instance_losses(embedded.tokens, ranking.unbind(dim=1), target)
        return HostOutput(
            logits=logits,
            bag_feature=bag_features.index_select(0, logits.argmax().unsqueeze(0)).squeeze(0),
            scores=predicted_column(embedded.attention_logits, logits),
            contributions=centred_shares(weights * embedded.values, logits),
            losses=losses,
        )

    def subset_form(
        self, embedded: BranchPoolEmbedded, coords: Coords | None
    ) -> Callable[[Selected], Logits]:
        """Each branch reads its own column of the chosen rows."""

        def ask(selected: Selected) -> Logits:
            weights = torch.softmax(embedded.attention_logits[selected], dim=0)
            return (weights * embedded.values[selected]).sum(dim=0)

        return ask

    def closed_form(self) -> ClosedForm:
        """The branch of an output alone decides its logit."""
        return ClosedForm(
            lambda embedded, coords, index: branch_without_each(
                embedded.attention_logits[:, index], embedded.values[:, index]
            ),
            lambda embedded, index: embedded.values[:, index],
        )
