"""gcemil split: five folds by case."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path

import typer

from gcemil.cli.options import seed_option


class Unit(StrEnum):
    """What is never divided between parts of a fold."""

    case = "case"
    slide = "slide"


def split(
    cohort: Path = typer.Argument(help="A cohort folder."),
    folds: int = typer.Option(5, min=3, help="How many folds; fold k tests, half of fold k+1 validates."),
    unit: Unit = typer.Option(
        Unit.case, help="What stays together. 'slide' may put one case into train and test."
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
    """Write splits/fold_<k>.csv: whole cases, stratified by label or by event and time.

    Example: gcemil split cohorts/bracs --folds 5
    """
    import numpy as np

    from gcemil.bags import folds as fold_maker
    from gcemil.bags.cohort import Cohort
    from gcemil.cli.console import print_table, say
    from gcemil.cli.options import parse_parts
    from gcemil.errors import CohortError, UsageError

    loaded = Cohort.load(cohort)
    if official:
        found = [fold_maker.read_fold(loaded, index) for index in fold_maker.fold_indices(cohort)]
        if not found:
            raise UsageError(f"{cohort / 'splits'} holds no folds that could be official.")
        numbers = tuple(fold.index for fold in found)
        fold_maker.write_split_card(cohort / "splits", fold_maker.SplitCard(kind="official", folds=numbers))
        typer.echo(f"{cohort}: {len(found)} folds declared as published splits.")
        return
    if fold_maker.fold_indices(cohort) and not force:
        raise UsageError(f"{cohort / 'splits'} already holds folds. Add --force to replace them.")
    if parts is not None:
        made = [fold_maker.make_parts(loaded, parse_parts(parts), generator=np.random.default_rng(seed))]
    else:
        made = fold_maker.make_folds(loaded, n_folds=folds, unit=unit.value, seed=seed)
    if leaks := sorted({case for fold in made for case in fold_maker.leaking_cases(loaded, fold)}):
        raise CohortError(
            f"{cohort}: with --unit slide {len(leaks)} cases (the first is '{leaks[0]}') would stand in train and test at once, "
            "so the test set would not be unseen. Use --unit case."
        )
    fold_maker.write_folds(loaded, made, kind="partition" if parts is None else "official")
    rows = [(fold.index, *(len(fold.slides(part)) for part in fold_maker.PARTS)) for fold in made]
    print_table(f"{cohort}: slides per part", ("fold", *fold_maker.PARTS), rows)
    say(f"next: gcemil train {shlex.quote(str(cohort))} --out runs/{loaded.folder.resolve().name}")
