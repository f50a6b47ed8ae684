"""Slides of a run's cohort explained: one, or many in one go.

  all        every slide that a trained fold tests
  failures   those of them that 'gcemil diagnose --only failures' names, under the rule of the run
  a file     a table with a column slide_id, or a list with one id per line

A slide that fails is a line with its reason, and the others are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import PARTS, read_fold
from gcemil.bags.foreign.source import plain_id
from gcemil.bags.tables import read_table
from gcemil.config import Precision
from gcemil.device import one_thread
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import CohortError, RunError, UsageError, describe_failure
from gcemil.exports.certificate import CRITERIA
from gcemil.exports.evidence import ExplainedSlide
from gcemil.exports.explain import ExplainOptions, SourceBag, explain_bag_slide
from gcemil.exports.overlay import read_cohort_place
from gcemil.files import read_text, write_table
from gcemil.findings import read_finding
from gcemil.metrics import FAILURE_TYPES
from gcemil.runs.folder import Run
from gcemil.wording import did_you_mean

COLUMNS = ("slide_id", "fold", "status", "n_patches", "n_selected", *CRITERIA, "folder", "reason")


def explain_cohort_slide(
    run: Path,
    slide_id: str,
    *,
    fold: int | None = None,
    options: ExplainOptions | None = None,
    device: str = "cpu",
    precision: Precision = "32",
) -> ExplainedSlide:
    """The slide's bag through the network of a given fold, or of the first that tests it."""
    opened = Run(run).open_cohort()
    index = choose_fold(run, opened[1], slide_id, fold)
    with one_thread():
        network = TrainedFold.open(run, index, opened=opened, device=device, precision=precision)
        return explain_fold_slide(network, slide_id, options or ExplainOptions())


def explain_fold_slide(fold: TrainedFold, slide_id: str, options: ExplainOptions) -> ExplainedSlide:
    """A slide of the cohort under a fold that is open."""
    spec = next(spec for spec in fold.cohort.bags if slide_id in spec.slide_ids)
    bag = fold.cohort.read_bag(spec)
    hashes = {
        one: {"features": content_hash(fold.cohort.feature_file(one))} for one in bag.slide_ids
    }
    part = next(name for name in PARTS if spec in getattr(fold.parts, name))
    source = SourceBag(fold, bag, part, hashes, options)
    coords = bag.slide_coords(slide_id)
    size = fold.cohort.card.patch_size_level0
    if coords is not None and (size := fold.cohort.slide_patch_size(slide_id, coords)) is None:
        raise CohortError(
            f"Slide '{slide_id}': the size of its patches is not known, and they form no grid to "
            f"read it from. Write patch_size_level0 into {fold.cohort.folder / 'cohort.yaml'}."
        )
    folder = Run(fold.run).fold(fold.fold).explained(slide_id)
    place = read_cohort_place(fold.cohort, slide_id)
    return explain_bag_slide(source, slide_id, size, place, folder)


def explain_slides(
    run: Path,
    slide_ids: Sequence[str],
    write: Callable[[ExplainedSlide], Path],
    *,
    fold: int | None = None,
    options: ExplainOptions | None = None,
    device: str = "cpu",
    precision: Precision = "32",
    table: Path,
    on_slide: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Explain every slide and write explained.csv; `write` writes its files into a folder."""
    opened = Run(run).open_cohort()
    # Every fold is opened once.
    open_fold = cache(
        lambda number: TrainedFold.open(
            run, number, opened=opened, device=device, precision=precision
        )
    )
    rows: list[dict[str, Any]] = []
    for slide_id in slide_ids:
        row: dict[str, Any] = {"slide_id": slide_id, "fold": ""}
        try:
            row["fold"] = choose_fold(run, opened[1], slide_id, fold)
            with one_thread():
                made = explain_fold_slide(
                    open_fold(row["fold"]), slide_id, options or ExplainOptions()
                )
                row["folder"] = write(made)
            words = {True: "yes", False: "no", None: ""}
            row |= {name: words[made.judgement.verdicts[name].held] for name in CRITERIA}
            subject = made.certificate["subject"]
            row |= {name: subject[name] for name in ("n_patches", "n_selected")}
            row |= {"status": "explained", "reason": ""}
        # The error of a slide must not stop the others.
        except Exception as error:
            reason = describe_failure(error, slide_id)
            row |= {"status": "failed", "folder": "", "reason": reason}
        rows.append(row)
        if on_slide:
            on_slide(len(rows), len(slide_ids))
    write_table(table, COLUMNS, rows)
    return rows


def choose_slides(run: Path, what: str, *, fold: int | None = None) -> list[str]:
    """The slides that 'all', 'failures' or a file of ids stands for."""
    if what == "all":
        _, cohort = Run(run).open_cohort()
        tested = {
            name
            for number in list_trained_folds(run, fold)
            for name in read_fold(cohort, number).slides("test")
        }
        return [row.slide_id for row in cohort.slides if row.slide_id in tested]
    names = _list_failures(run, fold) if what == "failures" else _read_ids(Path(what))
    if not (chosen := list(dict.fromkeys(names))):
        raise UsageError(f"No slide to explain: {what} names none.")
    return chosen


def list_trained_folds(run: Path, fold: int | None) -> list[int]:
    """The numbers of all trained folds, or of the given one."""
    trained = [one.number for one in Run(run).trained_folds()]
    if fold is not None and fold not in trained:
        raise RunError(f"{run} has no trained fold {fold}, only: {', '.join(map(str, trained))}.")
    return trained if fold is None else [fold]


def _list_failures(run: Path, fold: int | None) -> Iterator[str]:
    """Slides with a failure of any type under the run's own rule and network."""
    for number in list_trained_folds(run, fold):
        path = Run(run).fold(number).finding("failures")
        if not path.is_file():
            raise UsageError(
                f"{path} is not there, so it is not known which slides fail. Run 'gcemil diagnose "
                f"{run} --only failures' first."
            )
        records = [one for one in read_finding(path).slides if one.get("network") == "wrapped"]
        rules = {one.get("rule") for one in records}
        own = "evidence" if "evidence" in rules else "attention"
        for one in records:
            if one.get("rule") == own and any(one.get(kind) for kind in FAILURE_TYPES):
                yield from one.get("slide_ids", ())


def _read_ids(path: Path) -> list[str]:
    """Ids of a table with a column slide_id, or of a list."""
    if not path.is_file():
        raise UsageError(
            f"--slides is 'all', 'failures' or a file of slide ids; '{path}' is none of these."
        )
    lines = [line.strip() for line in read_text(path).splitlines()]
    if lines and "slide_id" in lines[0].split(","):
        return [row["slide_id"] for row in read_table(path, ("slide_id",))]
    return [line for line in lines if line]


def choose_fold(run: Path, cohort: Cohort, slide_id: str, fold: int | None) -> int:
    """The given fold, or the first that tests the slide; without one, the first that is trained."""
    known = [row.slide_id for row in cohort.slides]
    if slide_id not in known:
        meant = did_you_mean(plain_id(slide_id), known)
        raise UsageError(
            f"{cohort.folder / 'slides.csv'} has no slide '{slide_id}'.{meant} For a slide "
            f"outside the cohort use 'gcemil explain {run} FILE', FILE being the slide or its "
            "features."
        )
    trained = list_trained_folds(run, fold)
    tests = (index for index in trained if read_fold(cohort, index).part_of[slide_id] == "test")
    return trained[0] if fold is not None else next(tests, trained[0])


def hash_inputs(fold: TrainedFold, slide_id: str) -> dict[str, str]:
    """Fingerprints of the network and of the slide's features."""
    return {"model": fold.model_hash, "features": content_hash(fold.cohort.feature_file(slide_id))}
