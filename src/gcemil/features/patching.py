"""Slides to coordinates, thumbnails and pictures for checking: `gcemil encode --patches-only`.

The coordinates of a slide are written last and atomically, so a slide that has them is done and an
interrupted batch continues where it stopped. A slide that fails is a line in the result and does
not stop the others.

<out>/<mag>x_<px>px_<overlap>px_overlap/
  patches/<slide>_patches.h5             coordinates in TRIDENT's layout
  patching.csv                           per slide: patches, pixel size, what went wrong
<out>/thumbnails/<slide>.jpg             the slide
<out>/contours/<slide>.jpg               what was kept of it
<out>/contours_geojson/<slide>.geojson   the tissue's outlines for QuPath
<out>/contact_sheets/sheet_<k>.jpg       all slides at a glance

The patch files have TRIDENT's attributes on `coords`. `patch_size` counts pixels at the target
magnification, `patch_size_level0` those of the slide. Magnifications are nominal; `level0_mpp` and
`target_mpp`, which TRIDENT does not write, are exact.

Coordinates count from the corner of the whole file, as TRIDENT's and OpenSlide's do. QuPath and our
thumbnails show the scanned part only, which `bounds_x`, `_y`, `_width` and `_height` give.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gcemil.bags import store
from gcemil.bags.fingerprint import file_fingerprint
from gcemil.bags.foreign.source import plain_id
from gcemil.bags.store import read_coords
from gcemil.errors import GcemilError, InputError, StoreError, UsageError, describe_failure
from gcemil.files import write_table, write_text
from gcemil.slides.grid import PatchGrid, PatchSettings, patch_grid, probe_patches
from gcemil.slides.mask_files import find_mask_file, read_mask, tissue_geojson
from gcemil.slides.reader import (
    ANY_EXTENSIONS,
    SLIDE_EXTENSIONS,
    SlideReader,
    join_series,
    magnification,
    open_slide,
)
from gcemil.slides.thumbnails import (
    SheetEntry,
    draw_contact_sheets,
    draw_kept_tissue,
    read_thumbnail,
    save_jpeg,
)
from gcemil.slides.tissue import TissueSettings, find_tissue
from gcemil.wording import near_path

PATCHES_SUFFIX = "_patches.h5"
PATCH_NUMBERS = ("level0_mpp", "target_mpp", "min_tissue", "patch_size", "overlap")
"""Attributes of the coordinates without which patches cannot be read from a slide."""
OnSlide = Callable[[int, int], None]
"""Is called with the slides done and all slides."""
Status = Literal["patched", "encoded", "already done", "no tissue", "failed"]
COLUMNS = ("slide_id", "status", "patches", "mpp", "message")


def patches_path(out: Path, settings: PatchSettings, slide_id: str) -> Path:
    """Where the patch file of a slide lies."""
    return out / settings.folder_name / "patches" / f"{slide_id}{PATCHES_SUFFIX}"


def write_patch_file(
    path: Path, grid: PatchGrid, slide: SlideReader, slide_id: str, origin: Mapping[str, str]
) -> None:
    """Coordinates and attributes of one slide in a file that appears whole or not at all."""
    settings = grid.settings
    width, height = slide.dimensions
    attributes: dict[str, str | int | float | bool] = {
        "patch_size": settings.patch_px,
        "patch_size_level0": int(grid.patch_size_level0),
        "level0_magnification": magnification(grid.mpp),
        "target_magnification": magnification(settings.target_mpp),
        "overlap": settings.overlap_px,
        "name": slide_id,
        "savetodir": path.parent.parent.name,
        "level0_width": width,
        "level0_height": height,
        "bounds_x": int(slide.bounds.x),
        "bounds_y": int(slide.bounds.y),
        "bounds_width": int(slide.bounds.width),
        "bounds_height": int(slide.bounds.height),
        "level0_mpp": grid.mpp,
        "target_mpp": settings.target_mpp,
        "min_tissue": settings.min_tissue,
        **origin,
    }
    datasets: dict[str, store.Array] = {
        "coords": grid.coords.astype(np.int64),
        "tissue_share": grid.tissue_share.astype(np.float32),
    }
    store.write(path, datasets, dataset_attributes={"coords": attributes})


def read_patch_file(path: Path) -> PatchGrid:
    """The grid of a file that `gcemil encode --patches-only` wrote."""

    def name_missing(key: str) -> StoreError:
        return StoreError(
            f"{path}: 'coords' has no attribute '{key}' that is a number, so the pixel size is "
            "unknown. Make it again with 'gcemil encode --patches-only'."
        )

    stated = store.attributes(path, "coords")
    settings = stated_settings(stated, name_missing)
    share = store.read(path, "tissue_share").astype(np.float64)
    return PatchGrid(read_coords(path), settings, float(stated["level0_mpp"]), share)


def stated_settings(
    attributes: Mapping[str, Any], name_missing: Callable[[str], GcemilError]
) -> PatchSettings:
    """How the patches were cut; `name_missing` makes the error for a number that is missing."""
    for key in PATCH_NUMBERS:
        value = attributes.get(key)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise name_missing(key)
    return PatchSettings(
        patch_px=int(attributes["patch_size"]),
        target_mpp=float(attributes["target_mpp"]),
        overlap_px=int(attributes["overlap"]),
        min_tissue=float(attributes["min_tissue"]),
    )


@dataclass(frozen=True)
class PatchingRules:
    """Everything that decides which patches a slide gets."""

    patches: PatchSettings = field(default_factory=PatchSettings)
    tissue: TissueSettings = field(default_factory=TissueSettings)
    masks: Path | None = None
    """A folder of masks in place of the segmenter."""
    mpp: float | Mapping[str, float] | None = None
    """Pixel size for slides that state none, or a table by slide id that overrules them."""


@dataclass(frozen=True)
class SlideOutcome:
    """The outcome of patching or encoding one slide."""

    slide_id: str
    status: Status
    patches: int = 0
    message: str = ""
    mpp: float | None = None
    """The pixel size by which the slide was patched."""

    @property
    def is_problem(self) -> bool:
        """Whether the slide has no patches, or no features."""
        return self.status in {"no tissue", "failed"}


@dataclass(frozen=True)
class BatchReport:
    """The outcomes of a batch."""

    slides: tuple[SlideOutcome, ...]
    notes: tuple[str, ...] = ()
    """What concerns the batch as a whole, such as a summary that could not be written."""

    @property
    def problems(self) -> tuple[SlideOutcome, ...]:
        """The slides that need attention."""
        return tuple(slide for slide in self.slides if slide.is_problem)

    @property
    def usable(self) -> tuple[str, ...]:
        """Slides that have them now."""
        return tuple(slide.slide_id for slide in self.slides if not slide.is_problem)


def patch_slides(
    sources: Iterable[Path],
    out: Path,
    rules: PatchingRules | None = None,
    *,
    force: bool = False,
    on_slide: OnSlide = lambda done, total: None,
) -> BatchReport:
    """Patch every slide of these files and folders; `force` replaces patches of other settings."""
    chosen, slides = rules or PatchingRules(), find_slides(sources)
    outcomes = []
    for slide_id, path in slides.items():
        outcomes.append(catch_failure(patch_slide, path, slide_id, out, chosen, force=force))
        on_slide(len(outcomes), len(slides))
    return BatchReport(tuple(outcomes), write_summary(out, chosen.patches, outcomes))


def find_slides(sources: Iterable[Path]) -> dict[str, Path]:
    """Slide id → file, in the order of ids; a folder is searched with all its folders."""
    files: list[Path] = []
    sources = list(sources)
    for source in sources:
        if source.is_dir():
            names = (path for path in source.rglob("*") if not path.name.startswith("."))
            visible = [
                path
                for path in names
                if path.name.lower().endswith(ANY_EXTENSIONS) and path.is_file()
            ]
            scans = [path for path in visible if path.name.lower().endswith(SLIDE_EXTENSIONS)]
            files += scans or visible
        elif source.is_file():
            files.append(source)
        else:
            raise UsageError(
                f"{source} does not exist.{near_path(source)} Give slide files, or a folder of "
                "them."
            )
    slides: dict[str, Path] = {}
    for given, path in join_series(sorted(files)):
        name = plain_id(given)
        if slides.setdefault(name, path) != path:
            raise UsageError(
                f"{slides[name]} and {path} would both be slide '{name}'. Rename one of them."
            )
    if not slides:
        where = ", ".join(map(str, sources))
        raise UsageError(
            f"No slides found in {where}. Slides are files that end in {', '.join(ANY_EXTENSIONS)}."
        )
    return dict(sorted(slides.items()))


def catch_failure(
    work: Callable[..., SlideOutcome], path: Path, slide_id: str, *arguments: Any, **options: Any
) -> SlideOutcome:
    """The outcome of this work on a slide, or a failed one: an error does not stop the others."""
    try:
        return work(path, slide_id, *arguments, **options)
    # A format can break a library in ways no list foresees.
    except Exception as error:
        return SlideOutcome(slide_id, "failed", message=describe_failure(error, path))


def patch_slide(
    path: Path, slide_id: str, out: Path, rules: PatchingRules, *, force: bool = False
) -> SlideOutcome:
    """Coordinates and pictures of one slide, unless it has them already."""
    mask = None if rules.masks is None else find_mask_file(rules.masks, slide_id)
    origin = {
        "slide_fingerprint": file_fingerprint(path),
        "rules_fingerprint": rules_fingerprint(rules, mask),
    }
    target = patches_path(out, rules.patches, slide_id)
    table = rules.mpp if isinstance(rules.mpp, Mapping) else {}
    fallback = None if isinstance(rules.mpp, Mapping) else rules.mpp
    with open_slide(path, mpp=table.get(slide_id), fallback_mpp=fallback) as slide:
        if target.is_file() and not force:
            # Patches of an earlier run must come from the same slide by the same rules.
            stated, mpp = store.attributes(target, "coords"), slide.mpp
            names = {
                "slide_fingerprint": "another slide",
                "rules_fingerprint": "other settings",
                "level0_mpp": f"another pixel size ({stated.get('level0_mpp')} then, {mpp} now)",
            }
            for key, value in {**origin, "level0_mpp": mpp}.items():
                if stated.get(key) != value:
                    raise InputError(
                        f"{target} was made from {names[key]}. Add --force to replace it, or "
                        "choose another --out; features made from it must be made again."
                    )
            return known_outcome(target, slide_id)
        tissue = find_tissue(slide, rules.tissue) if mask is None else read_mask(mask, slide)
        grid = patch_grid(slide, tissue, rules.patches)
        if len(grid):
            probe_patches(slide, grid)
        small, outlines = read_thumbnail(slide), tissue_geojson(tissue, slide_id)
        save_jpeg(out / "thumbnails" / f"{slide_id}.jpg", small)
        save_jpeg(out / "contours" / f"{slide_id}.jpg", draw_kept_tissue(small, tissue, grid))
        write_text(out / "contours_geojson" / f"{slide_id}.geojson", json.dumps(outlines))
        if not len(grid):
            if tissue.kept.any():
                why = f"No whole patch holds {rules.patches.min_tissue:.0%} tissue"
            else:
                why = (
                    "The segmenter found no tissue" if mask is None else f"The mask {mask} is empty"
                )
            why += (
                ". Look at the picture in contours/, then give a mask with --masks or leave the "
                "slide out."
            )
            return SlideOutcome(slide_id, "no tissue", message=why, mpp=slide.mpp)
        write_patch_file(target, grid, slide, slide_id, origin)
    return SlideOutcome(slide_id, "patched", len(grid), mpp=grid.mpp)


def rules_fingerprint(rules: PatchingRules, mask: Path | None) -> str:
    """Hash of all that decides which patches a slide gets, apart from its pixel size."""
    content = {
        "patches": asdict(rules.patches),
        "tissue": asdict(rules.tissue) if mask is None else file_fingerprint(mask),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_summary(
    out: Path, settings: PatchSettings, outcomes: Sequence[SlideOutcome]
) -> tuple[str, ...]:
    """Write the contact sheets, then the table; a note if that fails."""
    try:
        entries = []
        for outcome in outcomes:
            name, is_fault = outcome.slide_id, outcome.is_problem
            detail = outcome.status if is_fault else f"{outcome.patches} patches"
            picture = None if outcome.status == "failed" else out / "contours" / f"{name}.jpg"
            entries.append(SheetEntry(f"{name}\n{detail}", picture, is_fault=is_fault))
        for number, sheet in enumerate(draw_contact_sheets(entries)):
            save_jpeg(out / "contact_sheets" / f"sheet_{number}.jpg", sheet)
        write_outcomes(summary_file(out, settings), COLUMNS, outcomes, done="patched")
    except (OSError, StoreError) as error:
        return (f"The summary of {out} could not be written ({error}). Run the command again.",)
    return ()


def write_outcomes(
    path: Path, columns: Sequence[str], outcomes: Iterable[SlideOutcome], *, done: Status
) -> None:
    """A line per slide; what was already done is `done`."""
    rows = [{column: getattr(one, column) for column in columns} for one in outcomes]
    for row in rows:
        row["status"] = done if row["status"] == "already done" else row["status"]
    write_table(path, columns, rows)


def summary_file(out: Path, settings: PatchSettings) -> Path:
    """The table of outcomes of one kind of patch."""
    return out / settings.folder_name / "patching.csv"


def known_outcome(target: Path, slide_id: str) -> SlideOutcome:
    """A slide that was patched before, by whatever rules."""
    try:
        grid = read_patch_file(target)
    except GcemilError as error:
        return SlideOutcome(slide_id, "failed", message=str(error))
    return SlideOutcome(slide_id, "already done", len(grid), mpp=grid.mpp)
