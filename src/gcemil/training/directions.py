"""The evidence around a trained host: directions of prompts and classes, head, vote, confirmation.

Before training, each prompt is represented by the training patches closest to it; no label is read:
  1. fit the bridge on pairs
  2. take the first patches of every training slide by smoothed cosine, then the first of these
  3. the anchor is the direction of their mean (evidence/anchors.py)

After training, the direction of the patches that decide each class:
  m_c  mean, over the training slides correctly predicted as c, of the patches that support c most
       (half smoothed on the grid), minus the mean of the reference patches
  d_c  = Sigma^-1 m_c, Sigma the ridged covariance of the reference patches (evidence/anchors.py)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort, SampleRule, load_bags
from gcemil.evidence.anchors import AnchorBank, directions_of_means
from gcemil.evidence.bridge import Bridge, CentredBridge
from gcemil.evidence.head import ABSENT_QUANTILE, Slides, fit_vote
from gcemil.evidence.selector import Neighbourhood, smoothed
from gcemil.explanation import bag_tensors, explain_bag, lesion_strength
from gcemil.hosts.host import Embedded, Host, embedded_bag
from gcemil.model import GceMil
from gcemil.row_blocks import mapped_rows, to_float32
from gcemil.runs.folder import FoldParts
from gcemil.shapes import Scores
from gcemil.tasks.task import RegressionTask, stacked_targets

FIRST_SHARE, FEWEST_PATCHES = 0.01, 4
"""Patches of a slide that decide its class."""
MOST_PATCHES = 4096
"""Largest number of patches of a slide; a gradient through a whole slide would not fit."""
PROMPT_PATCHES_PER_SLIDE = 2
"""That may represent a prompt, so that no slide dominates."""
FALSE_EVIDENCE_RATE = 0.1
"""Largest share of slides without a lesion whose evidence may be confirmed."""

Directions = Float[Tensor, "c d"]


@torch.no_grad()
def anchor_prompts_in_patches(
    bank: AnchorBank,
    bridge: Bridge,
    reference: Float[Tensor, "p d"],
    cohort: Cohort,
    bags: Sequence[BagSpec],
    *,
    count: int,
    seed: int,
) -> AnchorBank:
    """Represent each prompt by the mean of the `count` training patches closest to it."""
    cosines, patches = torch.empty(0, bank.n_anchors), torch.empty(0, bank.n_anchors, bridge.in_dim)
    for _, bag in load_bags(cohort, bags, rule=SampleRule(MOST_PATCHES, seed=seed)):
        features, coords = bag_tensors(bag)
        slide_cosines = bridge.cosines(features, bank.embeddings)
        if coords is not None:
            around = Neighbourhood.of(coords, bag.patch_size)
            slide_cosines = torch.stack(
                [smoothed(one, around) for one in slide_cosines.unbind(dim=1)], dim=1
            )
        best = slide_cosines.topk(min(PROMPT_PATCHES_PER_SLIDE, len(slide_cosines)), dim=0)
        # The highest `count` of each anchor so far.
        cosines = torch.cat([cosines, best.values])
        patches = torch.cat([patches, to_float32(features[best.indices])])
        first = cosines.topk(min(count, len(cosines)), dim=0)
        cosines, patches = first.values, patches.take_along_dim(first.indices.unsqueeze(2), dim=0)
    provenance = f"{bank.provenance}, each prompt represented by {len(cosines)} training patches"
    directions = directions_of_means(patches.mean(dim=0), reference)
    return AnchorBank(directions, bank.prompts, provenance, "prompt_patches")


def find_class_directions(
    model: GceMil,
    cohort: Cohort,
    bags: Sequence[BagSpec],
    reference: Float[Tensor, "p d"],
    *,
    seed: int,
) -> Directions:
    """One direction per class; zero for a class that is never predicted correctly."""
    model.eval()
    sums = torch.zeros_like(model.class_directions)
    counts, centre = sums.new_zeros(model.n_outputs, 1), reference.mean(dim=0)
    for spec, bag in load_bags(cohort, bags, rule=SampleRule(MOST_PATCHES, seed=seed)):
        if not isinstance(spec.target, int):
            continue
        patches = _deciding_patches(model, bag, spec.target)
        if patches is not None:
            sums[spec.target] += patches.mean(dim=0) - centre
            counts[spec.target] += 1
    directions = directions_of_means(sums / counts.clamp_min(1) + centre, reference)
    return torch.where(counts > 0, directions, 0.0)


def _deciding_patches(model: GceMil, bag: Bag, target: int) -> Float[Tensor, "k d"] | None:
    """The patches of a bag that support its class most; None if the host predicts another class."""
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
    return to_float32(features[shares.topk(count).indices])


def gradient_times_token(
    host: Host, embedded: Embedded, coords: Tensor | None, index: int
) -> Scores:
    """How much each token supports an output to first order."""
    with torch.enable_grad():
        tokens = embedded.tokens.detach().requires_grad_()
        logit = host.aggregate(replace(embedded, tokens=tokens), coords).logits[index]
        (gradient,) = torch.autograd.grad(logit, tokens)
    return (gradient * tokens.detach()).sum(dim=1)


@torch.no_grad()
def fit_head(
    model: GceMil,
    cohort: Cohort,
    parts: FoldParts,
    reference: Float[Tensor, "p d"],
    label_scale: tuple[float, float] = (0.0, 1.0),
) -> None:
    """Fit the evidence head on training slides and its vote on validation slides.

    It reads the anchors where they were made of patches, and without named concepts the directions
    of the classes. `label_scale`: mean and deviation by which the host counts values.
    """
    centred = isinstance(model.bridge, CentredBridge)
    directions = model.anchors if model.is_grounded else model.class_directions
    if (model.is_grounded and not centred) or not bool(directions.any()):
        return
    model.eval()
    model.head.set_anchors(directions, reference)
    coverage, logits = {}, {}
    for name, bags in (("train", parts.train), ("val", parts.val)):
        coverage[name], logits[name] = _read_coverage(model, cohort, bags)
    absent = np.quantile(coverage["train"], ABSENT_QUANTILE, axis=0)
    model.head.absent.copy_(torch.from_numpy(absent))
    seen = {name: np.maximum(values, absent) for name, values in coverage.items()}
    targets = [stacked_targets(bags) for bags in (parts.train, parts.val)]
    train, val = (one.numpy() for one in targets)
    if cohort.card.task == "regression":
        train, val = (
            RegressionTask(*label_scale).standardise(one).double().numpy() for one in targets
        )
    fit = fit_vote(
        cohort.card.task,
        Slides(seen["train"], train, logits["train"]),
        Slides(seen["val"], val, logits["val"]),
    )
    model.head.set_fit(fit)
    if model.head.has_vote and model.output_kind.measures_unit and not model.explains_host:
        # Risks are compared in units of what F predicts for the training slides.
        host = (logits["train"][:, 0] - fit.host_scale[0]) * fit.host_scale[1]
        head = (seen["train"] @ fit.weights[0] - fit.head_scale[0]) * fit.head_scale[1]
        spread = float(((1 - fit.weight) * host + fit.weight * head).std())
        model.risk_spread.fill_(max(spread, 1e-12))


def calibrate_confirmation(model: GceMil, cohort: Cohort, bags: Sequence[BagSpec]) -> int:
    """Choose the strength that confirmed evidence exceeds; the number of slides it rests on.

    The threshold is the conformal quantile of the strengths on validation slides without a lesion:
    a new one exceeds it with a probability of at most FALSE_EVIDENCE_RATE. With fewer than nine
    such slides their largest strength is taken, a weaker guarantee.
    """
    negative = cohort.card.negative_index
    if negative is None or model.output_kind.is_number:
        return 0
    model.eval()
    model.negative_class.fill_(negative)
    strengths = []
    specs = [spec for spec in bags if spec.target == negative]
    for _, bag in load_bags(cohort, specs, rule=SampleRule()):
        explanation = explain_bag(model, bag)
        strengths.append(
            lesion_strength(model, explanation.output, explanation.kept, explanation.verdict)
        )
    model.confirmation_threshold.fill_(conformal_quantile(strengths, FALSE_EVIDENCE_RATE))
    return len(strengths)


def conformal_quantile(values: Sequence[float], rate: float) -> float:
    """The value that a new one exceeds with probability at most `rate`; the largest of too few."""
    if not values:
        return 0.0
    rank = math.ceil((len(values) + 1) * (1 - rate))
    return sorted(values)[min(rank, len(values)) - 1]


def _read_coverage(
    model: GceMil, cohort: Cohort, bags: Sequence[BagSpec]
) -> tuple[np.ndarray, np.ndarray]:
    """Coverage of the head's anchors and the host's logits, a row per bag."""
    rows, logits = [], []
    for _, bag in load_bags(cohort, bags, rule=SampleRule()):
        features, coords = bag_tensors(bag, model.anchors.device)
        (responses,) = mapped_rows(lambda part: [model.head.responses(part)], features)
        rows.append(model.head.coverage(responses, len(features)).double().cpu().numpy())
        full = model.host.aggregate(embedded_bag(model.host, features), coords)
        logits.append(full.logits.double().cpu().numpy())
    return np.stack(rows), np.stack(logits)
