"""Additive MIL: the prediction is a sum of contributions of patches (Javed et al., 2022).

  m_i = relu(E h_i),  z_i = w (tanh(V m_i) * sigmoid(U m_i)),  a = softmax(z)
  logits = sum_i psi(a_i m_i) + b
  psi(x) = W_2 relu(W_1 x), applied to the weighted patch, not to the pooled bag
Deviation. The published psi has biases, so that N patches without weight still add N psi(0). Here
the only bias is b. Then psi(a m) = a psi(m), and the contributions a_i psi(m_i) are exact for any
subset of the bag.
"""

from __future__ import annotations

from torch import nn

from gcemil.hosts.attention import (
    AttentionEmbedded,
    AttentionPoolHost,
    GatedAttention,
    create_projection,
)
from gcemil.hosts.host import GateMode
from gcemil.shapes import Features


class Additive(AttentionPoolHost):
    lrp_constants = ("attention",)
    linear_form = AttentionPoolHost.linear_form

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        hidden: int = 128,
        reading_width: int = 256,
        dropout: float = 0.25,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        self.project = create_projection(in_dim, width, dropout)
        self.attention = GatedAttention(width, hidden)
        self.read = nn.Sequential(nn.Linear(width, reading_width, bias=False), nn.ReLU())
        self.head = nn.Linear(reading_width, n_outputs)

    def embed(self, features: Features) -> AttentionEmbedded:
        """Attention reads m and the head relu(W_1 m), since psi is homogeneous."""
        embedded = self.project(features)
        tokens = self.read(embedded)
        return AttentionEmbedded(
            tokens, self.attention(embedded).squeeze(1), self.read_patches(tokens)
        )
