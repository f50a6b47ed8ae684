"""Survival: losses over a window of bags, and the C-index of a fold.

Cox (Efron), with log-risks h, D_i = sum of exp(h_j) over t_j >= t_i, and T_i the same sum over the
m_i events tied with i:

  mean over events of  log(D_i - (r_i / m_i) T_i) - h_i,  r_i = 0 ... m_i - 1

Discrete time, the paper's auxiliary analysis (Zadeh & Schmid 2020): the quartiles of the uncensored
training times are the edges of four intervals, open at both ends. With hazards h_j = sigmoid(z_j)
and S_j = product over i <= j of (1 - h_i):

  event in y      -log S_{y-1} - log h_y
  censored in y   -log S_y

With one output per bag, z_j = b_j + risk: the baseline b_j holds the hazards of the training cases,
and the bag moves all of them alike (proportional odds).

C-index (Harrell): a pair (i, j) is comparable if i had the event and j outlived it, as a bag
censored at t_i did. It is concordant if risk_i > risk_j; risks within the tolerance are tied.

  C = (concordant + tied / 2) / comparable
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real, Shaped
from torch import Tensor

from gcemil.errors import InputError

# Cox


def cox_loss(
    risks: Float[Tensor, "k"], times: Shaped[Tensor, "k"], events: Bool[Tensor, "k"]
) -> Float[Tensor, ""] | None:
    """The loss; None without an event, or with no other bag at risk at any event."""
    event_times = times[events]
    at_risk = times >= event_times.unsqueeze(1)
    # The likelihood of such a window is constant, and a loss of 0 would look like a perfect fit.
    if not bool((at_risk.sum(dim=1) > 1).any()):
        return None
    log_at_risk = _masked_logsumexp(risks, at_risk)
    tied = event_times == event_times.unsqueeze(1)
    share = tied.int().tril(-1).sum(dim=1) / tied.sum(dim=1)
    tied_share = torch.exp(_masked_logsumexp(risks[events], tied) - log_at_risk)
    # share <= (m-1)/m and T <= D keep the argument at 1/m or above: no cancellation.
    log_at_risk = log_at_risk + torch.log1p(-share * tied_share)
    return (log_at_risk - risks[events]).mean()


def _masked_logsumexp(risks: Float[Tensor, "k"], mask: Bool[Tensor, "e k"]) -> Float[Tensor, "e"]:
    """log of the sum of exp(risk) over each row's bags; every row has at least one."""
    # Each row is shifted by its own maximum; MPS has no logcumsumexp.
    return torch.logsumexp(risks.masked_fill(~mask, -torch.inf), dim=1)


# Discrete time

N_INTERVALS = 4


def interval_edges(
    times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> Float[np.ndarray, "edges=3"]:
    """The three inner edges. Give training cases only, or the intervals depend on test times."""
    if not events.any():
        raise InputError(
            f"None of {len(events)} training cases has an event, so time has no quartiles. "
            "Use another split."
        )
    edges = np.quantile(times[events].astype(np.float64), np.arange(1, N_INTERVALS) / N_INTERVALS)
    if not (np.diff(edges) > 0).all():
        raise InputError(
            f"The quartiles {edges.tolist()} of {int(events.sum())} event times coincide, so an "
            "interval is empty. Use finer times or more events."
        )
    return edges


def interval_index(
    times: Real[np.ndarray, "n"], edges: Float[np.ndarray, "m"]
) -> Int[np.ndarray, "n"]:
    """0 ... 3; a time on an edge belongs to the later interval."""
    return np.searchsorted(edges, times, side="right")


def baseline_logits(
    intervals: Int[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> Float[np.ndarray, "intervals=4"]:
    """Log-odds of the event in each interval among the cases at risk; half a case is added."""
    interval = np.arange(N_INTERVALS)
    died = ((intervals[:, None] == interval) & events[:, None]).sum(axis=0)
    at_risk = (intervals[:, None] >= interval).sum(axis=0)
    return np.log((died + 0.5) / (at_risk - died + 0.5))


def discrete_time_loss(
    logits: Float[Tensor, "k j"], intervals: Int[Tensor, "k"], events: Bool[Tensor, "k"]
) -> Float[Tensor, ""]:
    """Mean negative log-likelihood, which exists without events too."""
    interval = torch.arange(logits.shape[1], device=logits.device)
    own = intervals.unsqueeze(1)
    # An event case survived the intervals before its own, a censored one its own as well.
    survived = (interval < own) | ((interval == own) & ~events.unsqueeze(1))
    died = (interval == own) & events.unsqueeze(1)
    log_likelihood = torch.where(survived, F.logsigmoid(-logits), 0.0) + torch.where(
        died, F.logsigmoid(logits), 0.0
    )
    return -log_likelihood.sum(dim=1).mean()


# The C-index

_TIED_RISKS = 1e-8


def c_index(
    risks: Float[np.ndarray, "n"], times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> float:
    """Agreement of higher risk with earlier event over all comparable pairs."""
    if not np.isfinite(risks).all():
        raise InputError(
            f"{int((~np.isfinite(risks)).sum())} of {len(risks)} risks are NaN or infinite. "
            "The model has diverged."
        )
    comparable = comparable_pairs(times, events)
    n_comparable = int(comparable.sum())
    if n_comparable == 0:
        raise InputError(no_pair_message(events))
    difference = risks[events][:, None] - risks
    tied = comparable & (np.abs(difference) <= _TIED_RISKS)
    concordant = comparable & ~tied & (difference > 0)
    return float((concordant + 0.5 * tied).sum() / n_comparable)


def comparable_pairs(
    times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> Bool[np.ndarray, "e n"]:
    """One row per event: who is known to have outlived it."""
    event_times = times[events][:, None]
    return (event_times < times) | ((event_times == times) & ~events)


def no_pair_message(events: Bool[np.ndarray, "n"]) -> str:
    """Why there is no C-index, and what to do."""
    return (
        f"The C-index is undefined: {len(events)} bags with {int(events.sum())} events hold no "
        "comparable pair. Evaluate on a fold with an event that another bag outlived."
    )
