"""review: a pathologist's marks against the evidence of a trained run, and against attention with as many patches.

Marks are GeoJSON files of QuPath, one per slide and named after it, folders of them, or the reviews that the viewer saved
(RUN/fold_<k>/reviews/<slide>.json). Every slide is asked of the fold that tests it:

  evidence    the recovered evidence of the slide, under the wrapped host
  attention   the highest scores of the host that is asked, as many patches of the slide as the evidence has there
  random      as many patches, one draw per slide

A run without the wrapper has no evidence; there attention takes its budget's share of the slide. What is counted, and how:
agreement.py. Everything is read and judged before RUN/diagnostics/review.json is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gcemil.bags.annotations.shapes import find_slide_id
from gcemil.bags.cohort import BagSpec, Cohort, read_slide_bounds
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import read_fold
from gcemil.diagnostics.agreement import (
    MIN_COVER,
    NEGATIVE,
    NOT_JUDGED,
    POSITIVE,
    REVIEW,
    RuleReview,
    Verdicts,
    count_agreement,
    judge_patches,
    review_rows,
)
from gcemil.diagnostics.trained_fold import FoldBag, TrainedFold
from gcemil.errors import InputError, RunError, UsageError
from gcemil.files import lock_folder, parse_json, read_bytes, validate_as
from gcemil.findings import Finding, write_finding
from gcemil.recovery import members, ranking, subset_size
from gcemil.runs.environment import describe_environment, one_thread
from gcemil.runs.folder import Run
from gcemil.shapes import Selected
from gcemil.slides.geojson import GeoObject, parse_objects

ENDINGS = (".geojson", ".json")
REMEDY = "It is no review of this slide; move it away and review the slide again."
RESAMPLES = 2000
ONLY_MARKED = (
    "Only patches under a mark count. A reviewer who was shown the evidence alone has judged few of the patches that "
    "attention alone chose: read each rule beside the share of its own patches that were judged."
)
PLAIN_ATTENTION = (
    "The evidence does not train the host, so its attention is that of the plain host."
)


@dataclass(frozen=True)
class Mark:
    """What a person said of one patch in the viewer, and whether it was evidence then."""

    patch: int
    mark: Literal["accept", "reject"]
    in_evidence: bool


@dataclass(frozen=True)
class SavedReview:
    """What reviews/<slide>.json of the viewer says."""

    n_patches: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, eq=False)
class _MarkFile:
    """The marks of one slide as they were given."""

    path: Path
    sha256: str
    given: list[GeoObject] | SavedReview

    def verdicts(self, cohort: Cohort, slide_id: str, n_patches: int) -> tuple[Verdicts, list[str]]:
        """What the marks say of every patch of the slide."""
        if not isinstance(self.given, SavedReview):
            return judge_slide(cohort, slide_id, self.given, self.path)
        check_saved(self.given, n_patches, self.path)
        verdicts = np.full(n_patches, NOT_JUDGED, dtype=np.int64)
        for mark in self.given.marks:
            verdicts[mark.patch] = POSITIVE if mark.mark == "accept" else NEGATIVE
        return verdicts, []


def review_run(
    run: Path,
    sources: Sequence[Path] = (),
    *,
    against: Path | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[Finding, dict[str, str]]:
    """Judge every rule by the marks and write what was found; without sources the viewer's reviews are taken.

    Also gives the slides that could not be judged, with the reason.
    """
    if resamples < 1:
        raise UsageError(f"Intervals need at least one draw, got {resamples}.")
    card, cohort = Run(run).open_cohort()
    marks = read_marks(run, sources)
    placed, left_out = _place_slides(run, cohort, list(marks))
    if not placed:
        reasons = "; ".join(f"{slide_id}: {reason}" for slide_id, reason in left_out.items())
        raise InputError(
            f"No marked slide can be judged ({reasons}). Marks are named after a test slide of {run}."
        )
    notes: list[str] = []
    reviews: list[RuleReview] = []
    inputs: dict[str, str] = {}
    with one_thread():
        for number, slide_ids in placed.items():
            fold = TrainedFold.open(run, number, against=against, seed=seed, opened=(card, cohort))
            inputs[f"fold_{number}"] = content_hash(Run(run).fold(number).checkpoint)
            for slide_id in slide_ids:
                reviews += _review_slide(fold, slide_id, marks[slide_id], notes)
    rows, slides = review_rows(reviews, seed=seed, resamples=resamples)
    evidence = card.settings.evidence
    is_plain = evidence is not None and not evidence.train_host
    finding = Finding(
        name=REVIEW,
        rows=rows,
        slides=slides,
        notes=(
            ONLY_MARKED,
            *([PLAIN_ATTENTION] if is_plain and against is None else []),
            *notes,
            *(f"Left out: {name}, {why}." for name, why in left_out.items()),
        ),
        settings={"min_cover": MIN_COVER, "resamples": resamples, "seed": seed},
        provenance={
            **describe_environment(seed=seed, device=torch.device("cpu"), inputs=inputs),
            "marks": {
                slide_id: marks[slide_id].sha256 for own in placed.values() for slide_id in own
            },
        },
    )
    with lock_folder(run):
        write_finding(Run(run).diagnostics, finding)
    return finding, left_out


def read_marks(run: Path, sources: Sequence[Path]) -> dict[str, _MarkFile]:
    """Slide → its marks."""
    found: dict[str, _MarkFile] = {}
    for path in _list_files(run, sources):
        slide_id = find_slide_id(path)
        if slide_id in found:
            raise UsageError(
                f"{found[slide_id].path} and {path} both mark slide '{slide_id}'. Give one of them."
            )
        content = read_bytes(path)
        given = parse_json(content, path)
        # Reviews of the viewer are told from GeoJSON by what they hold.
        is_saved = isinstance(given, dict) and "marks" in given
        marks = (
            validate_as(given, SavedReview, path, error=RunError, remedy=REMEDY)
            if is_saved
            else parse_objects(given, path)
        )
        found[slide_id] = _MarkFile(path, hashlib.sha256(content).hexdigest(), marks)
    return found


def _list_files(run: Path, sources: Sequence[Path]) -> list[Path]:
    """The files of marks that were given, or the reviews that the viewer saved."""
    files: list[Path] = []
    if not sources:
        folders = [fold.path / "reviews" for fold in Run(run).trained_folds()]
        files = [path for folder in folders for path in sorted(folder.glob("*.json"))]
        if not files:
            raise UsageError(
                f"{run} has no saved reviews. Give the GeoJSON files that QuPath exported, or mark patches with 'gcemil view {run}'."
            )
    for source in sources:
        inside = [source]
        if source.is_dir():
            inside = sorted(path for path in source.iterdir() if path.suffix.lower() in ENDINGS)
        if not inside:
            raise InputError(
                f"{source} holds no marks: no <slide>.geojson and no <slide>.json lies in it."
            )
        files += inside
    return files


def judge_slide(
    cohort: Cohort, slide_id: str, objects: Sequence[GeoObject], where: object
) -> tuple[Verdicts, list[str]]:
    """What GeoJSON marks say of the patches of a slide of the cohort, and what was left out of them."""
    spec = _find_spec(cohort, slide_id)
    coords = cohort.layout(spec).slide_coords(slide_id)
    if coords is None:
        raise UsageError(
            f"Slide '{slide_id}' has no coordinates, so {where} cannot be laid over its patches."
        )
    size = cohort.slide_patch_size(slide_id, coords)
    if size is None:
        raise UsageError(
            f"Slide '{slide_id}': the size of its patches is not known. Write patch_size_level0 into {cohort.folder / 'cohort.yaml'}."
        )
    origin = read_slide_bounds(cohort.folder, slide_id)
    return judge_patches(objects, coords.astype(np.int64), size, where=where, origin=origin)


def check_saved(review: SavedReview, n_patches: int | None, path: Path) -> None:
    """Refuse a review of another slide."""
    if n_patches not in (None, review.n_patches):
        raise RunError(
            f"{path} is of {review.n_patches} patches, and the slide has {n_patches}. {REMEDY}"
        )
    wrong = [mark.patch for mark in review.marks if not 0 <= mark.patch < review.n_patches]
    if wrong:
        raise RunError(f"{path} marks patch {wrong[0]} of {review.n_patches}. {REMEDY}")


def _place_slides(
    run: Path, cohort: Cohort, slide_ids: Sequence[str]
) -> tuple[dict[int, list[str]], dict[str, str]]:
    """The slides by the fold that tests them, and those that none does."""
    folds = {one.number: read_fold(cohort, one.number) for one in Run(run).trained_folds()}
    known = {row.slide_id for row in cohort.slides}
    placed: dict[int, list[str]] = {}
    left_out: dict[str, str] = {}
    for slide_id in slide_ids:
        if slide_id not in known:
            left_out[slide_id] = "no slide of the cohort"
            continue
        testing = next(
            (number for number, fold in folds.items() if fold.part_of[slide_id] == "test"), None
        )
        if testing is None:
            left_out[slide_id] = "tested by no trained fold"
        else:
            placed.setdefault(testing, []).append(slide_id)
    return dict(sorted(placed.items())), left_out


def _find_spec(cohort: Cohort, slide_id: str) -> BagSpec:
    return next(spec for spec in cohort.bags if slide_id in spec.slide_ids)


def _review_slide(
    fold: TrainedFold, slide_id: str, marks: _MarkFile, notes: list[str]
) -> Iterator[RuleReview]:
    """Every rule on one slide, all of them with as many patches as the evidence has there."""
    spec = _find_spec(fold.cohort, slide_id)
    bag = FoldBag(spec, fold.cohort.read_bag(spec), fold)
    rows = bag.bag.rows_of(slide_id)
    n_patches = rows.stop - rows.start
    verdicts, remarks = marks.verdicts(fold.cohort, slide_id, n_patches)
    notes += [f"{slide_id}: {remark}." for remark in remarks]
    chosen: dict[tuple[str, str], Selected] = {}
    size = subset_size(n_patches, fold.own_budget)
    if bag.explanation is not None:
        chosen["evidence", "wrapped"] = bag.explanation.recovery.selected[rows]
        size = int(chosen["evidence", "wrapped"].sum())
    scores: dict[tuple[str, str], Tensor] = {}
    scores |= {
        ("attention", name): bag.predict(name).full.scores[rows] for name in reversed(fold.networks)
    }
    # Drawn from the slide's own name, so that no other slide changes what is drawn.
    draws = np.random.default_rng([fold.seed, *slide_id.encode()])
    scores["random", "none"] = torch.from_numpy(draws.random(n_patches))
    # No patch where the evidence has none on this slide.
    chosen |= {
        key: members(ranking(one)[:size], n_patches=n_patches) for key, one in scores.items()
    }
    for (rule, network), selected in chosen.items():
        agreement = count_agreement(verdicts, selected.numpy())
        yield RuleReview(slide_id, fold.fold, rule, network, agreement, int(selected.sum()))


def list_marks(review: SavedReview) -> list[dict[str, Any]]:
    """The marks as plain values."""
    return [asdict(mark) for mark in review.marks]
