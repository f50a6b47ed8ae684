"""What the prefilter saves on the test slides of a fold: measured here, read by the diagnostic
`cost`.

Every slide goes from its file to its prediction twice: with all patches, and with those that the
prefilter keeps. The order alternates, so that neither always finds warm files, and one prediction
before the first is not counted.

fold_<k>/prefilter_cost.json holds per slide the seconds of each part both ways, and the patches
that the host pooled in the end.

  extraction_time    tissue, view, student and encoder, whole bag = 1
  end_to_end_time    the same with the prediction
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from gcemil.bags.cohort import BagSpec
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import read_fold
from gcemil.errors import RunError, UsageError
from gcemil.features.extract import read_encoded_grid
from gcemil.files import is_file, read_record, write_json
from gcemil.findings import Row
from gcemil.prefilter.slide_files import SlidePredictor
from gcemil.runs.folder import Run, RunFold, fold_parts
from gcemil.tasks.task import create_task, measure_task_metric, stacked_targets

COST_FILE = "prefilter_cost.json"
_ENCODING, _PREDICTION = "encoding", "prediction"
"""Parts of the work: reading and encoding patches, and what comes after feature extraction."""
Seconds = dict[str, float]
PREFILTER_MODE = "prefilter"


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
        """|Change| of the probability of the class predicted from all patches, or of the risk."""
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

    def time_ratios(self, per_patch: float | None = None) -> dict[str, float | None]:
        """Time with over time without; `per_patch` replaces the seconds of encoding."""
        encoding = set() if per_patch is None else {_ENCODING}
        ratios: dict[str, float | None] = {}
        for name, left_out in (("extraction_time", {_PREDICTION}), ("end_to_end_time", set[str]())):
            kept, full = (
                sum(
                    n * (per_patch or 0.0) + _sum_without(parts, encoding | left_out)
                    for n, parts in way
                )
                for way in (
                    [(slide.n_encoded, slide.prefilter_seconds) for slide in self.slides],
                    [(slide.n_patches, slide.full_seconds) for slide in self.slides],
                )
            )
            ratios[name] = kept / full
        return ratios

    def unfiltered_time(self, explained: float) -> float:
        """End to end with all patches; predicting takes `explained` times the plain time."""
        extraction = sum(_sum_without(slide.full_seconds, {_PREDICTION}) for slide in self.slides)
        prediction = sum(slide.full_seconds.get(_PREDICTION, 0.0) for slide in self.slides)
        return (extraction + explained * prediction) / (extraction + prediction)

    @property
    def summary(self) -> dict[str, float | None]:
        """The figures of the fold; the relative utility is None where the whole bags have none."""
        slides = self.slides
        relative = self.prefilter_utility / self.full_utility if self.full_utility else None
        return {
            **self.time_ratios(),
            "relative_utility": relative,
            "fall_back": fmean(not slide.certified for slide in slides),
            "encoded": sum(one.n_encoded for one in slides) / sum(one.n_patches for one in slides),
            "mean_change": fmean(slide.change for slide in slides),
        }

    @property
    def sentence(self) -> str:
        """The measurement in one line."""
        figures = self.summary
        relative = figures["relative_utility"]
        return (
            f"fold {self.fold}, {len(self.slides)} test slides: time "
            f"{figures['end_to_end_time']:.3f}x, utility "
            f"{'undefined' if relative is None else f'{relative:.3f}x'}, keep rate "
            f"{self.keep_rate:g}, fall-back {figures['fall_back']:.3f}, patches encoded "
            f"{figures['encoded']:.3f}, mean change of the prediction {figures['mean_change']:.4f}"
        )

    def to_json(self) -> dict[str, Any]:
        """The measurement with the figures derived from it."""
        return {**asdict(self), "summary": self.summary}


def _sum_without(seconds: Seconds, left_out: set[str]) -> float:
    return sum(value for part, value in seconds.items() if part not in left_out)


def measure_cost(
    run: Path,
    fold: int,
    slides: Mapping[str, Path],
    *,
    on_slide: Callable[[int, int], None] | None = None,
) -> PrefilterCost:
    """Time the test slides of a fold both ways, and write the measurement beside its prefilter."""
    card, cohort = Run(run).open_cohort()
    specs = fold_parts(cohort, read_fold(cohort, fold)).test
    filtered = SlidePredictor.open(run, mode="prefilter", fold=fold)
    # The prediction that a certificate compares with, and that a slide falls back to.
    whole = replace(filtered, mode=filtered.main_mode, prefilters=())
    costs: list[SlideCost] = []
    for done, spec in enumerate(specs, start=1):
        path = _find_file(spec, slides)
        grid = read_encoded_grid(cohort.feature_file(spec.slide_ids[0]))
        if done == 1:
            # The first batch of a process allocates memory that all later ones reuse.
            filtered.predict(path, mpp=grid.mpp)
        order = (whole, filtered) if done % 2 else (filtered, whole)
        made = {way.mode: way.predict(path, mpp=grid.mpp) for way in order}
        full, kept = made[whole.mode], made["prefilter"]
        if full.n_patches != len(grid):
            # Rows are kept for later, so they must be the patches of the cohort's own files.
            raise UsageError(
                f"Slide '{spec.bag_id}' has {full.n_patches} patches by the default rules, "
                f"{len(grid)} in the cohort: it was patched by a mask or by other rules, so its "
                "cost cannot be compared. Leave out --measure."
            )
        costs.append(
            SlideCost(
                bag_id=spec.bag_id,
                n_patches=full.n_patches,
                n_encoded=kept.n_encoded,
                certified=bool(kept.certified),
                selected=kept.evidence_rows if kept.certified else list(range(full.n_patches)),
                full=full.per_fold[0],
                prefiltered=kept.per_fold[0],
                full_seconds=full.seconds,
                prefilter_seconds=kept.seconds,
            )
        )
        if on_slide:
            on_slide(done, len(specs))
    task, targets = create_task(cohort, card.settings), stacked_targets(specs)
    full_utility, prefilter_utility = (
        measure_task_metric(task, targets, _as_logits(values))
        for values in ([one.full for one in costs], [one.prefiltered for one in costs])
    )
    fitted = filtered.prefilters[0]
    cost = PrefilterCost(
        fold=fold,
        keep_rate=fitted.keep_rate,
        threads=torch.get_num_threads(),
        model_hash=fitted.model_hash,
        full_utility=full_utility,
        prefilter_utility=prefilter_utility,
        slides=tuple(costs),
    )
    write_json(Run(run).fold(fold).path / COST_FILE, cost.to_json())
    return cost


def _as_logits(values: list[list[float]]) -> torch.Tensor:
    """Logits that a task turns back into these probabilities; a risk is its own logit."""
    outputs = torch.tensor(values, dtype=torch.float64)
    return outputs if outputs.shape[1] == 1 else outputs.clamp_min(1e-300).log()


def _find_file(spec: BagSpec, slides: Mapping[str, Path]) -> Path:
    if len(spec.slide_ids) != 1:
        raise UsageError(
            f"Case '{spec.bag_id}' has {len(spec.slide_ids)} slides; the cost is measured where a "
            "bag is one slide. Leave out --measure."
        )
    if spec.slide_ids[0] not in slides:
        raise UsageError(
            f"The test slide '{spec.slide_ids[0]}' has no file. Give the folder that "
            "'gcemil encode' was given."
        )
    return slides[spec.slide_ids[0]]


def read_matching_cost(folder: Path, bags: Sequence[BagSpec]) -> PrefilterCost | None:
    """The measurement of a fold, if it was made with its model and on these bags."""
    if not is_file(path := folder / COST_FILE):
        return None
    remedy = "It is not a measurement of gcemil; make it again with 'gcemil prefilter --measure'."
    cost = read_record(path, PrefilterCost, error=RunError, remedy=remedy)
    same_model = cost.model_hash == content_hash(RunFold(folder).checkpoint)
    same_bags = [slide.bag_id for slide in cost.slides] == [spec.bag_id for spec in bags]
    return cost if same_model and same_bags else None


def add_encoding_cost(row: Row, filtered: PrefilterCost | None) -> Row:
    """The row with the time of encoding, if measured."""
    if filtered is None:
        return row
    if row.labels["mode"] == PREFILTER_MODE:
        figures = filtered.time_ratios()
    else:
        explained = row.values.get("explained_time")
        whole = None if explained is None else filtered.unfiltered_time(explained)
        figures = {"extraction_time": 1.0, "end_to_end_time": whole}
    return Row(row.labels, {**row.values, **figures}, row.deviations)


def time_prefilter(filtered: PrefilterCost | None, encoding: Mapping[str, float]) -> list[Row]:
    """A row per encoder: what the prefilter would save at that one's seconds per patch."""
    if filtered is None:
        return []
    labels = {"mode": PREFILTER_MODE, "network": "wrapped", "timing": "computed"}
    return [
        Row({**labels, "encoder": name}, filtered.time_ratios(seconds))
        for name, seconds in encoding.items()
    ]


def describe_encoding(filtered: PrefilterCost | None) -> str:
    """A note on encoding for the table."""
    if filtered is None:
        return (
            "No prefilter measured in this run, so encoding is not made cheaper: the row "
            "'discrete + prefilter' is absent. 'gcemil prefilter RUN SLIDES --measure' adds it."
        )
    figures = filtered.summary
    return (
        f"Prefilter: keep rate {filtered.keep_rate:g}, {figures['fall_back']:.3f} of the slides "
        f"fell back to all patches, {figures['encoded']:.3f} of all patches were encoded, "
        f"{filtered.threads} thread; mean change of the prediction {figures['mean_change']:.4f}."
    )
