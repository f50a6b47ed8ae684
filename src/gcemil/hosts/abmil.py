"""ABMIL: gated-attention pooling (Ilse, Tomczak and Welling, 2018).

  m_i = relu(E h_i),  z_i = w (tanh(V m_i) * sigmoid(U m_i)),  a = softmax(z)
  M = sum a_i m_i,  logits = head(M)
There is no official version for whole slides; this one embeds to width 512 and attends with 128
hidden units.

With `entropy_weight` = lambda > 0, lambda sum_i a_i log a_i joins the loss: attention entropy
maximisation (Zhang et al., 2024), which spreads the attention over more patches.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from gcemil.errors import UsageError
from gcemil.hosts.attention import (
    AttentionEmbedded,
    AttentionPoolHost,
    GatedAttention,
    create_projection,
)
from gcemil.hosts.host import GateMode
from gcemil.shapes import LogGates


class Abmil(AttentionPoolHost):
    """Gated-attention pooling; `AttentionPoolHost` embeds and pools.

    Args:
        in_dim: Width of the features.
        n_outputs: Number of classes; 1 for a risk or a value.
        gate_mode: What a gate does to its patch (hosts/host.py).
        width: Width of the embedded patches; None pools the features themselves.
        hidden: Hidden units of the attention.
        dropout: Dropout rate of the embedded patches.
        entropy_weight: Weight of the negative attention entropy in the loss.
    """

    lrp_constants = ("attention",)
    # Named here because a shortcut holds only for the class that names it: a subclass may pool in
    # another way.
    linear_form = AttentionPoolHost.linear_form

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int | None = 512,
        hidden: int = 128,
        dropout: float = 0.25,
        entropy_weight: float = 0.0,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        if entropy_weight < 0:
            raise UsageError(f"abmil needs entropy_weight >= 0, got {entropy_weight}.")
        self.project = nn.Identity() if width is None else create_projection(in_dim, width, dropout)
        self.attention = GatedAttention(width or in_dim, hidden)
        self.head = nn.Linear(width or in_dim, n_outputs)
        self.entropy_weight = entropy_weight

    def compute_losses(
        self, embedded: AttentionEmbedded, log_gates: LogGates | None, target: Tensor
    ) -> dict[str, Tensor]:
        if self.entropy_weight == 0:
            return {}
        logits = embedded.attention_logits
        log_weights = F.log_softmax(logits if log_gates is None else logits + log_gates, dim=0)
        return {"entropy": self.entropy_weight * (log_weights.exp() * log_weights).sum()}
