"""Anchors from examples: the mean of a few patches per concept, in whitened feature space.

  mu, Sigma   mean and covariance of the reference patches of the training fold
  B(h)        = (Lambda_q + lambda I)^(-1/2) U_q^T (h - mu),   Sigma = U Lambda U^T, the q leading axes, lambda = 3 tr(Sigma) / d
  a_m         = B(mean of the examples of concept m)

Features of one encoder share a large mean, and most of their spread is common to all tissue; cosines of raw features see little
else. Taking the mean off and evening the spread out leaves what sets a concept apart. The bridge is fixed: examples live in
feature space, so nothing has to be learned to reach them.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.errors import InputError
from gcemil.evidence.alignment import FactoredFit
from gcemil.evidence.anchors import AnchorBank

RIDGE = 3.0
"""Of the mean variance; with fewer axes or less of it one example per concept is mostly its own noise."""
PROVENANCE = "examples"
"""How the provenance of a bank of examples begins."""


def whitening_fit(reference: Float[Tensor, "p d"], *, rank: int, ridge: float = RIDGE) -> FactoredFit:
    """The map B from reference patches, of at most this rank."""
    wide = reference.double()
    centre = wide.mean(dim=0)
    _, singular, axes = torch.linalg.svd(wide - centre, full_matrices=False)
    variance = singular.square() / len(wide)
    if not bool(variance.sum() > 0):
        raise InputError(
            f"The {len(reference)} reference patches are all alike, so nothing can be told apart by them."
        )
    q = min(rank, int((variance > 1e-9 * variance[0]).sum()))
    scale = (variance[:q] + ridge * variance.sum() / reference.shape[1]).rsqrt()
    right = scale.unsqueeze(1) * axes[:q]
    return FactoredFit(torch.eye(q), right.float(), -(right @ centre).float())


def bank_from_examples(
    examples: Mapping[str, Float[Tensor, "_ d"]], fit: FactoredFit, *, source: str, note: str
) -> AnchorBank:
    """One anchor per concept in the space of the fit; the provenance says how many examples each has."""
    means = torch.stack([rows.float().mean(dim=0) for rows in examples.values()])
    counts = sorted({len(rows) for rows in examples.values()})
    per_concept = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    provenance = f"{PROVENANCE}: {per_concept} patches per concept, {source}{note}"
    return AnchorBank(means @ fit.right.T + fit.bias, tuple(examples), provenance)
