"""Cox negative partial log-likelihood over a window of bags.

With log-risks h, D_i = sum of exp(h_j) over t_j >= t_i, and T_i = sum of exp(h_j) over the m_i events tied with i:

  Breslow   mean over events of  log D_i - h_i
  Efron     mean over events of  log(D_i - (r_i / m_i) T_i) - h_i,  r_i = 0 ... m_i - 1 in the order of the tied events

The mean is over events, so windows with many and with few events weigh the same per event.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

Ties = Literal["efron", "breslow"]


def cox_loss(
    risks: Float[Tensor, "k"],
    times: Shaped[Tensor, "k"],
    events: Bool[Tensor, "k"],
    *,
    ties: Ties = "efron",
) -> Float[Tensor, ""] | None:
    """The loss, or None for a window that says nothing: no event, or no other bag at risk at any event."""
    event_times = times[events]
    at_risk = times >= event_times.unsqueeze(1)
    # Such a window's likelihood is constant: 0 would look like a perfect fit and hide that no step was taken.
    if not bool((at_risk.sum(dim=1) > 1).any()):
        return None
    log_at_risk = masked_logsumexp(risks, at_risk)
    if ties == "efron":
        log_at_risk = log_at_risk + efron_correction(risks[events], event_times, log_at_risk)
    return (log_at_risk - risks[events]).mean()


def masked_logsumexp(risks: Float[Tensor, "k"], mask: Bool[Tensor, "e k"]) -> Float[Tensor, "e"]:
    """log of the sum of exp(risk) over each row's bags; every row has at least one."""
    # One row per event costs e x k, nothing for a window, shifts by each risk set's own maximum,
    # and runs on MPS, which has no logcumsumexp.
    return torch.logsumexp(risks.masked_fill(~mask, -torch.inf), dim=1)


def efron_correction(
    event_risks: Float[Tensor, "e"], event_times: Shaped[Tensor, "e"], log_at_risk: Float[Tensor, "e"]
) -> Float[Tensor, "e"]:
    """log(1 - (r/m) T/D): what Efron adds to log D."""
    tied = event_times == event_times.unsqueeze(1)
    share = tied.int().tril(-1).sum(dim=1) / tied.sum(dim=1)
    tied_share = torch.exp(masked_logsumexp(event_risks, tied) - log_at_risk)
    # share <= (m-1)/m and T <= D keep the argument at 1/m or above: no cancellation.
    return torch.log1p(-share * tied_share)
