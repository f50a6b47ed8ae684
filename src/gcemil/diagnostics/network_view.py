"""A bag under one network: predicted once, then asked for the prefixes of any ranking.

A host that pools linearly answers for every prefix in one pass down the ranking:

  a = softmax(z),   pooled = sum_i a_i u_i,   logits = read_out(pooled)

z_i is the attention logit of patch i and u_i what the head reads of it: as wide as the outputs, not as the embedding.
The pooled reading of the first k patches is

  log Z_k = logcumsumexp(z)_k,    reading_k = sum_{i <= k} e^{z_i} u_i / Z_k

and u = u_plus - u_minus makes both halves cumulative sums of exponentials too, so that nothing underflows however far
the logits of a badly ranked prefix lie below the largest one:

  reading_k = exp(logcumsumexp(z + log u_plus)_k - log Z_k) - exp(logcumsumexp(z + log u_minus)_k - log Z_k)

Other hosts pool every prefix that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.trained_fold import FoldBag, NetworkName, TrainedFold
from gcemil.errors import UsageError
from gcemil.hosts.attention import LinearPooling
from gcemil.hosts.host import Host, HostOutput, check_bag, check_finite, embedded_bag, shortcut
from gcemil.interventions import Interventions
from gcemil.recovery.rules import members

COLUMNS = 8
"""Readings summed down a ranking at once: in double precision, with every intermediate, a wide row would outweigh the bag."""
Ranking = Int[Tensor, "k"]
Order = Int[Tensor, "n"]


@dataclass(frozen=True, eq=False)
class PredictedBag:
    """A bag embedded and pooled once by a host in evaluation mode: the pass that every attribution starts from."""

    host: Host
    features: Tensor
    """As stored: those of a large bag in half precision where the file has them so."""
    coords: Tensor | None
    embedded: Any
    """An `Embedded` of the host's own kind."""
    full: HostOutput

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def index(self) -> int:
        """The output that is explained."""
        return int(self.full.logits.argmax())

    @property
    def logit(self) -> Float[Tensor, ""]:
        """The explained output on the whole bag."""
        return self.full.logits[self.index]


@torch.no_grad()
def predict_bag(host: Host, features: Tensor, coords: Tensor | None) -> PredictedBag:
    """One pass of a host in evaluation mode over the whole bag."""
    # Users call this with tensors of their own: a message says more than a failed annotation.
    check_bag(features, coords, in_dim=host.in_dim)
    if getattr(host, "training", False):
        raise UsageError("A host is explained in evaluation mode. Call host.eval() first.")
    embedded = embedded_bag(host, features)
    full = host.aggregate(embedded, coords)
    check_finite(full, features)
    return PredictedBag(host, features, coords, embedded, full)


def linear_form(host: Host) -> Callable[[Any], LinearPooling] | None:
    """How to read an embedded bag of this host; None where patches see each other before they are pooled, or in training."""
    return None if getattr(host, "training", False) else shortcut(host, "linear_form")


def pool_prefixes(
    pooling: LinearPooling, order: Int[Tensor, "n"], sizes: Sequence[int]
) -> Float[Tensor, "s v"]:
    """The pooled readings of the first so many patches of the ranking, for each number of them."""
    order, last = order[: max(sizes)], torch.tensor(sizes) - 1
    logits = pooling.attention_logits[order].double().unsqueeze(1)
    log_total = logits.logcumsumexp(dim=0)

    def pooled(part: Float[Tensor, "n w"]) -> Float[Tensor, "s w"]:
        sums = (logits + part.clamp(min=0).log()).logcumsumexp(dim=0)
        return (sums - log_total)[last].exp()

    columns = (part[order].double() for part in torch.split(pooling.readings, COLUMNS, dim=1))
    return torch.cat([pooled(part) - pooled(-part) for part in columns], dim=1)


@dataclass(frozen=True, eq=False)
class NetworkView:
    """One bag under one network, embedded once."""

    predicted: PredictedBag
    bench: Interventions

    @property
    def host(self) -> Host:
        """The network's host."""
        return self.predicted.host

    @property
    def embedded(self) -> Any:
        """The bag as the host embedded it, of the host's own kind."""
        return self.predicted.embedded

    @property
    def full(self) -> HostOutput:
        """What the host says of the whole bag."""
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


@torch.no_grad()
def prefix_logits(view: NetworkView, order: Ranking, sizes: Sequence[int]) -> Float[Tensor, "s c"]:
    """What the host says of the first patches of a ranking, for each number of them."""
    if view.linear is None:
        return torch.stack([pool_prefix(view, order[:size]).logits for size in sizes])
    pooled = pool_prefixes(view.linear, order, sizes)
    return view.linear.read_out(pooled.to(view.full.logits.dtype))


def pool_prefix(view: NetworkView, patches: Ranking) -> HostOutput:
    """What the host says of these patches alone."""
    n_patches = len(view.embedded.tokens)
    # The whole bag is the dearest prefix, and its answer is known.
    if len(patches) == n_patches:
        return view.full
    return view.bench.kept(members(patches, n_patches=n_patches))
