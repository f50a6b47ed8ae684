"""Rankings of the patches of a bag, and the host's answer on the prefixes of a ranking.

A host that pools linearly answers for every prefix in one pass down the ranking. With attention logits z_i and u_i, what
the head reads of patch i, the pooled reading of the first k patches is

  log Z_k = logcumsumexp(z)_k,    reading_k = sum_{i <= k} e^{z_i} u_i / Z_k

and u = u_plus - u_minus makes both halves cumulative sums of exponentials too, so that nothing underflows however far
the logits of a badly ranked prefix lie below the largest one:

  reading_k = exp(logcumsumexp(z + log u_plus)_k - log Z_k) - exp(logcumsumexp(z + log u_minus)_k - log Z_k)

Other hosts pool every prefix asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.bench import BagBench, FoldBench, NetworkName
from gcemil.diagnostics.truth import oracle_scores
from gcemil.hosts.abmil import Abmil, AttentionEmbedded, ValuedEmbedded
from gcemil.hosts.attention import patch_values
from gcemil.hosts.clam_sb import ClamSb
from gcemil.hosts.host import Embedded, HostOutput, embedded_bag
from gcemil.hosts.ibmil import Ibmil
from gcemil.hosts.mhim import Mhim, MhimEmbedded
from gcemil.interventions import Interventions
from gcemil.recovery.rules import members, ranking
from gcemil.shapes import Scores

Readings = Float[Tensor, "k v"]
Ranking = Int[Tensor, "k"]
Order = Int[Tensor, "n"]


@dataclass(frozen=True, eq=False)
class LinearPooling:
    """A bag under a host that pools linearly: the softmax of the logits weighs what the head reads of each patch."""

    attention_logits: Scores
    readings: Float[Tensor, "n v"]
    read_out: Callable[[Tensor], Tensor]
    """From pooled readings (k, v) to logits (k, c)."""


@dataclass(frozen=True, eq=False)
class NetworkView:
    """One bag under one network, embedded once."""

    host: Any
    embedded: Embedded
    bench: Interventions
    full: HostOutput

    @cached_property
    def linear(self) -> LinearPooling | None:
        """None for a host whose patches see each other before they are pooled."""
        form = LINEAR_FORMS.get(type(self.host))
        return None if form is None or self.host.training else form(self.host, self.embedded)


@torch.no_grad()
def network_view(fold: FoldBench, bag: BagBench, network: NetworkName) -> NetworkView:
    """The bag under the wrapped or the plain host; the wrapper's own embedding is used where there is one."""
    host = fold.host_of(network)
    if network == "wrapped" and bag.explanation is not None:
        output = bag.explanation.output
        bench = Interventions(host, bag.features, bag.coords, embedded=output.embedded)
        return NetworkView(host, output.embedded, bench, output.full)
    embedded = embedded_bag(host, bag.features)
    bench = Interventions(host, bag.features, bag.coords, embedded=embedded)
    return NetworkView(host, embedded, bench, bench.full())


def rankings(
    bag: BagBench, network: NetworkName, view: NetworkView, *, random_order: Order
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
        return torch.stack([pooled_prefix(view, order[:size]).logits for size in sizes])
    pooled = pooled_prefixes(view.linear, order[: max(sizes)])[torch.tensor(sizes) - 1]
    return view.linear.read_out(pooled.to(view.full.logits.dtype))


def pooled_prefix(view: NetworkView, patches: Ranking) -> HostOutput:
    n_patches = len(view.embedded.tokens)
    # The whole bag is the dearest prefix, and its answer is known.
    if len(patches) == n_patches:
        return view.full
    return view.bench.kept(members(patches, n_patches=n_patches))


def pooled_prefixes(pooling: LinearPooling, order: Ranking) -> Readings:
    """The pooled readings of the first 1, 2, ... patches of the ranking."""
    logits = pooling.attention_logits[order].double().unsqueeze(1)
    readings = pooling.readings[order].double()
    log_total = logits.logcumsumexp(dim=0)
    positive, negative = (
        ((logits + part.clamp(min=0).log()).logcumsumexp(dim=0) - log_total).exp()
        for part in (readings, -readings)
    )
    return positive - negative


def abmil_form(host: Abmil | ClamSb, embedded: ValuedEmbedded) -> LinearPooling:
    return LinearPooling(embedded.attention_logits, embedded.values, unchanged)


def mhim_form(host: Mhim, embedded: MhimEmbedded) -> LinearPooling:
    values = patch_values(embedded.tokens, host.student.head)
    return LinearPooling(embedded.attention_logits, values, unchanged)


def ibmil_form(host: Ibmil, embedded: AttentionEmbedded) -> LinearPooling:
    """The head reads M and a mixture of confounders that depends on M through its query alone."""
    of_feature, of_confounder = host.head.weight.chunk(2, dim=1)
    values = embedded.tokens @ of_feature.T + host.head.bias
    keys = host.key(host.confounders)

    def read_out(pooled: Tensor) -> Tensor:
        direct, queries = pooled[:, : host.n_outputs], pooled[:, host.n_outputs :]
        mixtures = torch.softmax(queries @ keys.T / math.sqrt(keys.shape[1]), dim=1)
        return direct + mixtures @ host.confounders @ of_confounder.T

    readings = torch.cat([values, host.query(embedded.tokens)], dim=1)
    return LinearPooling(embedded.attention_logits, readings, read_out)


def unchanged(pooled: Tensor) -> Tensor:
    """A linear head read of each patch, its bias included, is the head read of their mean."""
    return pooled


LINEAR_FORMS: dict[type, Callable[[Any, Any], LinearPooling]] = {
    Abmil: abmil_form,
    ClamSb: abmil_form,
    Ibmil: ibmil_form,
    Mhim: mhim_form,
}
"""By exact class: a subclass may pool in its own way."""
