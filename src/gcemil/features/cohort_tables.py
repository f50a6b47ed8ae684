"""A folder of features becomes a cohort: cohort.yaml and slides.csv from a label table, or from the drawing of the slides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gcemil.bags import store
from gcemil.bags.arrays import stated_number
from gcemil.bags.cohort import Cohort, CohortCard, feature_file, parse_slide
from gcemil.bags.foreign.label_tables import LabelTable, choose_classes
from gcemil.bags.patching import patches_path, read_patch_file
from gcemil.bags.tables import read_table
from gcemil.errors import CohortError, StoreError
from gcemil.features.encoders import PatchEncoder
from gcemil.simulation.pixels import PIXEL_CARD, read_encoded_card, write_pixel_truth
from gcemil.slides.grid import PatchSettings


@dataclass(frozen=True)
class CohortTables:
    """What was written, and what a reader should know about it."""

    n_slides: int
    lines: tuple[str, ...] = ()


def write_cohort_tables(
    out: Path,
    encoder: PatchEncoder,
    table: LabelTable,
    *,
    classes: Sequence[str] | None = None,
) -> CohortTables:
    """cohort.yaml and slides.csv for the slides that have both features and a label."""
    # A slide that failed is left out here and named among the lines.
    rows = [row for row in table.rows if feature_file(out, row.slide_id).is_file()]
    if not rows:
        raise CohortError(
            f"No slide of {table.path} ('{table.rows[0].slide_id}' …) has features in {out / 'features'}. "
            "The ids must be equal once known extensions are taken off."
        )
    known = {path.stem for path in (out / "features").glob("*.h5")}
    labelled = {row.slide_id for row in table.rows}
    lines = [
        *table.assumptions,
        *(f"left out: {line}" for line in table.excluded),
        *(f"label without features: {name}" for name in sorted(labelled - known)),
        *(f"features without label: {name}" for name in sorted(known - labelled)),
    ]
    card = CohortCard(
        name=out.resolve().name,
        task=table.task,
        classes=choose_classes(table, rows, classes),
        feature_dim=encoder.spec.dim,
        encoder=encoder.name,
        patch_size_level0=_common_size([_read_patch_size(feature_file(out, row.slide_id)) for row in rows]),
        provenance={"encoder_fingerprint": encoder.fingerprint, "labels": table.path.name, "notes": lines},
    )
    return _save_cohort(Cohort(out, card, tuple(rows)), lines)


def write_drawn_tables(out: Path, encoder: PatchEncoder, patches: PatchSettings) -> CohortTables:
    """The same for drawn slides, which bring their labels along; the truth of every patch is written too."""
    table = read_table(out / "slides.csv")
    drawn = [row["slide_id"] for row in table]
    grids = {
        name: read_patch_file(patches_path(out, patches, name))
        for name in drawn
        if feature_file(out, name).is_file()
    }
    for name, grid in grids.items():
        write_pixel_truth(out, name, grid)
    side = _common_size([int(grid.patch_size_level0) for grid in grids.values()])
    if side is None:
        raise CohortError(
            f"The slides of {out} have no features, or patches of several sizes. Encode them again."
        )
    card = read_encoded_card(out, feature_dim=encoder.spec.dim, encoder=encoder.name, patch_size_level0=side)
    rows = tuple(parse_slide(row, card, out) for row in table)
    missing = tuple(f"drawn but without features: {name}" for name in drawn if name not in grids)
    return _save_cohort(Cohort(out, card, rows), missing)


def is_drawn(out: Path) -> bool:
    """Whether `gcemil simulate --pixels` made this folder."""
    return (out / PIXEL_CARD).is_file()


def _save_cohort(cohort: Cohort, lines: Sequence[str]) -> CohortTables:
    cohort.save()
    return CohortTables(len(cohort.slides), tuple(lines))


def _read_patch_size(path: Path) -> int:
    size = stated_number(store.attributes(path, "coords"), "patch_size_level0")
    if size is None:
        raise StoreError(
            f"{path}: 'coords' has no attribute 'patch_size_level0' that is a number. Make it again with 'gcemil encode --force'."
        )
    return round(size)


def _common_size(sizes: Sequence[int]) -> int | None:
    """The side that all slides share; None where scanners differ."""
    found = set(sizes)
    return found.pop() if len(found) == 1 else None
