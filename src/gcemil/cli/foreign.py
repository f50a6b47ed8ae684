"""gcemil inspect and gcemil import: what other tools wrote is described, or becomes a cohort."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path

import typer


class Task(StrEnum):
    """What a label table is read for."""

    classification = "classification"
    survival = "survival"


def inspect(
    path: Path = typer.Argument(help="Any file or folder."),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> None:
    """Say what a file or folder is (CLAM, TRIDENT, STAMP, torchmil, ours), and the command to use it with.

    Example: gcemil inspect trident_job/20x_256px_0px_overlap/features_uni_v1
    """
    from gcemil.bags.foreign.inspect import PLACEHOLDERS
    from gcemil.bags.foreign.inspect import inspect as inspect_path
    from gcemil.cli.console import print_json, print_table, say

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
    source: Path = typer.Argument(help="A features folder of CLAM, TRIDENT, STAMP or torchmil."),
    out: Path = typer.Option(..., help="The cohort folder to write."),
    labels: Path | None = typer.Option(
        None, help="The label table (CSV, TSV, XLSX), in any of the known dialects."
    ),
    slide_table: Path | None = typer.Option(None, help="STAMP: the table that joins patients and files."),
    recipe: str | None = typer.Option(
        None, help="A dataset of the paper, such as bracs: its official table and classes."
    ),
    task: Task | None = typer.Option(None, help="Where the table allows both."),
    target: str | None = typer.Option(None, help="The label column, where there are several."),
    time: str | None = typer.Option(None, help="The time column, where there are several."),
    event: str | None = typer.Option(None, help="The event column, where there are several."),
    endpoint: str | None = typer.Option(None, help="The survival endpoint, such as os or dss."),
    classes: str | None = typer.Option(None, help="Class names in order, separated by commas."),
    splits: Path | None = typer.Option(None, help="The tool's split files, to be taken over."),
    official_split: bool = typer.Option(
        False, "--official-split", help="Recipe with an official test set (camelyon16): take it as fold 0."
    ),
    copy: bool = typer.Option(False, "--copy", help="Copy features instead of linking to them."),
    patch_size: int | None = typer.Option(
        None, min=1, help="Patch size in level-0 pixels, where no file tells."
    ),
    mpp: str | None = typer.Option(
        None,
        help="Micrometres per level-0 pixel, or a table of slide_id, mpp; for coordinates in micrometres.",
    ),
    encoder: str | None = typer.Option(
        None, help="Which features, where a job has those of several encoders."
    ),
    coords_dir: Path | None = typer.Option(None, help="CLAM: the folder of coordinate files."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Write a cohort from another tool's features and labels; every assumption is printed and recorded.

    Example: gcemil import trident_job --labels labels.csv --out cohorts/mine
    """
    from gcemil.bags.foreign.cohort_import import import_cohort
    from gcemil.bags.foreign.recipes import import_recipe
    from gcemil.bags.foreign.stamp import parse_mpp
    from gcemil.cli.console import print_json, say
    from gcemil.errors import UsageError

    resolution = None if mpp is None else parse_mpp(mpp)
    if recipe is not None:
        report = import_recipe(
            recipe,
            source,
            out,
            labels=labels,
            splits=splits,
            official_split=official_split,
            copy=copy,
            patch_size=patch_size,
            mpp=resolution,
            encoder=encoder,
            coords_dir=coords_dir,
        )
    elif official_split:
        raise UsageError("--official-split is that of a dataset of the paper: add --recipe camelyon16.")
    else:
        report = import_cohort(
            source,
            out,
            labels=labels,
            slide_table=slide_table,
            task=None if task is None else task.value,
            target=target,
            time=time,
            event=event,
            endpoint=endpoint,
            classes=None if classes is None else classes.split(","),
            splits=splits,
            copy=copy,
            patch_size=patch_size,
            mpp=resolution,
            encoder=encoder,
            coords_dir=coords_dir,
        )
    if as_json:
        print_json(asdict(report))
        return
    for line in report.lines():
        say(line)
    folder = shlex.quote(str(out))
    say(
        f"next: gcemil train {folder} --out runs/{out.resolve().name}"
        if report.n_folds
        else f"next: gcemil split {folder}"
    )
