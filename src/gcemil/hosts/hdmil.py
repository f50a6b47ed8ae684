"""HDMIL: attention branches that learn which patches to drop (Dong et al., 2025); its DMIN network.

  m_i = relu(E h_i),  z_ic = w_c (tanh(V m_i) * sigmoid(U m_i)),  one branch per output c
  full path      A_c = softmax_n(z_c)
                 M_c = sum_i A_ic m_i,   logit_c = KAN_c(M_c)
  selected path  A'_c = k_c e^{z_c} / sum_n k_nc e^{z_nc},   M', logit' as above
  training    k = 1[z + g1 - g2 > 0], g Gumbel noise, straight-through at temperature 0.7;
              logits are the full path's
  evaluation  k = 1[z + log pi > 0]; logits are the selected path's
  KAN(x)_o = sum_i sum_{d <= 12} coef_iod T_d(tanh x_i), T_d the Chebyshev polynomials
  loss = 0.7 CE(logits) + 0.3 L_instance + 0.5 KL(logits || logits') + 0.5 MSE(M', M)
         + 2 (kept rate - r)^2
L_instance is CLAM's, one branch per class, with the smooth SVM softplus(1 + x_other - x_target).
Deviations: the image pre-screener needs pixels and is left out. The original normalises A' over
patches and classes jointly in training and per class in evaluation; ours is per class in both, so
that they agree. A branch that keeps nothing keeps its best patch instead of answering KAN(0). The
kept rate is the union over all branches, not over two. With one output (risk) the bag loss has
weight 1, (logit - logit')^2 replaces the KL and there is no instance loss. A log-gate is added to z
before both the weights and the keep decision of evaluation: a closed patch must neither weigh nor
crowd out an open one. So a gate of 1/2 also moves the host's own threshold by log 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.attention import (
    CHUNK,
    GatedAttention,
    create_projection,
    init_xavier,
    read_means_without_each,
)
from gcemil.hosts.clam import instance_loss
from gcemil.hosts.host import (
    ClosedForm,
    Embedded,
    GateMode,
    GatePosition,
    HostOutput,
    MilHost,
    pool_rows,
)
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores, Selected

NORMALISATIONS = ("branch", "joint")
GUMBEL_TEMPERATURE = 0.7
INSTANCE_WEIGHT, MATCH_WEIGHT, RATE_WEIGHT = 0.3, 0.5, 2.0

BranchLogits = Float[Tensor, "n c"]
BranchKept = Bool[Tensor, "n c"]
BranchFeatures = Float[Tensor, "c w"]


@dataclass(frozen=True)
class BranchEmbedded(Embedded):
    attention_logits: BranchLogits


class ChebyshevHeads(nn.Module):
    """Independent Chebyshev-KAN layers, one per branch."""

    def __init__(self, branches: int, width: int, outputs: int, *, degree: int) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(torch.empty(branches, width, outputs, degree + 1))
        for coefficients in self.coefficients:
            nn.init.xavier_normal_(coefficients)

    def forward(self, inputs: Float[Tensor, "b r w"]) -> Float[Tensor, "b r o"]:
        return chebyshev_kan(inputs, self.coefficients)


class Hdmil(MilHost[BranchEmbedded]):
    paper_gate: GatePosition = "feature"

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        hidden: int = 256,
        degree: int = 12,
        dropout: float = 0.25,
        kept_rate: float = 0.6,
        n_instances: int = 32,
        subtyping: bool | None = None,
        normalisation: str = "branch",
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        if degree < 1 or not 0 <= kept_rate <= 1:
            raise UsageError(
                f"hdmil needs degree >= 1 and kept_rate in [0, 1], got {degree} and {kept_rate}."
            )
        if normalisation not in NORMALISATIONS:
            raise UsageError(
                f"hdmil's normalisation is one of {', '.join(NORMALISATIONS)}, "
                f"got '{normalisation}'."
            )
        self.project = create_projection(in_dim, width, dropout)
        self.attention = GatedAttention(width, hidden, heads=n_outputs, dropout=dropout)
        self.bag_heads = ChebyshevHeads(n_outputs, width, 1, degree=degree)
        self.instance_heads = (
            ChebyshevHeads(n_outputs, width, 2, degree=degree) if n_outputs > 1 else None
        )
        self.task_weights = {"bag": 0.7 if n_outputs > 1 else 1.0}
        self.kept_rate = kept_rate
        self.n_instances = n_instances
        self.subtyping = n_outputs > 2 if subtyping is None else subtyping
        self.is_joint = normalisation == "joint"
        init_xavier(self)

    def embed(self, features: Features) -> BranchEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        return BranchEmbedded(tokens, self.attention(tokens))

    def pool(
        self,
        embedded: BranchEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        branch_logits = embedded.attention_logits
        gated_logits = branch_logits
        if log_gates is not None:
            gated_logits = branch_logits + log_gates.unsqueeze(1)
        if self.training:
            weights = torch.softmax(gated_logits, dim=0)
        else:
            weights = weights_of_kept(gated_logits)
        branch_features = weights.T @ embedded.tokens
        logits = self._bag_logits(branch_features)
        predicted = logits.argmax()
        losses = {}
        if self.training and target is not None:
            losses = self._losses(embedded, gated_logits, branch_features, logits, target)
        return HostOutput(
            logits=logits,
            bag_feature=branch_features[predicted],
            scores=branch_logits[:, predicted],
            losses=losses,
        )

    def subset_form(
        self, embedded: BranchEmbedded, coords: Coords | None
    ) -> Callable[[Selected], Logits]:
        """The rows of a large subset stay where they are; what is left out has no weight."""

        def predict(selected: Selected) -> Logits:
            if 2 * int(selected.sum()) < len(selected):
                return pool_rows(self, embedded, coords, selected)
            left = embedded.attention_logits.masked_fill(~selected.unsqueeze(1), -torch.inf)
            return self._bag_logits(weights_of_kept(left).T @ embedded.tokens)

        return predict

    def closed_form(self) -> ClosedForm:
        """The branch of an output alone decides its logit; its head is applied to every mean."""

        def without(embedded: BranchEmbedded, coords: Coords | None, index: int) -> Scores:
            branch = embedded.attention_logits[:, index]
            return read_means_without_each(
                branch, embedded.tokens, read_rows(index), weights_of_kept
            )

        def alone(embedded: BranchEmbedded, index: int) -> Scores:
            return torch.cat(
                [read_rows(index)(rows) for rows in torch.split(embedded.tokens, CHUNK)]
            )

        def read_rows(index: int) -> Callable[[Float[Tensor, "k w"]], Float[Tensor, "k"]]:
            coefficients = self.bag_heads.coefficients[index, :, 0].T.contiguous()
            return lambda rows: chebyshev_sums(torch.tanh(rows), coefficients)

        return ClosedForm(without, alone)

    def _bag_logits(self, branch_features: BranchFeatures) -> Logits:
        return self.bag_heads(branch_features.unsqueeze(1)).flatten()

    def _losses(
        self,
        embedded: BranchEmbedded,
        gated_logits: BranchLogits,
        branch_features: BranchFeatures,
        logits: Logits,
        target: Tensor,
    ) -> dict[str, Tensor]:
        kept = gumbel_kept(embedded.attention_logits, gated_logits)
        weights = straight_through_weights(gated_logits, kept, jointly=self.is_joint)
        selected_features = weights.T @ embedded.tokens
        rate = union_rate(kept)
        losses = {
            "prediction_match": MATCH_WEIGHT
            * mismatch(logits, self._bag_logits(selected_features)),
            "feature_match": MATCH_WEIGHT * F.mse_loss(selected_features, branch_features),
            "kept_rate": RATE_WEIGHT * (rate - self.kept_rate).square(),
        }
        k = min(self.n_instances, len(gated_logits) // 2)
        if self.instance_heads is not None and k > 0:
            instance = self._instance_loss(
                self.instance_heads, embedded.tokens, gated_logits, target, k
            )
            losses["instance"] = INSTANCE_WEIGHT * instance
        return losses

    def _instance_loss(
        self,
        heads: ChebyshevHeads,
        tokens: Float[Tensor, "n w"],
        gated_logits: BranchLogits,
        target: Tensor,
        k: int,
    ) -> Float[Tensor, ""]:
        """Own branch: top positive, bottom negative. Other branches: top negative."""
        top: Int[Tensor, "c k"] = gated_logits.detach().topk(k, dim=0).indices.T
        bottom = gated_logits.detach()[:, target].topk(k, largest=False).indices
        own = F.one_hot(target, self.n_outputs).bool()
        top_losses = instance_loss(heads(tokens[top]), own.unsqueeze(1).expand(-1, k)).mean(dim=1)
        own_head = heads.coefficients[target].unsqueeze(0)
        bottom_scores = chebyshev_kan(tokens[bottom].unsqueeze(0), own_head)[0]
        bottom_loss = instance_loss(
            bottom_scores, torch.zeros_like(bottom, dtype=torch.bool)
        ).mean()
        own_loss = (top_losses[target] + bottom_loss) / 2
        if not self.subtyping:
            return own_loss
        return (own_loss + top_losses.sum() - top_losses[target]) / self.n_outputs


def chebyshev_kan(
    inputs: Float[Tensor, "b r w"], coefficients: Float[Tensor, "b w o p"]
) -> Float[Tensor, "b r o"]:
    """sum_i sum_d coef_iod T_d(tanh x_i), by the recurrence T_d = 2 u T_{d-1} - T_{d-2}."""
    u = torch.tanh(inputs)
    basis = [torch.ones_like(u), u]
    for _ in range(coefficients.shape[3] - 2):
        basis.append(2 * u * basis[-1] - basis[-2])
    return torch.einsum("brwp,bwop->bro", torch.stack(basis, dim=3), coefficients)


def chebyshev_sums(
    inputs: Float[Tensor, "k w"], coefficients: Float[Tensor, "degrees w"]
) -> Float[Tensor, "k"]:
    """sum_i sum_d coef_di T_d(u_i) by Clenshaw's recurrence, without keeping all T_d."""
    doubled = 2 * inputs
    upper, lower = torch.zeros_like(inputs), torch.zeros_like(inputs)
    for degree in range(len(coefficients) - 1, 0, -1):
        upper, lower = torch.addcmul(coefficients[degree] - lower, doubled, upper), upper
    return (coefficients[0] + inputs * upper - lower).sum(dim=1)


def kept_or_best(kept: BranchKept, gated_logits: BranchLogits) -> BranchKept:
    """The keep decision, with the highest (gated) patch in a branch that would keep none."""
    best = torch.zeros_like(kept).scatter(
        0, gated_logits.detach().argmax(dim=0, keepdim=True), True
    )
    return torch.where(kept.any(dim=0), kept, best)


def weights_of_kept(gated_logits: Float[Tensor, "n *c"]) -> Float[Tensor, "n *c"]:
    """The weights of evaluation, of every branch or of one."""
    columns = gated_logits.view(len(gated_logits), -1)
    weights = kept_softmax(columns, kept_or_best(columns > 0, columns))
    return weights.view_as(gated_logits)


def kept_softmax(gated_logits: BranchLogits, kept: BranchKept) -> BranchLogits:
    return torch.softmax(gated_logits.masked_fill(~kept, -torch.inf), dim=0)


def gumbel_kept(branch_logits: BranchLogits, gated_logits: BranchLogits) -> BranchLogits:
    """A hard random keep decision (0 or 1) that passes the gradient of its soft version."""
    noisy = branch_logits + logistic_noise(branch_logits)
    soft = torch.sigmoid(noisy / GUMBEL_TEMPERATURE)
    hard = kept_or_best(noisy > 0, gated_logits).to(soft.dtype)
    return hard + (soft - soft.detach())


def logistic_noise(branch_logits: BranchLogits) -> BranchLogits:
    """The difference of two Gumbel variables."""
    return torch.rand_like(branch_logits).logit(eps=1e-6)


def union_rate(kept: BranchLogits) -> Float[Tensor, ""]:
    """Share of the patches that any branch keeps, with the published gradient: that of the sum.

    The gradient of the union itself is 0 wherever two branches keep a patch.
    """
    total = kept.sum(dim=1)
    union = (kept.detach() > 0.5).any(dim=1).to(total.dtype)
    return (union + (total - total.detach())).mean()


def straight_through_weights(
    gated_logits: BranchLogits, kept: BranchLogits, *, jointly: bool = False
) -> BranchLogits:
    """kept_softmax for a decision with a gradient; `jointly` over all branches."""
    kept_logits = gated_logits.detach().masked_fill(kept.detach() < 0.5, -torch.inf)
    highest_kept = kept_logits.amax() if jointly else kept_logits.amax(dim=0)
    # A dropped patch may lie above every kept one: capped, its exponential cannot overflow.
    unnormalised = (gated_logits - highest_kept).clamp(max=0).exp() * kept
    return unnormalised / (unnormalised.sum() if jointly else unnormalised.sum(dim=0))


def mismatch(logits: Logits, selected_logits: Logits) -> Float[Tensor, ""]:
    """KL(logits || selected logits), or the squared difference of two risks."""
    if len(logits) == 1:
        return (logits - selected_logits).square().sum()
    log_p, log_q = logits.log_softmax(dim=0), selected_logits.log_softmax(dim=0)
    return (log_p.exp() * (log_p - log_q)).sum()
