"""Classes and their causes.

A class has causes; a cause is one concept, or several that must be present together. The label of a slide without noise is the
last class, in the profile's order, one of whose causes is present in full; without any it is the first class, if that one has no cause.
Evidence is every region of a cause that makes the slide's own class true. A decoy (half of a cause that needs two) and a
comorbid lesion (a cause of an earlier class) are added only where the label stays the same and is not theirs as well;
they are not evidence.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from gcemil.bags.simulated.bystanders import bystander_regions
from gcemil.bags.simulated.dials import Dials
from gcemil.bags.simulated.plan import (
    CasePlan,
    Region,
    bag_size,
    bystander,
    case_sizes,
    evidence_patches,
    evidence_regions,
    region_count,
)
from gcemil.bags.simulated.profile import Profile
from gcemil.bags.simulated.streams import stream
from gcemil.errors import UsageError


def true_label(present: Collection[str], profile: Profile) -> int | None:
    """The class these concepts cause, None where they cause none."""
    for index in reversed(range(len(profile.classes))):
        causes = profile.classes[index].causes
        if any(set(cause) <= set(present) for cause in causes) or (not causes and index == 0):
            return index
    return None


def class_counts(profile: Profile, n_slides: int) -> list[int]:
    """Slides per class in the dataset's own balance, by largest remainder, at least one each."""
    weights = np.array([rule.slides for rule in profile.classes], dtype=float)
    if n_slides < len(weights):
        raise UsageError(
            f"Profile '{profile.name}' has {len(weights)} classes, so it needs at least as many slides, got {n_slides}."
        )
    exact = (n_slides - len(weights)) * weights / weights.sum()
    counts = 1 + np.floor(exact).astype(int)
    rest = np.argsort(np.floor(exact) - exact, kind="stable")[: n_slides - counts.sum()]
    counts[rest] += 1
    return [int(count) for count in counts]


def classification_cases(
    profile: Profile, dials: Dials, *, prefix: str, n_slides: int, patches: tuple[int, int], seed: int
) -> list[CasePlan]:
    """All cases of a cohort in random order, every slide of a case with the same label."""
    order = stream(seed, "cases", prefix)
    sized = [
        (label, size)
        for label, count in enumerate(class_counts(profile, n_slides))
        for size in case_sizes(count, dials.slides_per_case, order)
    ]
    cases = [sized[index] for index in order.permutation(len(sized))]
    return [
        class_case(profile, dials, f"{prefix}-{number:04d}", label, size, patches, seed)
        for number, (label, size) in enumerate(cases)
    ]


def class_case(
    profile: Profile,
    dials: Dials,
    case_id: str,
    label: int,
    n_slides: int,
    patches: tuple[int, int],
    seed: int,
) -> CasePlan:
    """One case of a class."""
    generator = stream(seed, "plan", case_id)
    sizes = [bag_size(patches, generator) for _ in range(n_slides)]
    regions = tuple(slide_regions(profile, dials, label, size, generator) for size in sizes)
    return CasePlan(case_id, tuple(sizes), regions, label)


def slide_regions(
    profile: Profile, dials: Dials, label: int, n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """Evidence of the class, then everything that is beside the point."""
    evidence = class_evidence(profile, dials, label, n_patches, generator)
    beside = [
        *decoy_regions(profile, dials, n_patches, generator),
        *comorbid_regions(profile, dials, label, n_patches, generator),
    ]
    regions, others = [*evidence], set[str]()
    for region in beside:
        present = {known.concept for known in regions}
        keeps_label = true_label(present | {region.concept}, profile) == label
        # A decoy and a comorbid lesion may together be a cause of the class: then the evidence would not be all of it.
        causes_it_too = bool(evidence) and true_label(others | {region.concept}, profile) == label
        if region.concept not in present and keeps_label and not causes_it_too:
            regions.append(region)
            others.add(region.concept)
    group = profile.classes[label].name
    return (*regions, *bystander_regions(profile, group, n_patches, dials, generator))


def class_evidence(
    profile: Profile, dials: Dials, label: int, n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """Regions of one cause of the class, sometimes of two; nothing for a class without a cause."""
    causes = profile.classes[label].causes
    if not causes:
        return ()
    concepts = chosen_concepts(profile, dials, label, generator)
    total = evidence_patches(n_patches, dials, len(concepts), generator)
    count = region_count(total, dials, len(concepts), generator)
    extra = [str(name) for name in generator.choice(concepts, size=count - len(concepts))]
    return evidence_regions([*concepts, *extra], total, generator)


def chosen_concepts(profile: Profile, dials: Dials, label: int, generator: Generator) -> list[str]:
    """Concepts of one cause drawn at random, and of a second one where there is redundancy and room for its regions."""
    causes = profile.classes[label].causes
    order = generator.permutation(len(causes))
    concepts = list(causes[order[0]])
    if generator.random() < dials.redundancy and len(causes) > 1:
        both = list(dict.fromkeys([*concepts, *causes[order[1]]]))
        if len(both) <= dials.regions_max and true_label(both, profile) == label:
            return both
    return concepts


def decoy_regions(profile: Profile, dials: Dials, n_patches: int, generator: Generator) -> list[Region]:
    """One concept of a random cause that needs several."""
    joint = [cause for rule in profile.classes for cause in rule.causes if len(cause) > 1]
    if not joint:
        return []
    cause = joint[int(generator.integers(len(joint)))]
    region = bystander(str(generator.choice(cause)), n_patches, dials, generator)
    return [region] if generator.random() < dials.decoy_rate else []


def comorbid_regions(
    profile: Profile, dials: Dials, label: int, n_patches: int, generator: Generator
) -> list[Region]:
    """A lesion of a random earlier class."""
    earlier = [cause for rule in profile.classes[:label] for cause in rule.causes if len(cause) == 1]
    if not earlier:
        return []
    cause = earlier[int(generator.integers(len(earlier)))]
    region = bystander(cause[0], n_patches, dials, generator)
    return [region] if generator.random() < dials.comorbidity else []


def noisy_labels(
    labels: Int[np.ndarray, "n"], n_classes: int, noise: float, generator: Generator
) -> Int[np.ndarray, "n"]:
    """The labels with exactly this share, rounded, replaced by another class at random."""
    recorded = labels.copy()
    wrong = generator.permutation(len(labels))[: round(noise * len(labels))]
    recorded[wrong] = (recorded[wrong] + generator.integers(1, n_classes, size=len(wrong))) % n_classes
    return recorded
