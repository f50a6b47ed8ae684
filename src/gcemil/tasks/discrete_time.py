"""Discrete-time survival on four intervals: the paper's auxiliary analysis, kept apart from the Cox results.

Edges are the quartiles of the uncensored training times; interval y holds edge_y <= t < edge_{y+1}, open at both ends.
With hazards h_j = sigmoid(z_j) and survival S_j = product over i <= j of (1 - h_i) (Zadeh & Schmid 2020):

  event in y      -log S_{y-1} - log h_y
  censored in y   -log S_y
  risk            -sum over j of S_j

With one output per bag, z_j = b_j + risk: the baseline b_j holds the hazards of the training cases, the bag moves all
of them alike (proportional odds). So hosts, wrapper and diagnostics are those of Cox, and the two can be compared.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from gcemil.errors import InputError

N_INTERVALS = 4


def interval_edges(
    times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> Float[np.ndarray, "edges=3"]:
    """The three inner edges. Give training cases only, or the intervals know the test times."""
    if not events.any():
        raise InputError(
            f"None of {len(events)} training cases has an event, so time has no quartiles. Use another split."
        )
    edges = np.quantile(times[events].astype(np.float64), np.arange(1, N_INTERVALS) / N_INTERVALS)
    if not (np.diff(edges) > 0).all():
        raise InputError(
            f"The quartiles {edges.tolist()} of {int(events.sum())} event times coincide, so an interval is empty. "
            "Use finer times or more events."
        )
    return edges


def interval_index(times: Real[np.ndarray, "n"], edges: Float[np.ndarray, "m"]) -> Int[np.ndarray, "n"]:
    """0 ... 3; a time on an edge belongs to the later interval."""
    return np.searchsorted(edges, times, side="right")


def baseline_logits(
    intervals: Int[np.ndarray, "n"], events: Bool[np.ndarray, "n"]
) -> Float[np.ndarray, "intervals=4"]:
    """Log-odds of the event in each interval among the cases still at risk; half a case keeps them finite."""
    interval = np.arange(N_INTERVALS)
    died = ((intervals[:, None] == interval) & events[:, None]).sum(axis=0)
    at_risk = (intervals[:, None] >= interval).sum(axis=0)
    return np.log((died + 0.5) / (at_risk - died + 0.5))


def discrete_time_loss(
    logits: Float[Tensor, "k j"], intervals: Int[Tensor, "k"], events: Bool[Tensor, "k"]
) -> Float[Tensor, ""]:
    """Mean negative log-likelihood; defined without events too, since a censored case says that it survived."""
    n_intervals = logits.shape[1]
    if bool(((intervals < 0) | (intervals >= n_intervals)).any()):
        raise InputError(f"Intervals are 0 to {n_intervals - 1}, got {sorted(set(intervals.tolist()))}.")
    interval = torch.arange(n_intervals, device=logits.device)
    own = intervals.unsqueeze(1)
    # An event case survived the intervals before its own, a censored one its own as well.
    survived = (interval < own) | ((interval == own) & ~events.unsqueeze(1))
    died = (interval == own) & events.unsqueeze(1)
    log_likelihood = torch.where(survived, F.logsigmoid(-logits), 0.0) + torch.where(
        died, F.logsigmoid(logits), 0.0
    )
    return -log_likelihood.sum(dim=1).mean()


def survival_curve(logits: Float[Tensor, "*k j"]) -> Float[Tensor, "*k j"]:
    """Probability of outliving each interval."""
    return F.logsigmoid(-logits).cumsum(dim=-1).exp()


def discrete_time_risk(logits: Float[Tensor, "*k j"]) -> Float[Tensor, "*k"]:
    """Minus the expected number of intervals outlived: higher is worse, as with a Cox risk."""
    return -survival_curve(logits).sum(dim=-1)
