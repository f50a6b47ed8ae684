"""The evidence head, and the prediction F in which host and evidence decide together.

  z_im = (cos(h_i - mu, a_m) - delta_m) / s_m       excess of patch i over what 95 % of training patches show of anchor m
  r_im = max(0, z_im)                               response of the head
  v_m(S) = max(nu_m, (1/k) sum of the k largest r_im, i in S)     coverage that does not saturate; k = max(4, 0.5 % of the patches)
  U_c(S) = sum_m alpha_cm v_m(S) + b_c, alpha >= 0  class utility (Eq. 5), trained on slide labels
  h(S)   = sum_m beta_m v_m(S) [+ b]                for survival and regression: beta signed, b for regression alone
  F_c(S) = (1 - w) log p_host(c | S)  +  w log p_head(c | S),    one weight w in [0, 1]
           log p(c | S) = log softmax(logits_c / T + t_c), a temperature and class biases for host and head each
  F(S)   = (1 - w) host(S) + w h(S)                 risks in deviations of the training slides, values each with a slope and an offset

v_m never falls when a patch is added, and k is that of the whole slide, so removing patches can only lower it. nu_m is the lower quartile of v_m over
the training slides: an anchor of which S holds nothing counts as on a slide that does not show it, not as less than any slide.
Noisy-OR coverage saturates on slides of hundreds of patches: with the responses of Eq. 2 a random 5 % covers every anchor. Learned offsets
cure that on simulated slides and overfit on tissue (docs/ablations.md has the comparison).

T, t and w are chosen on validation slides, which neither host nor head was trained on. Under a flat prior over (0, 1] its posterior mean is taken; where
the host alone explains the validation labels better than a mixture of unknown weight does, w is 0, and F is the host, bit for bit.
The labels are explained by log p of their class, by the Cox likelihood, or by a Gaussian around F whose variance is that of the
validation slides at this w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor, nn

from gcemil.bags.cohort import Task
from gcemil.outputs import create_output, guess_task
from gcemil.shapes import Features, Gates

QUANTILE = 0.95
TOP_SHARE, FEWEST_TOP = 0.005, 4
ABSENT_QUANTILE = 0.25
"""Of the coverage of training slides: what an anchor that is not shown counts as."""
RIDGE = 0.03
"""Of standardised coverage; cross-validation on training slides picks too little, since anchors are made of their patches."""
WEIGHTS = np.linspace(0.0, 1.0, 21)
INVERSE_TEMPERATURES = (0.08, 7.4)
BIAS_RIDGE = 10.0
"""Of class biases in nats: a standard deviation of 0.3 before any slide was seen (docs/ablations.md)."""

Coverages = Float[np.ndarray, "_ m"]


class EvidenceHead(nn.Module):
    """Reads coverage off a bag and mixes its verdict with the host's; `weight` 0 until it is fitted.

    Args:
        in_dim: Width of the features.
        n_anchors: Number of anchors the head reads.
        n_outputs: Classes, or 1 for a risk or a value.
        task: What is predicted; None takes one output as a risk.
    """

    centre: Tensor
    directions: Tensor
    offset: Tensor
    scale: Tensor
    absent: Tensor
    weights: Tensor
    bias: Tensor
    host_scale: Tensor
    host_bias: Tensor
    head_scale: Tensor
    weight: Tensor

    def __init__(
        self, in_dim: int, n_anchors: int, n_outputs: int, task: Task | None = None
    ) -> None:
        super().__init__()
        self.output_kind = create_output(task or guess_task(n_outputs), n_outputs)
        self.register_buffer("centre", torch.zeros(in_dim))
        self.register_buffer("directions", torch.zeros(n_anchors, in_dim))
        self.register_buffer("offset", torch.zeros(n_anchors))
        self.register_buffer("scale", torch.ones(n_anchors))
        self.register_buffer("absent", torch.zeros(n_anchors))
        self.register_buffer("weights", torch.zeros(n_outputs, n_anchors))
        self.register_buffer("bias", torch.zeros(n_outputs))
        # Classes: inverse temperatures. Risks: mean and inverse deviation over the training slides. Values: slopes.
        self.register_buffer("host_scale", torch.tensor([0.0, 1.0]))
        self.register_buffer("head_scale", torch.tensor([0.0, 1.0]))
        # Class biases or the offset of a value, in units of the host's logits; those of the head are in `bias`.
        self.register_buffer("host_bias", torch.zeros(n_outputs))
        self.register_buffer("weight", torch.zeros(()))
        # Read often and set once, so they are kept beside the buffers and not read off the device for every bag.
        self._known: tuple[bool, float] | None = None

    @property
    def has_vote(self) -> bool:
        """Whether the head takes part in the prediction."""
        return self._state()[1] > 0

    @property
    def is_fitted(self) -> bool:
        """Whether the head has anchors and weights, with or without a vote."""
        return self._state()[0]

    def _state(self) -> tuple[bool, float]:
        if self._known is None:
            self._known = bool(self.directions.any() and self.weights.any()), float(self.weight)
        return self._known

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._known = None

    @torch.no_grad()
    def set_anchors(self, directions: Tensor, reference: Features) -> None:
        """Take the anchors, and the centre, offsets and scales from reference patches."""
        self.centre.copy_(reference.mean(dim=0))
        self.directions.copy_(nn.functional.normalize(directions, dim=1))
        self.offset.zero_()
        self.scale.fill_(1.0)
        self.absent.zero_()
        cosines = self._standardised(reference).double().cpu().numpy()
        self.offset.copy_(torch.from_numpy(np.quantile(cosines, QUANTILE, axis=0)))
        # An anchor to which every patch responds alike says nothing, and must not be divided by zero.
        self.scale.copy_(torch.from_numpy(np.maximum(cosines.std(axis=0), 1e-6)))

    def responses(self, features: Features) -> Float[Tensor, "n m"]:
        """r_im of every patch."""
        return self._standardised(features).clamp_min(0)

    def _standardised(self, features: Features) -> Float[Tensor, "n m"]:
        # |h - mu|^2 = |h|^2 - 2 h mu + |mu|^2, so that the centred bag is never held.
        products = (
            torch.cat([self.directions, self.centre.unsqueeze(0)]) @ features.T
        ).T.contiguous()
        norms = torch.linalg.vector_norm(features, dim=1).square() - 2 * products[:, -1]
        norms = (norms + self.centre.square().sum()).clamp_min(1e-12).sqrt()
        cosines = (products[:, :-1] - self.directions @ self.centre) / norms.unsqueeze(1)
        return (cosines - self.offset) / self.scale

    def coverage(
        self, responses: Float[Tensor, "n m"], n_patches: int, gates: Gates | None = None
    ) -> Float[Tensor, "m"]:
        """v_m of these patches of a slide of `n_patches`."""
        k = top_count(n_patches)
        gated = responses if gates is None else gates.unsqueeze(1) * responses
        return torch.maximum(
            gated.topk(min(k, len(gated)), dim=0).values.sum(dim=0) / k, self.absent
        )

    def utility(self, coverage: Float[Tensor, "*n m"]) -> Float[Tensor, "*n c"]:
        """U_c, or h, of one coverage or of several."""
        return coverage @ self.weights.T + self.bias

    def mix(
        self, host: Float[Tensor, "*n c"], utility: Float[Tensor, "*n c"]
    ) -> Float[Tensor, "*n c"]:
        """F from the logits of host and head; the host's own where the head has no vote."""
        if not self.has_vote:
            return host
        parts = (
            self.output_kind.calibrate(host + self.host_bias, self.host_scale),
            self.output_kind.calibrate(utility, self.head_scale),
        )
        return (1 - self.weight) * parts[0] + self.weight * parts[1]

    def marginals(
        self, responses: Float[Tensor, "n m"], n_patches: int, anchor_weights: Float[Tensor, "m"]
    ) -> Gates:
        """What the utility loses without each patch, for one row of weights: its excess over the patch that takes its place."""
        return self._losses_without_each(responses, n_patches) @ anchor_weights

    def coverage_without_each(
        self, responses: Float[Tensor, "n m"], n_patches: int
    ) -> Float[Tensor, "n m"]:
        """v_m without each patch in turn."""
        k = top_count(n_patches)
        whole = responses.topk(min(k, len(responses)), dim=0).values.sum(dim=0) / k
        return torch.maximum(whole - self._losses_without_each(responses, n_patches), self.absent)

    def _losses_without_each(
        self, responses: Float[Tensor, "n m"], n_patches: int
    ) -> Float[Tensor, "n m"]:
        """What the mean of the first responses loses without each patch: its excess over the one that takes its place."""
        k = top_count(n_patches)
        top = responses.topk(min(k + 1, len(responses)), dim=0).values
        follower = top[k] if len(top) > k else torch.zeros_like(top[0])
        return (responses - follower).clamp_min(0) / k

    def set_fit(self, fit: HeadFit) -> None:
        """Take what was fitted."""
        for name, value in vars(fit).items():
            getattr(self, name).copy_(torch.as_tensor(value))
        self._known = None


def top_count(n_patches: int) -> int:
    """k: how many patches show that an anchor is there."""
    return max(FEWEST_TOP, round(TOP_SHARE * n_patches))


@dataclass(frozen=True)
class HeadFit:
    """Everything that is learned from slide labels."""

    weights: Float[np.ndarray, "c m"]
    bias: Float[np.ndarray, "c"]
    host_scale: Float[np.ndarray, "2"]
    host_bias: Float[np.ndarray, "c"]
    head_scale: Float[np.ndarray, "2"]
    weight: float


def fit_class_head(
    train: Coverages,
    labels: Int[np.ndarray, "n"],
    val: Coverages,
    val_labels: Int[np.ndarray, "k"],
    val_host: Float[np.ndarray, "k c"],
) -> HeadFit:
    """Class weights from training slides; calibration and the weight of the vote from validation slides."""
    weights, bias = fit_class_weights(train, labels, val_host.shape[1])
    host_scale, host_bias = calibrate_logits(val_host, val_labels)
    head_scale, head_bias = calibrate_logits(val @ weights.T + bias, val_labels)
    bias = bias + head_bias
    host = log_softmax((val_host + host_bias) * host_scale, axis=1)
    head = log_softmax((val @ weights.T + bias) * head_scale, axis=1)
    log_likelihoods = np.array([-_surprise((1 - w) * host + w * head, val_labels) for w in WEIGHTS])
    return HeadFit(
        weights,
        bias,
        np.array([0.0, host_scale]),
        host_bias,
        np.array([0.0, head_scale]),
        choose_weight(log_likelihoods),
    )


def fit_class_weights(
    coverage: Coverages, labels: Int[np.ndarray, "n"], n_classes: int
) -> tuple[Float[np.ndarray, "c m"], Float[np.ndarray, "c"]]:
    """alpha >= 0 and b by ridged cross-entropy: a convex problem with one answer."""
    mean, deviation = coverage.mean(axis=0), coverage.std(axis=0) + 1e-6
    inputs, n_anchors = (coverage - mean) / deviation, coverage.shape[1]
    targets = np.eye(n_classes)[labels]

    def loss(flat: Float[np.ndarray, "p"]) -> tuple[float, Float[np.ndarray, "p"]]:
        weights = flat[: n_classes * n_anchors].reshape(n_classes, n_anchors)
        logs = log_softmax(inputs @ weights.T + flat[n_classes * n_anchors :], axis=1)
        slope = (np.exp(logs) - targets) / len(labels)
        value = -(targets * logs).sum() / len(labels) + RIDGE / 2 * np.square(weights).sum()
        return value, np.concatenate(
            [(slope.T @ inputs + RIDGE * weights).ravel(), slope.sum(axis=0)]
        )

    n_weights = n_classes * n_anchors
    bounds = [(0.0, None)] * n_weights + [(None, None)] * n_classes
    fit = minimize(
        loss, np.zeros(n_weights + n_classes), jac=True, method="L-BFGS-B", bounds=bounds
    )
    weights = fit.x[:n_weights].reshape(n_classes, n_anchors) / deviation
    return weights, fit.x[n_weights:] - weights @ mean


def fit_risk_head(
    train: Coverages,
    times: Float[np.ndarray, "n"],
    events: Float[np.ndarray, "n"],
    train_host: Float[np.ndarray, "n"],
    val: Coverages,
    val_times: Float[np.ndarray, "k"],
    val_events: Float[np.ndarray, "k"],
    val_host: Float[np.ndarray, "k"],
) -> HeadFit:
    """Pathway effects by ridged Cox on training slides; the weight by the Cox likelihood of validation slides."""
    effects = fit_risk_effects(train, times, events)
    scales = []
    for risks in (train_host, train @ effects):
        scales.append(np.array([risks.mean(), 1 / max(float(risks.std()), 1e-12)]))
    host, head = (
        (risks - scale[0]) * scale[1]
        for risks, scale in zip((val_host, val @ effects), scales, strict=True)
    )
    log_likelihoods = np.array(
        [-_cox_surprise((1 - w) * host + w * head, val_times, val_events)[0] for w in WEIGHTS]
    )
    return HeadFit(
        effects[None],
        np.zeros(1),
        scales[0],
        np.zeros(1),
        scales[1],
        choose_weight(log_likelihoods),
    )


def fit_risk_effects(
    coverage: Coverages, times: Float[np.ndarray, "n"], events: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "m"]:
    """beta by ridged partial likelihood (Breslow)."""
    mean, deviation = coverage.mean(axis=0), coverage.std(axis=0) + 1e-6
    inputs = (coverage - mean) / deviation
    n_events = max(1, int(events.sum()))

    def loss(effects: Float[np.ndarray, "m"]) -> tuple[float, Float[np.ndarray, "m"]]:
        value, slope = _cox_surprise(inputs @ effects, times, events)
        value, slope = value / n_events, slope / n_events
        return value + RIDGE / 2 * np.square(effects).sum(), inputs.T @ slope + RIDGE * effects

    fit = minimize(loss, np.zeros(coverage.shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(fit.x / deviation)


def fit_value_head(
    train: Coverages,
    labels: Float[np.ndarray, "n"],
    val: Coverages,
    val_labels: Float[np.ndarray, "k"],
    val_host: Float[np.ndarray, "k"],
) -> HeadFit:
    """Effects by ridged least squares on training slides; slopes, offsets and the weight by validation slides.

    Labels are in standard deviations of the training labels from their mean, as the host predicts them.
    """
    effects, bias = fit_value_effects(train, labels)
    val_head = val @ effects + bias
    host_slope, host_offset = calibrate_values(val_host, val_labels)
    head_slope, head_offset = calibrate_values(val_head, val_labels)
    host, head = host_slope * (val_host + host_offset), head_slope * (val_head + head_offset)
    errors = np.array([np.square((1 - w) * host + w * head - val_labels).mean() for w in WEIGHTS])
    # A Gaussian whose variance is the error itself: n/2 log of it is all that depends on w.
    log_likelihoods = -len(val_labels) / 2 * np.log(np.maximum(errors, 1e-12))
    return HeadFit(
        effects[None],
        np.array([bias + head_offset]),
        np.array([0.0, host_slope]),
        np.array([host_offset]),
        np.array([0.0, head_slope]),
        choose_weight(log_likelihoods),
    )


def fit_value_effects(
    coverage: Coverages, labels: Float[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "m"], float]:
    """beta and b by ridged least squares."""
    mean, deviation = coverage.mean(axis=0), coverage.std(axis=0) + 1e-6
    inputs = (coverage - mean) / deviation
    ridged = inputs.T @ inputs / len(labels) + RIDGE * np.eye(inputs.shape[1])
    effects = np.linalg.solve(ridged, inputs.T @ (labels - labels.mean()) / len(labels)) / deviation
    return effects, float(labels.mean() - effects @ mean)


def calibrate_values(
    values: Float[np.ndarray, "k"], labels: Float[np.ndarray, "k"]
) -> tuple[float, float]:
    """Slope a and offset o of a (value + o) that fit the validation labels, ridged towards 1 and 0 as the biases of classes are."""
    noise = max(float(np.square(labels - values).mean()), 1e-6)
    inputs = np.stack([values, np.ones_like(values)], axis=1) / np.sqrt(noise)
    start = np.array([1.0, 0.0])
    ridged = inputs.T @ inputs + BIAS_RIDGE * np.eye(2)
    slope, bias = start + np.linalg.solve(ridged, inputs.T @ (labels - values) / np.sqrt(noise))
    slope = float(np.clip(slope, *INVERSE_TEMPERATURES))
    return slope, float(bias) / slope


def choose_weight(log_likelihoods: Float[np.ndarray, "w"]) -> float:
    """Posterior mean of w over WEIGHTS, or 0 where the host alone is the likelier account of the validation slides."""
    likelihoods = np.exp(log_likelihoods - log_likelihoods.max())
    alone, mixed = likelihoods[0], likelihoods[1:]
    if alone >= mixed.mean():
        return 0.0
    return float((mixed * WEIGHTS[1:]).sum() / mixed.sum())


def calibrate_logits(
    logits: Float[np.ndarray, "k c"], labels: Int[np.ndarray, "k"]
) -> tuple[float, Float[np.ndarray, "c"]]:
    """Inverse temperature and class biases that make the validation labels least surprising; convex.

    The biases, in units of the logits, are ridged: thirty slides say little of seven classes.
    """
    targets = np.eye(logits.shape[1])[labels]

    def loss(flat: Float[np.ndarray, "p"]) -> tuple[float, Float[np.ndarray, "p"]]:
        logs = log_softmax(flat[0] * logits + flat[1:], axis=1)
        slope = np.exp(logs) - targets
        value = -(targets * logs).sum() + BIAS_RIDGE / 2 * np.square(flat[1:]).sum()
        return value, np.concatenate(
            [[(slope * logits).sum()], slope.sum(axis=0) + BIAS_RIDGE * flat[1:]]
        )

    start = np.concatenate([[1.0], np.zeros(logits.shape[1])])
    bounds = [INVERSE_TEMPERATURES] + [(None, None)] * logits.shape[1]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return float(found.x[0]), found.x[1:] / found.x[0]


def _surprise(logits: Float[np.ndarray, "k c"], labels: Int[np.ndarray, "k"]) -> float:
    return float(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels].sum())


def _cox_surprise(
    risks: Float[np.ndarray, "n"], times: Float[np.ndarray, "n"], events: Float[np.ndarray, "n"]
) -> tuple[float, Float[np.ndarray, "n"]]:
    """Negative log partial likelihood (Breslow) and its slope in the risks; n x n, for slides and never for patches."""
    at_risk = times[None, :] >= times[:, None]
    shifted = risks - risks.max()
    sums = (at_risk * np.exp(shifted)).sum(axis=1)
    happened = events.astype(bool)
    value = float((np.log(sums[happened]) - shifted[happened]).sum())
    shares = (at_risk * np.exp(shifted) / sums[:, None])[happened].sum(axis=0)
    return value, shares - happened
