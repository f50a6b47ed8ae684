"""From slide files to a cohort folder: patches, features, and labels where they are known.

cohort.yaml and slides.csv come from a label table, or from the simulation that drew the slides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gcemil.bags.cohort import (
    Cohort,
    CohortCard,
    feature_file,
    find_slide_file,
    raise_first,
    read_slide_attributes,
    read_slides,
)
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.label_tables import LabelTable, choose_classes, read_labels
from gcemil.bags.store import stated_number
from gcemil.bags.tables import read_table
from gcemil.errors import CohortError, GcemilError, UsageError
from gcemil.features.encoders import EncoderSpec, PatchEncoder
from gcemil.features.extract import EncodeSettings, encode_slides
from gcemil.features.loaders import WeightSource
from gcemil.features.patching import (
    PATCHES_SUFFIX,
    BatchReport,
    OnSlide,
    PatchingRules,
    patches_path,
    read_patch_file,
)
from gcemil.files import read_yaml, validate_as
from gcemil.simulation.pixels import PIXEL_CARD, write_pixel_truth
from gcemil.slides.grid import PatchSettings
from gcemil.slides.reader import ANY_EXTENSIONS

SEVERAL_FILES = (".mrxs", ".vms", ".vmu", ".dcm", ".vsi")
"""Slides of which the file that is named is only one."""


@dataclass(frozen=True)
class CohortTables:
    """The number of labelled slides, and notes about them."""

    n_slides: int
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class EncodedCohort:
    """The outcome of every slide, and of the labels."""

    report: BatchReport
    tables: CohortTables | None
    """None where no labels are known."""
    notes: tuple[str, ...]
    has_troubles: bool
    """Whether a slide failed or a file beside the features could not be written."""


def encode_cohort(
    slides: Mapping[str, Path],
    out: Path,
    network: PatchEncoder,
    rules: PatchingRules,
    settings: EncodeSettings,
    *,
    labels: Path | None = None,
    choice: Choice = Choice(),
    classes: Sequence[str] | None = None,
    force: bool = False,
    on_slide: OnSlide,
    cluster: str | None = None,
    source: WeightSource | None = None,
) -> EncodedCohort:
    """Write every slide as features to `out`; a failed slide does not stop the others."""
    report = encode_slides(
        slides,
        out,
        network,
        settings,
        rules=rules,
        force=force,
        on_slide=on_slide,
        cluster=cluster,
        source=source,
    )
    link_slides(slides, out)
    # An encoder does best on what it was trained on.
    usual, side = network.spec.patch_px * 0.5, rules.patches.side
    notes, troubles, tables = [], report.notes, None
    if abs(side - usual) >= 1:
        notes.append(
            f"note: '{network.name}' is usually given patches of {usual:g} micrometres; "
            f"these have {side:g}."
        )
    try:
        if report.usable and labels is not None:
            names = [path.stem for path in sorted((out / "features").glob("*.h5"))]
            table = read_labels(labels, choice=choice, slide_ids=names)
            tables = write_cohort_tables(out, network, table, classes=classes)
        elif report.usable and (out / PIXEL_CARD).is_file():
            tables = write_drawn_tables(out, network, rules.patches)
    except GcemilError as error:
        # Labels may not fit because slides are missing, which is then what has to be known first.
        if not report.problems:
            raise
        troubles += (str(error),)
    return EncodedCohort(report, tables, (*notes, *troubles), bool(report.problems or troubles))


def link_slides(slides: Mapping[str, Path], out: Path) -> None:
    """Link slides/<slide> for viewer and report; a slide that lies there already stays.

    The other files of a format of several are found beside the first, so it cannot be a link.
    """
    for slide_id, path in slides.items():
        suffix = next((one for one in ANY_EXTENSIONS if path.name.lower().endswith(one)), None)
        if suffix is None or suffix in SEVERAL_FILES or find_slide_file(out, slide_id) is not None:
            continue
        link = out / "slides" / f"{slide_id}{suffix}"
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_symlink():
                link.unlink()
            link.symlink_to(path.resolve())
        except OSError:
            # Without links the viewer takes --slides.
            return


def choose_patches(
    out: Path, spec: EncoderSpec, *, patch_size: int | None, target_mpp: float
) -> PatchSettings:
    """The patches that lie in the folder, or those to be made."""
    first = {
        path.parent: path
        for path in sorted(out.glob(f"*_overlap/patches/*{PATCHES_SUFFIX}"), reverse=True)
        if patch_size is None or f"_{patch_size}px_" in path.parent.parent.name
    }
    if len(first) > 1:
        names = ", ".join(folder.parent.name for folder in first)
        raise UsageError(
            f"{out} holds patches of several kinds ({names}). Choose with --patch-size, or another "
            "--out."
        )
    for path in first.values():
        return read_patch_file(path).settings
    return PatchSettings(patch_size or spec.patch_px, target_mpp)


def write_cohort_tables(
    out: Path, encoder: PatchEncoder, table: LabelTable, *, classes: Sequence[str] | None = None
) -> CohortTables:
    """cohort.yaml and slides.csv for the slides that have both features and a label."""
    # A slide that failed is left out here and named among the lines.
    rows = [row for row in table.rows if feature_file(out, row.slide_id).is_file()]
    if not rows:
        raise CohortError(
            f"No slide of {table.path} ('{table.rows[0].slide_id}' …) has features in "
            f"{out / 'features'}. The ids must be equal once known extensions are taken off."
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
        patch_size_level0=_common_size(
            stated_number(read_slide_attributes(out, row.slide_id), "patch_size_level0")
            for row in rows
        ),
        provenance={
            "encoder_fingerprint": encoder.fingerprint,
            "labels": table.path.name,
            "notes": lines,
        },
    )
    Cohort(out, card, tuple(rows)).save()
    return CohortTables(len(rows), tuple(lines))


def write_drawn_tables(out: Path, encoder: PatchEncoder, patches: PatchSettings) -> CohortTables:
    """The same for drawn slides, which have labels, and the truth of every patch."""
    table = read_table(out / "slides.csv")
    drawn = [row["slide_id"] for row in table]
    grids = {
        name: read_patch_file(patches_path(out, patches, name))
        for name in drawn
        if feature_file(out, name).is_file()
    }
    for name, grid in grids.items():
        write_pixel_truth(out, name, grid)
    side = _common_size(grid.patch_size_level0 for grid in grids.values())
    if side is None:
        raise CohortError(
            f"The slides of {out} have no features, or patches of several sizes. Encode them again."
        )
    stated = read_yaml(out / PIXEL_CARD)
    made = {"feature_dim": encoder.spec.dim, "encoder": encoder.name, "patch_size_level0": side}
    card = validate_as(
        {**stated, **made} if isinstance(stated, dict) else stated,
        CohortCard,
        out / PIXEL_CARD,
        error=CohortError,
        remedy="Simulate the slides again.",
    )
    rows, problems = read_slides(table, card)
    raise_first(problems, out / "slides.csv")
    missing = tuple(f"drawn but without features: {name}" for name in drawn if name not in grids)
    Cohort(out, card, tuple(rows)).save()
    return CohortTables(len(rows), missing)


def _common_size(sizes: Iterable[float | None]) -> int | None:
    """The side that all slides share; None where scanners differ."""
    distinct = set(sizes)
    size = distinct.pop() if len(distinct) == 1 else None
    return None if size is None else round(size)
