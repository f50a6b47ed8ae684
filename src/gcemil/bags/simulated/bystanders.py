"""Regions that are no evidence yet attract a model: benign mimics, and distractors correlated with the target."""

from __future__ import annotations

from numpy.random import Generator

from gcemil.bags.simulated.dials import Dials
from gcemil.bags.simulated.plan import Region, bystander
from gcemil.bags.simulated.profile import Profile, mimic_of

SEVERE = "severe"
"""What a distractor of a survival profile goes with: cases drawn from the worse half."""


def bystander_regions(
    profile: Profile, group: str, n_patches: int, dials: Dials, generator: Generator
) -> list[Region]:
    """Mimics and distractors of one slide whose class (or severity) is `group`."""
    regions = []
    # Drawn whether or not it is used, so that a changed rate leaves the other draws where they were.
    imitated = str(generator.choice(list(profile.kinds)))
    mimic = bystander(mimic_of(imitated), n_patches, dials, generator)
    if generator.random() < dials.mimic_rate:
        regions.append(mimic)
    for distractor in profile.distractors:
        region = bystander(distractor.name, n_patches, dials, generator)
        if generator.random() < distractor_chance(group in distractor.goes_with, dials):
            regions.append(region)
    return regions


def distractor_chance(goes_with: bool, dials: Dials) -> float:
    """Rate without correlation; certain or impossible with a correlation of 1."""
    return (
        1 - dials.distractor_correlation
    ) * dials.distractor_rate + dials.distractor_correlation * goes_with
