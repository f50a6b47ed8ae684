"""Leave-one-out and keep-one of every patch at about one pass, exact for hosts that pool by attention.

  M = sum_j a_j m_j,   a = softmax(z)
  without i:  M_-i = sum_{j != i} a_j m_j / (1 - a_i) = M + a_i / (1 - a_i) (M - m_i)
  only i:     M = m_i
  occlusion_i = f(X) - f(X without i),   single_i = f({i}),   f the predicted logit or the risk, head(M)

The division loses every digit as a_i approaches 1: what the others hold is then the rounding error of M. So a patch of
weight above 1/2, of which a bag has at most one, is left out by pooling the others anew; for all others 1 - a_i >= 1/2.
A linear head moves inside the sum, so that a row is one number, head(m_j), instead of a vector.

Which hosts, and what each needs besides:
  abmil clam_sb mhim   nothing: softmax pooling, linear head
  ibmil                its head is not linear in M: it is asked for every M_-i, in chunks
  hdmil                the same; a patch the branch dropped changes nothing, and where the only kept one leaves, the
                       branch keeps its best other patch
  dsmil                one sum per class. Without the critical patch of a class all its weights change: those bags, at
                       most one per class, are pooled anew
  dtfd (afs)           patch i changes its own group's row; the second tier is asked for every changed row
Not transmil and camil, where every patch changes every other, nor dtfd with max or maxmin, whose choice of patches
depends on all weights of the group: see ablation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.attribution.predicted import Predicted
from gcemil.errors import UsageError
from gcemil.hosts.abmil import Abmil
from gcemil.hosts.attention import patch_values
from gcemil.hosts.clam_sb import ClamSb
from gcemil.hosts.dsmil import Dsmil
from gcemil.hosts.dtfd import Dtfd, group_of, present_groups
from gcemil.hosts.hdmil import Hdmil, kept_or_best, kept_softmax
from gcemil.hosts.ibmil import Ibmil
from gcemil.hosts.mhim import Mhim
from gcemil.shapes import Scores

CHUNK = 256
"""Pooled vectors that a head sees at once: few enough to stay in the cache."""

WeightsOf = Callable[[Scores], Scores]
Head = Callable[[Float[Tensor, "k w"]], Float[Tensor, "k"]]
OfEveryPatch = Callable[[Any, Predicted], Tensor]


@torch.no_grad()
def occlusion(bag: Predicted) -> Scores:
    """f(X) - f(X without i) of every patch; the only patch of a bag has no complement, and scores 0."""
    form = closed_form_of(bag.host)
    if len(bag) == 1:
        return bag.logit.new_zeros(1)
    return bag.logit - form.without(bag.host, bag)


@torch.no_grad()
def single(bag: Predicted) -> Scores:
    """f({i}) of every patch."""
    return closed_form_of(bag.host).alone(bag.host, bag)


@dataclass(frozen=True)
class ClosedForm:
    """The predicted logit without, and with only, each patch."""

    without: OfEveryPatch
    alone: OfEveryPatch


def has_closed_form(host: Any) -> bool:
    # A subclass may pool differently, so only the type itself counts.
    return type(host) in CLOSED_FORMS and not (isinstance(host, Dtfd) and host.distillation != "afs")


def closed_form_of(host: Any) -> ClosedForm:
    if not has_closed_form(host):
        raise UsageError(
            f"{type(host).__name__} has no closed form of leave-one-out. Use 'occlusion_blocks' or 'single_blocks'."
        )
    return CLOSED_FORMS[type(host)]


def means_without_each(
    attention_logits: Scores, rows: Float[Tensor, "n w"], weights_of: WeightsOf
) -> Iterator[Float[Tensor, "k w"]]:
    """The weighted mean of the rows once without each patch, a chunk of patches at a time."""
    weights = weights_of(attention_logits)
    mean = weights @ rows
    odds = (weights / (1 - weights)).unsqueeze(1)
    dominant = [int(patch) for patch in (weights > 0.5).nonzero()]
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        means = mean + odds[part] * (mean - rows[part])
        for patch in dominant:
            if start <= patch < start + len(means):
                others = torch.arange(len(rows), device=rows.device) != patch
                means[patch - start] = weights_of(attention_logits[others]) @ rows[others]
        yield means


def softmax(attention_logits: Scores) -> Scores:
    return torch.softmax(attention_logits, dim=0)


def headed_means(
    attention_logits: Scores, rows: Float[Tensor, "n w"], weights_of: WeightsOf, head: Head
) -> Scores:
    """The head asked for every mean."""
    return torch.cat([head(means) for means in means_without_each(attention_logits, rows, weights_of)])


def in_chunks(rows: Float[Tensor, "n w"], head: Head) -> Scores:
    return torch.cat([head(part) for part in torch.split(rows, CHUNK)])


def first_column(means: Float[Tensor, "k 1"]) -> Float[Tensor, "k"]:
    return means[:, 0]


# abmil, clam_sb, mhim: softmax pooling and a linear head.


def linear_without(host: Any, bag: Predicted) -> Scores:
    values = linear_alone(host, bag).unsqueeze(1)
    return headed_means(bag.embedded.attention_logits, values, softmax, first_column)


def linear_alone(host: Any, bag: Predicted) -> Scores:
    head = host.student.head if isinstance(host, Mhim) else host.head
    return patch_values(bag.embedded.tokens, head)[:, bag.index]


# ibmil: softmax pooling, and a head that reads the dictionary through M.


def ibmil_without(host: Ibmil, bag: Predicted) -> Scores:
    return headed_means(
        bag.embedded.attention_logits, bag.embedded.tokens, softmax, ibmil_head(host, bag.index)
    )


def ibmil_alone(host: Ibmil, bag: Predicted) -> Scores:
    return in_chunks(bag.embedded.tokens, ibmil_head(host, bag.index))


def ibmil_head(host: Ibmil, index: int) -> Head:
    def one(bag_feature: Float[Tensor, "w"]) -> Float[Tensor, ""]:
        return host.head(torch.cat([bag_feature, host.confounder(bag_feature)]))[index]

    return torch.vmap(one)


# hdmil: the branch of the predicted output alone decides its logit.


def hdmil_without(host: Hdmil, bag: Predicted) -> Scores:
    branch = bag.embedded.attention_logits[:, bag.index]
    return headed_means(branch, bag.embedded.tokens, hdmil_weights, hdmil_head(host, bag.index))


def hdmil_alone(host: Hdmil, bag: Predicted) -> Scores:
    return in_chunks(bag.embedded.tokens, hdmil_head(host, bag.index))


def hdmil_weights(branch_logits: Scores) -> Scores:
    column = branch_logits.unsqueeze(1)
    return kept_softmax(column, kept_or_best(column > 0, column)).squeeze(1)


def hdmil_head(host: Hdmil, index: int) -> Head:
    coefficients = host.bag_heads.coefficients[index, :, 0].T.contiguous()
    return lambda rows: chebyshev_sums(torch.tanh(rows), coefficients)


def chebyshev_sums(
    inputs: Float[Tensor, "k w"], coefficients: Float[Tensor, "degrees w"]
) -> Float[Tensor, "k"]:
    """sum_i sum_d coef_di T_d(u_i) by Clenshaw's recurrence: the host's own way keeps all T_d of every row at once."""
    doubled = 2 * inputs
    upper, lower = torch.zeros_like(inputs), torch.zeros_like(inputs)
    for degree in range(len(coefficients) - 1, 0, -1):
        upper, lower = torch.addcmul(coefficients[degree] - lower, doubled, upper), upper
    return (coefficients[0] + inputs * upper - lower).sum(dim=1)


# dsmil: one softmax per class around its critical patch, one linear head over all of them.


def dsmil_without(host: Dsmil, bag: Predicted) -> Scores:
    queries = bag.embedded.queries
    critical = bag.embedded.instance_logits.argmax(dim=0)
    attention_logits = queries @ queries[critical].T * queries.shape[1] ** -0.5
    values = dsmil_values(host, bag)
    streams = [
        headed_means(attention_logits[:, stream], values[:, stream : stream + 1], softmax, first_column)
        for stream in range(host.n_outputs)
    ]
    without = torch.stack(streams).sum(dim=0) + host.head.bias[bag.index]
    for patch in critical.unique():
        others = torch.arange(len(queries), device=queries.device) != patch
        pooled = host.aggregate(bag.embedded.rows(others), None if bag.coords is None else bag.coords[others])
        without[patch] = pooled.logits[bag.index]
    return without


def dsmil_alone(host: Dsmil, bag: Predicted) -> Scores:
    return dsmil_values(host, bag).sum(dim=1) + host.head.bias[bag.index]


def dsmil_values(host: Dsmil, bag: Predicted) -> Float[Tensor, "n c"]:
    """What the head says of each patch in each stream, without its bias."""
    return bag.embedded.tokens @ host.head.weight[bag.index].view(host.n_outputs, -1).T


# dtfd (afs): softmax pooling within groups, then gated attention over the rows of the groups.


def dtfd_without(host: Dtfd, bag: Predicted) -> Scores:
    tokens, attention_logits = bag.embedded.tokens, bag.embedded.attention_logits
    place = bag.embedded.fingerprint if bag.coords is None else bag.coords
    _, membership = present_groups(group_of(place, host.n_groups), host.n_groups)
    members = [column.nonzero().flatten() for column in membership.unbind(dim=1)]
    means = torch.stack([softmax(attention_logits[rows]) @ tokens[rows] for rows in members])
    tier_two = torch.stack(second_tier(host, means, bag.index), dim=1)
    without = torch.empty_like(attention_logits)
    for group, rows in enumerate(members):
        others = torch.cat([tier_two[:group], tier_two[group + 1 :]])
        without[rows] = dtfd_group_without(host, bag, rows, others)
    return without


def dtfd_group_without(
    host: Dtfd, bag: Predicted, rows: Int[Tensor, "k"], others: Float[Tensor, "g 2"]
) -> Float[Tensor, "k"]:
    """The predicted logit without each patch of one group; `others` are the second tier's other rows."""
    other_logits, other_values = others.unbind(dim=1)
    if len(rows) == 1:
        # The group leaves with its only patch.
        return (softmax(other_logits) @ other_values).unsqueeze(0)

    def head(changed: Float[Tensor, "k w"]) -> Float[Tensor, "k"]:
        own_logits, own_values = second_tier(host, changed, bag.index)
        logits = torch.cat([own_logits.unsqueeze(1), other_logits.expand(len(changed), -1)], dim=1)
        values = torch.cat([own_values.unsqueeze(1), other_values.expand(len(changed), -1)], dim=1)
        return (torch.softmax(logits, dim=1) * values).sum(dim=1)

    return headed_means(bag.embedded.attention_logits[rows], bag.embedded.tokens[rows], softmax, head)


def second_tier(host: Dtfd, rows: Float[Tensor, "k w"], index: int) -> tuple[Tensor, Tensor]:
    """Attention logit of each distilled row, and what the head says of it."""
    return host.bag_attention(rows).squeeze(1), patch_values(rows, host.head)[:, index]


CLOSED_FORMS: dict[type, ClosedForm] = {
    Abmil: ClosedForm(linear_without, linear_alone),
    ClamSb: ClosedForm(linear_without, linear_alone),
    Mhim: ClosedForm(linear_without, linear_alone),
    Ibmil: ClosedForm(ibmil_without, ibmil_alone),
    Hdmil: ClosedForm(hdmil_without, hdmil_alone),
    Dsmil: ClosedForm(dsmil_without, dsmil_alone),
    Dtfd: ClosedForm(dtfd_without, linear_alone),
}
