"""The selector score s_i (the paper's small MLP) and what we add to it.

  s = MLP(e, coords[, responses]) + w_z z(log a) + w_k Phi^-1((rank k - 1/2) / N),   then half smoothing on the grid

a is the host's attention on the ungated bag, z standardises it per bag and clips to [-3, 6]; k is the signed
contribution of the patch to the predicted output. Both are detached: the selector reads the host, it does not pull it.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.evidence.adapter import LowRankAdapter
from gcemil.evidence.fold import Fold, unfolded
from gcemil.evidence.spatial import Neighbourhood, normalised_coords, smoothed
from gcemil.shapes import Coords, Features, Responses, Scores


class Selector(nn.Module):
    """One raw score per patch; a term whose input is None is left out."""

    def __init__(
        self,
        in_dim: int,
        *,
        adapter_rank: int = 32,
        hidden: int = 32,
        n_anchors: int = 0,
        smoothing: float = 0.5,
    ) -> None:
        super().__init__()
        if not 0 <= smoothing <= 1:
            raise UsageError(f"The share of smoothing lies between 0 and 1, got {smoothing}.")
        self.smoothing = smoothing
        self.adapter = LowRankAdapter(in_dim, adapter_rank=adapter_rank)
        self.feature_layer = nn.Linear(in_dim, hidden)
        self.coords_layer = nn.Linear(2, hidden, bias=False)
        self.response_layer = nn.Linear(n_anchors, hidden, bias=False) if n_anchors else None
        self.score_layer = nn.Linear(hidden, 1)
        self.attention_weight = nn.Parameter(torch.tensor(0.5))
        self.contribution_weight = nn.Parameter(torch.tensor(0.5))

    def forward(
        self,
        features: Features,
        coords: Coords | None,
        *,
        attention_logits: Scores | None = None,
        contributions: Scores | None = None,
        responses: Responses | None = None,
        neighbourhood: Neighbourhood | None = None,
    ) -> Scores:
        """Scores of one bag; without `neighbourhood` it is derived from the coordinates, without both nothing is smoothed."""
        (hidden,) = unfolded(features, [self.fold()])
        return self.scores(
            hidden,
            coords,
            attention_logits=attention_logits,
            contributions=contributions,
            responses=responses,
            neighbourhood=neighbourhood,
        )

    def fold(self) -> Fold:
        """Adapter and first layer, to be computed together with other folds of the same bag."""
        return self.adapter.linear(self.feature_layer.weight, self.feature_layer.bias)

    def scores(
        self,
        hidden: Float[Tensor, "n h"],
        coords: Coords | None,
        *,
        attention_logits: Scores | None = None,
        contributions: Scores | None = None,
        responses: Responses | None = None,
        neighbourhood: Neighbourhood | None = None,
    ) -> Scores:
        """Scores from the result of `fold`."""
        scores = self.morphology_scores(hidden, coords, responses)
        if attention_logits is not None:
            scores = scores + self.attention_weight * standardised_attention(attention_logits)
        if contributions is not None:
            scores = scores + self.contribution_weight * normal_rank(contributions)
        if self.smoothing == 0 or coords is None:
            return scores
        return smoothed(scores, neighbourhood or Neighbourhood.of(coords), share=self.smoothing)

    def morphology_scores(
        self, hidden: Float[Tensor, "n h"], coords: Coords | None, responses: Responses | None = None
    ) -> Scores:
        """The paper's MLP on adapted features and coordinates, and on responses where the selector takes them."""
        if coords is not None:
            hidden = hidden + self.coords_layer(normalised_coords(coords).to(hidden.dtype))
        if self.response_layer is not None:
            if responses is None:
                raise UsageError(
                    "This selector was built with n_anchors, so it needs the responses of the bag."
                )
            hidden = hidden + self.response_layer(responses)
        return self.score_layer(torch.relu(hidden)).squeeze(1)


@torch.no_grad()
def standardised_attention(attention_logits: Scores) -> Scores:
    """z(log a), clipped to [-3, 6]; the softmax constant cancels, so raw logits will do. Constant attention gives 0."""
    deviation = attention_logits.std(correction=0)
    # A constant bag leaves rounding noise, which must not be blown up to unit variance.
    if not bool(deviation > 1e-6 * attention_logits.abs().max()):
        return torch.zeros_like(attention_logits)
    return ((attention_logits - attention_logits.mean()) / deviation).clamp(-3, 6)


@torch.no_grad()
def normal_rank(values: Scores) -> Scores:
    """Phi^-1((rank - 1/2) / N), the rank counted from the smallest; equal values share their mean rank."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    mean_rank = counts.cumsum(0).to(values.dtype) - (counts.to(values.dtype) - 1) / 2
    return torch.special.ndtri((mean_rank[place] - 0.5) / len(values))
