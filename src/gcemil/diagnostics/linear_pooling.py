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

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.hosts.attention import LinearPooling
from gcemil.hosts.host import Host, shortcut

COLUMNS = 8
"""Readings summed down a ranking at once: in double precision, with every intermediate, a wide row would outweigh the bag."""


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
