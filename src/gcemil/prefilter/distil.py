"""A prefilter distilled from the trained selector of a fold: `gcemil prefilter RUN SLIDES`.

  teacher    the selector's scores, from which its gates are made, on every patch of the training slides
  student    learns to rank the patches of a slide as the teacher does, from the low-magnification view alone
  then       keep rate and limit of doubt are settled on the validation slides (certificate.py); test slides are never looked at

Files of the fold: prefilter.safetensors (the student and what predicting takes), prefilter.json (every keep rate that was tried).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.fingerprint import content_hash, file_fingerprint, record_cohort
from gcemil.bags.folds import read_fold
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
from gcemil.runs.environment import package_version
from gcemil.runs.folder import FoldParts, Run, RunFold, fold_parts
from gcemil.shapes import Logits
from gcemil.slides.reader import open_slide
from gcemil.tasks.task import Task, create_task, measure_task_metric, stacked_targets

Advance = Callable[[int, int], None]
_REPORT = "prefilter.json"


@dataclass(frozen=True, eq=False)
class TaughtFold:
    """A trained fold whose selector is to be imitated, and the slide files of its bags."""

    folder: Path
    cohort: Cohort
    parts: FoldParts
    task: Task
    model: GceMil
    slides: Mapping[str, Path]
    origin: FeatureOrigin
    risk_deviation: float

    def crops(self, slide_id: str, settings: PrefilterSettings) -> Crops:
        """The low-magnification view around every patch of a slide, in the order of its features."""
        grid = read_encoded_grid(self.cohort.feature_file(slide_id))
        # The pixel size that placed the patches, not the one the file may state.
        with open_slide(self.slides[slide_id], mpp=grid.mpp) as slide:
            return cut_crops(
                read_view(slide, settings.view_mpp), grid, settings.crop_px(grid.settings)
            )


def _open_taught_fold(run: Path, fold: int, slides: Mapping[str, Path], device: str) -> TaughtFold:
    """The fold, its selector and its slide files; everything that is missing is refused before anything is read."""
    card, cohort = Run(run).open_cohort()
    folder = Run(run).fold(fold).path
    network = open_network(RunFold(folder).checkpoint, device)[0]
    model = network.model
    if model is None:
        raise UsageError(f"{run} is a plain host: it has no selector to imitate. Train with --gce.")
    parts = fold_parts(cohort, read_fold(cohort, fold))
    needed = [slide_id for spec in (*parts.train, *parts.val) for slide_id in spec.slide_ids]
    origin = require_one_origin(cohort.feature_file(slide_id) for slide_id in needed)
    # Every slide needs its file, and the very file that was patched.
    if missing := [slide_id for slide_id in needed if slide_id not in slides]:
        raise UsageError(
            f"{len(missing)} of {len(needed)} training and validation slides have no file, the first is '{missing[0]}'. "
            "Give the folder that 'gcemil encode' was given."
        )
    for slide_id in needed:
        stated = store.attributes(cohort.feature_file(slide_id), "coords").get("slide_fingerprint")
        if stated is not None and stated != file_fingerprint(slides[slide_id]):
            raise UsageError(
                f"{slides[slide_id]} is not the file that {cohort.feature_file(slide_id)} was made from. Give the same slides."
            )
    return TaughtFold(
        folder,
        cohort,
        parts,
        create_task(cohort, card.settings, network.label_scale),
        model,
        slides,
        origin,
        RunFold(folder).read_metrics().details.risk_deviation,
    )


@dataclass(frozen=True)
class PrefilterReport:
    """What fitting the prefilter of one fold came to."""

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
    settings: PrefilterSettings | None = None,
    certificate: CertificateSettings | None = None,
    *,
    device: str = "cpu",
    on_slide: Advance | None = None,
) -> PrefilterReport:
    """Distil, settle, and write the prefilter of one fold; `slides` gives the file of every slide by id."""
    started = time.monotonic()
    sight, promise = settings or PrefilterSettings(), certificate or CertificateSettings()
    taught = _open_taught_fold(run, fold, slides, device)
    n_train, n_val = len(taught.parts.train), len(taught.parts.val)
    tell = on_slide or (lambda done, total: None)
    lessons = []
    for done, spec in enumerate(taught.parts.train, start=1):
        lessons += _draw_lessons(taught, spec, sight)
        tell(done, n_train + n_val)
    student = fit_student(lessons, sight)
    bags = []
    for done, spec in enumerate(taught.parts.val, start=n_train + 1):
        bags.append(_try_rates(taught, student, spec, sight, promise))
        tell(done, n_train + n_val)
    targets = stacked_targets(taught.parts.val)
    outcomes = [
        settle_limit(trial, promise)
        for trial in _group_by_rate(taught.task, targets, bags, promise.ladder)
    ]
    share = float(np.mean([bag.evidence_share for bag in bags]))
    chosen = choose_rate(outcomes, evidence_share=share)
    report = PrefilterReport(
        fold,
        chosen,
        tuple(outcomes),
        n_train,
        n_val,
        time.monotonic() - started,
        tuple(_write_notes(taught, chosen, promise)),
    )
    save_prefilter(
        taught.folder / PREFILTER_FILE, _assemble_prefilter(taught, student, sight, promise, chosen)
    )
    write_json(
        taught.folder / _REPORT,
        {
            **asdict(report),
            "settings": sight.model_dump(mode="json"),
            "certificate": promise.model_dump(mode="json"),
        },
    )
    return report


@torch.no_grad()
def _draw_lessons(taught: TaughtFold, spec: BagSpec, settings: PrefilterSettings) -> list[Lesson]:
    """For each slide of a training bag: the selector's scores, and the student's view."""
    bag = taught.cohort.read_bag(spec)
    features, coords = bag_tensors(bag)
    scores = taught.model(features, coords, patch_size=bag.patch_size).scores
    draws = np.random.default_rng([settings.seed, *spec.bag_id.encode()])
    return [
        draw_lesson(
            taught.crops(span.slide_id, settings),
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
    kept: Float[Tensor, "r c"]
    doubts: list[float]
    changed: list[bool]
    recall: list[float]
    """Share of the whole bag's evidence that was kept."""
    evidence_share: float
    """Share of the whole bag that is evidence."""


def _try_rates(
    taught: TaughtFold,
    student: Student,
    spec: BagSpec,
    settings: PrefilterSettings,
    certificate: CertificateSettings,
) -> BagTrial:
    bag, deviation = taught.cohort.read_bag(spec), taught.risk_deviation
    whole = explain_bag(taught.model, bag)
    full, evidence = whole.output.answer.logits, whole.recovery.selected.numpy()
    scores = {name: score_crops(student, taught.crops(name, settings)) for name in spec.slide_ids}
    answers = []
    for rate in certificate.ladder:
        # The same share of each slide of the bag.
        rows = [span.start + keep_rows(scores[span.slide_id], rate) for span in bag.spans]
        answers.append(
            answer_from_kept(taught.model, bag, np.concatenate(rows), deviation=deviation)
        )
    tolerance = certificate.risk_tolerance
    return BagTrial(
        full=full,
        kept=torch.stack([answer.logits for answer in answers]),
        doubts=[answer.doubt for answer in answers],
        changed=[
            is_changed(answer.logits, full, deviation=deviation, tolerance=tolerance)
            for answer in answers
        ],
        recall=[float(evidence[answer.rows].sum() / evidence.sum()) for answer in answers],
        evidence_share=whole.recovery.fraction,
    )


def _group_by_rate(
    task: Task, targets: Tensor, bags: Sequence[BagTrial], ladder: Sequence[float]
) -> Iterator[Trial]:
    """The same bags, keep rate by keep rate."""
    full = torch.stack([bag.full for bag in bags])
    for place, rate in enumerate(ladder):
        kept = torch.stack([bag.kept[place] for bag in bags])

        def utility_of(certified: Certified, kept: Tensor = kept) -> float:
            return measure_task_metric(
                task, targets, torch.where(torch.from_numpy(certified)[:, None], kept, full)
            )

        yield Trial(
            keep_rate=rate,
            doubts=np.array([bag.doubts[place] for bag in bags], dtype=np.float64),
            changed=np.array([bag.changed[place] for bag in bags], dtype=bool),
            utility_of=utility_of,
            recall=float(np.mean([bag.recall[place] for bag in bags])),
        )


def _assemble_prefilter(
    taught: TaughtFold,
    student: Student,
    settings: PrefilterSettings,
    certificate: CertificateSettings,
    chosen: RateOutcome,
) -> FittedPrefilter:
    return FittedPrefilter(
        student=student,
        settings=settings,
        origin=taught.origin,
        keep_rate=chosen.keep_rate,
        doubt_limit=chosen.doubt_limit,
        risk_deviation=taught.risk_deviation,
        model_hash=content_hash(RunFold(taught.folder).checkpoint),
        provenance={
            "gcemil": __version__,
            "torch": package_version("torch"),
            "cohort": record_cohort(taught.cohort).fingerprint,
            "certificate": certificate.model_dump(mode="json"),
            "certificate_hash": certificate.hash,
            "n_train": len(taught.parts.train),
            "n_val": len(taught.parts.val),
        },
    )


def _write_notes(
    taught: TaughtFold, chosen: RateOutcome, certificate: CertificateSettings
) -> Iterator[str]:
    n_val, risk = len(taught.parts.val), certificate.risk
    if chosen.doubt_limit is None:
        yield (
            f"Nothing could be certified on {n_val} validation slides at risk {risk:g} (at least {round(1 / risk) - 1} are needed), "
            "so every slide falls back to all its patches and the prefilter saves nothing."
        )
    if taught.origin.rules != rules_fingerprint(PatchingRules(patches=taught.origin.patches), None):
        yield (
            "The cohort was patched by a mask or by other tissue rules than the default; new slides are segmented by the default."
        )
