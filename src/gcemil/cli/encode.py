"""gcemil encode: from slides to features, and to a cohort where labels are at hand."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gcemil.bags.patching import PatchingRules
    from gcemil.features.cohort_tables import CohortTables
    from gcemil.features.encoders import EncoderSpec, PatchEncoder
    from gcemil.slides.grid import PatchSettings


class Dtype(StrEnum):
    float16 = "float16"
    float32 = "float32"


class Task(StrEnum):
    classification = "classification"
    survival = "survival"


def encode(
    slides: list[Path] = typer.Argument(help="Slide files, or folders of them."),
    out: Path = typer.Option(..., help="The cohort folder to write."),
    encoder: str = typer.Option(
        "efficientnet_lite0", help="An encoder of docs/features.md, or any model of timm as timm:<name>."
    ),
    batch_size: int = typer.Option(32, min=1, help="Patches the model sees at once."),
    workers: int = typer.Option(2, min=1, help="Threads that read patches ahead of the model."),
    dtype: Dtype = typer.Option(Dtype.float16, help="Type of the features on disk."),
    device: str | None = typer.Option(None, help="cpu, cuda or cuda:1; a GPU is used where there is one."),
    weights: Path | None = typer.Option(None, help="A local copy of the model's page, in place of the hub."),
    trust_remote_code: bool = typer.Option(
        False, "--trust-remote-code", help="Run the Python code that comes with the model's page."
    ),
    patch_size: int | None = typer.Option(
        None, min=8, help="Side of a patch in pixels: that of the patches in --out, else the encoder's own."
    ),
    target_mpp: float = typer.Option(0.5, help="Micrometres per pixel of a patch: 0.5 is 20x."),
    mpp: float | None = typer.Option(
        None, help="Micrometres per level-0 pixel for slides that do not state it."
    ),
    labels: Path | None = typer.Option(
        None, help="The label table (CSV, TSV, XLSX); makes the folder a cohort."
    ),
    task: Task | None = typer.Option(None, help="Where the table allows both."),
    target: str | None = typer.Option(None, help="The label column, where there are several."),
    classes: str | None = typer.Option(None, help="Class names in order, separated by commas."),
    force: bool = typer.Option(False, "--force", help="Do slides again that were done with other settings."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome of every slide as JSON."),
) -> None:
    """Turn the patches of every slide into feature vectors; slides without patches are patched first.

    A slide that fails is listed at the end and does not stop the others; the command then exits with 1. Run again, it
    goes on where it stopped. One folder never mixes encoders.

    Example: gcemil encode slides/ --out cohorts/mine --labels labels.csv
    """
    from gcemil.bags.patching import PatchingRules, find_slides
    from gcemil.cli.console import print_json, print_table, progress, say
    from gcemil.errors import GcemilError
    from gcemil.features.encoders import find_encoder_spec, load_encoder
    from gcemil.features.extract import EncodeSettings, encode_slides
    from gcemil.features.loaders import WeightSource
    from gcemil.files import working_in
    from gcemil.runs.environment import pick_device

    if device is not None:
        pick_device(device)
    found = find_slides(slides)
    chosen = _patches(out, find_encoder_spec(encoder), patch_size, target_mpp)
    # The weights come first: a missing licence should be known before hours of patching.
    network = load_encoder(encoder, source=WeightSource(weights, trust_remote_code), device=device)
    with working_in(out):
        unpatched, remarks = _patch_missing(found, out, PatchingRules(patches=chosen, mpp=mpp))
        with progress("encoding slides") as advance:
            report = encode_slides(
                found,
                out,
                network,
                EncodeSettings(batch_size=batch_size, workers=workers, dtype=dtype.value),
                patches=chosen,
                force=force,
                on_slide=advance,
            )
        troubles = (*remarks, *report.notes)
        tables = None
        try:
            if report.usable:
                tables = _tables(out, network, chosen, labels, task, target, classes)
        except GcemilError as error:
            # Labels may not fit because slides are missing, which is then what has to be known first.
            if not report.problems:
                raise
            troubles += (str(error),)
        notes = (*_size_notes(network, chosen), *troubles)
    why = {slide.slide_id: unpatched.get(slide.slide_id, slide.message) for slide in report.problems}
    if as_json:
        rows = [{**asdict(slide), "message": why.get(slide.slide_id, "")} for slide in report.slides]
        print_json({"slides": rows, "notes": notes, "cohort": None if tables is None else asdict(tables)})
    else:
        total = sum(slide.patches for slide in report.slides)
        say(f"{out}: {total} patches of {len(report.usable)} slides as {network.name} features.")
        if why:
            print_table(
                f"Slides without features: {len(why)}", ("slide", "why and what to do"), [*why.items()]
            )
        for line in (*notes, *(tables.lines if tables else ())):
            say(line)
        say(_next(out, slides, tables))
    raise typer.Exit(1 if report.problems or troubles else 0)


def _patches(out: Path, spec: EncoderSpec, patch_size: int | None, target_mpp: float) -> PatchSettings:
    """The patches that lie in the folder, or those to be made."""
    from gcemil.bags.patching import PATCHES_SUFFIX, read_patch_file
    from gcemil.errors import UsageError
    from gcemil.slides.grid import PatchSettings

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


def _size_notes(network: PatchEncoder, patches: PatchSettings) -> tuple[str, ...]:
    """An encoder sees best what it was trained on: patches of another physical size are told."""
    usual = network.spec.patch_px * 0.5
    if abs(patches.side - usual) < 1:
        return ()
    return (
        f"note: '{network.name}' is usually given patches of {usual:g} micrometres; these have {patches.side:g}.",
    )


def _patch_missing(
    slides: dict[str, Path], out: Path, rules: PatchingRules
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Patch the slides that have no patches yet; why some still have none, and what went wrong with the summary."""
    from gcemil.bags.patching import (
        known_outcome,
        patches_path,
        read_summary,
        summary_file,
        try_patching,
        write_summary,
    )
    from gcemil.cli.console import progress

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
    # A summary that tells it all stays as it is; one that a killed or failed command left unfinished is made anew.
    if any(not outcome.is_problem for outcome in outcomes) or not summary_file(out, rules.patches).is_file():
        everyone = read_summary(out, rules.patches) | {
            name: new.get(name) or known_outcome(patches_path(out, rules.patches, name), name)
            for name in slides
        }
        notes = write_summary(out, rules.patches, [everyone[name] for name in sorted(everyone)])
    return {outcome.slide_id: outcome.message for outcome in outcomes if outcome.is_problem}, notes


def _tables(
    out: Path,
    network: PatchEncoder,
    patches: PatchSettings,
    labels: Path | None,
    task: Task | None,
    target: str | None,
    classes: str | None,
) -> CohortTables | None:
    """cohort.yaml and slides.csv where the labels are known."""
    from gcemil.bags.foreign.dialects import Choice
    from gcemil.bags.foreign.label_tables import read_labels
    from gcemil.features.cohort_tables import is_drawn, write_cohort_tables, write_drawn_tables

    if labels is not None:
        choice = Choice(task=None if task is None else task.value, target=target)
        table = read_labels(labels, choice=choice)
        return write_cohort_tables(
            out, network, table, classes=None if classes is None else classes.split(",")
        )
    return write_drawn_tables(out, network, patches) if is_drawn(out) else None


def _next(out: Path, slides: list[Path], tables: CohortTables | None) -> str:
    if tables is not None or (out / "cohort.yaml").is_file():
        return f"next: gcemil validate {out}, then gcemil split {out}"
    given = " ".join(str(path) for path in slides)
    return f"next: gcemil encode {given} --out {out} --labels labels.csv   (features are kept; this adds the labels)"
