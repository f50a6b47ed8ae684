"""Attention pooling, shared by the hosts that pool linearly.

  a = softmax_n(z + log pi),   M = sum_i a_i m_i,   logits = W M + b
A log-gate on the logit is exact deletion: weight_i = pi_i e^{z_i} / sum_j pi_j e^{z_j}.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from gcemil.shapes import LogGates, Scores


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
    """What the head says of each patch alone: read by explanations, never trained through."""
    return F.linear(tokens, head.weight, head.bias)


def value_contributions(weights: Scores, values: Float[Tensor, "n c"], logits: Float[Tensor, "c"]) -> Scores:
    """Signed share of each patch in the predicted output: a_i [(w_c - mean w) m_i + b_c - mean b].

    With one output nothing is subtracted: a_i (w m_i + b). The shares sum to the (centred) logit.
    """
    if len(logits) == 1:
        return weights * values[:, 0]
    return weights * (values[:, logits.argmax()] - values.mean(dim=1))


def linear_contributions(
    weights: Scores, tokens: Float[Tensor, "n w"], head: nn.Linear, logits: Float[Tensor, "c"]
) -> Scores:
    """The same for tokens that are not known before pooling."""
    return value_contributions(weights, patch_values(tokens, head), logits)
