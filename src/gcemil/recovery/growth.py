"""Growth down a ranking until the model itself is satisfied, instead of until anchors are covered.

  sufficient         |Phi(X_pi) - Phi(X_S)| <= tolerance                 the check of the paper's Mechanism 6
  adaptive size      the smallest prefix of the ranking, in steps of 1 % of the bag, that is sufficient and necessary

Phi is one number per subset, computed by the caller; every size tried costs one evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Int
from torch import Tensor

from gcemil.errors import UsageError
from gcemil.recovery.recover import members, subset_size
from gcemil.shapes import Selected

OutputOf = Callable[[Tensor], float]
"""Phi(X_S) of a selection: a class probability or a standardised risk."""
Holds = Callable[[Tensor], bool]
"""Whether a selection has some property."""


class GrowthEnd(StrEnum):
    """Why growth ended."""

    REACHED = "reached"
    """The subset has what was asked for."""
    CAPPED = "capped"
    """It does not, at the largest size allowed."""
    EXHAUSTED = "exhausted"
    """It does not, with every patch selected."""


@dataclass(frozen=True, eq=False)
class Growth:
    """The first subset on the way down the ranking that was good enough, or the last one tried."""

    selected: Selected
    end: GrowthEnd
    n_evaluated: int
    """Subsets that were put to the model."""


@torch.no_grad()
def grow_until_sufficient(
    initial: Selected,
    ranking: Int[Tensor, "n"],
    output_of: OutputOf,
    *,
    reference: float,
    tolerance: float = 0.01,
    max_fraction: float = 1.0,
) -> Growth:
    """Add patches one by one by rank until the output lies within the tolerance of the reference."""
    check_tolerance(tolerance)
    if not bool(initial.any()):
        raise UsageError("Growth starts from at least one patch. Take the patch of highest score.")
    waiting = ranking[~initial[ranking]]
    # A subset that starts beyond the cap is judged as it is: growing never drops a patch.
    room = max(0, subset_size(len(initial), max_fraction) - int(initial.sum()))
    return _first_that_holds(
        (initial | members(waiting[:size], n_patches=len(initial)) for size in range(room + 1)),
        lambda selected: abs(reference - output_of(selected)) <= tolerance,
    )


@torch.no_grad()
def smallest_faithful_prefix(
    ranking: Int[Tensor, "n"],
    output_of: OutputOf,
    is_necessary: Holds,
    *,
    reference: float,
    tolerance: float = 0.05,
    step_fraction: float = 0.01,
    max_fraction: float = 0.10,
) -> Growth:
    """The shortest prefix whose output is within the tolerance and without which the model decides otherwise.

    `is_necessary(selected)` looks at the complement. The whole bag leaves none, and so is necessary without asking.
    """
    check_tolerance(tolerance)
    if not 0.0 < step_fraction <= max_fraction:
        raise UsageError(f"step_fraction lies in (0, {max_fraction}], the largest size, got {step_fraction}.")
    n_patches = len(ranking)
    n_steps = max(1, round(max_fraction / step_fraction))
    # Small bags round several steps to one size, which is tried once.
    sizes = dict.fromkeys(subset_size(n_patches, max_fraction * (j + 1) / n_steps) for j in range(n_steps))

    def is_faithful(selected: Tensor) -> bool:
        sufficient = abs(reference - output_of(selected)) <= tolerance
        return sufficient and (bool(selected.all()) or is_necessary(selected))

    return _first_that_holds((members(ranking[:size], n_patches=n_patches) for size in sizes), is_faithful)


def _first_that_holds(subsets: Iterator[Tensor], holds: Holds) -> Growth:
    for n_evaluated, selected in enumerate(subsets, start=1):
        if holds(selected):
            return Growth(selected, GrowthEnd.REACHED, n_evaluated)
    end = GrowthEnd.EXHAUSTED if bool(selected.all()) else GrowthEnd.CAPPED
    return Growth(selected, end, n_evaluated)


def check_tolerance(tolerance: float) -> None:
    """UsageError for a tolerance below 0, or NaN."""
    if not tolerance >= 0.0:
        raise UsageError(f"A tolerance is at least 0, got {tolerance}.")
