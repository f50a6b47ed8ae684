"""A prefilter distilled from the trained selector of a fold: `gcemil prefilter RUN SLIDES`.

  teacher    the selector's scores, from which its gates are made, on every patch of the training
             slides
  student    learns to rank the patches of a slide like the teacher, from the low-magnification view
             alone
  then       keep rate and limit of doubt are settled on the validation slides (certificate.py);
             test slides are never read

Files of the fold: prefilter.safetensors (the student and what predicting takes) and prefilter.json
(every keep rate that was tried).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.fingerprint import content_hash, file_fingerprint, record_cohort
from gcemil.bags.folds import read_fold
from gcemil.device import package_version
from gcemil.errors import UsageError
from gcemil.explanation import bag_tensors, explain_bag
from gcemil.features.extract import FeatureOrigin, read_encoded_grid, require_one_origin
from gcemil.features.patching import PatchingRules, rules_fingerprint
from gcemil.files import write_json
from gcemil.model import GceMil
from gcemil.prefilter.certificate import (
    CertificateSettings,
    Certified,
    RateOutcome,
    Trial,
    answer_from_kept,
    choose_rate,
    is_changed,
    settle_limit,
)
from gcemil.prefilter.student import (
    PREFILTER_FILE,
    Crops,
    FittedPrefilter,
    Lesson,
    PrefilterSettings,
    Student,
    cut_crops,
    draw_lesson,
    fit_student,
    keep_rows,
    read_view,
    save_prefilter,
    score_crops,
)
from gcemil.runs.checkpoint import open_network
from gcemil.runs.folder import FoldParts, Run, RunFold, fold_parts
from gcemil.shapes import Logits
from gcemil.slides.reader import open_slide
from gcemil.tasks.task import Task, create_task, measure_task_metric, stacked_targets


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained fold whose selector is to be imitated, and the slide files of its bags."""

    folder: Path
    cohort: Cohort
    parts: FoldParts
    task: Task
    model: GceMil
    slides: Mapping[str, Path]
    origin: FeatureOrigin
    risk_deviation: float

    def read_crops(self, slide_id: str, settings: PrefilterSettings) -> Crops:
        """The view around every patch of a slide, in the order of its features."""
        grid = read_encoded_grid(self.cohort.feature_file(slide_id))
        # The pixel size that placed the patches, not the one the file may state.
        with open_slide(self.slides[slide_id], mpp=grid.mpp) as slide:
            view = read_view(slide, settings.view_mpp)
        return cut_crops(view, grid, settings.crop_px(grid.settings))


def _open_teacher(run: Path, fold: int, slides: Mapping[str, Path], device: str) -> Teacher:
    """The fold with its selector and slide files; refuse what is missing."""
    card, cohort = Run(run).open_cohort()
    folder = Run(run).fold(fold).path
    network = open_network(RunFold(folder).checkpoint, device)[0]
    if network.model is None:
        raise UsageError(f"{run} is a plain host: it has no selector to imitate. Train with --gce.")
    parts = fold_parts(cohort, read_fold(cohort, fold))
    needed = [slide_id for spec in (*parts.train, *parts.val) for slide_id in spec.slide_ids]
    origin = require_one_origin(cohort.feature_file(slide_id) for slide_id in needed)
    # Every slide needs its file, and the very file that was patched.
    if missing := [slide_id for slide_id in needed if slide_id not in slides]:
        raise UsageError(
            f"{len(missing)} of {len(needed)} training and validation slides have no file, the "
            f"first is '{missing[0]}'. Give the folder that 'gcemil encode' was given."
        )
    for slide_id in needed:
        features = cohort.feature_file(slide_id)
        stated = store.attributes(features, "coords").get("slide_fingerprint")
        if stated is not None and stated != file_fingerprint(slides[slide_id]):
            raise UsageError(
                f"{slides[slide_id]} is not the file that {features} was made from. "
                "Give the same slides."
            )
    return Teacher(
        folder,
        cohort,
        parts,
        create_task(cohort, card.settings, network.label_scale),
        network.model,
        slides,
        origin,
        RunFold(folder).read_metrics().details.risk_deviation,
    )


@dataclass(frozen=True)
class PrefilterReport:
    """The prefilter of one fold on its validation slides."""

    fold: int
    chosen: RateOutcome
    ladder: tuple[RateOutcome, ...]
    n_train: int
    n_val: int
    seconds: float
    notes: tuple[str, ...]


def fit_prefilter(
    run: Path,
    fold: int,
    slides: Mapping[str, Path],
    settings: PrefilterSettings,
    certificate: CertificateSettings,
    *,
    device: str = "cpu",
    on_slide: Callable[[int, int], None] | None = None,
) -> PrefilterReport:
    """Distil, settle, and write the prefilter of a fold; `slides` maps ids to files."""
    started = time.monotonic()
    teacher = _open_teacher(run, fold, slides, device)
    train, val = teacher.parts.train, teacher.parts.val
    advance = on_slide or (lambda done, total: None)
    lessons = []
    for done, spec in enumerate(train, start=1):
        lessons += _draw_lessons(teacher, spec, settings)
        advance(done, len(train) + len(val))
    student = fit_student(lessons, settings)
    bags = []
    for done, spec in enumerate(val, start=len(train) + 1):
        bags.append(_try_rates(teacher, student, spec, settings, certificate))
        advance(done, len(train) + len(val))
    targets = stacked_targets(val)
    outcomes = tuple(
        settle_limit(trial, certificate)
        for trial in _group_by_rate(teacher.task, targets, bags, certificate.ladder)
    )
    share = float(np.mean([bag.evidence_share for bag in bags]))
    chosen = choose_rate(outcomes, evidence_share=share)
    notes = tuple(_write_notes(teacher, chosen, certificate))
    seconds = time.monotonic() - started
    report = PrefilterReport(fold, chosen, outcomes, len(train), len(val), seconds, notes)
    promise = certificate.model_dump(mode="json")
    fitted = FittedPrefilter(
        student=student,
        settings=settings,
        origin=teacher.origin,
        keep_rate=chosen.keep_rate,
        doubt_limit=chosen.doubt_limit,
        risk_deviation=teacher.risk_deviation,
        model_hash=content_hash(RunFold(teacher.folder).checkpoint),
        provenance={
            "gcemil": __version__,
            "torch": package_version("torch"),
            "cohort": record_cohort(teacher.cohort).fingerprint,
            "certificate": promise,
            "certificate_hash": certificate.hash,
            "n_train": len(train),
            "n_val": len(val),
        },
    )
    save_prefilter(teacher.folder / PREFILTER_FILE, fitted)
    write_json(
        teacher.folder / "prefilter.json",
        {**asdict(report), "settings": settings.model_dump(mode="json"), "certificate": promise},
    )
    return report


@torch.no_grad()
def _draw_lessons(teacher: Teacher, spec: BagSpec, settings: PrefilterSettings) -> list[Lesson]:
    """For each slide of a training bag: the selector's scores, and the student's view."""
    bag = teacher.cohort.read_bag(spec)
    features, coords = bag_tensors(bag)
    scores = teacher.model(features, coords, patch_size=bag.patch_size).scores
    draws = np.random.default_rng([settings.seed, *spec.bag_id.encode()])
    return [
        draw_lesson(
            teacher.read_crops(span.slide_id, settings),
            scores[span.start : span.stop],
            wanted=settings.patches_per_slide,
            generator=draws,
        )
        for span in bag.spans
    ]


@dataclass(frozen=True, eq=False)
class BagTrial:
    """One validation bag at every keep rate of the ladder."""

    full: Logits
    """From all patches."""
    evidence_share: float
    """Share of the whole bag that is evidence."""
    rates: list[tuple[Logits, float, bool, float]]
    """Per rate: prediction from the kept patches, doubt, changed, share of the evidence kept."""


def _try_rates(
    teacher: Teacher,
    student: Student,
    spec: BagSpec,
    settings: PrefilterSettings,
    certificate: CertificateSettings,
) -> BagTrial:
    bag, deviation = teacher.cohort.read_bag(spec), teacher.risk_deviation
    whole = explain_bag(teacher.model, bag)
    full, evidence = whole.output.answer.logits, whole.recovery.selected.numpy()
    scores = {
        name: score_crops(student, teacher.read_crops(name, settings)) for name in spec.slide_ids
    }
    rates = []
    for rate in certificate.ladder:
        # The same share of each slide of the bag.
        rows = [span.start + keep_rows(scores[span.slide_id], rate) for span in bag.spans]
        answer = answer_from_kept(teacher.model, bag, np.concatenate(rows), deviation=deviation)
        changed = is_changed(
            answer.logits, full, deviation=deviation, tolerance=certificate.risk_tolerance
        )
        recall = float(evidence[answer.rows].sum() / evidence.sum())
        rates.append((answer.logits, answer.doubt, changed, recall))
    return BagTrial(full, whole.recovery.fraction, rates)


def _group_by_rate(
    task: Task, targets: Tensor, bags: Sequence[BagTrial], ladder: Sequence[float]
) -> Iterator[Trial]:
    """The same bags, keep rate by keep rate."""
    full = torch.stack([bag.full for bag in bags])
    for rate, tried in zip(ladder, zip(*(bag.rates for bag in bags), strict=True), strict=True):
        logits, doubts, changed, recall = zip(*tried, strict=True)

        def utility_of(certified: Certified, kept: Tensor = torch.stack(logits)) -> float:
            chosen = torch.where(torch.from_numpy(certified)[:, None], kept, full)
            return measure_task_metric(task, targets, chosen)

        yield Trial(rate, np.array(doubts), np.array(changed), utility_of, float(np.mean(recall)))


def _write_notes(
    teacher: Teacher, chosen: RateOutcome, certificate: CertificateSettings
) -> Iterator[str]:
    n_val, risk = len(teacher.parts.val), certificate.risk
    if chosen.doubt_limit is None:
        yield (
            f"Nothing could be certified on {n_val} validation slides at risk {risk:g} (at least "
            f"{round(1 / risk) - 1} are needed), so every slide falls back to all its patches and "
            "the prefilter saves nothing."
        )
    if teacher.origin.rules != rules_fingerprint(
        PatchingRules(patches=teacher.origin.patches), None
    ):
        yield (
            "The cohort was patched by a mask or by other tissue rules than the default; new "
            "slides are segmented by the default."
        )
