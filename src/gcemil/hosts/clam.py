"""CLAM: attention pooling with instance clustering (Lu et al., 2021).

  m_i = relu(W h_i),  z_i = gated attention,  a = softmax(z)
  clam_sb   M = sum a_i m_i,  logits = head(M)
  clam_mb   z_ic of branch c,  A_c = softmax_i(z_ic),  logit_c = w_c sum_i A_ic m_i + b_c
  total = 0.7 task loss + 0.3 L_inst,  B = 8 patches a side
  L_inst = mean smooth SVM of head y over top-B (target 1) and bottom-B (target 0) by attention;
           with subtyping, every other head sees the top-B as target 0, and the sum is divided by C
  smooth SVM of two classes at tau = alpha = 1:  softplus(1 + x_other - x_target)
The patches of a class are ranked by its own branch where it has one. Subtyping means that classes
exclude each other within a slide. As in the authors' tasks it is on for more than two classes and
off for two (tumour or not), unless the option is given. The authors' other instance loss,
cross_entropy, is the same without the margin.

Deviations. Patches are ranked by z + log pi, raw: softmaxed weights underflow to ties. B is at most
N // 2, so that no patch is both positive and negative. Bottom-B may hold patches the gate closed;
only exact zeros are removed. PyTorch's own initialisation, as in the authors' code since 2024. A
risk has no classes, so it has no instance branch, and the task loss has its full weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from gcemil.errors import UsageError
from gcemil.hosts.attention import (
    AttentionEmbedded,
    AttentionPoolHost,
    BranchPoolEmbedded,
    BranchPoolHost,
    GatedAttention,
    attention_weights,
    create_projection,
    mean_without_each,
    predicted_column,
)
from gcemil.hosts.host import ClosedForm, GateMode, HostOutput, MilHost
from gcemil.shapes import Coords, LogGates, Logits, Scores, Selected

BAG_WEIGHT = 0.7
ATTENTION_DROPOUT = 0.25
INSTANCE_MARGINS = {"svm": 1.0, "cross_entropy": 0.0}


class Clam(MilHost[Any]):
    """What both variants share: the layers, and the instance branch."""

    lrp_constants = ("attention",)
    branch_per_output = False
    project: nn.Module
    attention: nn.Module
    head: nn.Linear

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
        if instance_loss not in INSTANCE_MARGINS:
            raise UsageError(
                f"CLAM's instance_loss is one of {', '.join(INSTANCE_MARGINS)}, "
                f"got '{instance_loss}'."
            )
        branches = n_outputs if self.branch_per_output else 1
        # The published attention dropout has one rate, switched on by any dropout at all.
        rate = ATTENTION_DROPOUT if dropout > 0 else 0.0
        self.project = create_projection(in_dim, width, dropout)
        self.attention = GatedAttention(width, hidden, heads=branches, dropout=rate)
        self.head = nn.Linear(width, n_outputs)
        n_heads = n_outputs if n_outputs > 1 else 0
        self.instance_heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(n_heads))
        self.task_weights = {"bag": BAG_WEIGHT if n_heads else 1.0}
        self.n_sampled = n_sampled
        self.subtyping = n_outputs > 2 if subtyping is None else subtyping
        self.instance_margin = INSTANCE_MARGINS[instance_loss]

    def instance_losses(
        self, tokens: Float[Tensor, "n w"], rankings: Sequence[Scores], target: Tensor
    ) -> dict[str, Tensor]:
        """The weighted instance loss; `rankings` has the patches ranked for each output."""
        n_side = min(self.n_sampled, len(tokens) // 2)
        if len(self.instance_heads) == 0 or n_side == 0:
            return {}
        label = int(target)
        positive = torch.arange(2 * n_side, device=tokens.device) < n_side
        scores = self.instance_heads[label](tokens[torch.cat(extremes(rankings[label], n_side))])
        loss = instance_loss(scores, positive, self.instance_margin).mean()
        if self.subtyping:
            negative = torch.zeros_like(positive[:n_side])
            out_of_class = []
            for other, head in enumerate(self.instance_heads):
                if other != label:
                    rows = head(tokens[extremes(rankings[other], n_side)[0]])
                    out_of_class.append(instance_loss(rows, negative, self.instance_margin).mean())
            loss = (loss + torch.stack(out_of_class).sum()) / self.n_outputs
        return {"instance": (1 - BAG_WEIGHT) * loss}


class ClamSb(Clam, AttentionPoolHost):
    lrp_constants = ("attention",)
    linear_form = AttentionPoolHost.linear_form

    def compute_losses(
        self, embedded: AttentionEmbedded, log_gates: LogGates | None, target: Tensor
    ) -> dict[str, Tensor]:
        ranking = embedded.attention_logits
        ranking = ranking if log_gates is None else ranking + log_gates
        return self.instance_losses(embedded.tokens, [ranking] * self.n_outputs, target)


class ClamMb(Clam, BranchPoolHost):
    """A patch's score is the attention logit of the predicted class."""

    lrp_constants = ("attention",)
    branch_per_output = True

    def pool(
        self,
        embedded: BranchPoolEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        weights = attention_weights(embedded.attention_logits, log_gates)
        bag_features = weights.T @ embedded.tokens
        logits = (bag_features * self.head.weight).sum(dim=1) + self.head.bias
        shares = weights * embedded.values
        contributions = predicted_column(shares, logits)
        if self.n_outputs > 1:
            contributions = contributions - shares.mean(dim=1)
        losses = {}
        if target is not None:
            ranking = embedded.attention_logits
            ranking = ranking if log_gates is None else ranking + log_gates.unsqueeze(1)
            losses = self.instance_losses(embedded.tokens, ranking.unbind(dim=1), target)
        return HostOutput(
            logits=logits,
            bag_feature=bag_features.index_select(0, logits.argmax().unsqueeze(0)).squeeze(0),
            scores=predicted_column(embedded.attention_logits, logits),
            contributions=contributions,
            losses=losses,
        )

    def subset_form(
        self, embedded: BranchPoolEmbedded, coords: Coords | None
    ) -> Callable[[Selected], Logits]:
        """Each branch reads its own column of the chosen rows."""

        def predict(selected: Selected) -> Logits:
            weights = torch.softmax(embedded.attention_logits[selected], dim=0)
            return (weights * embedded.values[selected]).sum(dim=0)

        return predict

    def closed_form(self) -> ClosedForm:
        """The branch of an output alone decides its logit."""
        return ClosedForm(
            lambda embedded, coords, index: mean_without_each(
                embedded.attention_logits[:, index], embedded.values[:, index]
            ),
            lambda embedded, index: embedded.values[:, index],
        )


def extremes(ranking: Scores, n_side: int) -> tuple[Int[Tensor, "k"], Int[Tensor, "k"]]:
    """The rows of the highest and of the lowest values, none in both while n_side <= n / 2."""
    order = ranking.detach().argsort(descending=True, stable=True)
    return order[:n_side], order[-n_side:]


def instance_loss(
    scores: Float[Tensor, "... 2"], positive: Bool[Tensor, "..."], margin: float = 1.0
) -> Float[Tensor, "..."]:
    """softplus(margin + x_other - x_target); the target is column 1 where `positive`."""
    excess = scores[..., 1] - scores[..., 0]
    return F.softplus(margin + torch.where(positive, -excess, excess))
