"""After training: where in feature space the patches lie that decide each class.

  m_c  the mean over the training slides that are rightly called c of their first patches, ranked by how much they speak
       for c; the mean of the reference patches is taken off
  d_c  = Sigma^-1 m_c, Sigma the ridged covariance of the reference patches (evidence/alignment.py)

A host judges every patch of a new slide on that slide alone. The training slides together say more steadily what its
classes rest on, without a prompt or a named example. No test slide is read, and no label beyond those of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.evidence.alignment import whitening_fit
from gcemil.evidence.spatial import Neighbourhood, smoothed
from gcemil.explain import bag_tensors
from gcemil.hosts.host import Embedded, Host, embedded_bag
from gcemil.model import GceMil
from gcemil.row_blocks import widened
from gcemil.shapes import Scores

FIRST_SHARE = 0.01
FEWEST_PATCHES = 4
"""Of a slide that stand for it; on the choosing worlds 0.5 to 2 % did alike."""
MOST_PATCHES = 4096
"""Of a slide that are read: a gradient through a whole slide would not fit."""
MOST_AXES = 128

Directions = Float[Tensor, "c d"]


def find_class_directions(
    model: GceMil, cohort: Cohort, bags: Sequence[BagSpec], reference: Float[Tensor, "p d"], *, seed: int
) -> Directions:
    """One direction per class from the training bags; zero for a class that no training slide is rightly called."""
    model.eval()
    sums, counts = torch.zeros_like(model.class_directions), [0] * model.n_outputs
    centre = reference.mean(dim=0)
    for spec, bag in load_bags(cohort, bags, rule=SampleRule(MOST_PATCHES, seed=seed)):
        if not isinstance(spec.target, int):
            continue
        found = _deciding_patches(model, bag, spec.target)
        if found is not None:
            sums[spec.target] += found.mean(dim=0) - centre
            counts[spec.target] += 1
    means = sums / torch.tensor(counts, device=sums.device).clamp_min(1).unsqueeze(1)
    whitening = whitening_fit(reference.cpu(), rank=MOST_AXES).right.to(means)
    return (means @ whitening.T) @ whitening


def _deciding_patches(model: GceMil, bag: Bag, target: int) -> Float[Tensor, "k d"] | None:
    """The first patches of a bag by how much they speak for its class; None where the host calls it another."""
    features, coords = bag_tensors(bag, model.anchors.device)
    with torch.no_grad():
        embedded = embedded_bag(model.host, features)
        full = model.host.aggregate(embedded, coords)
        if int(full.logits.argmax()) != target:
            return None
        shares = model.patch_shares(full, embedded, coords)
    if shares is None:
        shares = gradient_times_token(model.host, embedded, coords, target)
    if coords is not None:
        shares = smoothed(shares, Neighbourhood.of(coords, bag.patch_size))
    count = min(len(shares), max(FEWEST_PATCHES, round(FIRST_SHARE * len(shares))))
    return widened(features[shares.topk(count).indices])


def gradient_times_token(host: Host, embedded: Embedded, coords: Tensor | None, index: int) -> Scores:
    """How much each token speaks for an output to first order, for hosts whose patches see each other."""
    with torch.enable_grad():
        tokens = embedded.tokens.detach().requires_grad_()
        logit = host.aggregate(replace(embedded, tokens=tokens), coords).logits[index]
        (gradient,) = torch.autograd.grad(logit, tokens)
    return (gradient * tokens.detach()).sum(dim=1)
