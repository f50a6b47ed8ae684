"""A plan: what each slide will hold, in patches, before any tissue is laid out.

The layout realises a plan to the patch, so labels and risks follow from plans alone and slides can
be made one by one. Random streams have names, so that one part of a cohort can change without
moving the draws of another. Bystanders are regions that attract a model but are not evidence:
benign mimics, and distractors correlated with the target.

Classes: a class has causes; a cause is one concept, or several that must be present together. The
label of a slide without noise is the last class, in the profile's order, one of whose causes is
present in full; without any it is the first class, if that one has no cause. Evidence is every
region of a cause that makes the slide's own class true. A decoy (half of a cause that needs two)
and a comorbid lesion (a cause of an earlier class) are added only where the label stays the same;
they are not evidence.

Several targets: every class with a cause is a target of its own, shown by a random half of the
cases. A target is 1 where one of its causes is present in full; its evidence is the regions of its
causes.

Survival: the slides of a case decide its hazard.

coverage_c = share of the patches of the case, over all its slides, that show concept c
log-risk   = risk_effect * sum_c weight_c * min(1, coverage_c / evidence_max) ^ dose_exponent
time       = median * (E / (log 2 * exp(log-risk))) ^ (1 / shape),  E ~ Exp(1)     (Weibull)
seen       = min(time, follow-up), event = time <= follow-up; follow-up is uniform, its range set to
             reach the censoring share

A case has a severity q ~ U(0, 1); each of its evidence regions shows a concept that harms with
chance q, else one that protects.

Regression: the log-risk itself is the value, without a time.

label = value + e,  e ~ N(0, label_noise / (1 - label_noise) * variance of the values)
so that a perfect reader of the slides reaches R2 = 1 - label_noise
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator
from numpy.typing import NDArray

from gcemil.bags.cohort import SlideRow
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
    """Slides that share a target: patches and regions of each, and the target without noise."""

    case_id: str
    n_patches: tuple[int, ...]
    regions: tuple[tuple[Region, ...], ...]
    target: int | float
    """The class, one bit per target, the log-risk, or the value."""


@dataclass(frozen=True)
class PlannedSlide:
    """One slide with everything that is decided before its patches are drawn."""

    row: SlideRow
    n_patches: int
    regions: tuple[Region, ...]
    truth: dict[str, str | float]
    """The target without noise: never written beside the features."""
    site: int = 0


def plan_cases(
    profile: Profile,
    dials: Dials,
    *,
    prefix: str,
    n_slides: int,
    patches: tuple[int, int],
    seed: int,
) -> list[CasePlan]:
    """All cases of a cohort; every slide of a case has the same target."""
    order = stream(seed, "cases", prefix)
    counts = class_counts(profile, n_slides) if profile.task == "classification" else [n_slides]
    sized = [
        (label, size)
        for label, count in enumerate(counts)
        for size in _draw_case_sizes(count, dials.slides_per_case, order)
    ]
    if profile.task == "classification":
        sized = [sized[index] for index in order.permutation(len(sized))]
    cases = []
    for number, (label, n_own) in enumerate(sized):
        case_id = f"{prefix}-{number:04d}"
        generator = stream(seed, "plan", case_id)
        cases.append(_plan_case(profile, dials, case_id, label, n_own, patches, generator))
    return cases


def _draw_case_sizes(n_slides: int, mean: float, generator: Generator) -> list[int]:
    """Slides per case, one to three each, adding up to `n_slides`."""
    sizes: list[int] = []
    while (left := n_slides - sum(sizes)) > 0:
        sizes.append(min(left, 1 + int(generator.binomial(2, (mean - 1) / 2))))
    return sizes


def class_counts(profile: Profile, n_slides: int) -> list[int]:
    """Slides per class in the dataset's own balance, by largest remainder, at least one each."""
    weights = np.array([rule.slides for rule in profile.classes], dtype=float)
    if n_slides < len(weights):
        raise UsageError(
            f"Profile '{profile.name}' has {len(weights)} classes, so it needs at least as many "
            f"slides, got {n_slides}."
        )
    exact = (n_slides - len(weights)) * weights / weights.sum()
    counts = 1 + np.floor(exact).astype(int)
    rest = np.argsort(np.floor(exact) - exact, kind="stable")[: n_slides - counts.sum()]
    counts[rest] += 1
    return [int(count) for count in counts]


def _plan_case(
    profile: Profile,
    dials: Dials,
    case_id: str,
    label: int,
    n_slides: int,
    patches: tuple[int, int],
    generator: Generator,
) -> CasePlan:
    """One case: its class, targets or severity first, then the sizes and regions of its slides."""
    shown, severity = [], 0.0
    if profile.task == "multilabel":
        shown = np.flatnonzero(generator.random(len(profile.classes)) < 0.5).tolist()
    elif profile.factors:
        severity = float(generator.random())
    low, high = patches
    exact = [float(np.exp(generator.uniform(np.log(low), np.log(high)))) for _ in range(n_slides)]
    sizes = tuple(int(np.clip(round(size), low, high)) for size in exact)
    target: int | float = label
    if profile.task == "classification":
        regions = [_plan_class_regions(profile, dials, label, n, generator) for n in sizes]
    elif profile.factors:
        regions = [_plan_factor_regions(profile, dials, severity, n, generator) for n in sizes]
        target = log_risk(share_of_concepts(regions, sum(sizes)), profile.factors, dials)
    else:
        group = profile.classes[shown[0]].name if shown else ""
        evidence = [
            [one for index in shown for one in _plan_evidence(profile, dials, index, n, generator)]
            for n in sizes
        ]
        # Two targets may share a concept, and the causes of one may add up to that of another.
        present = {region.concept for slide in evidence for region in slide}
        target = sum(
            1 << index
            for index, rule in enumerate(profile.classes)
            if any(set(cause) <= present for cause in rule.causes)
        )
        regions = [
            (*own, *_plan_bystanders(profile, group, n, dials, generator))
            for own, n in zip(evidence, sizes, strict=True)
        ]
    return CasePlan(case_id, sizes, tuple(regions), target)


def true_label(present: Collection[str], profile: Profile) -> int | None:
    """The class these concepts cause, None where they cause none."""
    for index in reversed(range(len(profile.classes))):
        causes = profile.classes[index].causes
        if any(set(cause) <= set(present) for cause in causes) or (not causes and index == 0):
            return index
    return None


def _plan_class_regions(
    profile: Profile, dials: Dials, label: int, n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """Evidence of the class, decoys and comorbid lesions that do not change it, and bystanders."""
    regions = [*_plan_evidence(profile, dials, label, n_patches, generator)]
    joint = [cause for rule in profile.classes for cause in rule.causes if len(cause) > 1]
    earlier = [
        cause for rule in profile.classes[:label] for cause in rule.causes if len(cause) == 1
    ]
    beside = []
    for causes, rate in ((joint, dials.decoy_rate), (earlier, dials.comorbidity)):
        if causes:
            cause = causes[int(generator.integers(len(causes)))]
            concept = str(generator.choice(cause)) if len(cause) > 1 else cause[0]
            region = _plan_bystander(concept, n_patches, dials, generator)
            if generator.random() < rate:
                beside.append(region)
    has_evidence, others = bool(regions), set[str]()
    for region in beside:
        present = {known.concept for known in regions}
        keeps_label = true_label(present | {region.concept}, profile) == label
        # A decoy and a comorbid lesion may together be a cause of the class: then the evidence
        # would not be all of it.
        causes_it_too = has_evidence and true_label(others | {region.concept}, profile) == label
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
    """Concepts of a random cause, and of a second one with the chance of `redundancy`."""
    causes = profile.classes[label].causes
    order = generator.permutation(len(causes))
    concepts = list(causes[order[0]])
    if generator.random() < dials.redundancy and len(causes) > 1:
        both = list(dict.fromkeys([*concepts, *causes[order[1]]]))
        if len(both) <= dials.regions_max and true_label(both, profile) == label:
            return both
    return concepts


def _draw_evidence_size(n_patches: int, dials: Dials, needed: int, generator: Generator) -> int:
    """Number of evidence patches: uniform in the share, whole patches inside the bounds."""
    fewest = max(needed, int(np.ceil(dials.evidence_min * n_patches)))
    most = int(np.floor(dials.evidence_max * n_patches))
    if fewest > most:
        raise UsageError(
            f"A slide of {n_patches} patches cannot hold {fewest} evidence patches in a share of "
            f"at most {dials.evidence_max}. Raise evidence_max or simulate larger slides."
        )
    size = round(float(generator.uniform(dials.evidence_min, dials.evidence_max)) * n_patches)
    return int(np.clip(size, fewest, most))


def _draw_region_count(n_patches: int, dials: Dials, needed: int, generator: Generator) -> int:
    """Number of evidence regions: at least one per concept, of two patches on average."""
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
    # Drawn whether or not it is used, so that a changed rate leaves the other draws where they
    # were.
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


def share_of_concepts(slides: Iterable[Sequence[Region]], n_patches: int) -> dict[str, float]:
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


def plan_slides(
    profile: Profile,
    dials: Dials,
    cases: Sequence[CasePlan],
    generator: Generator,
    sites: Sequence[int] | None = None,
) -> list[PlannedSlide]:
    """Every slide with its line of slides.csv, noisy or censored, and with what is true."""
    targets = np.array([case.target for case in cases])
    drawn = _draw_targets(profile, dials, targets, generator)
    slides = []
    for number, (case, (columns, truth)) in enumerate(zip(cases, drawn, strict=True)):
        site = 0 if sites is None else sites[number]
        name = None if sites is None else f"site-{site}"
        for place, (n_patches, regions) in enumerate(
            zip(case.n_patches, case.regions, strict=True)
        ):
            slide_id = f"{case.case_id}-s{place + 1}"
            row = SlideRow(slide_id, case.case_id, site=name, **columns)
            slides.append(PlannedSlide(row, n_patches, regions, truth, site))
    return slides


def _draw_targets(
    profile: Profile, dials: Dials, targets: NDArray[Any], generator: Generator
) -> list[tuple[dict[str, Any], dict[str, str | float]]]:
    """Per case the target as slides.csv has it, and without noise or censoring."""
    names, noise = profile.class_names, dials.label_noise
    if profile.task == "survival":
        seen = draw_outcomes(targets, dials, generator)
        return [
            ({"time": time, "event": event}, {"log_risk": float(risk)})
            for (time, event), risk in zip(seen, targets, strict=True)
        ]
    if profile.task == "regression":
        values = draw_labels(targets, dials, generator)
        return [
            ({"value": value}, {"value": float(target)})
            for value, target in zip(values, targets, strict=True)
        ]
    if profile.task == "multilabel":
        shown = (targets[:, None] >> np.arange(len(names))) & 1
        noisy = np.stack([corrupt_labels(one, 2, noise, generator) for one in shown.T], axis=1)
        return [
            ({"labels": tuple(labels)}, dict(zip(names, true, strict=True)))
            for labels, true in zip(noisy.tolist(), shown.tolist(), strict=True)
        ]
    recorded = corrupt_labels(targets, len(names), noise, generator)
    return [
        ({"label": names[label]}, {"label": names[target]})
        for label, target in zip(recorded, targets, strict=True)
    ]


def draw_sites(
    targets: NDArray[Any], dials: Dials, generator: Generator, *, is_ranked: bool
) -> Int[np.ndarray, "n"]:
    """A site per case: for the confounded share that preferred by its class or rank, else any."""
    order = np.argsort(np.argsort(targets, kind="stable"), kind="stable") if is_ranked else targets
    preferred = np.floor(order / (order.max() + 1) * dials.sites).astype(np.int64)
    anywhere = generator.integers(dials.sites, size=len(targets))
    return np.where(generator.random(len(targets)) < dials.site_confounding, preferred, anywhere)


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


def draw_labels(values: Times, dials: Dials, generator: Generator) -> list[float]:
    """The measured labels of regression: the values with noise."""
    noise = dials.label_noise / (1 - dials.label_noise) * float(np.var(values))
    return [
        round(float(one), 4)
        for one in values + generator.normal(0, np.sqrt(noise), size=len(values))
    ]


def draw_outcomes(log_risks: Times, dials: Dials, generator: Generator) -> list[tuple[float, int]]:
    """Months and event per case; the share of events is exact to the nearest case."""
    exponential = generator.exponential(size=len(log_risks))
    times = dials.median_time * (exponential / (np.log(2) * np.exp(log_risks))) ** (
        1 / dials.weibull_shape
    )
    followed = generator.uniform(0.1, 1.0, size=len(times))
    # A case has its event iff time <= followed * end, so this order statistic of the ratio sees
    # exactly the share wanted.
    n_events = max(1, round((1 - dials.censoring) * len(times)))
    ratio = times / followed
    end = float(np.sort(ratio)[n_events - 1])
    return [
        (max(0.01, round(float(min(time, share * end)), 2)), int(time / share <= end))
        for time, share in zip(times, followed, strict=True)
    ]
