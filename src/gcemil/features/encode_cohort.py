"""From slide files to a cohort folder: patch what has no patches, encode, and add the labels where they are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gcemil.bags.cohort import find_slide_file
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.label_tables import read_labels
from gcemil.bags.patching import (
    PATCHES_SUFFIX,
    PatchingRules,
    known_outcome,
    patches_path,
    read_patch_file,
    read_summary,
    summary_file,
    try_patching,
    write_summary,
)
from gcemil.errors import GcemilError, UsageError
from gcemil.features.cohort_tables import CohortTables, is_drawn, write_cohort_tables, write_drawn_tables
from gcemil.features.encoders import EncoderSpec, PatchEncoder
from gcemil.features.extract import EncodeSettings, EncodingReport, encode_slides
from gcemil.slides.grid import PatchSettings
from gcemil.slides.reader import SLIDE_EXTENSIONS

SEVERAL_FILES = (".mrxs", ".vms", ".vmu", ".dcm", ".vsi")
"""Slides of which the file that is named is only one."""
ShowProgress = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Opens a progress bar with this title; what it gives is told (done, total)."""


@dataclass(frozen=True)
class LabelSource:
    """A label table, and what it leaves open."""

    path: Path
    choice: Choice
    classes: Sequence[str] | None = None
    """Class names in order; None takes those of the table."""


@dataclass(frozen=True)
class EncodedCohort:
    """What became of every slide, and of the labels."""

    report: EncodingReport
    failures: dict[str, str]
    """Why each slide without features has none, and what to do."""
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
    labels: LabelSource | None = None,
    force: bool = False,
    progress: ShowProgress,
) -> EncodedCohort:
    """Every slide as features in `out`; one that fails is reported and does not stop the others."""
    unpatched, remarks = _patch_missing(slides, out, rules, progress)
    with progress("encoding slides") as advance:
        report = encode_slides(
            dict(slides), out, network, settings, patches=rules.patches, force=force, on_slide=advance
        )
    link_slides(slides, out)
    troubles = (*remarks, *report.notes)
    tables = None
    try:
        if report.usable:
            tables = _write_tables(out, network, rules.patches, labels)
    except GcemilError as error:
        # Labels may not fit because slides are missing, which is then what has to be known first.
        if not report.problems:
            raise
        troubles += (str(error),)
    return EncodedCohort(
        report=report,
        failures={slide.slide_id: unpatched.get(slide.slide_id, slide.message) for slide in report.problems},
        tables=tables,
        notes=(*_note_unusual_size(network, rules.patches), *troubles),
        has_troubles=bool(report.problems or troubles),
    )


def link_slides(slides: Mapping[str, Path], out: Path) -> None:
    """slides/<slide> as links, so that viewer and report show tissue; a slide that lies there already stays.

    A format of several files is read by where its first file lies, so it cannot be a link.
    """
    for slide_id, path in slides.items():
        suffix = next((one for one in SLIDE_EXTENSIONS if path.name.lower().endswith(one)), None)
        if suffix is None or suffix in SEVERAL_FILES or find_slide_file(out, slide_id) is not None:
            continue
        link = out / "slides" / f"{slide_id}{suffix}"
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_symlink():
                link.unlink()
            link.symlink_to(path.resolve())
        except OSError:
            # Features are what was asked for; without links the viewer takes --slides.
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
            f"{out} holds patches of several kinds ({names}). Choose with --patch-size, or another --out."
        )
    for path in first.values():
        return read_patch_file(path).settings
    return PatchSettings(patch_size or spec.patch_px, target_mpp)


def _note_unusual_size(network: PatchEncoder, patches: PatchSettings) -> tuple[str, ...]:
    """An encoder sees best what it was trained on, so patches of another physical size are mentioned."""
    usual = network.spec.patch_px * 0.5
    if abs(patches.side - usual) < 1:
        return ()
    return (
        f"note: '{network.name}' is usually given patches of {usual:g} micrometres; these have {patches.side:g}.",
    )


def _patch_missing(
    slides: Mapping[str, Path], out: Path, rules: PatchingRules, progress: ShowProgress
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Patch the slides that have no patches yet; why some still have none, and what went wrong with the summary."""
    missing = {
        name: path for name, path in slides.items() if not patches_path(out, rules.patches, name).is_file()
    }
    outcomes = []
    with progress("patching slides") as advance:
        for done, (slide_id, path) in enumerate(missing.items(), start=1):
            outcomes.append(try_patching(path, slide_id, out, rules, force=False))
            advance(done, len(missing))
    notes: tuple[str, ...] = ()
    new = {outcome.slide_id: outcome for outcome in outcomes}
    # A complete summary stays as it is; one that a killed or failed command left unfinished is made anew.
    if any(not outcome.is_problem for outcome in outcomes) or not summary_file(out, rules.patches).is_file():
        everyone = read_summary(out, rules.patches) | {
            name: new.get(name) or known_outcome(patches_path(out, rules.patches, name), name)
            for name in slides
        }
        notes = write_summary(out, rules.patches, [everyone[name] for name in sorted(everyone)])
    return {outcome.slide_id: outcome.message for outcome in outcomes if outcome.is_problem}, notes


def _write_tables(
    out: Path, network: PatchEncoder, patches: PatchSettings, labels: LabelSource | None
) -> CohortTables | None:
    """cohort.yaml and slides.csv where the labels are known."""
    if labels is not None:
        names = [path.name.removesuffix(".h5") for path in sorted((out / "features").glob("*.h5"))]
        table = read_labels(labels.path, choice=labels.choice, slide_ids=names)
        return write_cohort_tables(out, network, table, classes=labels.classes)
    return write_drawn_tables(out, network, patches) if is_drawn(out) else None
