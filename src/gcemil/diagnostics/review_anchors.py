"""From a review to better anchors: accepted and rejected patches become examples, and evidence is compared before and after.

  accepted, CLASS   patches that a reviewer accepts or misses on slides of a class; "accepted" where there are no classes
  rejected          patches that a reviewer rejects

The examples go into a new folder, which links the features of the run's cohort, so that the run stays as it is. A fold takes
examples of its own training slides only: marks on the slides that it tests help the other folds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.store import read_truth
from gcemil.diagnostics.agreement import NEGATIVE, POSITIVE
from gcemil.diagnostics.paired_tests import bootstrap_interval
from gcemil.diagnostics.review import read_marks
from gcemil.diagnostics.truth import precision, recall
from gcemil.errors import InputError, RunError
from gcemil.features.example_anchors import ExampleReport, ExampleRequest, keep_examples
from gcemil.findings import Figures, mean_and_deviation
from gcemil.records import SlideEvidence, read_evidence
from gcemil.runs.folder import Run

COMPARED = (
    "sufficient_share",
    "necessary_share",
    "both_share",
    "precision",
    "recall",
    "evidence_fraction",
)
"""What is compared before and after; precision and recall where the cohort has truth."""


def write_review_anchors(
    run: Path, sources: Sequence[Path], out: Path, *, k: int = 10, seed: int = 0
) -> ExampleReport:
    """The cohort of a run in a new folder, with the marked patches as its anchors."""
    if out.exists() and any(out.iterdir()):
        raise InputError(
            f"{out} exists and is not empty. Give --out a new folder for the cohort with the examples."
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
            f"The marks accept no patch of {cohort.folder}, so there is nothing to make an anchor of. "
            "Mark regions of the class accept or missed."
        )
    found = np.concatenate(features), np.array(concepts, np.str_), np.array(slides, np.str_)
    request = ExampleRequest(sources[0] if sources else run, k=k, seed=seed)
    return keep_examples(_link_cohort(cohort, out), request, found, notes, needs_all_folds=False)


def _link_cohort(cohort: Cohort, out: Path) -> Cohort:
    """The same cohort in another folder: tables, folds and anchors copied, everything large linked."""
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
    """Evidence of two runs on test slides without a mark: metric, mean before, mean after, interval of the difference.

    Also gives the number of slides.
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
                first, second = (_measure(cohort, read_evidence(path)) for path in paths)
                figures.append((first, second))
    if not figures:
        raise RunError(
            f"{before} and {after} have no test slide in common that was not reviewed. "
            "Train the same folds in both, or mark fewer slides."
        )
    return list(_join(figures, seed)), len(figures)


def _measure(cohort: Cohort, evidence: SlideEvidence) -> Figures:
    """The verdict of one slide, and how its evidence lies to the truth where that is known."""
    sufficient, necessary = bool(evidence.is_sufficient), bool(evidence.is_necessary)
    found: Figures = {
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
            found |= {"precision": precision(selected, truth), "recall": recall(selected, truth)}
    return found


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
