"""gcemil annotate: outlines and masks of lesions become the truth of a cohort's patches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gcemil.bags.annotations.shapes import Role


def annotate(
    cohort: Path = typer.Argument(help="A cohort folder with coordinates."),
    annotations: Path = typer.Argument(
        help="A folder with <slide>.xml (ASAP), <slide>.geojson (QuPath), or <slide>_mask or <slide> as .tif, .tiff or .png."
    ),
    negative_class: str | None = typer.Option(
        None, help="The class whose slides have no lesion, such as normal; their files may be missing."
    ),
    min_overlap: float = typer.Option(
        0.01, help="Share of a patch inside the annotation that makes it evidence."
    ),
    group: list[str] = typer.Option(
        [],
        help="What a group of an ASAP file or a class of a GeoJSON file means, as name=tumour or name=exclusion; may be repeated. "
        "All classes of a GeoJSON file are tumour until one is named so.",
    ),
    downsample: float | None = typer.Option(
        None, help="Level-0 pixels per pixel of a mask; a pyramid knows it by itself."
    ),
    tumour_values: str | None = typer.Option(
        None, help="Values of a mask that mean tumour, such as 2 or 1,2; white on black needs none."
    ),
    mpp: str | None = typer.Option(
        None,
        help="Micrometres per level-0 pixel, or a table of slide_id, mpp; by default what the feature files say.",
    ),
    force: bool = typer.Option(False, "--force", help="Replace truth that exists already."),
    as_json: bool = typer.Option(False, "--json", help="Print what was written as JSON."),
) -> None:
    """Write truth/<slide>.h5 from annotations, so that 'gcemil diagnose' can say whether evidence lies on the lesions.

    Training never reads it. Slides without a file are left without truth, unless their label is the negative class; they
    are listed, and the command then exits with 1.

    Example: gcemil annotate cohorts/camelyon16 annotations/ --negative-class normal
    """
    from gcemil.bags.annotations.truth import MaskReading, write_truth
    from gcemil.bags.cohort import Cohort
    from gcemil.bags.foreign.stamp import parse_mpp
    from gcemil.cli.console import print_json, say

    report = write_truth(
        Cohort.load(cohort),
        annotations,
        negative_class=negative_class,
        min_overlap=min_overlap,
        roles=_parse_groups(group),
        masks=MaskReading(downsample, _parse_mask_values(tumour_values)),
        microns_per_pixel=None if mpp is None else parse_mpp(mpp),
        replace=force,
    )
    if as_json:
        print_json(asdict(report))
    else:
        for note in report.notes:
            say(note)
        say(
            f"{cohort}: {len(report.annotated)} slides annotated, {len(report.normal)} without a lesion, "
            f"{len(report.missing)} without truth."
        )
        if report.missing:
            say(f"Neither annotated nor of the negative class: {', '.join(report.missing)}.")
    raise typer.Exit(1 if report.missing else 0)


def _parse_groups(texts: list[str]) -> dict[str, Role]:
    """Groups by name, each with one of the two meanings."""
    from gcemil.errors import UsageError

    roles: dict[str, Role] = {}
    for text in texts:
        name, _, meaning = text.rpartition("=")
        if meaning == "tumour" and name:
            roles[name] = "tumour"
        elif meaning == "exclusion" and name:
            roles[name] = "exclusion"
        else:
            raise UsageError(f"A group is written name=tumour or name=exclusion, got '{text}'.")
    return roles


def _parse_mask_values(text: str | None) -> tuple[int, ...] | None:
    from gcemil.errors import UsageError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--tumour-values are whole numbers such as 2 or 1,2; got '{text}'.") from error
