"""A prefilter distilled from the trained selector of a fold: `gcemil prefilter RUN SLIDES`.

  teacher    the selector's scores, from which its gates are made, on every patch of the training slides
  student    learns to rank the patches of a slide as the teacher does, from the low-magnification view alone
  then       keep rate and limit of doubt are settled on the validation slides (keep_rate.py); test slides are never looked at

Files of the fold: prefilter.safetensors (the student and what predicting takes), prefilter.json (every keep rate that was tried).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil import __version__
from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec
from gcemil.bags.fingerprint import content_hash, record_cohort
from gcemil.bags.patching import PatchingRules, rules_fingerprint
from gcemil.explain import bag_tensors, explain_bag
from gcemil.features.prefilter import (
    Lesson,
    PrefilterSettings,
    Student,
    fit_student,
    kept_rows,
    lesson,
    student_scores,
)
from gcemil.features.prefilter_file import FILE, FittedPrefilter, save_prefilter
from gcemil.files import write_json
from gcemil.runs.environment import package_version
from gcemil.runs.folder import stacked_targets
from gcemil.shapes import Logits
from gcemil.tasks import classification
from gcemil.tasks.task import Task, as_array
from gcemil.training.keep_rate import (
    CertificateSettings,
    Certified,
    RateOutcome,
    Trial,
    chosen_outcome,
    outcome_of,
)
from gcemil.training.prefiltered import answer_from_kept, is_changed
from gcemil.training.taught_fold import TaughtFold, opened_fold

Advance = Callable[[int, int], None]
REPORT = "prefilter.json"


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
    on_slide: Advance | None = None,
) -> PrefilterReport:
    """Distil, settle, and write the prefilter of one fold; `slides` gives the file of every slide by id."""
    started = time.monotonic()
    sight, promise = settings or PrefilterSettings(), certificate or CertificateSettings()
    taught = opened_fold(run, fold, slides)
    n_train, n_val = len(taught.parts.train), len(taught.parts.val)
    tell = on_slide or (lambda done, total: None)
    lessons = []
    for done, spec in enumerate(taught.parts.train, start=1):
        lessons += lessons_of(taught, spec, sight)
        tell(done, n_train + n_val)
    student = fit_student(lessons, sight)
    bags = []
    for done, spec in enumerate(taught.parts.val, start=n_train + 1):
        bags.append(bag_trial(taught, student, spec, sight, promise))
        tell(done, n_train + n_val)
    targets = stacked_targets(taught.parts.val)
    outcomes = [outcome_of(trial, promise) for trial in trials(taught.task, targets, bags, promise.ladder)]
    share = float(np.mean([bag.evidence_share for bag in bags]))
    chosen = chosen_outcome(outcomes, evidence_share=share)
    report = PrefilterReport(
        fold,
        chosen,
        tuple(outcomes),
        n_train,
        n_val,
        time.monotonic() - started,
        tuple(notes(taught, chosen, promise)),
    )
    save_prefilter(taught.folder / FILE, fitted_of(taught, student, sight, promise, chosen))
    write_json(
        taught.folder / REPORT,
        {
            **asdict(report),
            "settings": sight.model_dump(mode="json"),
            "certificate": promise.model_dump(mode="json"),
        },
    )
    return report


@torch.no_grad()
def lessons_of(taught: TaughtFold, spec: BagSpec, settings: PrefilterSettings) -> list[Lesson]:
    """What the selector says of each slide of a training bag, beside what the student sees of it."""
    bag = taught.cohort.read_bag(spec)
    features, coords = bag_tensors(bag)
    scores = taught.model(features, coords, step=bag.patch_size).scores
    draws = np.random.default_rng([settings.seed, *spec.bag_id.encode()])
    return [
        lesson(
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


def bag_trial(
    taught: TaughtFold,
    student: Student,
    spec: BagSpec,
    settings: PrefilterSettings,
    certificate: CertificateSettings,
) -> BagTrial:
    bag, deviation = taught.cohort.read_bag(spec), taught.risk_deviation
    whole = explain_bag(taught.model, bag)
    full, evidence = whole.output.full_logits, whole.recovery.selected.numpy()
    scores = {name: student_scores(student, taught.crops(name, settings)) for name in spec.slide_ids}
    answers = [
        answer_from_kept(taught.model, bag, kept_of_bag(bag, scores, rate), deviation=deviation)
        for rate in certificate.ladder
    ]
    tolerance = certificate.risk_tolerance
    return BagTrial(
        full=full,
        kept=torch.stack([answer.logits for answer in answers]),
        doubts=[answer.doubt for answer in answers],
        changed=[is_changed(one.logits, full, deviation=deviation, tolerance=tolerance) for one in answers],
        recall=[float(evidence[answer.rows].sum() / evidence.sum()) for answer in answers],
        evidence_share=whole.recovery.fraction,
    )


def trials(task: Task, targets: Tensor, bags: Sequence[BagTrial], ladder: Sequence[float]) -> Iterator[Trial]:
    """The same bags, keep rate by keep rate."""
    full = torch.stack([bag.full for bag in bags])
    for place, rate in enumerate(ladder):
        kept = torch.stack([bag.kept[place] for bag in bags])

        def utility_of(certified: Certified, kept: Tensor = kept) -> float:
            return utility(task, targets, torch.where(torch.from_numpy(certified)[:, None], kept, full))

        yield Trial(
            keep_rate=rate,
            doubts=np.array([bag.doubts[place] for bag in bags], dtype=np.float64),
            changed=np.array([bag.changed[place] for bag in bags], dtype=bool),
            utility_of=utility_of,
            recall=float(np.mean([bag.recall[place] for bag in bags])),
        )


def kept_of_bag(bag: Bag, scores: Mapping[str, Float[Tensor, "_"]], keep_rate: float) -> Int[np.ndarray, "k"]:
    """The rows of a bag that the student keeps: the same share of each of its slides."""
    parts = [span.start + kept_rows(scores[span.slide_id], keep_rate) for span in bag.spans]
    return np.concatenate(parts)


def utility(task: Task, targets: Tensor, logits: Float[Tensor, "k c"]) -> float:
    """Macro-F1 or C-index."""
    predictions = task.prediction(logits)
    if task.task_metric == "macro_f1":
        # `task.metrics` wants an AUC as well, which a few validation slides may not have.
        return classification.macro_f1(classification.confusion(as_array(targets), as_array(predictions)))
    return task.metrics(targets, predictions)[task.task_metric]


def fitted_of(
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
        model_hash=content_hash(taught.folder / "checkpoint.safetensors"),
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


def notes(taught: TaughtFold, chosen: RateOutcome, certificate: CertificateSettings) -> Iterator[str]:
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
