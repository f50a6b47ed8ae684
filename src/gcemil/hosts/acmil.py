"""ACMIL: attention branches kept apart, strong patches masked (Zhang et al., 2024).

  m_i = relu(E h_i), E without bias;  z_ik = gated attention of branch k
  A_k = softmax_i(z_ik)
  branch logits_k = head_k(sum_i A_ik m_i)
  a = mean_k A_k,  M = sum_i a_i m_i,  logits = head(M)
  total = task loss(logits) + mean_k task loss(branch logits_k) + mean_{k<l} cos(A_k, A_l)
In training each branch forgets a random `masked_share` of its `n_masked` patches of largest z. A
patch's score is log sum_k A_ik. This is the gated variant (GA) of the authors.

Deviation. The authors let n_masked follow K; here it is 10, as in their paper.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.attention import (
    BranchPoolEmbedded,
    BranchPoolHost,
    GatedAttention,
    attention_weights,
    mean_without_each,
    value_contributions,
)
from gcemil.hosts.host import ClosedForm, GateMode, HostOutput
from gcemil.shapes import Coords, LogGates, Logits, Selected


class Acmil(BranchPoolHost):
    lrp_constants = ("attention",)

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        hidden: int = 128,
        n_branches: int = 5,
        n_masked: int = 10,
        masked_share: float = 0.6,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        if n_branches < 1 or n_masked < 0 or not 0 <= masked_share < 1:
            raise UsageError(
                "acmil needs n_branches >= 1, n_masked >= 0 and masked_share in [0, 1), "
                f"got {n_branches}, {n_masked} and {masked_share}."
            )
        self.project = nn.Sequential(nn.Linear(in_dim, width, bias=False), nn.ReLU())
        self.attention = GatedAttention(width, hidden, heads=n_branches)
        self.branch_heads = nn.ModuleList(nn.Linear(width, n_outputs) for _ in range(n_branches))
        self.head = nn.Linear(width, n_outputs)
        self.n_masked, self.masked_share = n_masked, masked_share
        self.task_weights = {"bag": 1.0} | {
            f"branch_{k}": 1 / n_branches for k in range(n_branches)
        }

    def pool(
        self,
        embedded: BranchPoolEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        attention_logits = embedded.attention_logits
        if self.training:
            gated = attention_logits
            gated = gated if log_gates is None else gated + log_gates.unsqueeze(1)
            masked = masked_at_random(gated.detach(), self.n_masked, self.masked_share)
            attention_logits = attention_logits.masked_fill(masked, -torch.inf)
        weights = attention_weights(attention_logits, log_gates)
        mean_weights = weights.mean(dim=1)
        bag_feature = mean_weights @ embedded.tokens
        logits = self.head(bag_feature)
        branch_features = weights.T @ embedded.tokens
        losses = {}
        if target is not None:
            losses["diversity"] = mean_cosine(weights)
        return HostOutput(
            logits=logits,
            bag_feature=bag_feature,
            scores=embedded.attention_logits.log_softmax(dim=0).logsumexp(dim=1),
            contributions=value_contributions(mean_weights, embedded.values, logits),
            auxiliary_logits={
                f"branch_{k}": head(branch_features[k]) for k, head in enumerate(self.branch_heads)
            },
            losses=losses,
        )

    def subset_form(
        self, embedded: BranchPoolEmbedded, coords: Coords | None
    ) -> Callable[[Selected], Logits]:
        def predict(selected: Selected) -> Logits:
            weights = torch.softmax(embedded.attention_logits[selected], dim=0).mean(dim=1)
            return weights @ embedded.values[selected]

        return predict

    def closed_form(self) -> ClosedForm:
        """The logit is the mean over the branches, each of which leaves a patch out for itself."""
        return ClosedForm(
            lambda embedded, coords, index: torch.stack(
                [
                    mean_without_each(branch, embedded.values[:, index])
                    for branch in embedded.attention_logits.unbind(dim=1)
                ]
            ).mean(dim=0),
            lambda embedded, index: embedded.values[:, index],
        )


def masked_at_random(gated: Float[Tensor, "n b"], n_masked: int, share: float) -> Tensor:
    """Which patches each branch drops: a random share of its largest, never all of a bag."""
    largest = gated.topk(min(n_masked, len(gated)), dim=0).indices
    order = torch.rand(largest.shape, device=gated.device).argsort(dim=0)
    forgotten = largest.gather(0, order[: int(len(largest) * share)])
    return torch.zeros_like(gated, dtype=torch.bool).scatter(0, forgotten, True)


def mean_cosine(weights: Float[Tensor, "n b"]) -> Float[Tensor, ""]:
    """The mean cosine of two branches' weights; 0 for a single branch."""
    n_branches = weights.shape[1]
    if n_branches == 1:
        return weights.new_zeros(())
    directions = torch.nn.functional.normalize(weights, dim=0)
    cosines = directions.T @ directions
    return cosines.triu(diagonal=1).sum() / (n_branches * (n_branches - 1) / 2)
