"""CLAM-SB: attention pooling with instance clustering (Lu et al., 2021).

  m_i = relu(W h_i),  z_i = gated attention,  a = softmax(z),  M = sum a_i m_i,  logits = head(M)
  total = 0.7 task loss + 0.3 L_inst,  B = 8 patches a side
  L_inst = mean smooth SVM of head y over top-B (target 1) and bottom-B (target 0) by attention;
           with subtyping, every other head sees the top-B as target 0, and the sum is divided by C.
  smooth SVM of two classes at tau = alpha = 1:  softplus(1 + x_other - x_target)
Subtyping says that classes exclude each other within a slide. As in the authors' tasks it is on for more than two classes
and off for two (tumour or not), unless the option says otherwise.

Deviations. Patches are ranked by z + log pi, raw: softmaxed weights underflow to ties. B is at most N // 2, so that no
patch is both positive and negative. Bottom-B may hold patches the gate closed; only exact zeros are removed. PyTorch's
own initialisation, as in the authors' code since 2024. A risk has no classes, so its instance branch does not exist and
the task loss has its full weight.

The authors' other instance loss, cross_entropy, is the same without the margin. HDMIL has the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
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
from gcemil.shapes import LogGates, Scores

BAG_WEIGHT = 0.7
ATTENTION_DROPOUT = 0.25
INSTANCE_MARGINS = {"svm": 1.0, "cross_entropy": 0.0}


class InstanceClustering:
    """The instance branch of CLAM, in hosts with one attention (clam_sb) or one per class (clam_mb)."""

    n_outputs: int
    task_weights: Mapping[str, float]
    instance_heads: nn.ModuleList

    def add_instance_heads(
        self, width: int, *, n_sampled: int, subtyping: bool | None, instance_loss: str
    ) -> None:
        """One head per class, and the weight that this leaves to the task loss."""
        if instance_loss not in INSTANCE_MARGINS:
            raise UsageError(
                f"CLAM's instance_loss is one of {', '.join(INSTANCE_MARGINS)}, got '{instance_loss}'."
            )
        self.n_sampled = n_sampled
        self.subtyping = self.n_outputs > 2 if subtyping is None else subtyping
        self.instance_margin = INSTANCE_MARGINS[instance_loss]
        n_heads = self.n_outputs if self.n_outputs > 1 else 0
        self.instance_heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(n_heads))
        self.task_weights = {"bag": BAG_WEIGHT if n_heads else 1.0}

    def instance_losses(
        self, tokens: Float[Tensor, "n w"], rankings: Sequence[Scores], target: Tensor
    ) -> dict[str, Tensor]:
        """The weighted instance loss; `rankings` has the patches ranked for each output."""
        n_side = min(self.n_sampled, len(tokens) // 2)
        if len(self.instance_heads) == 0 or n_side == 0:
            return {}
        loss = self._clustering(tokens, rankings, n_side, int(target))
        return {"instance": (1 - BAG_WEIGHT) * loss}

    def _clustering(
        self, tokens: Float[Tensor, "n w"], rankings: Sequence[Scores], n_side: int, label: int
    ) -> Float[Tensor, ""]:
        positive = torch.arange(2 * n_side, device=tokens.device) < n_side
        scores = self.instance_heads[label](tokens[torch.cat(extremes(rankings[label], n_side))])
        loss = instance_loss(scores, positive, self.instance_margin).mean()
        if not self.subtyping:
            return loss
        negative = torch.zeros_like(positive[:n_side])
        out_of_class = []
        for other, head in enumerate(self.instance_heads):
            if other != label:
                highest, _ = extremes(rankings[other], n_side)
                out_of_class.append(
                    instance_loss(head(tokens[highest]), negative, self.instance_margin).mean()
                )
        return (loss + torch.stack(out_of_class).sum()) / self.n_outputs


class ClamSb(InstanceClustering, AttentionPoolHost):
    lrp_constants = ("attention",)
    linear_form = AttentionPoolHost.linear_form

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
        self.attention = clam_attention(width, hidden, 1, dropout)
        self.head = nn.Linear(width, n_outputs)
        self.add_instance_heads(
            width, n_sampled=n_sampled, subtyping=subtyping, instance_loss=instance_loss
        )

    def compute_losses(
        self, embedded: AttentionEmbedded, log_gates: LogGates | None, target: Tensor
    ) -> dict[str, Tensor]:
        ranking = (
            embedded.attention_logits
            if log_gates is None
            else embedded.attention_logits + log_gates
        )
        return self.instance_losses(embedded.tokens, [ranking] * self.n_outputs, target)


def clam_attention(width: int, hidden: int, branches: int, dropout: float) -> GatedAttention:
    """The published attention dropout has one rate, switched on by any dropout at all."""
    rate = ATTENTION_DROPOUT if dropout > 0 else 0.0
    return GatedAttention(width, hidden, heads=branches, dropout=rate)


def extremes(ranking: Scores, n_side: int) -> tuple[Int[Tensor, "k"], Int[Tensor, "k"]]:
    """The rows of the highest and of the lowest values; they never share a row while n_side <= n / 2."""
    order = ranking.detach().argsort(descending=True, stable=True)
    return order[:n_side], order[-n_side:]


def instance_loss(
    scores: Float[Tensor, "... 2"], positive: Bool[Tensor, "..."], margin: float = 1.0
) -> Float[Tensor, "..."]:
    """softplus(margin + x_other - x_target) of every row; column 1 is the target where `positive`, else column 0."""
    excess = scores[..., 1] - scores[..., 0]
    return F.softplus(margin + torch.where(positive, -excess, excess))
