"""ABMIL: gated-attention pooling (Ilse, Tomczak and Welling, 2018).

  m_i = relu(E h_i),  z_i = w (tanh(V m_i) * sigmoid(U m_i)),  a = softmax(z),  M = sum a_i m_i,  logits = head(M)
There is no official version for whole slides; this one embeds to width 512 and attends with 128 hidden units.
"""

from __future__ import annotations

from torch import nn

from gcemil.hosts.attention import GatedAttention
from gcemil.hosts.attention_pool import AttentionPoolHost, create_projection
from gcemil.hosts.host import GateMode


class Abmil(AttentionPoolHost):
    """Gated-attention pooling; `AttentionPoolHost` embeds and pools.

    Args:
        in_dim: Width of the features.
        n_outputs: Number of classes; 1 for a risk.
        gate_mode: What a gate does to its patch (hosts/host.py).
        width: Width of the embedded patches.
        hidden: Hidden units of the attention.
        dropout: Dropout rate of the embedded patches.
    """

    lrp_constants = ("attention",)
    # Named here because a shortcut holds only for the class that names it: a subclass may pool in another way.
    linear_form = AttentionPoolHost.linear_form

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
        self.project = create_projection(in_dim, width, dropout)
        self.attention = GatedAttention(width, hidden)
        self.head = nn.Linear(width, n_outputs)
