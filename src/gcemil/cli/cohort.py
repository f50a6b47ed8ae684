"""Make and check a cohort: gcemil inspect, import, validate and split."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_table, progress, say
from gcemil.errors import CohortError, InputError, UsageError
from gcemil.wording import SHOWN_LINES


def inspect(
    path: Path = typer.Argument(help="Any file or folder."),
    as_json: options.Json = False,
) -> None:
    """Describe a file or folder, and name the command to run next.

    Known are features of CLAM, TRIDENT, STAMP, torchmil and gcemil.

    Example: gcemil inspect trident_job/20x_256px_0px_overlap/features_uni_v1
    """
    from gcemil.bags.foreign.inspect import PLACEHOLDERS
    from gcemil.bags.foreign.inspect import inspect as inspect_path

    inspection = inspect_path(path)
    if as_json:
        print_json(asdict(inspection))
        return
    print_table(f"{path}: {inspection.title}", ("what", "value"), list(inspection.facts))
    for problem in inspection.problems:
        say(f"problem: {problem}")
    if inspection.next_command:
        missing = [name for name in PLACEHOLDERS if name in inspection.next_command.split()]
        hint = f" ({'; '.join(PLACEHOLDERS[name] for name in missing)})" if missing else ""
        say(f"next{hint}: {inspection.next_command}")


def import_(
    context: typer.Context,
    source: Path = typer.Argument(help="A features folder of CLAM, TRIDENT, STAMP or torchmil."),
    out: Path | None = typer.Option(None, help="The cohort folder to write."),
    labels: options.Labels = None,
    slide_table: Path | None = typer.Option(
        None, help="STAMP: the table that joins patients and files."
    ),
    recipe: str | None = typer.Option(None, help="A dataset of the paper, such as bracs."),
    task: options.Task = None,
    target: options.Target = None,
    time: str | None = typer.Option(None, help="The time column, where there are several."),
    event: str | None = typer.Option(None, help="The event column, where there are several."),
    endpoint: str | None = typer.Option(None, help="The survival endpoint, such as os or dss."),
    slide_column: str | None = typer.Option(None, help="The column of slides, under any name."),
    case_column: str | None = typer.Option(None, help="The column of cases, under any name."),
    sheet: str | None = typer.Option(
        None, help="The sheet of an Excel table; the first by default."
    ),
    force: bool = options.flag(
        "--force", "Replace the cohort at --out and keep its anchors; its runs need the old cohort."
    ),
    skip_broken: bool = options.flag(
        "--skip-broken", "Leave out slides that cannot be read or have NaN; cohort.yaml lists them."
    ),
    classes: options.Classes = None,
    splits: Path | None = typer.Option(None, help="The split files of the tool."),
    official_split: bool = options.flag("--official-split", "camelyon16: the official test set."),
    copy: bool = options.flag("--copy", "Copy features instead of linking to them."),
    patch_size: int | None = typer.Option(
        None, min=1, help="Patch size in level-0 pixels, if no file states it."
    ),
    mpp: str | None = typer.Option(
        None,
        help="Micrometres per level-0 pixel, or a table of "
        "slide_id, mpp, for coordinates in micrometres.",
    ),
    encoder: str | None = typer.Option(None, help="Which features, if there are several."),
    coords_dir: Path | None = typer.Option(None, help="CLAM: the folder of coordinate files."),
    repack: bool = options.flag(
        "--repack", "Only rewrite the HDF5 files of SOURCE that read slowly."
    ),
    as_json: options.Json = False,
) -> None:
    """Write a cohort from another tool's features and labels.

    Every assumption is printed and recorded.

    Example: gcemil import trident_job --labels labels.csv --out cohorts/mine
    """
    if repack:
        _repack(source)
        return
    out = options.require(out, "--out", context)

    from gcemil.bags.foreign.cohort_import import import_cohort
    from gcemil.bags.foreign.datasets import import_dataset
    from gcemil.bags.foreign.dialects import Choice
    from gcemil.bags.foreign.source import ReadOptions
    from gcemil.bags.foreign.stamp import parse_mpp
    from gcemil.units import LevelZeroPx

    reading = ReadOptions(
        None if patch_size is None else LevelZeroPx(patch_size),
        None if mpp is None else parse_mpp(mpp),
        encoder,
        coords_dir,
        [] if skip_broken else None,
    )
    if official_split and recipe is None:
        raise UsageError(
            "--official-split is that of a dataset of the paper: add --recipe camelyon16."
        )
    common: dict[str, Any] = {"labels": labels, "splits": splits, "copy": copy, "force": force}
    common["options"] = reading
    if recipe is not None:
        report = import_dataset(recipe, source, out, official_split=official_split, **common)
    else:
        report = import_cohort(
            source,
            out,
            slide_table=slide_table,
            choice=Choice(task, target, time, event, endpoint, slide_column, case_column, sheet),
            classes=None if classes is None else classes.split(","),
            **common,
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
    as_json: options.Json = False,
) -> None:
    """Check a cohort before training: files, values, ids, labels, leakage, survival coding.

    Exits with 1 if there is an error; warnings alone exit with 0.

    Example: gcemil validate cohorts/bracs
    """
    from gcemil.bags import validate as checks
    from gcemil.bags.cohort import read_card

    if not (cohort / "cohort.yaml").is_file():
        # A folder that is not a cohort is one message and not a table of problems.
        read_card(cohort)
    with progress("checking slides") as advance:
        problems = checks.validate(cohort, advance)
    errors = checks.select_errors(problems)
    if as_json:
        print_json([asdict(problem) for problem in problems])
    else:
        names = ("level", "where", "what", "remedy")
        if groups := checks.group_problems(problems):
            rows = [[getattr(one, name) for name in names] for one in groups]
            print_table(str(cohort), names, rows)
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
        "case", help="What is never divided. 'slide' may put one case into train and test."
    ),
    seed: int = options.seed("which case goes where"),
    force: bool = options.flag("--force", "Replace folds that exist already."),
    parts: str | None = typer.Option(
        None,
        help="One fold with these numbers of cases to train, validate and test on, as 90,30,300.",
    ),
    official: bool = options.flag(
        "--official", "Only declare the existing folds as published ones."
    ),
) -> None:
    """Divide a cohort into folds: whole cases, stratified by the label.

    Values are stratified by quartile, survival by event and time. Writes splits/fold_<k>.csv.

    Example: gcemil split cohorts/bracs --folds 5
    """
    import numpy as np

    from gcemil.bags import folds as fold_maker
    from gcemil.bags.cohort import Cohort

    loaded = Cohort.load(cohort)
    if official:
        declared = [
            fold_maker.read_fold(loaded, index) for index in fold_maker.fold_indices(cohort)
        ]
        if not declared:
            raise UsageError(f"{cohort / 'splits'} holds no folds that could be official.")
        numbers = tuple(fold.index for fold in declared)
        fold_maker.write_split_card(
            cohort / "splits", fold_maker.SplitCard(kind="official", folds=numbers)
        )
        typer.echo(f"{cohort}: {len(declared)} folds declared as published splits.")
        return
    if fold_maker.fold_indices(cohort) and not force:
        raise UsageError(f"{cohort / 'splits'} already holds folds. Add --force to replace them.")
    if parts is not None:
        new_folds = [
            fold_maker.make_parts(
                loaded, options.parse_parts(parts), generator=np.random.default_rng(seed)
            )
        ]
    else:
        new_folds = fold_maker.make_folds(loaded, n_folds=folds, unit=unit, seed=seed)
    if leaks := sorted(
        {case for fold in new_folds for case in fold_maker.leaking_cases(loaded, fold)}
    ):
        raise CohortError(
            f"{cohort}: with --unit slide {len(leaks)} cases (the first is '{leaks[0]}') would "
            "stand in train and test at once, so the test set would not be unseen. Use --unit "
            "case."
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
        problem = "holds no .h5 file" if path.exists() else "does not exist"
        raise InputError(f"{path} {problem}. Give a feature file, or a folder of them.")
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
            f"Links point to another tool's files: run {typed} if they may be changed, or import "
            "again with --copy."
        )
