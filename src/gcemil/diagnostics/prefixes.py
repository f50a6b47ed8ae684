"""Rankings of the patches of a bag, and the host's answer on the prefixes of a ranking.

A host that pools linearly answers for every prefix in one pass down the ranking (linear_pooling.py); others pool every
prefix asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.attribution.predicted import PredictedBag, predict_bag
from gcemil.diagnostics.bench import FoldBag, NetworkName, TrainedFold
from gcemil.diagnostics.linear_pooling import linear_form, pool_prefixes
from gcemil.diagnostics.truth import oracle_scores
from gcemil.hosts.attention import LinearPooling
from gcemil.hosts.host import Host, HostOutput
from gcemil.interventions import Interventions
from gcemil.recovery.rules import members, ranking

Ranking = Int[Tensor, "k"]
Order = Int[Tensor, "n"]


@dataclass(frozen=True, eq=False)
class NetworkView:
    """One bag under one network, embedded once."""

    predicted: PredictedBag
    bench: Interventions

    @property
    def host(self) -> Host:
        return self.predicted.host

    @property
    def embedded(self) -> Any:
        return self.predicted.embedded

    @property
    def full(self) -> HostOutput:
        return self.predicted.full

    @cached_property
    def linear(self) -> LinearPooling | None:
        """None for a host whose patches see each other before they are pooled."""
        form = linear_form(self.host)
        with torch.no_grad():
            return None if form is None else form(self.embedded)


@torch.no_grad()
def network_view(fold: TrainedFold, bag: FoldBag, network: NetworkName) -> NetworkView:
    """The bag under the wrapped or the plain host; the wrapper's own embedding is used where there is one."""
    host = fold.host_of(network)
    if network == "wrapped" and bag.explanation is not None:
        output = bag.explanation.output
        return view_bag(PredictedBag(host, bag.features, bag.coords, output.embedded, output.full))
    return view_bag(predict_bag(host, bag.features, bag.coords))


def view_bag(bag: PredictedBag) -> NetworkView:
    """A predicted bag with the interventions on it."""
    return NetworkView(bag, Interventions(bag.host, bag.features, bag.coords, embedded=bag.embedded))


def rank_by_rules(
    bag: FoldBag, network: NetworkName, view: NetworkView, *, random_order: Order
) -> dict[str, Tensor]:
    """Every rule's order of the patches, best first: evidence where there are gates, oracle where there is truth."""
    attention = view.full.scores
    orders = {"random": random_order, "attention": ranking(attention)}
    if network == "wrapped" and bag.explanation is not None:
        orders["evidence"] = ranking(bag.explanation.output.scores)
    if bag.truth is not None:
        orders["oracle"] = ranking(oracle_scores(bag.truth, bag.regions, attention))
    return orders


@torch.no_grad()
def prefix_logits(view: NetworkView, order: Ranking, sizes: Sequence[int]) -> Float[Tensor, "s c"]:
    """What the host says of the first patches of a ranking, for each number of them."""
    if view.linear is None:
        return torch.stack([pool_prefix(view, order[:size]).logits for size in sizes])
    pooled = pool_prefixes(view.linear, order, sizes)
    return view.linear.read_out(pooled.to(view.full.logits.dtype))


def pool_prefix(view: NetworkView, patches: Ranking) -> HostOutput:
    n_patches = len(view.embedded.tokens)
    # The whole bag is the dearest prefix, and its answer is known.
    if len(patches) == n_patches:
        return view.full
    return view.bench.kept(members(patches, n_patches=n_patches))
