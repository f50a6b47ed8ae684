"""How well risks predict events: time-dependent AUC and Brier score, corrected for censoring.

G(t) is the Kaplan-Meier estimate of staying uncensored. With weights w of a bootstrap draw:

  AUC(t)    share of pairs (i had the event by t, j lives beyond t, both of one fold) with risk_i > risk_j,
            weighted by w_i w_j / G(t_i)                                                 (Uno et al. 2007)
  Brier(t)  mean of  S_i(t)^2 / G(t_i)        for events by t,
                     (1 - S_i(t))^2 / G(t)    for those who live beyond t                (Graf et al. 1999)

S_i(t) comes from a Cox model with the risk as its only covariate, fitted on the validation cases of
the fold (lifelines), so the Brier score is that of the recalibrated model.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Real
from scipy.integrate import trapezoid

from gcemil.report.scores import FoldPredictions, Weights, share_of_pairs

Times = Float[np.ndarray, "t"]
Scores = Float[np.ndarray, "d t"]
N_TIMES = 40
RIDGE = 0.1
"""Penalty of the Cox model on risks of unit variance: few cases may separate perfectly."""


def choose_times(times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"]) -> Times:
    """Evenly between the 10th and 90th percentile of the event times; empty without two of them."""
    if len(np.unique(times[events])) < 2:
        return np.empty(0)
    # Beyond the last time nobody is left to compare with.
    low, high = np.quantile(times[events], [0.1, 0.9])
    return np.linspace(low, min(high, np.nextafter(times.max(), 0)), N_TIMES)


def estimate_uncensored(
    times: Real[np.ndarray, "n"], events: Bool[np.ndarray, "n"], at: Real[np.ndarray, "m"]
) -> Float[np.ndarray, "m"]:
    """G at these times; of equal times the event comes before the censoring."""
    steps = np.unique(times)
    at_risk = (times[:, None] >= steps).sum(axis=0) - (
        (times[:, None] == steps) & events[:, None]
    ).sum(axis=0)
    censored = ((times[:, None] == steps) & ~events[:, None]).sum(axis=0)
    left = np.cumprod(1 - np.divide(censored, at_risk, out=np.zeros(len(steps)), where=at_risk > 0))
    return np.append(1.0, left)[np.searchsorted(steps, at, side="right")]


def measure_auc_over_time(bags: FoldPredictions, mode: str, weights: Weights, at: Times) -> Scores:
    """The AUC at every time, NaN where there is no pair."""
    events, risks = bags.labels == 1, bags.by_mode[mode]
    uncensored = estimate_uncensored(bags.targets, events, bags.targets)
    folds = np.zeros(len(events)) if bags.folds is None else bags.folds
    found = []
    for time in at:
        had, lives = events & (bags.targets <= time), bags.targets > time
        pairs = (folds[had][:, None] == folds[lives]) / uncensored[had][:, None]
        found.append(share_of_pairs(weights, had, lives, risks, pairs))
    return np.stack(found, axis=1)


def measure_brier(
    times: Real[np.ndarray, "n"],
    events: Bool[np.ndarray, "n"],
    survival: Float[np.ndarray, "n t"],
    weights: Weights,
    at: Times,
) -> Scores:
    """The Brier score at every time; `survival` holds S_i(t)."""
    own = estimate_uncensored(times, events, times)[:, None]
    had, lives = (times[:, None] <= at) & events[:, None], times[:, None] > at
    later = np.broadcast_to(estimate_uncensored(times, events, at), survival.shape)
    losses = np.zeros(survival.shape)
    np.divide(survival**2, own, out=losses, where=had)
    np.divide((1 - survival) ** 2, later, out=losses, where=lives)
    return weights @ losses / weights.sum(axis=1, keepdims=True)


def integrate_over_time(scores: Scores, at: Times) -> Float[np.ndarray, "d"]:
    """The mean over the span of time, by the trapezoid rule."""
    return np.asarray(trapezoid(scores, at, axis=1) / (at[-1] - at[0]))


def predict_survival(
    fitted_on: pd.DataFrame, risks: Float[np.ndarray, "n"], at: Times
) -> tuple[Float[np.ndarray, "n t"], Times] | None:
    """S_i(t) of these risks, and S(t) of Kaplan-Meier.

    `fitted_on` has the columns time, event and risk; None if it has no event or a single risk.
    """
    # lifelines takes seconds to import, and a classification run needs none of it.
    from lifelines import CoxPHFitter, KaplanMeierFitter

    middle, spread = fitted_on.risk.mean(), fitted_on.risk.std()
    if not fitted_on.event.any() or not spread > 0:
        return None
    scaled = fitted_on.assign(risk=(fitted_on.risk - middle) / spread)[["time", "event", "risk"]]
    with warnings.catch_warnings():
        # It warns of few or separable cases, which the penalty is there for.
        warnings.simplefilter("ignore")
        model = CoxPHFitter(penalizer=RIDGE).fit(scaled, duration_col="time", event_col="event")
        own = pd.DataFrame({"risk": (risks - middle) / spread})
        survival = model.predict_survival_function(own, times=at)
        reference = KaplanMeierFitter().fit(fitted_on.time, fitted_on.event)
    return survival.to_numpy().T, reference.survival_function_at_times(at).to_numpy()
