"""gcemil encode: from slides to features, and to a cohort where labels are at hand."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.options import DEVICE, jobs_option

if TYPE_CHECKING:
    from gcemil.features.cohort_tables import CohortTables


class Dtype(StrEnum):
    """Types of features on disk."""

    float16 = "float16"
    float32 = "float32"


class Task(StrEnum):
    """What a label table is read for."""

    classification = "classification"
    survival = "survival"


def encode(
    slides: list[Path] = typer.Argument(help="Slide files, or folders of them."),
    out: Path = typer.Option(..., help="The cohort folder to write."),
    encoder: str = typer.Option(
        "efficientnet_lite0", help="An encoder of docs/features.md, or any model of timm as timm:<name>."
    ),
    batch_size: int = typer.Option(32, min=1, help="Patches the model sees at once."),
    jobs: int = jobs_option("threads that read patches ahead of the model", default=2, old="--workers"),
    dtype: Dtype = typer.Option(Dtype.float16, help="Type of the features on disk."),
    device: str | None = DEVICE,
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
    from gcemil.bags.foreign.dialects import Choice
    from gcemil.bags.patching import PatchingRules, find_slides
    from gcemil.cli.console import print_json, print_table, progress, say
    from gcemil.features.encode_cohort import LabelSource, choose_patches, encode_cohort
    from gcemil.features.encoders import find_encoder_spec, load_encoder
    from gcemil.features.extract import EncodeSettings
    from gcemil.features.loaders import WeightSource
    from gcemil.files import working_in
    from gcemil.runs.environment import pick_device

    if device is not None:
        device = str(pick_device(device))
    found = find_slides(slides)
    patches = choose_patches(out, find_encoder_spec(encoder), patch_size=patch_size, target_mpp=target_mpp)
    # The weights come first: a missing licence should be known before hours of patching.
    network = load_encoder(encoder, source=WeightSource(weights, trust_remote_code), device=device)
    source = None
    if labels is not None:
        choice = Choice(task=None if task is None else task.value, target=target)
        source = LabelSource(labels, choice, None if classes is None else classes.split(","))
    with working_in(out):
        encoded = encode_cohort(
            found,
            out,
            network,
            PatchingRules(patches=patches, mpp=mpp),
            EncodeSettings(batch_size=batch_size, workers=jobs, dtype=dtype.value),
            labels=source,
            force=force,
            progress=progress,
        )
    report, failures, tables = encoded.report, encoded.failures, encoded.tables
    if as_json:
        rows = [{**asdict(slide), "message": failures.get(slide.slide_id, "")} for slide in report.slides]
        cohort = None if tables is None else asdict(tables)
        print_json({"slides": rows, "notes": encoded.notes, "cohort": cohort})
    else:
        total = sum(slide.patches for slide in report.slides)
        say(f"{out}: {total} patches of {len(report.usable)} slides as {network.name} features.")
        if failures:
            print_table(
                f"Slides without features: {len(failures)}",
                ("slide", "why and what to do"),
                [*failures.items()],
            )
        for line in (*encoded.notes, *(tables.lines if tables else ())):
            say(line)
        say(_describe_next_step(out, slides, tables))
    raise typer.Exit(1 if encoded.has_troubles else 0)


def _describe_next_step(out: Path, slides: list[Path], tables: CohortTables | None) -> str:
    if tables is not None or (out / "cohort.yaml").is_file():
        return f"next: gcemil validate {out}, then gcemil split {out}"
    given = " ".join(str(path) for path in slides)
    return f"next: gcemil encode {given} --out {out} --labels labels.csv   (features are kept; this adds the labels)"
