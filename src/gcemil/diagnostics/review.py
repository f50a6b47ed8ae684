"""review: a pathologist's marks against the evidence of a trained run, and against attention.

Marks are GeoJSON files of QuPath, one per slide and named after it, folders of them, or the reviews
that the viewer saved (RUN/fold_<k>/reviews/<slide>.json). Every slide is explained by the fold that
tests it:

  evidence    the recovered evidence of the slide, under the wrapped host
  attention   as many patches of the slide as the evidence has there, by the host's attention
  random      as many patches, one draw per slide

In a run without the wrapper attention takes its budget's share of the slide. agreement.py has the
figures. Everything is read and judged before RUN/diagnostics/review.json is written.

Marked patches also make better anchors: in a new folder, which links the features of the cohort,

  accepted, CLASS   are patches that a reviewer accepts or misses on slides of a class
  rejected          are patches that a reviewer rejects

A fold takes examples of its own training slides only: marks on the slides that it tests help the
other folds.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gcemil.bags import store
from gcemil.bags.annotations.shapes import find_slide_id
from gcemil.bags.cohort import BagSpec, Cohort, read_slide_bounds
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import read_fold
from gcemil.bags.store import read_truth
from gcemil.device import describe_environment, one_thread
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
from gcemil.diagnostics.paired_tests import bootstrap_interval
from gcemil.diagnostics.trained_fold import FoldBag, TrainedFold
from gcemil.diagnostics.truth import precision, recall
from gcemil.errors import InputError, RunError, UsageError
from gcemil.features.example_anchors import ExampleReport, ExampleRequest, keep_examples
from gcemil.files import lock_folder, parse_json, read_bytes, validate_as
from gcemil.findings import Figures, Finding, mean_and_deviation, write_finding
from gcemil.records import SlideEvidence, read_evidence
from gcemil.recovery import members, ranking, subset_size
from gcemil.runs.folder import Run
from gcemil.shapes import Selected
from gcemil.slides.geojson import GeoObject, parse_objects

ENDINGS = (".geojson", ".json")
REMEDY = "It is not a review of this slide; move it away and review the slide again."
RESAMPLES = 2000
ONLY_MARKED = (
    "Only patches under a mark count. A reviewer who was shown the evidence alone has judged few "
    "of the patches that attention alone chose: read each rule beside the share of its own patches "
    "that were judged."
)
PLAIN_ATTENTION = (
    "The evidence does not train the host, so its attention is that of the plain host."
)


@dataclass(frozen=True)
class Mark:
    """The mark of one patch in the viewer, and whether it was evidence then."""

    patch: int
    mark: Literal["accept", "reject"]
    in_evidence: bool


@dataclass(frozen=True)
class SavedReview:
    """reviews/<slide>.json of the viewer."""

    n_patches: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, eq=False)
class _MarkFile:
    """The marks of one slide as they were given."""

    path: Path
    sha256: str
    given: list[GeoObject] | SavedReview

    def verdicts(self, cohort: Cohort, slide_id: str, n_patches: int) -> tuple[Verdicts, list[str]]:
        """The verdict of the marks on every patch of the slide."""
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
    """Judge every rule by the marks, or by the viewer's reviews, and write the finding.

    Also returns the slides that could not be judged, with the reason.
    """
    if resamples < 1:
        raise UsageError(f"Intervals need at least one draw, got {resamples}.")
    card, cohort = Run(run).open_cohort()
    marks = read_marks(run, sources)
    placed, left_out = _place_slides(run, cohort, list(marks))
    if not placed:
        reasons = "; ".join(f"{slide_id}: {reason}" for slide_id, reason in left_out.items())
        raise InputError(
            f"No marked slide can be judged ({reasons}). "
            f"Marks are named after a test slide of {run}."
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
    files: dict[str, _MarkFile] = {}
    for path in _list_files(run, sources):
        slide_id = find_slide_id(path)
        if slide_id in files:
            raise UsageError(
                f"{files[slide_id].path} and {path} both mark slide '{slide_id}'. Give one of them."
            )
        content = read_bytes(path)
        given = parse_json(content, path)
        # Reviews of the viewer have 'marks', which GeoJSON does not.
        is_saved = isinstance(given, dict) and "marks" in given
        marks = (
            validate_as(given, SavedReview, path, error=RunError, remedy=REMEDY)
            if is_saved
            else parse_objects(given, path)
        )
        files[slide_id] = _MarkFile(path, hashlib.sha256(content).hexdigest(), marks)
    return files


def _list_files(run: Path, sources: Sequence[Path]) -> list[Path]:
    """The files of marks that were given, or the reviews that the viewer saved."""
    files: list[Path] = []
    if not sources:
        folders = [fold.path / "reviews" for fold in Run(run).trained_folds()]
        files = [path for folder in folders for path in sorted(folder.glob("*.json"))]
        if not files:
            raise UsageError(
                f"{run} has no saved reviews. Give the GeoJSON files that QuPath exported, or mark "
                f"patches with 'gcemil view {run}'."
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
    """The verdict of GeoJSON marks on every patch of a slide, and what was left out of them."""
    spec = _find_spec(cohort, slide_id)
    coords = cohort.layout(spec).slide_coords(slide_id)
    if coords is None:
        raise UsageError(
            f"Slide '{slide_id}' has no coordinates, so {where} cannot be laid over its patches."
        )
    size = cohort.slide_patch_size(slide_id, coords)
    if size is None:
        raise UsageError(
            f"Slide '{slide_id}': the size of its patches is not known. "
            f"Write patch_size_level0 into {cohort.folder / 'cohort.yaml'}."
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
    """The slides by the fold that tests them, and the reasons of those that none does."""
    tested_by = {
        slide_id: one.number
        for one in reversed(Run(run).trained_folds())
        for slide_id in read_fold(cohort, one.number).slides("test")
    }
    known = {row.slide_id for row in cohort.slides}
    placed: dict[int, list[str]] = {}
    left_out: dict[str, str] = {}
    for slide_id in slide_ids:
        if slide_id in tested_by:
            placed.setdefault(tested_by[slide_id], []).append(slide_id)
        else:
            is_known = slide_id in known
            left_out[slide_id] = (
                "tested by no trained fold" if is_known else "no slide of the cohort"
            )
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
    scores: dict[tuple[str, str], Tensor] = {
        ("attention", name): bag.predict(name).full.scores[rows] for name in reversed(fold.networks)
    }
    # Drawn from the slide's own name, so that no other slide changes what is drawn.
    draws = np.random.default_rng([fold.seed, *slide_id.encode()])
    scores["random", "none"] = torch.from_numpy(draws.random(n_patches))
    # No patch if the evidence has none on this slide.
    chosen |= {k: members(ranking(one)[:size], n_patches=n_patches) for k, one in scores.items()}
    for (rule, network), selected in chosen.items():
        agreement = count_agreement(verdicts, selected.numpy())
        yield RuleReview(slide_id, fold.fold, rule, network, agreement, int(selected.sum()))


def list_marks(review: SavedReview) -> list[dict[str, Any]]:
    """The marks as plain values."""
    return [asdict(mark) for mark in review.marks]


# From a review to better anchors

COMPARED = (
    "sufficient_share", "necessary_share", "both_share", "precision", "recall", "evidence_fraction"
)  # fmt: skip
"""Compared before and after new anchors; precision and recall only with truth."""


def write_review_anchors(
    run: Path, sources: Sequence[Path], out: Path, *, k: int = 10, seed: int = 0
) -> ExampleReport:
    """The cohort of a run in a new folder, with the marked patches as its anchors."""
    if out.exists() and any(out.iterdir()):
        raise InputError(
            f"{out} exists and is not empty. "
            "Give --out a new folder for the cohort with the examples."
        )
    _, cohort = Run(run).open_cohort()
    marks = read_marks(run, sources)
    labels = {row.slide_id: row.label for row in cohort.slides}
    notes = [f"Left out: {name}, no slide of the cohort." for name in marks if name not in labels]
    generator = np.random.default_rng(seed)
    features, concepts, slides = [], [], []
    for slide_id in sorted(marks.keys() & labels.keys()):
        path = cohort.feature_file(slide_id)
        n_patches = store.describe(path)["features"].shape[0]
        verdicts, remarks = marks[slide_id].verdicts(cohort, slide_id, n_patches)
        notes += [f"{slide_id}: {remark}." for remark in remarks]
        label = labels[slide_id]
        for verdict, concept in (
            (POSITIVE, f"accepted, {label}" if label else "accepted"),
            (NEGATIVE, "rejected"),
        ):
            # No fold can take more than k of a concept.
            rows = np.sort(generator.permutation(np.flatnonzero(verdicts == verdict))[:k])
            if len(rows):
                features.append(store.read(path, "features", rows))
                concepts += [concept] * len(rows)
                slides += [slide_id] * len(rows)
    if not any(concept.startswith("accepted") for concept in concepts):
        raise InputError(
            f"The marks accept no patch of {cohort.folder}, so there is nothing to make an anchor "
            "of. Mark regions of the class accept or missed."
        )
    examples = np.concatenate(features), np.array(concepts, np.str_), np.array(slides, np.str_)
    request = ExampleRequest(sources[0] if sources else run, k=k, seed=seed)
    return keep_examples(_link_cohort(cohort, out), request, examples, notes, needs_all_folds=False)


def _link_cohort(cohort: Cohort, out: Path) -> Cohort:
    """The same cohort in another folder: tables and folds copied, everything large linked."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(cohort.folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and path.name != "splits":
            (out / path.name).symlink_to(path.resolve())
        else:
            (shutil.copytree if path.is_dir() else shutil.copy)(path, out / path.name)
    return replace(cohort, folder=out)


def compare_evidence(
    before: Path, after: Path, sources: Sequence[Path], *, seed: int = 0
) -> tuple[list[tuple[str, float, float, tuple[float, float] | None]], int]:
    """Compare the evidence of two runs on test slides without a mark.

    Returns metric, mean before, mean after and interval of the difference; and the number of
    slides.
    """
    _, cohort = Run(before).open_cohort()
    reviewed = read_marks(before, sources).keys()
    common = {one.number for one in Run(before).trained_folds()} & {
        one.number for one in Run(after).trained_folds()
    }
    figures: list[tuple[Figures, Figures]] = []
    for number in sorted(common):
        for slide_id in read_fold(cohort, number).slides("test"):
            paths = [Run(run).fold(number).evidence(slide_id) for run in (before, after)]
            if slide_id not in reviewed and all(path.is_file() for path in paths):
                first, second = (_evidence_figures(cohort, read_evidence(path)) for path in paths)
                figures.append((first, second))
    if not figures:
        raise RunError(
            f"{before} and {after} have no test slide in common that was not reviewed. "
            "Train the same folds in both, or mark fewer slides."
        )
    return list(_join(figures, seed)), len(figures)


def _evidence_figures(cohort: Cohort, evidence: SlideEvidence) -> Figures:
    """The verdict of one slide, and how its evidence lies to the truth where that is known."""
    sufficient, necessary = bool(evidence.is_sufficient), bool(evidence.is_necessary)
    figures: Figures = {
        "sufficient_share": float(sufficient),
        "necessary_share": float(necessary),
        "both_share": float(sufficient and necessary),
        "evidence_fraction": evidence.fraction,
    }
    path = cohort.truth_file(evidence.slide_id)
    if path.is_file():
        truth = torch.from_numpy(read_truth(path, "evidence", len(evidence.gates)) > 0)
        if bool(truth.any()):
            selected = torch.from_numpy(evidence.selected)
            figures |= {"precision": precision(selected, truth), "recall": recall(selected, truth)}
    return figures


def _join(
    figures: Sequence[tuple[Figures, Figures]], seed: int
) -> Iterator[tuple[str, float, float, tuple[float, float] | None]]:
    for name in COMPARED:
        pairs = [
            (one[name], other[name]) for one, other in figures if name in one and name in other
        ]
        if not pairs:
            continue
        values = np.array(pairs, dtype=float)
        before, after = (float(mean_and_deviation(column)[0] or 0) for column in values.T)
        generator = np.random.default_rng(seed)
        yield (
            name,
            before,
            after,
            bootstrap_interval(values[:, 1] - values[:, 0], generator=generator),
        )
