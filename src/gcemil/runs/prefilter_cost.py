"""What the prefilter saved on the test slides of a fold: measured by training, read by the diagnostic `cost`.

fold_<k>/prefilter_cost.json holds per slide the seconds of each part both ways, and the patches the host pooled in the end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gcemil.errors import RunError
from gcemil.files import is_file, read_record, write_json

FILE = "prefilter_cost.json"
PREDICTION = "prediction"
"""The part of the work that comes after feature extraction."""
Seconds = dict[str, float]


@dataclass(frozen=True)
class SlideCost:
    """One test slide, with all its patches and with those the prefilter keeps."""

    bag_id: str
    n_patches: int
    n_encoded: int
    certified: bool
    selected: list[int]
    """Rows that the host pooled: the evidence, or all of them after a fall-back."""
    full: list[float]
    """prob_<class>, or risk, from all patches."""
    prefiltered: list[float]
    full_seconds: Seconds
    prefilter_seconds: Seconds

    @property
    def change(self) -> float:
        """|Change| of the probability of the class that all patches say, or of the risk."""
        place = max(range(len(self.full)), key=self.full.__getitem__)
        return abs(self.prefiltered[place] - self.full[place])


@dataclass(frozen=True)
class PrefilterCost:
    """The test slides of one fold."""

    fold: int
    keep_rate: float
    threads: int
    model_hash: str
    full_utility: float
    prefilter_utility: float
    slides: tuple[SlideCost, ...]

    @property
    def end_to_end_time(self) -> float:
        """Seconds with the prefilter over seconds without, all slides together."""
        full = sum(sum(slide.full_seconds.values()) for slide in self.slides)
        return sum(sum(slide.prefilter_seconds.values()) for slide in self.slides) / full

    @property
    def extraction_time(self) -> float:
        """The same up to the features: tissue, view, student and encoder."""
        full = sum(extraction(slide.full_seconds) for slide in self.slides)
        return sum(extraction(slide.prefilter_seconds) for slide in self.slides) / full

    @property
    def relative_utility(self) -> float | None:
        return self.prefilter_utility / self.full_utility if self.full_utility else None

    @property
    def fall_back(self) -> float:
        """Share of slides that fell back to all their patches."""
        return fmean(not slide.certified for slide in self.slides)

    @property
    def encoded(self) -> float:
        """Share of all patches that were encoded."""
        return sum(slide.n_encoded for slide in self.slides) / sum(slide.n_patches for slide in self.slides)

    @property
    def mean_change(self) -> float:
        return fmean(slide.change for slide in self.slides)

    @property
    def sentence(self) -> str:
        relative = "undefined" if self.relative_utility is None else f"{self.relative_utility:.3f}x"
        return (
            f"fold {self.fold}, {len(self.slides)} test slides: time {self.end_to_end_time:.3f}x, utility {relative}, keep rate "
            f"{self.keep_rate:g}, fall-back {self.fall_back:.3f}, patches encoded {self.encoded:.3f}, "
            f"mean change of the prediction {self.mean_change:.4f}"
        )

    def to_json(self) -> dict[str, Any]:
        derived = ("end_to_end_time", "extraction_time", "relative_utility", "fall_back", "encoded", "mean_change")  # fmt: skip
        return {**asdict(self), "summary": {name: getattr(self, name) for name in derived}}


def extraction(seconds: Seconds) -> float:
    return sum(spent for part, spent in seconds.items() if part != PREDICTION)


def write_cost(folder: Path, cost: PrefilterCost) -> None:
    write_json(folder / FILE, cost.to_json())


def read_cost(folder: Path) -> PrefilterCost | None:
    """What was measured for a fold; None where nothing was."""
    path = folder / FILE
    if not is_file(path):
        return None
    remedy = "It is no measurement of gcemil; make it again with 'gcemil prefilter --measure'."
    return read_record(path, PrefilterCost, error=RunError, remedy=remedy)
