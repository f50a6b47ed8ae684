"""gcemil patch: from slides to the places of their patches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer


def patch(
    slides: list[Path] = typer.Argument(help="Slide files, or folders of them."),
    out: Path = typer.Option(..., help="The folder to write: a cohort's, or any other."),
    patch_size: int = typer.Option(256, min=8, help="Side of a patch in pixels of the encoder's image."),
    target_mpp: float = typer.Option(0.5, help="Micrometres per pixel of a patch: 0.5 is 20x, 0.25 is 40x."),
    overlap: int = typer.Option(0, min=0, help="Pixels that neighbouring patches share."),
    min_tissue: float = typer.Option(0.25, help="Smallest share of tissue in a patch that is kept."),
    mpp: str | None = typer.Option(
        None,
        help="Micrometres per level-0 pixel for slides that do not state it, or a table of slide_id, mpp that overrules them.",
    ),
    masks: Path | None = typer.Option(
        None,
        help="A folder of masks, <slide>.png or <slide>.geojson, used in place of the tissue segmenter.",
    ),
    force: bool = typer.Option(False, "--force", help="Do slides again that were done with other settings."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome of every slide as JSON."),
) -> None:
    """Find the tissue of every slide and write where its patches lie, with pictures to check.

    Patches have a physical size, whatever the scanner. Coordinates are written in TRIDENT's layout. A slide that
    fails is listed at the end and does not stop the others; the command then exits with 1. Run again, it goes on
    where it stopped.

    Example: gcemil patch slides/ --out cohorts/mine
    """
    from gcemil.bags.foreign.stamp import parse_mpp
    from gcemil.bags.patching import PatchingRules, patch_slides
    from gcemil.cli.console import print_json, print_table, progress, say
    from gcemil.errors import UsageError
    from gcemil.files import working_in
    from gcemil.slides.grid import PatchSettings

    if masks is not None and not masks.is_dir():
        raise UsageError(f"{masks} is no folder of masks. It should hold <slide>.png or <slide>.geojson.")
    rules = PatchingRules(
        patches=PatchSettings(patch_size, target_mpp, overlap, min_tissue),
        masks=masks,
        mpp=None if mpp is None else parse_mpp(mpp),
    )
    with working_in(out), progress("patching slides") as advance:
        report = patch_slides(slides, out, rules, force=force, on_slide=advance)
    if as_json:
        print_json({"slides": [asdict(slide) for slide in report.slides], "notes": report.notes})
    else:
        total = sum(slide.patches for slide in report.slides)
        fine = len(report.slides) - len(report.problems)
        say(f"{out}: {total} patches of {fine} slides. Look at {out / 'contact_sheets'}.")
        if report.problems:
            rows = [(slide.slide_id, slide.status, slide.message) for slide in report.problems]
            print_table(
                f"Slides without patches: {len(rows)}", ("slide", "status", "why and what to do"), rows
            )
        for note in report.notes:
            say(note)
    raise typer.Exit(1 if report.problems or report.notes else 0)
