"""Leave-one-out and keep-one of every patch at about one pass, exact for hosts that pool by attention.

  M = sum_j a_j m_j,   a = softmax(z)
  without i:  M_-i = sum_{j != i} a_j m_j / (1 - a_i) = M + a_i / (1 - a_i) (M - m_i)
  only i:     M = m_i
  occlusion_i = f(X) - f(X without i),   single_i = f({i}),   f the predicted logit or the risk, head(M)

How the means are taken without losing digits stands in hosts/attention.py; what each host needs besides, in its own
`closed_form`. transmil and camil have none, since every patch changes every other, nor has dtfd with max or maxmin: see
ablation.py.
"""

from __future__ import annotations

import torch

from gcemil.diagnostics.attribution.predicted import PredictedBag
from gcemil.errors import UsageError
from gcemil.hosts.attention import ClosedForm
from gcemil.hosts.host import Host, shortcut
from gcemil.shapes import Scores


@torch.no_grad()
def occlusion(bag: PredictedBag) -> Scores:
    """f(X) - f(X without i) of every patch; the only patch of a bag has no complement, and scores 0."""
    form = find_closed_form(bag.host)
    if len(bag) == 1:
        return bag.logit.new_zeros(1)
    return bag.logit - form.without(bag.embedded, bag.coords, bag.index)


@torch.no_grad()
def single(bag: PredictedBag) -> Scores:
    """f({i}) of every patch."""
    return find_closed_form(bag.host).alone(bag.embedded, bag.index)


def has_closed_form(host: Host) -> bool:
    """Whether the host's class gives one, and its options allow it."""
    form = shortcut(host, "closed_form")
    return form is not None and form() is not None


def find_closed_form(host: Host) -> ClosedForm:
    """The host's closed form; one without is refused."""
    if not has_closed_form(host):
        raise UsageError(
            f"{type(host).__name__} has no closed form of leave-one-out. Use 'occlusion_blocks' or 'single_blocks'."
        )
    form: ClosedForm = shortcut(host, "closed_form")()
    return form
