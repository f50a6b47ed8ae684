"""Flipping curves: a bag loses its patches in the order of a ranking, and the output Phi is read on the way.

  most relevant first    Phi(X without the k highest): falls at once where the ranking finds what is needed
  least relevant first   Phi(X without the k lowest), that is Phi of the n - k highest alone: stays up where the
                         ranking finds what is enough
  area                   mean height of a curve over the share of patches removed, by the trapezoid rule
  SRG                    area(least first) - area(most first): one number for a ranking, 0 for a random one

Read from right to left, the second curve is the keep curve of the ranking. Patches are really removed; a bag without any
has no prediction, so a curve ends with the last patch. Phi is the probability of the class predicted on X, or the risk
in units of the training risks: a ranking of risk is good when its first patches raise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.answers import Answers
from gcemil.diagnostics.prefixes import NetworkView, prefix_logits
from gcemil.errors import UsageError

REMOVED_SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Dense at both ends: few patches are evidence."""

Curve = Float[Tensor, "s"]


@dataclass(frozen=True, eq=False)
class FlippingCurves:
    """Phi over the share of patches removed, from none to all but one."""

    removed: Curve
    most_first: Curve
    least_first: Curve

    @property
    def most_first_area(self) -> float:
        return area(self.removed, self.most_first)

    @property
    def least_first_area(self) -> float:
        return area(self.removed, self.least_first)

    @property
    def symmetric_gain(self) -> float:
        """SRG."""
        return self.least_first_area - self.most_first_area


@torch.no_grad()
def flipping_curves(
    view: NetworkView,
    order: Int[Tensor, "n"],
    answers: Answers,
    *,
    removed_shares: Sequence[float] = REMOVED_SHARES,
) -> FlippingCurves:
    """Both curves of a ranking, best patch first."""
    if wrong := [share for share in removed_shares if not 0 <= share <= 1]:
        raise UsageError(f"A share of removed patches lies in [0, 1], got {wrong[0]}.")
    n_patches, full = len(order), view.full.logits
    counts = sorted({0, n_patches - 1, *(min(round(s * n_patches), n_patches - 1) for s in removed_shares)})
    left = [n_patches - count for count in counts]
    return FlippingCurves(
        removed=torch.tensor(counts, dtype=torch.float64) / n_patches,
        most_first=answers.outputs(full, prefix_logits(view, order.flip(0), left)),
        least_first=answers.outputs(full, prefix_logits(view, order, left)),
    )


def area(removed: Curve, values: Curve) -> float:
    """Mean height; a curve of one point is as high as the point."""
    span = float(removed[-1] - removed[0])
    return float(torch.trapezoid(values, removed)) / span if span > 0 else float(values[0])
