"""IBMIL: ABMIL deconfounded by a dictionary of bag prototypes (Lin et al., 2023).

  m_i = relu(E h_i),  z_i = w tanh(V m_i),  a = softmax(z),  M = sum a_i m_i
  b = softmax_K( (W_k D) (W_q M) / sqrt(key width) ),  d = sum_k b_k D_k,  logits = head([M; d])
Stage "aggregator": D = 0, so d = 0 and the host is plain attention pooling.
Stage "deconfounded": D = k-means of the training bags' M (rows normalised for the clustering,
centroids the means of the un-normalised rows), frozen; every weight starts afresh but E, which is
kept and frozen, because D lies in the space of M that E makes.

Deviations: the projection E to 512 in front, as the other hosts have, with the dropout of ABMIL
(width=None pools the features themselves, as the original does). Cross-entropy over exclusive
classes where the original has one sigmoid per class. k-means of scikit-learn, from one random
start, for faiss. One head of width 2 x 512 serves both stages. A dictionary with fewer clusters
than slots repeats them. The logits are not linear in M, since d depends on it, so there are no
closed-form contributions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import normalize
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.attention import (
    AttentionEmbedded,
    AttentionPoolHost,
    LinearPooling,
    create_projection,
)
from gcemil.hosts.host import GateMode, Stage
from gcemil.shapes import Logits

KMEANS_SEED = 66
KMEANS_ITERATIONS = 20


class Ibmil(AttentionPoolHost):
    # The query of the bag feature sets the mixture of the dictionary, whose rows are constants.
    lrp_constants = ("attention", "query")
    confounders: Tensor

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int | None = 512,
        hidden: int = 128,
        key_width: int = 128,
        n_confounders: int = 8,
        dropout: float = 0.25,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        if n_confounders < 1:
            raise UsageError(f"ibmil needs n_confounders >= 1, got {n_confounders}.")
        projects, width = width is not None, width or in_dim
        self.project = create_projection(in_dim, width, dropout) if projects else nn.Identity()
        self.attention = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        self.query = nn.Linear(width, key_width)
        self.key = nn.Linear(width, key_width)
        self.head = nn.Linear(2 * width, n_outputs)
        self.register_buffer("confounders", torch.zeros(n_confounders, width))
        # A run resumed from its weights freezes what was frozen.
        self.register_load_state_dict_post_hook(lambda host, _: host._hold_space())  # type: ignore[no-untyped-call]

    def read_patches(self, tokens: Float[Tensor, "n w"]) -> None:
        """The logits are not linear in M, so no patch has a reading of its own."""

    def read_bag(self, bag_feature: Float[Tensor, "w"]) -> Logits:
        """The head reads M and the mixture of the dictionary that this bag attends to."""
        query = self.query(bag_feature)
        mixture = torch.softmax(self.key(self.confounders) @ query / math.sqrt(len(query)), dim=0)
        logits: Tensor = self.head(torch.cat([bag_feature, mixture @ self.confounders]))
        return logits

    def linear_form(self, embedded: AttentionEmbedded) -> LinearPooling:
        """The mixture depends on M through its query: a patch needs a number per confounder."""
        of_feature, of_confounder = self.head.weight.chunk(2, dim=1)
        keys = self.key(self.confounders) / math.sqrt(self.key.out_features)
        of_mixture = self.confounders @ of_confounder.T
        if torch.is_grad_enabled():
            # The layer itself is called, so that relevance propagation can hold its answers
            # constant.
            values = F.linear(embedded.tokens, of_feature, self.head.bias)
            readings = torch.cat([values, self.query(embedded.tokens) @ keys.T], dim=1)
        else:
            weight = torch.cat([of_feature, keys @ self.query.weight])
            bias = torch.cat([self.head.bias, keys @ self.query.bias])
            readings = F.linear(embedded.tokens, weight, bias)

        def read_out(pooled: Tensor) -> Tensor:
            direct, answers = pooled[:, : self.n_outputs], pooled[:, self.n_outputs :]
            return direct + torch.softmax(answers, dim=1) @ of_mixture

        return LinearPooling(embedded.attention_logits, readings, read_out)

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("aggregator", prepares=True), Stage("deconfounded"))

    def begin_stage(self, stage: Stage, bag_features: Callable[[], Tensor], n_steps: int) -> None:
        if stage.name == "aggregator":
            self.confounders.zero_()
        else:
            self.confounders.copy_(confounder_dictionary(bag_features(), len(self.confounders)))
            for name, module in self.named_modules():
                if isinstance(module, nn.Linear) and not name.startswith("project."):
                    module.reset_parameters()
        self._hold_space()

    def _hold_space(self) -> None:
        """The projection learns until there is a dictionary in its space."""
        self.project.requires_grad_(not bool(self.confounders.any()))


def confounder_dictionary(
    bag_features: Float[Tensor, "bags w"], n_confounders: int
) -> Float[Tensor, "confounders w"]:
    """The mean bag feature of each cluster of their directions."""
    rows = bag_features.detach().double().cpu().numpy()
    directions = normalize(rows)
    # Parallel bags are one direction, up to rounding.
    n_clusters = min(n_confounders, len(np.unique(directions.round(6), axis=0)))
    with warnings.catch_warnings():
        # Empty clusters are dropped below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans = KMeans(n_clusters, n_init=1, max_iter=KMEANS_ITERATIONS, random_state=KMEANS_SEED)
        assigned = kmeans.fit_predict(directions)
    centroids = np.stack(
        [rows[assigned == cluster].mean(axis=0) for cluster in np.unique(assigned)]
    )
    repeated = centroids[np.arange(n_confounders) % len(centroids)]
    return torch.from_numpy(repeated).to(bag_features)
