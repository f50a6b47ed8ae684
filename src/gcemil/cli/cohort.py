"""Make and check a cohort: gcemil inspect, import, validate and split."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer

from gcemil.cli.console import print_json, print_table, progress, say
from gcemil.cli.options import (
    CLASSES,
    JSON,
    LABELS,
    TARGET,
    TASK,
    Task,
    parse_parts,
    require,
    seed_option,
)
from gcemil.errors import CohortError, InputError, UsageError
from gcemil.wording import SHOWN_LINES


def inspect(
    path: Path = typer.Argument(help="Any file or folder."),
    as_json: bool = JSON,
) -> None:
    """Tell what a file or folder is (CLAM, TRIDENT, STAMP, torchmil, gcemil), and which command to run next.

    Example: gcemil inspect trident_job/20x_256px_0px_overlap/features_uni_v1
    """
    from gcemil.bags.foreign.inspect import PLACEHOLDERS
    from gcemil.bags.foreign.inspect import inspect as inspect_path

    found = inspect_path(path)
    if as_json:
        print_json(asdict(found))
        return
    print_table(f"{path}: {found.title}", ("what", "value"), list(found.facts))
    for problem in found.problems:
        say(f"problem: {problem}")
    if found.next_command:
        missing = [name for name in PLACEHOLDERS if name in found.next_command.split()]
        hint = f" ({'; '.join(PLACEHOLDERS[name] for name in missing)})" if missing else ""
        say(f"next{hint}: {found.next_command}")


def import_(
    context: typer.Context,
    source: Path = typer.Argument(help="A features folder of CLAM, TRIDENT, STAMP or torchmil."),
    out: Path | None = typer.Option(None, help="The cohort folder to write."),
    labels: Path | None = LABELS,
    slide_table: Path | None = typer.Option(
        None, help="STAMP: the table that joins patients and files."
    ),
    recipe: str | None = typer.Option(
        None, help="A dataset of the paper, such as bracs: its official table and classes."
    ),
    task: Task | None = TASK,
    target: str | None = TARGET,
    time: str | None = typer.Option(None, help="The time column, where there are several."),
    event: str | None = typer.Option(None, help="The event column, where there are several."),
    endpoint: str | None = typer.Option(None, help="The survival endpoint, such as os or dss."),
    slide_column: str | None = typer.Option(None, help="The column of slides, under any name."),
    case_column: str | None = typer.Option(
        None, help="The column of cases or patients, under any name."
    ),
    sheet: str | None = typer.Option(
        None, help="The sheet of an Excel table; the first by default."
    ),
    force: bool = typer.Option(
        False,
        "--force",
        help="Replace the cohort at --out, but for its anchors; runs trained on it need it as it was.",
    ),
    skip_broken: bool = typer.Option(
        False,
        "--skip-broken",
        help="Leave out slides that cannot be read or have NaN, and record them in cohort.yaml.",
    ),
    classes: str | None = CLASSES,
    splits: Path | None = typer.Option(None, help="The split files of the tool."),
    official_split: bool = typer.Option(
        False,
        "--official-split",
        help="Recipe with an official test set (camelyon16): take it as fold 0.",
    ),
    copy: bool = typer.Option(False, "--copy", help="Copy features instead of linking to them."),
    patch_size: int | None = typer.Option(
        None, min=1, help="Patch size in level-0 pixels, if no file states it."
    ),
    mpp: str | None = typer.Option(
        None,
        help="Micrometres per level-0 pixel, or a table of slide_id, mpp; for coordinates in micrometres.",
    ),
    encoder: str | None = typer.Option(
        None, help="Which features, where a job has those of several encoders."
    ),
    coords_dir: Path | None = typer.Option(None, help="CLAM: the folder of coordinate files."),
    repack: bool = typer.Option(
        False,
        "--repack",
        help="Import nothing: rewrite the HDF5 files of SOURCE that are chunked row by row or compressed, which "
        "read an order of magnitude slower, as contiguous ones.",
    ),
    as_json: bool = JSON,
) -> None:
    """Write a cohort from another tool's features and labels; every assumption is printed and recorded.

    Example: gcemil import trident_job --labels labels.csv --out cohorts/mine
    """
    if repack:
        _repack(source)
        return
    out = require(out, "--out", context)

    from gcemil.bags.foreign.cohort_import import import_cohort
    from gcemil.bags.foreign.datasets import import_dataset
    from gcemil.bags.foreign.dialects import Choice
    from gcemil.bags.foreign.source import ReadOptions
    from gcemil.bags.foreign.stamp import parse_mpp
    from gcemil.units import LevelZeroPx

    options = ReadOptions(
        None if patch_size is None else LevelZeroPx(patch_size),
        None if mpp is None else parse_mpp(mpp),
        encoder,
        coords_dir,
        [] if skip_broken else None,
    )
    if recipe is not None:
        report = import_dataset(
            recipe,
            source,
            out,
            labels=labels,
            splits=splits,
            official_split=official_split,
            copy=copy,
            force=force,
            options=options,
        )
    elif official_split:
        raise UsageError(
            "--official-split is that of a dataset of the paper: add --recipe camelyon16."
        )
    else:
        report = import_cohort(
            source,
            out,
            labels=labels,
            slide_table=slide_table,
            choice=Choice(task, target, time, event, endpoint, slide_column, case_column, sheet),
            classes=None if classes is None else classes.split(","),
            splits=splits,
            copy=copy,
            force=force,
            options=options,
        )
    if as_json:
        print_json(asdict(report))
        return
    for line in report.lines():
        say(line)
    if (n_out := len(report.excluded)) > SHOWN_LINES + 1:
        say(f"All {n_out} that were left out, with the reason, are in {out / 'cohort.yaml'}.")
    folder = shlex.quote(str(out))
    say(
        f"next: gcemil train {folder} --out runs/{out.resolve().name}"
        if report.n_folds
        else f"next: gcemil split {folder}"
    )


def validate(
    cohort: Path = typer.Argument(help="A cohort folder."),
    as_json: bool = JSON,
) -> None:
    """Check a cohort before training: files, values, ids, labels, leakage, survival coding.

    Exits with 1 when there is an error; warnings alone exit with 0.

    Example: gcemil validate cohorts/bracs
    """
    from gcemil.bags import validate as checks
    from gcemil.bags.cohort import read_card

    if not (cohort / "cohort.yaml").is_file():
        # A folder that is not a cohort gets one sentence instead of a table of problems.
        read_card(cohort)
    with progress("checking slides") as advance:
        problems = checks.validate(cohort, advance)
    errors = checks.select_errors(problems)
    if as_json:
        print_json([asdict(problem) for problem in problems])
    elif problems:
        rows = [
            (one.level, one.where, one.what, one.remedy) for one in checks.group_problems(problems)
        ]
        print_table(f"{cohort}", ("level", "where", "what", "remedy"), rows)
    if not as_json:
        say(f"{cohort}: {len(errors)} errors, {len(problems) - len(errors)} warnings.")
    raise typer.Exit(1 if errors else 0)


Unit = Literal["case", "slide"]
"""What is never divided between parts of a fold."""


def split(
    cohort: Path = typer.Argument(help="A cohort folder."),
    folds: int = typer.Option(
        5, min=3, help="How many folds; fold k tests, half of fold k+1 validates."
    ),
    unit: Unit = typer.Option(
        "case", help="What stays together. 'slide' may put one case into train and test."
    ),
    seed: int = seed_option("which case goes where"),
    force: bool = typer.Option(False, "--force", help="Replace folds that exist already."),
    parts: str | None = typer.Option(
        None,
        help="One fold of so many cases to train, validate and test on, such as 90,30,300, in place of --folds.",
    ),
    official: bool = typer.Option(
        False,
        "--official",
        help="Make no folds: declare those that are there as published splits, which need not test every slide once.",
    ),
) -> None:
    """Write splits/fold_<k>.csv: whole cases, stratified by label, by quartile of the value, or by event and time.

    Example: gcemil split cohorts/bracs --folds 5
    """
    import numpy as np

    from gcemil.bags import folds as fold_maker
    from gcemil.bags.cohort import Cohort

    loaded = Cohort.load(cohort)
    if official:
        found = [fold_maker.read_fold(loaded, index) for index in fold_maker.fold_indices(cohort)]
        if not found:
            raise UsageError(f"{cohort / 'splits'} holds no folds that could be official.")
        numbers = tuple(fold.index for fold in found)
        fold_maker.write_split_card(
            cohort / "splits", fold_maker.SplitCard(kind="official", folds=numbers)
        )
        typer.echo(f"{cohort}: {len(found)} folds declared as published splits.")
        return
    if fold_maker.fold_indices(cohort) and not force:
        raise UsageError(f"{cohort / 'splits'} already holds folds. Add --force to replace them.")
    if parts is not None:
        new_folds = [
            fold_maker.make_parts(loaded, parse_parts(parts), generator=np.random.default_rng(seed))
        ]
    else:
        new_folds = fold_maker.make_folds(loaded, n_folds=folds, unit=unit, seed=seed)
    if leaks := sorted(
        {case for fold in new_folds for case in fold_maker.leaking_cases(loaded, fold)}
    ):
        raise CohortError(
            f"{cohort}: with --unit slide {len(leaks)} cases (the first is '{leaks[0]}') would stand in train and test at once, "
            "so the test set would not be unseen. Use --unit case."
        )
    fold_maker.write_folds(loaded, new_folds, kind="partition" if parts is None else "official")
    rows = [
        (fold.index, *(fold_maker.describe_part(loaded, fold, part) for part in fold_maker.PARTS))
        for fold in new_folds
    ]
    counted = {"regression": "mean value", "survival": "events of cases"}.get(
        loaded.card.task, ", ".join(loaded.card.classes)
    )
    print_table(f"{cohort}: slides per part ({counted})", ("fold", *fold_maker.PARTS), rows)
    say(f"next: gcemil train {shlex.quote(str(cohort))} --out runs/{loaded.folder.resolve().name}")


def _repack(path: Path) -> None:
    """Rewrite a file, or the files of a folder, with the same values; links are left alone."""
    from gcemil.bags import store

    files = [path] if path.is_file() else sorted(path.rglob("*.h5"))
    if not files:
        said = "holds no .h5 file" if path.exists() else "does not exist"
        raise InputError(f"{path} {said}. Give a feature file, or a folder of them.")
    links = [file for file in files if file.is_symlink()]
    done = 0
    with progress("repacking") as advance:
        for index, file in enumerate(files, start=1):
            if not file.is_symlink():
                done += store.repack(file)
            advance(index, len(files))
    say(f"{path}: {done} of {len(files)} files rewritten, {len(links)} links left alone.")
    if links:
        sources = sorted({str(file.resolve().parent) for file in links})
        typed = " ".join(f"'gcemil import --repack {shlex.quote(source)}'" for source in sources)
        say(
            f"Links point to another tool's files: run {typed} if they may be changed, or import again with --copy."
        )
