"""Survival: what the slides of a case show moves its hazard.

coverage_c = share of the patches of the case, over all its slides, that show concept c
log-risk   = risk_effect * sum_c weight_c * min(1, coverage_c / evidence_max) ^ dose_exponent     (0 where coverage is 0)
time       = median * (E / (log 2 * exp(log-risk))) ^ (1 / shape),  E ~ Exp(1)                    (Weibull, proportional hazards)
seen       = min(time, follow-up), event = time <= follow-up; follow-up is uniform, its range set to reach the censoring share

A case has a severity q ~ U(0, 1); each of its evidence regions shows a concept that harms with chance q, else one that protects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from gcemil.bags.simulated.bystanders import SEVERE, bystander_regions
from gcemil.bags.simulated.dials import Dials
from gcemil.bags.simulated.plan import (
    CasePlan,
    Region,
    bag_size,
    case_sizes,
    evidence_patches,
    evidence_regions,
    region_count,
)
from gcemil.bags.simulated.profile import Profile
from gcemil.bags.simulated.streams import stream

Times = Float[np.ndarray, "n"]


@dataclass(frozen=True)
class Outcome:
    """What is known of a case: months until event 1, or until it was last seen (event 0)."""

    time: float
    event: int


def survival_cases(
    profile: Profile, dials: Dials, *, prefix: str, n_slides: int, patches: tuple[int, int], seed: int
) -> list[CasePlan]:
    """All cases of a cohort with the log-risk that their slides cause."""
    sizes = case_sizes(n_slides, dials.slides_per_case, stream(seed, "cases", prefix))
    return [
        survival_case(profile, dials, f"{prefix}-{number:04d}", size, patches, seed)
        for number, size in enumerate(sizes)
    ]


def survival_case(
    profile: Profile, dials: Dials, case_id: str, n_slides: int, patches: tuple[int, int], seed: int
) -> CasePlan:
    generator = stream(seed, "plan", case_id)
    severity = float(generator.random())
    sizes = [bag_size(patches, generator) for _ in range(n_slides)]
    regions = tuple(factor_regions(profile, dials, severity, size, generator) for size in sizes)
    risk = log_risk(coverage(regions, sum(sizes)), profile.factors, dials)
    return CasePlan(case_id, tuple(sizes), regions, risk)


def factor_regions(
    profile: Profile, dials: Dials, severity: float, n_patches: int, generator: Generator
) -> tuple[Region, ...]:
    """Evidence regions of one slide of a case of this severity, and what distracts from them."""
    harming = [name for name, weight in profile.factors.items() if weight > 0]
    protecting = [name for name, weight in profile.factors.items() if weight < 0]
    total = evidence_patches(n_patches, dials, 1, generator)
    concepts = []
    for _ in range(region_count(total, dials, 1, generator)):
        harms = not protecting or (bool(harming) and generator.random() < severity)
        concepts.append(str(generator.choice(harming if harms else protecting)))
    group = SEVERE if severity > 0.5 else "mild"
    return (
        *evidence_regions(concepts, total, generator),
        *bystander_regions(profile, group, n_patches, dials, generator),
    )


def coverage(slides: tuple[tuple[Region, ...], ...], n_patches: int) -> dict[str, float]:
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
    return dials.risk_effect * sum(factors[name] * dose for name, dose in doses.items() if name in factors)


def outcomes(log_risks: Times, dials: Dials, generator: Generator) -> list[Outcome]:
    """Time and event of every case; the share of events is the one asked for, to the nearest case."""
    exponential = generator.exponential(size=len(log_risks))
    times = dials.median_time * (exponential / (np.log(2) * np.exp(log_risks))) ** (1 / dials.weibull_shape)
    followed = generator.uniform(0.1, 1.0, size=len(times))
    # A case has its event iff time <= followed * end, so this order statistic of the ratio sees exactly the share wanted.
    n_events = max(1, round((1 - dials.censoring) * len(times)))
    ratio = times / followed
    end = float(np.sort(ratio)[n_events - 1])
    return [
        Outcome(time=max(0.01, round(float(min(time, share * end)), 2)), event=int(time / share <= end))
        for time, share in zip(times, followed, strict=True)
    ]
