"""DSMIL: attention pools around each class's critical patch (Li et al., 2021).

  c_ik = W_k h_i + b_k                      instance logits;  max logits_k = c at the critical patch
  m_k = argmax_i (c_ik + log pi_i)          the critical patch
  z_ik = q(h_i) . q(h_{m_k}) / sqrt(128),   A_k = softmax_i(z_ik + log pi_i),   B_k = sum_i A_ik h_i
  logits_k = sum_k' W[k, k'] B_k' + b_k     the bag head mixes the classes
With value_layer=True, B pools relu(W_v h_i + b_v) in place of h_i (the original's passing_v).
  total = 0.5 task loss(logits) + 0.5 task loss(max logits)

Gates. `deletion`: features stay whole, so a gate acts as removal in both streams. `paper`: the
literal hybrid, pi h in c, q and B plus log pi on z (a share of about pi^2). In both, log pi takes
part in the choice of the critical patch: otherwise a closed patch, whose instance logit is the bare
bias, could become critical.

Deviations. Classes exclude each other, so both streams are softmax logits rather than one sigmoid
per class. A patch's score is z for the predicted class. Weights start orthogonal and biases at 0,
as in the authors' training script.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.hosts.attention import mean_without_each, predicted_column
from gcemil.hosts.host import ClosedForm, Embedded, GateMode, HostOutput, MilHost
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores, Selected


@dataclass(frozen=True)
class TwoStreamEmbedded(Embedded):
    instance_logits: Float[Tensor, "n c"]
    queries: Float[Tensor, "n q"]


class Dsmil(MilHost[TwoStreamEmbedded]):
    paper_gate = "both"
    lrp_constants = ("query",)

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        hidden: int = 128,
        value_layer: bool = False,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        self.value = (
            nn.Sequential(nn.Linear(in_dim, in_dim), nn.ReLU()) if value_layer else nn.Identity()
        )
        self.instance_head = nn.Linear(in_dim, n_outputs)
        self.query = nn.Sequential(
            nn.Linear(in_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.head = nn.Linear(n_outputs * in_dim, n_outputs)
        self.task_weights = {"bag": 0.5, "max": 0.5}
        self.apply(start_orthogonal)

    def embed(self, features: Features) -> TwoStreamEmbedded:
        return TwoStreamEmbedded(
            self.value(features), self.instance_head(features), self.query(features)
        )

    def pool(
        self,
        embedded: TwoStreamEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        bias = 0.0 if log_gates is None else log_gates.unsqueeze(1)
        critical = (embedded.instance_logits + bias).argmax(dim=0, keepdim=True)
        max_logits = embedded.instance_logits.gather(0, critical).squeeze(0)
        queries = embedded.queries
        attention_logits = queries @ queries[critical.squeeze(0)].T * queries.shape[1] ** -0.5
        weights = torch.softmax(attention_logits + bias, dim=0)
        bag_feature = (weights.T @ embedded.tokens).flatten()
        logits = self.head(bag_feature)
        return HostOutput(
            logits=logits,
            bag_feature=bag_feature,
            scores=predicted_column(attention_logits, logits),
            contributions=self._contributions(weights, embedded.tokens, logits),
            auxiliary_logits={"max": max_logits},
        )

    def _contributions(
        self, weights: Float[Tensor, "n c"], tokens: Float[Tensor, "n w"], logits: Logits
    ) -> Scores:
        """sum_k' A_ik' (W[k, k'] h_i + b_k / C), centred over several outputs k."""
        predicted = logits.argmax().unsqueeze(0)
        direction = self.head.weight.index_select(0, predicted).squeeze(0)
        offset = self.head.bias.index_select(0, predicted).squeeze(0)
        if self.n_outputs > 1:
            direction = direction - self.head.weight.mean(dim=0)
            offset = offset - self.head.bias.mean()
        per_stream = tokens @ direction.view(self.n_outputs, -1).T + offset / self.n_outputs
        return (weights * per_stream).sum(dim=1)

    def subset_form(
        self, embedded: TwoStreamEmbedded, coords: Coords | None
    ) -> Callable[[Selected], Logits]:
        """The head makes one number of each patch in each stream, once for all subsets."""
        queries = embedded.queries
        per_stream = self.head.weight.view(self.n_outputs, self.n_outputs, -1)
        values = (embedded.tokens @ per_stream.flatten(0, 1).T).view(
            -1, self.n_outputs, self.n_outputs
        )

        def predict(selected: Selected) -> Logits:
            # Left-out rows stay where they are, without weight: copying the others costs more.
            left_out = ~selected.unsqueeze(1)
            critical = embedded.instance_logits.masked_fill(left_out, -torch.inf).argmax(dim=0)
            attention_logits = queries @ queries[critical].T * queries.shape[1] ** -0.5
            weights = torch.softmax(attention_logits.masked_fill(left_out, -torch.inf), dim=0)
            return (weights.unsqueeze(1) * values).sum(dim=(0, 2)) + self.head.bias

        return predict

    def closed_form(self) -> ClosedForm:
        """One softmax per class, one linear head over all.

        Without the critical patch of a class all its weights change: those bags, at most one per
        class, are pooled anew.
        """
        return ClosedForm(
            self._without_each,
            lambda embedded, index: (
                self._stream_values(embedded, index).sum(dim=1) + self.head.bias[index]
            ),
        )

    def _without_each(
        self, embedded: TwoStreamEmbedded, coords: Coords | None, index: int
    ) -> Scores:
        queries = embedded.queries
        critical = embedded.instance_logits.argmax(dim=0)
        attention_logits = queries @ queries[critical].T * queries.shape[1] ** -0.5
        values = self._stream_values(embedded, index)
        without = self.head.bias[index].expand(len(queries))
        for stream in range(self.n_outputs):
            without = without + mean_without_each(attention_logits[:, stream], values[:, stream])
        for patch in torch.unique(critical):
            others = torch.arange(len(queries), device=queries.device) != patch
            pooled = self.aggregate(
                embedded.rows(others), None if coords is None else coords[others]
            )
            without[patch] = pooled.logits[index]
        return without

    def _stream_values(self, embedded: TwoStreamEmbedded, index: int) -> Float[Tensor, "n c"]:
        """The head applied to each patch in each stream, without its bias."""
        return embedded.tokens @ self.head.weight[index].view(self.n_outputs, -1).T


def start_orthogonal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
