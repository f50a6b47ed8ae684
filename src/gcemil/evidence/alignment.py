"""Closed-form fits of the bridge: on pairs to a text space, or on reference patches alone for anchors from examples.

Pairs are the same patches seen by the patch encoder and by the text-aligned one:

ridge         min |Y - X W^T - b|^2 + lambda P s |W|^2, s the mean variance of a feature: lambda has no unit
reduced rank  W_q = P P^T W, P the q leading principal directions of the fitted values

An anchor made of patches, whether somebody named them or a prompt found them, is the direction that sets their mean apart:

  mu, Sigma   mean and covariance of the reference patches of the training fold
  B(h)        = h - mu
  a_m         = (Sigma + lambda I)^-1 (mean of the patches of concept m - mu),   lambda = 3 tr(Sigma) / d

Features of one encoder share a large mean, and most of their spread is common to all tissue; cosines of raw features see little
else. The bridge is fixed and costs nothing: anchors live in feature space.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.errors import InputError
from gcemil.evidence.anchors import AnchorBank

PairedFeatures = Float[Tensor, "p d"]
PairedAnchorSpace = Float[Tensor, "p a"]


def ridge_fit(
    features: PairedFeatures, anchor_space: PairedAnchorSpace, ridge: float
) -> tuple[Float[Tensor, "a d"], Float[Tensor, "a"]]:
    """Weight and bias of the ridge regression from features to the anchor space."""
    if ridge <= 0:
        raise InputError(f"The ridge must be positive, got {ridge}. 0.01 is a usual choice.")
    centred, anchor_centred = _centred_pairs(features, anchor_space)
    gram = centred.T @ centred
    gram.diagonal().add_(ridge * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, centred.T @ anchor_centred).T
    bias = anchor_space.double().mean(dim=0) - weight @ features.double().mean(dim=0)
    return weight.to(features.dtype), bias.to(features.dtype)


def reduced_rank_fit(
    features: PairedFeatures, anchor_space: PairedAnchorSpace, *, ridge: float, rank: int
) -> tuple[Float[Tensor, "a q"], Float[Tensor, "q d"], Float[Tensor, "a"]]:
    """The ridge fit held to `rank` directions, left right h + bias; the same map when rank = min(d, a)."""
    weight, _ = ridge_fit(features.double(), anchor_space.double(), ridge)
    centred, _ = _centred_pairs(features, anchor_space)
    fitted = weight @ (centred.T @ centred) @ weight.T
    left = torch.linalg.eigh(fitted).eigenvectors[:, -rank:].flip(1)
    right = left.T @ weight
    bias = anchor_space.double().mean(dim=0) - left @ (right @ features.double().mean(dim=0))
    return left.to(features.dtype), right.to(features.dtype), bias.to(features.dtype)


def _centred_pairs(
    features: PairedFeatures, anchor_space: PairedAnchorSpace
) -> tuple[PairedFeatures, PairedAnchorSpace]:
    """Both sides in float64 without their means."""
    # Gram matrices square the condition number, so float32 would lose half the digits.
    centred = features.double() - features.double().mean(dim=0)
    anchor_centred = anchor_space.double() - anchor_space.double().mean(dim=0)
    if len(features) < 2 or not bool(centred.any()) or not bool(torch.isfinite(centred).all()):
        raise InputError(f"A bridge needs at least two distinct, finite pairs, got {len(features)} rows.")
    if not bool(anchor_centred.any()) or not bool(torch.isfinite(anchor_centred).all()):
        raise InputError(
            "The anchor-space side of the pairs is constant or not finite. Embed the pairs again."
        )
    return centred, anchor_centred


RIDGE = 3.0
"""Of the mean variance; with less of it one example per concept is mostly its own noise."""


def directions_of_means(
    means: Float[Tensor, "m d"], reference: Float[Tensor, "p d"], *, ridge: float = RIDGE
) -> Float[Tensor, "m d"]:
    """(Sigma + lambda I)^-1 (mean - mu): what sets each mean of patches apart from the reference patches."""
    wide = reference.double()
    centred = wide - wide.mean(dim=0)
    covariance = centred.T @ centred / len(wide)
    scale = covariance.diagonal().mean()
    if not bool(scale > 0):
        raise InputError(
            f"The {len(reference)} reference patches are all alike, so nothing can be told apart by them."
        )
    covariance.diagonal().add_(ridge * scale)
    offsets = means.double() - wide.mean(dim=0)
    return torch.linalg.solve(covariance, offsets.T).T.to(means.dtype)


def bank_from_examples(
    examples: Mapping[str, Float[Tensor, "_ d"]], reference: Float[Tensor, "p d"], *, source: str, note: str
) -> AnchorBank:
    """One anchor per concept in feature space; the provenance says how many examples each has."""
    means = torch.stack([rows.float().mean(dim=0) for rows in examples.values()])
    counts = sorted({len(rows) for rows in examples.values()})
    per_concept = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    provenance = f"examples: {per_concept} patches per concept, {source}{note}"
    return AnchorBank(directions_of_means(means, reference), tuple(examples), provenance, "examples")
