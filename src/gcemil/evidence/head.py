"""The evidence head, and the prediction F in which host and evidence decide together.

  z_im = (cos(h_i - mu, a_m) - delta_m) / s_m       excess over 95 % of the training patches
  r_im = max(0, z_im)                               response of the head
  v_m(S) = max(nu_m, (1/k) sum of the k largest r_im, i in S)     k = max(4, 0.5 % of the patches)
  U_c(S) = sum_m alpha_cm v_m(S) + b_c, alpha >= 0  class utility (Eq. 5), trained on slide labels
  h(S)   = sum_m beta_m v_m(S) [+ b]                beta signed; b for regression alone
  F_c(S) = (1 - w) log p_host(c | S)  +  w log p_head(c | S),    one weight w in [0, 1]
           log p(c | S) = log softmax(logits_c / T + t_c), with T and t of host and head each
  F(S)   = (1 - w) host(S) + w h(S)                 risks in deviations of the training slides,
                                                    values each with a slope and an offset

v_m never falls when a patch is added, and k is that of the whole slide, so removing patches can
only lower it. nu_m is the lower quartile of v_m over the training slides: an anchor of which S
holds nothing counts as on a slide that does not show it. Noisy-OR coverage saturates on slides of
hundreds of patches: with the responses of Eq. 2 a random 5 % covers every anchor
(docs/ablations.md).

T, t and w are chosen on validation slides, on which neither host nor head was trained. Under a flat
prior over (0, 1] the posterior mean of w is taken; where the host alone explains the validation
labels better than a mixture of unknown weight does, w is 0, and F is the host, bit for bit. The
labels are explained by log p of their class, by the Cox likelihood, or by a Gaussian around F whose
variance is that of the validation slides at this w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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
"""Quantile of the coverage of training slides that stands for an absent anchor."""
RIDGE = 0.03
"""Ridge on standardised coverage; cross-validation picks too little."""
WEIGHTS = np.linspace(0.0, 1.0, 21)
INVERSE_TEMPERATURES = (0.08, 7.4)
BIAS_RIDGE = 10.0
"""Ridge on class biases in nats: a prior standard deviation of 0.3 (docs/ablations.md)."""

Coverages = Float[np.ndarray, "_ m"]
Array = npt.NDArray[Any]


class EvidenceHead(nn.Module):
    """Predicts from the coverage of anchors, and mixes its prediction with that of the host.

    `weight` is the share of the head in the mixture, 0 before `set_fit`.

    Args:
        in_dim: Width of the features.
        n_anchors: Number of anchors the head reads.
        n_outputs: Classes, or 1 for a risk or a value.
        task: What is predicted; None takes one output as a risk.

    Example:
        >>> import torch
        >>> from gcemil.evidence.head import EvidenceHead
        >>> head, patches = EvidenceHead(in_dim=8, n_anchors=3, n_outputs=2), torch.randn(60, 8)
        >>> head.set_anchors(torch.randn(3, 8), patches)
        >>> coverage = head.coverage(head.responses(patches), n_patches=60)
        >>> coverage.shape, head.utility(coverage).shape, head.has_vote
        (torch.Size([3]), torch.Size([2]), False)
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
        # Classes: inverse temperatures. Risks: mean and inverse deviation. Values: slopes.
        self.register_buffer("host_scale", torch.tensor([0.0, 1.0]))
        self.register_buffer("head_scale", torch.tensor([0.0, 1.0]))
        # Class biases or the offset of a value; those of the head are in `bias`.
        self.register_buffer("host_bias", torch.zeros(n_outputs))
        self.register_buffer("weight", torch.zeros(()))
        # Kept beside the buffers: not read off the device for every bag, and constant in an export.
        self._known: tuple[bool, float] | None = None

    @property
    def has_vote(self) -> bool:
        """Whether the head has a weight above 0 in the mixture."""
        return self._state()[1] > 0

    @property
    def is_fitted(self) -> bool:
        """Whether the head has anchors and weights, whatever its weight in the mixture."""
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
        """Set the anchors, and centre, offsets and scales from reference patches.

        Args:
            directions: One direction per anchor, (anchors, in_dim).
            reference: Patches of training slides, (patches, in_dim).
        """
        self.centre.copy_(reference.mean(dim=0))
        self.directions.copy_(nn.functional.normalize(directions, dim=1))
        self.offset.zero_()
        self.scale.fill_(1.0)
        self.absent.zero_()
        cosines = self._standardised(reference).double().cpu().numpy()
        self.offset.copy_(torch.from_numpy(np.quantile(cosines, QUANTILE, axis=0)))
        # An anchor to which every patch responds alike must not be divided by zero.
        self.scale.copy_(torch.from_numpy(np.maximum(cosines.std(axis=0), 1e-6)))

    def responses(self, features: Features) -> Float[Tensor, "n m"]:
        """Compute the responses r_im to the anchors.

        Args:
            features: Patch features, (patches, in_dim).

        Returns:
            Numbers of at least 0, (patches, anchors).
        """
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
        """Compute the coverage v_m of some patches of a slide.

        Args:
            responses: What `responses` returned for these patches, (patches, anchors).
            n_patches: Number of patches of the whole slide.
            gates: One gate per patch in [0, 1], (patches,); None without gates.

        Returns:
            One number per anchor, (anchors,).
        """
        k = top_count(n_patches)
        gated = responses if gates is None else gates.unsqueeze(1) * responses
        return torch.maximum(
            gated.topk(min(k, len(gated)), dim=0).values.sum(dim=0) / k, self.absent
        )

    def utility(self, coverage: Float[Tensor, "*n m"]) -> Float[Tensor, "*n c"]:
        """Compute the logits of the head.

        Args:
            coverage: Coverage of one set of patches or of several, (..., anchors).

        Returns:
            U_c, or h for a risk or a value, (..., n_outputs).
        """
        return coverage @ self.weights.T + self.bias

    def mix(
        self, host: Float[Tensor, "*n c"], utility: Float[Tensor, "*n c"]
    ) -> Float[Tensor, "*n c"]:
        """Mix the logits of host and head into F.

        Args:
            host: Logits of the host, (..., n_outputs).
            utility: Logits of the head, (..., n_outputs).

        Returns:
            F, (..., n_outputs); the logits of the host if the head has no vote.
        """
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
        """Compute what the utility of one output loses without each patch.

        Args:
            responses: Responses of the bag, (patches, anchors).
            n_patches: Number of patches of the whole slide.
            anchor_weights: Weights of one output, (anchors,).

        Returns:
            The loss without each patch, (patches,).
        """
        return self._losses_without_each(responses, n_patches) @ anchor_weights

    def coverage_without_each(
        self, responses: Float[Tensor, "n m"], n_patches: int
    ) -> Float[Tensor, "n m"]:
        """Compute the coverage v_m without each patch in turn.

        Args:
            responses: Responses of the bag, (patches, anchors).
            n_patches: Number of patches of the whole slide.

        Returns:
            The coverage without each patch, (patches, anchors).
        """
        k = top_count(n_patches)
        whole = responses.topk(min(k, len(responses)), dim=0).values.sum(dim=0) / k
        return torch.maximum(whole - self._losses_without_each(responses, n_patches), self.absent)

    def _losses_without_each(
        self, responses: Float[Tensor, "n m"], n_patches: int
    ) -> Float[Tensor, "n m"]:
        """The loss of the mean of the k largest responses without each patch."""
        k = top_count(n_patches)
        top = responses.topk(min(k + 1, len(responses)), dim=0).values
        follower = top[k] if len(top) > k else torch.zeros_like(top[0])
        return (responses - follower).clamp_min(0) / k

    def set_fit(self, fit: HeadFit) -> None:
        """Set weights, scales and the weight in the mixture.

        Args:
            fit: What `fit_vote` returned.
        """
        for name, value in vars(fit).items():
            getattr(self, name).copy_(torch.as_tensor(value))
        self._known = None


def top_count(n_patches: int) -> int:
    """k: the number of patches whose mean response is the coverage of an anchor."""
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


class Slides(NamedTuple):
    """The inputs of a fit for some slides."""

    coverage: Coverages
    labels: Float[np.ndarray, "n *t"] | Int[np.ndarray, "n"]
    """Class indices, (time, event), or values in deviations from the training mean."""
    host: Float[np.ndarray, "n c"]
    """The host's logits."""


def fit_vote(task: Task, train: Slides, val: Slides) -> HeadFit:
    """Weights from training slides; calibration and vote from validation slides."""
    likelihood = LIKELIHOODS[task]
    weights, bias = likelihood.fit_weights(train.coverage, train.labels, train.host.shape[1])
    host_scale, host_bias = likelihood.calibrate(train.host, val.host, val.labels)
    head_scale, head_bias = likelihood.calibrate(
        train.coverage @ weights.T + bias, val.coverage @ weights.T + bias, val.labels
    )
    bias = bias + head_bias
    host = likelihood.scale(val.host + host_bias, host_scale)
    head = likelihood.scale(val.coverage @ weights.T + bias, head_scale)
    log_likelihoods = [likelihood.measure((1 - w) * host + w * head, val.labels) for w in WEIGHTS]
    return HeadFit(
        weights, bias, host_scale, host_bias, head_scale, choose_weight(np.array(log_likelihoods))
    )


def choose_weight(log_likelihoods: Float[np.ndarray, "w"]) -> float:
    """Posterior mean of w over WEIGHTS; 0 where the host alone explains the slides better."""
    likelihoods = np.exp(log_likelihoods - log_likelihoods.max())
    alone, mixed = likelihoods[0], likelihoods[1:]
    if alone >= mixed.mean():
        return 0.0
    return float((mixed * WEIGHTS[1:]).sum() / mixed.sum())


def standardise(coverage: Coverages) -> tuple[Coverages, Array, Array]:
    """Coverage less its mean in deviations, and both."""
    mean, deviation = coverage.mean(axis=0), coverage.std(axis=0) + 1e-6
    return (coverage - mean) / deviation, mean, deviation


class ClassLikelihood:
    """Cross-entropy."""

    @staticmethod
    def fit_weights(coverage: Coverages, labels: Array, n_outputs: int) -> tuple[Array, Array]:
        """alpha >= 0 and b by ridged cross-entropy: a convex problem with one solution."""
        inputs, mean, deviation = standardise(coverage)
        targets, n_weights = np.eye(n_outputs)[labels], n_outputs * coverage.shape[1]

        def loss(flat: Array) -> tuple[float, Array]:
            weights = flat[:n_weights].reshape(n_outputs, -1)
            logs = log_softmax(inputs @ weights.T + flat[n_weights:], axis=1)
            slope = (np.exp(logs) - targets) / len(labels)
            value = -(targets * logs).sum() / len(labels) + RIDGE / 2 * np.square(weights).sum()
            return value, np.concatenate(
                [(slope.T @ inputs + RIDGE * weights).ravel(), slope.sum(axis=0)]
            )

        bounds = [(0.0, None)] * n_weights + [(None, None)] * n_outputs
        start = np.zeros(n_weights + n_outputs)
        fit = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
        weights = fit.x[:n_weights].reshape(n_outputs, -1) / deviation
        return weights, fit.x[n_weights:] - weights @ mean

    @staticmethod
    def calibrate(train: Array, val: Array, labels: Array) -> tuple[Array, Array]:
        """Inverse temperature and class biases that explain the validation labels best; convex.

        The biases, in units of the logits, are ridged, as a fit to few slides overfits.
        """
        targets = np.eye(val.shape[1])[labels]

        def loss(flat: Array) -> tuple[float, Array]:
            logs = log_softmax(flat[0] * val + flat[1:], axis=1)
            slope = np.exp(logs) - targets
            value = -(targets * logs).sum() + BIAS_RIDGE / 2 * np.square(flat[1:]).sum()
            return value, np.concatenate(
                [[(slope * val).sum()], slope.sum(axis=0) + BIAS_RIDGE * flat[1:]]
            )

        start = np.concatenate([[1.0], np.zeros(val.shape[1])])
        bounds = [INVERSE_TEMPERATURES] + [(None, None)] * val.shape[1]
        fit = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
        return np.array([0.0, fit.x[0]]), fit.x[1:] / fit.x[0]

    @staticmethod
    def scale(logits: Array, scale: Array) -> Array:
        return np.asarray(log_softmax(logits * scale[1], axis=1))

    @staticmethod
    def measure(mixed: Array, labels: Array) -> float:
        return float(log_softmax(mixed, axis=1)[np.arange(len(labels)), labels].sum())


class CoxLikelihood:
    """The partial likelihood of risks (Breslow); labels are (time, event)."""

    @staticmethod
    def fit_weights(coverage: Coverages, labels: Array, n_outputs: int) -> tuple[Array, Array]:
        """beta by ridged partial likelihood; the baseline hazard absorbs a bias."""
        inputs, _, deviation = standardise(coverage)
        n_events = max(1, int(labels[:, 1].sum()))

        def loss(effects: Array) -> tuple[float, Array]:
            value, slope = cox_loss(inputs @ effects, labels)
            ridge = RIDGE / 2 * np.square(effects).sum()
            return value / n_events + ridge, inputs.T @ (slope / n_events) + RIDGE * effects

        fit = minimize(loss, np.zeros(coverage.shape[1]), jac=True, method="L-BFGS-B")
        return np.asarray(fit.x / deviation)[None], np.zeros(1)

    @staticmethod
    def calibrate(train: Array, val: Array, labels: Array) -> tuple[Array, Array]:
        """Mean and inverse deviation of the training risks."""
        return np.array([train.mean(), 1 / max(float(train.std()), 1e-12)]), np.zeros(1)

    @staticmethod
    def scale(logits: Array, scale: Array) -> Array:
        return np.asarray((logits - scale[0]) * scale[1])

    @staticmethod
    def measure(mixed: Array, labels: Array) -> float:
        return -cox_loss(mixed[:, 0], labels)[0]


def cox_loss(risks: Array, labels: Array) -> tuple[float, Array]:
    """Negative log partial likelihood and its slope in the risks; n x n, so for slides only."""
    times, happened = labels[:, 0], labels[:, 1].astype(bool)
    at_risk = times[None, :] >= times[:, None]
    shifted = risks - risks.max()
    sums = (at_risk * np.exp(shifted)).sum(axis=1)
    value = float((np.log(sums[happened]) - shifted[happened]).sum())
    shares = (at_risk * np.exp(shifted) / sums[:, None])[happened].sum(axis=0)
    return value, shares - happened


class GaussianLikelihood:
    """Squared errors of values, whose mean is the variance."""

    @staticmethod
    def fit_weights(coverage: Coverages, labels: Array, n_outputs: int) -> tuple[Array, Array]:
        """beta and b by ridged least squares."""
        inputs, mean, deviation = standardise(coverage)
        ridged = inputs.T @ inputs / len(labels) + RIDGE * np.eye(inputs.shape[1])
        onto = inputs.T @ (labels - labels.mean()) / len(labels)
        effects = np.linalg.solve(ridged, onto) / deviation
        return effects[None], np.array([labels.mean() - effects @ mean])

    @staticmethod
    def calibrate(train: Array, val: Array, labels: Array) -> tuple[Array, Array]:
        """Slope a and offset o of a (value + o), ridged towards 1 and 0."""
        errors = labels - val[:, 0]
        noise = max(float(np.square(errors).mean()), 1e-6)
        inputs = np.concatenate([val, np.ones_like(val)], axis=1) / np.sqrt(noise)
        ridged = inputs.T @ inputs + BIAS_RIDGE * np.eye(2)
        change = np.linalg.solve(ridged, inputs.T @ errors / np.sqrt(noise))
        slope = float(np.clip(1.0 + change[0], *INVERSE_TEMPERATURES))
        return np.array([0.0, slope]), np.array([change[1] / slope])

    scale = staticmethod(CoxLikelihood.scale)

    @staticmethod
    def measure(mixed: Array, labels: Array) -> float:
        error = np.square(mixed[:, 0] - labels).mean()
        return float(-len(labels) / 2 * np.log(max(error, 1e-12)))


LIKELIHOODS: dict[Task, Any] = {
    "classification": ClassLikelihood,
    "survival": CoxLikelihood,
    "regression": GaussianLikelihood,
}
