"""Choosing a ranking by intervention: keep its first patches, remove them, and see what the host says.

  kept_gap     |Phi(X_S) - Phi(X)|       small: S is sufficient
  removed_gap  |Phi(X_notS) - Phi(X)|    large: S is necessary
Phi is the probability of the class predicted on X, or a risk in units of the training risks. Nothing here needs a label.

Used to find what a given model rests on (explain.py): among the model's own rankings, from the smallest size, the first is taken that is sufficient and
necessary; where none is, one that keeps the prediction, then one whose removal changes it. A risk is seldom kept within the tolerance: a ranking that
keeps it within NEAR comes before one that does not, and of those that do not the nearest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from gcemil.shapes import Logits, Scores, Selected

NEAR = 0.5
"""A risk that stays this near, in units of the training risks, is near enough; of farther ones the nearest is taken."""

Ask = Callable[[Selected], Logits]
"""What the host says of the bag that consists of these patches alone."""


@dataclass(frozen=True)
class Tolerances:
    """How far an output may move when evidence is kept, and must move when it is removed."""

    sufficiency: float
    necessity: float
    unit: float = 1.0
    """What a difference of outputs is counted in: 1 for probabilities, the spread of the training risks for risks."""


@dataclass(frozen=True)
class Check:
    """What keeping and removing one subset does to the prediction."""

    is_sufficient: bool
    is_necessary: bool
    keeps_class: bool
    """The subset alone is given the same class; always so for a risk."""
    changes_class: bool
    """Without the subset another class is predicted; never so for a risk."""
    excess: float = 0.0
    """By how much the risk of the subset alone misses NEAR, in units of the training risks; 0 for a class."""

    @property
    def is_faithful(self) -> bool:
        """Sufficient and necessary; two classes may lie closer than the tolerance, so the class must stay as well."""
        return self.is_sufficient and self.is_necessary and self.keeps_class

    @property
    def merit(self) -> tuple[bool, bool, bool, bool, float, int]:
        """Larger is better."""
        return (
            self.is_faithful and self.changes_class,
            self.is_faithful,
            self.keeps_class,
            self.changes_class,
            -self.excess,
            self.is_sufficient + self.is_necessary,
        )


@torch.no_grad()
def check_subset(ask: Ask, full: Logits, selected: Selected, tolerances: Tolerances) -> Check:
    """Keep the patches, remove them, compare; the whole bag is never necessary, since it leaves nothing behind."""
    return compare_answers(full, ask(selected), _ask_without(ask, selected), tolerances)


def compare_answers(full: Logits, kept: Logits, removed: Logits | None, tolerances: Tolerances) -> Check:
    """What follows from the three answers; `removed` is None where nothing is left behind."""
    return replace(
        _assume_necessary(full, kept, tolerances),
        is_necessary=removed is not None
        and output_gap(full, removed, tolerances.unit) >= tolerances.necessity,
        changes_class=len(full) > 1 and removed is not None and int(removed.argmax()) != int(full.argmax()),
    )


def _assume_necessary(full: Logits, kept: Logits, tolerances: Tolerances) -> Check:
    """The best that can still come out when the patches have been kept but not yet removed."""
    gap, is_risk = output_gap(full, kept, tolerances.unit), len(full) == 1
    return Check(
        is_sufficient=gap <= tolerances.sufficiency,
        is_necessary=True,
        keeps_class=is_risk or int(kept.argmax()) == int(full.argmax()),
        changes_class=not is_risk,
        excess=max(gap - NEAR, 0.0) if is_risk else 0.0,
    )


def _ask_without(ask: Ask, selected: Selected) -> Logits | None:
    return None if bool(selected.all()) else ask(~selected)


@dataclass(frozen=True, eq=False)
class Candidate:
    """What is known of one ranking: all of it, or what keeping its first patches leaves to hope for."""

    name: str
    scores: Scores
    selected: Selected
    kept: Logits
    check: Check
    is_known: bool = False

    @property
    def size(self) -> int:
        """How many patches were kept and removed."""
        return int(self.selected.sum())

    def remove_patches(self, ask: Ask, full: Logits, tolerances: Tolerances) -> Candidate:
        """The same with nothing left to hope for."""
        without = _ask_without(ask, self.selected)
        return replace(self, check=compare_answers(full, self.kept, without, tolerances), is_known=True)


@torch.no_grad()
def choose_evidence(
    rankings: Mapping[str, Scores], sizes: Iterable[int], ask: Ask, full: Logits, tolerances: Tolerances
) -> Candidate:
    """The best ranking of the first size, from the smallest, at which one is sufficient and necessary; else the best of all sizes.

    Of equals the smaller one, so a set grows only where that makes it more faithful.
    """
    best: Candidate | None = None
    for size in sizes:
        found = choose_ranking(rankings, size, ask, full, tolerances)
        if best is None or found.check.merit > best.check.merit:
            best = found
        if best.check.is_faithful:
            break
    if best is None:
        raise ValueError("There is no size to choose from.")
    return best


@torch.no_grad()
def choose_ranking(
    rankings: Mapping[str, Scores], size: int, ask: Ask, full: Logits, tolerances: Tolerances
) -> Candidate:
    """The ranking to take, and what was found of its first `size` patches; of equals the earlier one.

    Removing a few patches leaves nearly the whole bag to be read, so it is asked only where it can decide.
    """
    candidates: list[Candidate] = []
    for name, scores, selected in _first_patches(rankings, size):
        kept = ask(selected)
        candidate = Candidate(name, scores, selected, kept, _assume_necessary(full, kept, tolerances))
        if candidate.check.is_faithful:
            candidate = candidate.remove_patches(ask, full, tolerances)
            if candidate.check.is_faithful:
                return candidate
        candidates.append(candidate)
    if not candidates:
        raise ValueError("There is no ranking to choose from.")
    # What could still be best is asked, until nothing that is only assumed ranks above what is known.
    while not (best := max(candidates, key=lambda one: one.check.merit)).is_known:
        candidates[candidates.index(best)] = best.remove_patches(ask, full, tolerances)
    return best


def _first_patches(rankings: Mapping[str, Scores], size: int) -> Iterator[tuple[str, Scores, Selected]]:
    """What each ranking opens; two rankings often open the same patches, and the host need not be asked twice."""
    seen: set[bytes] = set()
    for name, scores in rankings.items():
        selected = torch.zeros_like(scores, dtype=torch.bool)
        selected[scores.topk(size).indices] = True
        key = selected.cpu().numpy().tobytes()
        if key not in seen:
            seen.add(key)
            yield name, scores, selected


def output_gap(full: Logits, other: Logits, unit: float = 1.0) -> float:
    """|Phi(other) - Phi(X)| with the class predicted on X."""
    if len(full) == 1:
        return abs(float(other[0]) - float(full[0])) / unit
    index = int(full.argmax())
    probabilities = torch.softmax(torch.stack([full, other]).double(), dim=1)[:, index]
    return abs(float(probabilities[1] - probabilities[0])) / unit
