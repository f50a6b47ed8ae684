"""A plan: what each slide will hold, in patches, before any tissue is laid out.

The layout realises a plan to the patch, so labels and risks follow from plans alone and slides can be made one by one. Bystanders
are regions that attract a model but are not evidence: benign mimics, and distractors correlated with the target.

What a slide shows and what follows from it: classes and their causes, or the hazard or value of a case.

A class has causes; a cause is one concept, or several that must be present together. The label of a slide without noise is the
last class, in the profile's order, one of whose causes is present in full; without any it is the first class, if that one has no cause.
Evidence is every region of a cause that makes the slide's own class true. A decoy (half of a cause that needs two) and a
comorbid lesion (a cause of an earlier class) are added only where the label stays the same and is not theirs as well;
they are not evidence.

Several targets: every class with a cause is a target of its own, shown by a random half of the cases. A target is 1 where one
of its causes is present in full; its evidence is what shows its causes.

Survival: what the slides of a case show moves its hazard.

coverage_c = share of the patches of the case, over all its slides, that show concept c
log-risk   = risk_effect * sum_c weight_c * min(1, coverage_c / evidence_max) ^ dose_exponent     (0 where coverage is 0)
time       = median * (E / (log 2 * exp(log-risk))) ^ (1 / shape),  E ~ Exp(1)                    (Weibull, proportional hazards)
seen       = min(time, follow-up), event = time <= follow-up; follow-up is uniform, its range set to reach the censoring share

A case has a severity q ~ U(0, 1); each of its evidence regions shows a concept that harms with chance q, else one that protects.

Regression: the log-risk itself is the value, without a time.

label = value + e,  e ~ N(0, label_noise / (1 - label_noise) * variance of the values)
so that a perfect reader of the slides reaches R2 = 1 - label_noise

Random streams have names, so that one part of a cohort can change without moving the draws of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator

from gcemil.errors import UsageError
from gcemil.simulation.profile import Dials, Profile, name_mimic

RegionRole = Literal["evidence", "bystander"]

Times = Float[np.ndarray, "n"]


SEVERE = "severe"
"""What a distractor of a profile without classes goes with: cases drawn from the worse half."""


def stream(seed: int, *words: str | int) -> Generator:
    """The generator that belongs to this seed and these words, on every machine."""
    keys = [crc32(str(word).encode()) for word in words]
    return np.random.default_rng(np.random.SeedSequence([seed, *keys]))


@dataclass(frozen=True)
class Region:
    """One connected region of a concept."""

    concept: str
    role: RegionRole
    n_patches: int


@dataclass(frozen=True)
class CasePlan:
    """Slides that share a target: patches and regions of each, and the class, the labels, the log-risk or the value without noise."""

    case_id: str
    n_patches: tuple[int, ...]
    regions: tuple[tuple[Region, ...], ...]
    target: int | float

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """The slides of the case, numbered from 1."""
        return tuple(f"{self.case_id}-s{position + 1}" for position in range(len(self.n_patches)))


def _draw_case_sizes(n_slides: int, mean: float, generator: Generator) -> list[int]:
    """Slides per case, one to three each, adding up to `n_slides`."""
    sizes: list[int] = []
    while (left := n_slides - sum(sizes)) > 0:
        sizes.append(min(left, 1 + int(generator.binomial(2, (mean - 1) / 2))))
    return sizes


def _draw_bag_size(bounds: tuple[int, int], generator: Generator) -> int:
    """Patches of one slide, log-uniform between the bounds."""
    low, high = bounds
    return int(
        np.clip(round(float(np.exp(generator.uniform(np.log(low), np.log(high))))), low, high)
    )


def _draw_evidence_size(n_patches: int, dials: Dials, needed: int, generator: Generator) -> int:
    """How many patches of the slide are evidence: uniform in the share, whole patches inside the bounds."""
    fewest = max(needed, int(np.ceil(dials.evidence_min * n_patches)))
    most = int(np.floor(dials.evidence_max * n_patches))
    if fewest > most:
        raise UsageError(
            f"A slide of {n_patches} patches cannot hold {fewest} evidence patches in a share of at most {dials.evidence_max}. "
            "Raise evidence_max or simulate larger slides."
        )
    size = round(float(generator.uniform(dials.evidence_min, dials.evidence_max)) * n_patches)
    return int(np.clip(size, fewest, most))


def _draw_region_count(n_patches: int, dials: Dials, needed: int, generator: Generator) -> int:
    """How many regions these evidence patches form: at least one per concept needed, never of single patches by choice."""
    most = max(needed, min(dials.regions_max, n_patches // 2))
    return int(generator.integers(needed, most + 1))


def _split_evidence(
    concepts: Iterable[str], n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """These evidence patches split over one region per entry of `concepts`."""
    names = list(concepts)
    # A random sum of whole numbers, each at least 1.
    sizes = 1 + generator.multinomial(
        n_patches - len(names), generator.dirichlet(np.full(len(names), 3.0))
    )
    return tuple(
        Region(name, "evidence", int(size)) for name, size in zip(names, sizes, strict=True)
    )


def _plan_bystander(concept: str, n_patches: int, dials: Dials, generator: Generator) -> Region:
    """A region that is not evidence."""
    share = generator.uniform(dials.bystander_min, dials.bystander_max)
    return Region(concept, "bystander", max(1, round(float(share) * n_patches)))


def _plan_bystanders(
    profile: Profile, group: str, n_patches: int, dials: Dials, generator: Generator
) -> list[Region]:
    """Mimics and distractors of one slide whose class (or severity) is `group`."""
    regions, correlation = [], dials.distractor_correlation
    # Drawn whether or not it is used, so that a changed rate leaves the other draws where they were.
    imitated = str(generator.choice(list(profile.kinds)))
    mimic = _plan_bystander(name_mimic(imitated), n_patches, dials, generator)
    if generator.random() < dials.mimic_rate:
        regions.append(mimic)
    for distractor in profile.distractors:
        region = _plan_bystander(distractor.name, n_patches, dials, generator)
        # The rate without correlation; certain or impossible with a correlation of 1.
        chance = (1 - correlation) * dials.distractor_rate + correlation * (
            group in distractor.goes_with
        )
        if generator.random() < chance:
            regions.append(region)
    return regions


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


def plan_classification(
    profile: Profile,
    dials: Dials,
    *,
    prefix: str,
    n_slides: int,
    patches: tuple[int, int],
    seed: int,
) -> list[CasePlan]:
    """All cases of a cohort in random order, every slide of a case with the same label."""
    order = stream(seed, "cases", prefix)
    sized = [
        (label, size)
        for label, count in enumerate(class_counts(profile, n_slides))
        for size in _draw_case_sizes(count, dials.slides_per_case, order)
    ]
    cases = []
    for number, index in enumerate(order.permutation(len(sized))):
        (label, n_own), case_id = sized[index], f"{prefix}-{number:04d}"
        generator = stream(seed, "plan", case_id)
        sizes = tuple(_draw_bag_size(patches, generator) for _ in range(n_own))
        regions = tuple(_plan_regions(profile, dials, label, size, generator) for size in sizes)
        cases.append(CasePlan(case_id, sizes, regions, label))
    return cases


def plan_targets(
    profile: Profile,
    dials: Dials,
    *,
    prefix: str,
    n_slides: int,
    patches: tuple[int, int],
    seed: int,
) -> list[CasePlan]:
    """All cases of a cohort of several targets; bit t of a case's target is the label of target t."""
    case_sizes = _draw_case_sizes(n_slides, dials.slides_per_case, stream(seed, "cases", prefix))
    cases = []
    for number, n_own in enumerate(case_sizes):
        case_id = f"{prefix}-{number:04d}"
        generator = stream(seed, "plan", case_id)
        shown = np.flatnonzero(generator.random(len(profile.classes)) < 0.5).tolist()
        group = profile.classes[shown[0]].name if shown else ""
        sizes = tuple(_draw_bag_size(patches, generator) for _ in range(n_own))
        evidence = [
            [
                region
                for label in shown
                for region in _plan_evidence(profile, dials, label, size, generator)
            ]
            for size in sizes
        ]
        # Two targets may share a concept, and the causes of one may add up to that of another.
        present = {region.concept for regions in evidence for region in regions}
        target = sum(
            1 << index
            for index, rule in enumerate(profile.classes)
            if any(set(cause) <= present for cause in rule.causes)
        )
        regions = tuple(
            (*own, *_plan_bystanders(profile, group, size, dials, generator))
            for own, size in zip(evidence, sizes, strict=True)
        )
        cases.append(CasePlan(case_id, sizes, regions, target))
    return cases


def _plan_regions(
    profile: Profile, dials: Dials, label: int, n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """Evidence of the class, then everything that is beside the point."""
    evidence = _plan_evidence(profile, dials, label, n_patches, generator)
    beside = [
        *_plan_decoys(profile, dials, n_patches, generator),
        *_plan_comorbid(profile, dials, label, n_patches, generator),
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
    return (*regions, *_plan_bystanders(profile, group, n_patches, dials, generator))


def _plan_evidence(
    profile: Profile, dials: Dials, label: int, n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """Regions of one cause of the class, sometimes of two; nothing for a class without a cause."""
    causes = profile.classes[label].causes
    if not causes:
        return ()
    concepts = choose_concepts(profile, dials, label, generator)
    total = _draw_evidence_size(n_patches, dials, len(concepts), generator)
    count = _draw_region_count(total, dials, len(concepts), generator)
    extra = [str(name) for name in generator.choice(concepts, size=count - len(concepts))]
    return _split_evidence([*concepts, *extra], total, generator)


def choose_concepts(profile: Profile, dials: Dials, label: int, generator: Generator) -> list[str]:
    """Concepts of one cause drawn at random, and of a second one where there is redundancy and room for its regions."""
    causes = profile.classes[label].causes
    order = generator.permutation(len(causes))
    concepts = list(causes[order[0]])
    if generator.random() < dials.redundancy and len(causes) > 1:
        both = list(dict.fromkeys([*concepts, *causes[order[1]]]))
        if len(both) <= dials.regions_max and true_label(both, profile) == label:
            return both
    return concepts


def _plan_decoys(
    profile: Profile, dials: Dials, n_patches: int, generator: Generator
) -> list[Region]:
    """One concept of a random cause that needs several."""
    joint = [cause for rule in profile.classes for cause in rule.causes if len(cause) > 1]
    if not joint:
        return []
    cause = joint[int(generator.integers(len(joint)))]
    region = _plan_bystander(str(generator.choice(cause)), n_patches, dials, generator)
    return [region] if generator.random() < dials.decoy_rate else []


def _plan_comorbid(
    profile: Profile, dials: Dials, label: int, n_patches: int, generator: Generator
) -> list[Region]:
    """A lesion of a random earlier class."""
    earlier = [
        cause for rule in profile.classes[:label] for cause in rule.causes if len(cause) == 1
    ]
    if not earlier:
        return []
    cause = earlier[int(generator.integers(len(earlier)))]
    region = _plan_bystander(cause[0], n_patches, dials, generator)
    return [region] if generator.random() < dials.comorbidity else []


def corrupt_labels(
    labels: Int[np.ndarray, "n"], n_classes: int, noise: float, generator: Generator
) -> Int[np.ndarray, "n"]:
    """The labels with exactly this share, rounded, replaced by another class at random."""
    recorded = labels.copy()
    wrong = generator.permutation(len(labels))[: round(noise * len(labels))]
    recorded[wrong] = (
        recorded[wrong] + generator.integers(1, n_classes, size=len(wrong))
    ) % n_classes
    return recorded


def plan_factors(
    profile: Profile,
    dials: Dials,
    *,
    prefix: str,
    n_slides: int,
    patches: tuple[int, int],
    seed: int,
) -> list[CasePlan]:
    """All cases of a cohort with the log-risk, or the value, that their slides cause."""
    case_sizes = _draw_case_sizes(n_slides, dials.slides_per_case, stream(seed, "cases", prefix))
    cases = []
    for number, n_own in enumerate(case_sizes):
        case_id = f"{prefix}-{number:04d}"
        generator = stream(seed, "plan", case_id)
        severity = float(generator.random())
        sizes = tuple(_draw_bag_size(patches, generator) for _ in range(n_own))
        regions = tuple(
            _plan_factor_regions(profile, dials, severity, size, generator) for size in sizes
        )
        risk = log_risk(share_of_concepts(regions, sum(sizes)), profile.factors, dials)
        cases.append(CasePlan(case_id, sizes, regions, risk))
    return cases


def _plan_factor_regions(
    profile: Profile, dials: Dials, severity: float, n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """Evidence regions of one slide of a case of this severity, and what distracts from them."""
    harming = [name for name, weight in profile.factors.items() if weight > 0]
    protecting = [name for name, weight in profile.factors.items() if weight < 0]
    total = _draw_evidence_size(n_patches, dials, 1, generator)
    concepts = []
    for _ in range(_draw_region_count(total, dials, 1, generator)):
        harms = not protecting or (bool(harming) and generator.random() < severity)
        concepts.append(str(generator.choice(harming if harms else protecting)))
    group = SEVERE if severity > 0.5 else "mild"
    return (
        *_split_evidence(concepts, total, generator),
        *_plan_bystanders(profile, group, n_patches, dials, generator),
    )


def share_of_concepts(slides: tuple[tuple[Region, ...], ...], n_patches: int) -> dict[str, float]:
    """Share of a case's patches in evidence regions of each concept."""
    shares: dict[str, float] = {}
    for region in (region for regions in slides for region in regions if region.role == "evidence"):
        shares[region.concept] = shares.get(region.concept, 0.0) + region.n_patches / n_patches
    return shares


def log_risk(shares: Mapping[str, float], factors: Mapping[str, float], dials: Dials) -> float:
    """The log-hazard of a case from the coverage of each concept."""
    doses = {
        name: min(1.0, share / dials.evidence_max) ** dials.dose_exponent
        for name, share in shares.items()
        if share > 0
    }
    return dials.risk_effect * sum(
        factors[name] * dose for name, dose in doses.items() if name in factors
    )


def draw_labels(values: Times, dials: Dials, generator: Generator) -> list[float]:
    """The measured labels of regression: the values with noise."""
    noise = dials.label_noise / (1 - dials.label_noise) * float(np.var(values))
    return [
        round(float(one), 4)
        for one in values + generator.normal(0, np.sqrt(noise), size=len(values))
    ]


def draw_outcomes(log_risks: Times, dials: Dials, generator: Generator) -> list[tuple[float, int]]:
    """Months until event 1, or until the case was last seen (event 0); the share of events is exact to the nearest case."""
    exponential = generator.exponential(size=len(log_risks))
    times = dials.median_time * (exponential / (np.log(2) * np.exp(log_risks))) ** (
        1 / dials.weibull_shape
    )
    followed = generator.uniform(0.1, 1.0, size=len(times))
    # A case has its event iff time <= followed * end, so this order statistic of the ratio sees exactly the share wanted.
    n_events = max(1, round((1 - dials.censoring) * len(times)))
    ratio = times / followed
    end = float(np.sort(ratio)[n_events - 1])
    return [
        (max(0.01, round(float(min(time, share * end)), 2)), int(time / share <= end))
        for time, share in zip(times, followed, strict=True)
    ]
