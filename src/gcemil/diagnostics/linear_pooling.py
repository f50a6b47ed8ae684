"""Hosts that pool linearly: a few numbers of each patch are all that the prediction of any subset needs.

  a = softmax(z),   pooled = sum_i a_i u_i,   logits = read_out(pooled)
z_i is the attention logit of patch i and u_i what the head reads of it: as wide as the outputs, not as the embedding.

The pooled reading of the first k patches of a ranking is

  log Z_k = logcumsumexp(z)_k,    reading_k = sum_{i <= k} e^{z_i} u_i / Z_k

and u = u_plus - u_minus makes both halves cumulative sums of exponentials too, so that nothing underflows however far
the logits of a badly ranked prefix lie below the largest one:

  reading_k = exp(logcumsumexp(z + log u_plus)_k - log Z_k) - exp(logcumsumexp(z + log u_minus)_k - log Z_k)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from gcemil.hosts.abmil import Abmil, AttentionEmbedded
from gcemil.hosts.clam_sb import ClamSb
from gcemil.hosts.ibmil import Ibmil
from gcemil.hosts.mhim import Mhim, MhimEmbedded
from gcemil.shapes import Logits, Scores

COLUMNS = 8
"""Readings summed down a ranking at once: in double precision, with every intermediate, a wide row would outweigh the bag."""


@dataclass(frozen=True, eq=False)
class LinearPooling:
    """A bag under a host that pools linearly; differentiable in both tensors."""

    attention_logits: Scores
    readings: Float[Tensor, "n v"]
    read_out: Callable[[Tensor], Tensor]
    """From pooled readings (k, v) to logits (k, c)."""

    def logits(self) -> Logits:
        """The prediction of the whole bag."""
        pooled = torch.softmax(self.attention_logits, dim=0) @ self.readings
        return self.read_out(pooled.unsqueeze(0))[0]


def linear_form(host: Any) -> Callable[[Any, Any], LinearPooling] | None:
    """How to read an embedded bag of this host; None where patches see each other before they are pooled, or in training."""
    return None if getattr(host, "training", False) else LINEAR_FORMS.get(type(host))


def pooled_prefixes(
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


def attention_form(host: Abmil | ClamSb | Mhim, embedded: AttentionEmbedded | MhimEmbedded) -> LinearPooling:
    """A linear head read of each patch, its bias included, is the head read of their mean."""
    head = host.student.head if isinstance(host, Mhim) else host.head
    return LinearPooling(
        embedded.attention_logits, F.linear(embedded.tokens, head.weight, head.bias), lambda pooled: pooled
    )


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


LINEAR_FORMS: dict[type, Callable[[Any, Any], LinearPooling]] = {
    Abmil: attention_form,
    ClamSb: attention_form,
    Ibmil: ibmil_form,
    Mhim: attention_form,
}
"""By exact class: a subclass may pool in its own way."""
