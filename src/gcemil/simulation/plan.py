"""A plan: what each slide will hold, in patches, before any tissue is laid out.

The layout realises a plan to the patch, so labels and risks follow from plans alone and slides can be made one by one. Bystanders
are regions that are no evidence yet attract a model: benign mimics, and distractors correlated with the target.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from gcemil.errors import UsageError
from gcemil.simulation.profile import Dials, Profile, name_mimic

RegionRole = Literal["evidence", "bystander"]

Counts = Int[np.ndarray, "n"]


SEVERE = "severe"
"""What a distractor of a survival profile goes with: cases drawn from the worse half."""


@dataclass(frozen=True)
class Region:
    """One connected region of a concept."""

    concept: str
    role: RegionRole
    n_patches: int


@dataclass(frozen=True)
class CasePlan:
    """Slides that share a target: patches and regions of each, and the class or the log-risk without noise."""

    case_id: str
    n_patches: tuple[int, ...]
    regions: tuple[tuple[Region, ...], ...]
    target: int | float

    @property
    def slide_ids(self) -> tuple[str, ...]:
        return tuple(f"{self.case_id}-s{position + 1}" for position in range(len(self.n_patches)))


def draw_case_sizes(n_slides: int, mean: float, generator: Generator) -> list[int]:
    """Slides per case, one to three each, adding up to `n_slides`."""
    sizes: list[int] = []
    while (left := n_slides - sum(sizes)) > 0:
        sizes.append(min(left, 1 + int(generator.binomial(2, (mean - 1) / 2))))
    return sizes


def draw_bag_size(bounds: tuple[int, int], generator: Generator) -> int:
    """Patches of one slide, log-uniform between the bounds."""
    low, high = bounds
    return int(np.clip(round(float(np.exp(generator.uniform(np.log(low), np.log(high))))), low, high))


def draw_evidence_size(n_patches: int, dials: Dials, needed: int, generator: Generator) -> int:
    """How many patches of the slide are evidence: uniform in the share, whole patches inside the bounds."""
    fewest = max(needed, int(np.ceil(dials.evidence_min * n_patches)))
    most = int(np.floor(dials.evidence_max * n_patches))
    if fewest > most:
        raise UsageError(
            f"A slide of {n_patches} patches cannot hold {fewest} evidence patches in a share of at most {dials.evidence_max}. "
            "Raise evidence_max or simulate larger slides."
        )
    wanted = round(float(generator.uniform(dials.evidence_min, dials.evidence_max)) * n_patches)
    return int(np.clip(wanted, fewest, most))


def draw_region_count(n_patches: int, dials: Dials, needed: int, generator: Generator) -> int:
    """How many regions these evidence patches form: at least one per concept needed, never of single patches by choice."""
    most = max(needed, min(dials.regions_max, n_patches // 2))
    return int(generator.integers(needed, most + 1))


def _split_total(total: int, parts: int, generator: Generator) -> Counts:
    """`total` as a random sum of `parts` positive whole numbers."""
    shares = generator.dirichlet(np.full(parts, 3.0))
    return 1 + generator.multinomial(total - parts, shares)


def split_evidence(concepts: Iterable[str], n_patches: int, generator: Generator) -> tuple[Region, ...]:
    """These evidence patches split over one region per entry of `concepts`."""
    names = list(concepts)
    sizes = _split_total(n_patches, len(names), generator)
    return tuple(Region(name, "evidence", int(size)) for name, size in zip(names, sizes, strict=True))


def plan_bystander(concept: str, n_patches: int, dials: Dials, generator: Generator) -> Region:
    """A region that is not evidence."""
    share = generator.uniform(dials.bystander_min, dials.bystander_max)
    return Region(concept, "bystander", max(1, round(float(share) * n_patches)))


def plan_bystanders(
    profile: Profile, group: str, n_patches: int, dials: Dials, generator: Generator
) -> list[Region]:
    """Mimics and distractors of one slide whose class (or severity) is `group`."""
    regions = []
    # Drawn whether or not it is used, so that a changed rate leaves the other draws where they were.
    imitated = str(generator.choice(list(profile.kinds)))
    mimic = plan_bystander(name_mimic(imitated), n_patches, dials, generator)
    if generator.random() < dials.mimic_rate:
        regions.append(mimic)
    for distractor in profile.distractors:
        region = plan_bystander(distractor.name, n_patches, dials, generator)
        if generator.random() < _distractor_chance(group in distractor.goes_with, dials):
            regions.append(region)
    return regions


def _distractor_chance(goes_with: bool, dials: Dials) -> float:
    """Rate without correlation; certain or impossible with a correlation of 1."""
    return (
        1 - dials.distractor_correlation
    ) * dials.distractor_rate + dials.distractor_correlation * goes_with
