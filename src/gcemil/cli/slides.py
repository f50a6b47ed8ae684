"""From slides to a cohort: gcemil encode and annotate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_table, progress, say
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.bags.annotations.shapes import Role
    from gcemil.slides.grid import PatchSettings


Dtype = Literal["float16", "float32"]
"""Types of features on disk."""


def encode(
    slides: list[Path] = typer.Argument(help="Slide files, or folders of them."),
    out: Path = typer.Option(..., help="The cohort folder to write."),
    encoder: str = typer.Option(
        "efficientnet_lite0", help="A name of docs/encoders.md, or timm:<name>."
    ),
    batch_size: int = typer.Option(32, min=1, help="Patches per batch."),
    jobs: int = options.jobs(
        "threads that read patches ahead of the model", default=2, old="--workers"
    ),
    dtype: Dtype = typer.Option("float16", help="Type of the features on disk."),
    device: options.Device = None,
    precision: options.Precision = None,
    engine: options.Engine = "local",
    address: options.Address = None,
    weights: options.Weights = None,
    trust_remote_code: options.TrustRemoteCode = False,
    patch_size: int | None = typer.Option(
        None,
        min=8,
        help="Side of a patch in pixels; by default that in --out, or the encoder's own.",
    ),
    target_mpp: float = typer.Option(0.5, help="Micrometres per pixel of a patch: 0.5 is 20x."),
    mpp: str | None = typer.Option(
        None, help="Micrometres per level-0 pixel, or a table of slide_id, mpp."
    ),
    patches_only: bool = options.flag(
        "--patches-only", "Only find the tissue and write its patches."
    ),
    overlap: int = typer.Option(
        0, min=0, help="With --patches-only: pixels that neighbouring patches share."
    ),
    min_tissue: float = typer.Option(0.25, help="With --patches-only: smallest share of tissue."),
    masks: Path | None = typer.Option(
        None, help="With --patches-only: a folder of tissue masks, <slide>.png or <slide>.geojson."
    ),
    labels: options.Labels = None,
    task: options.Task = None,
    target: options.Target = None,
    classes: options.Classes = None,
    force: bool = options.flag(
        "--force", "Encode slides again that were encoded with other settings."
    ),
    as_json: options.Json = False,
) -> None:
    """Turn slides into patch features; slides without patches are patched first.

    Patches have one physical size on all scanners. A slide that fails is listed at the end and
    does not stop the others; the command then exits with 1. Run again, it continues where it
    stopped. One folder never mixes encoders.

    Example: gcemil encode slides/ --out cohorts/mine --labels labels.csv
    """
    from gcemil.slides.grid import PatchSettings

    if patches_only:
        patches = PatchSettings(patch_size or 256, target_mpp, overlap, min_tissue)
        _write_patches(slides, out, patches, masks, mpp, force, as_json)
        return
    if overlap or min_tissue != 0.25 or masks is not None:
        raise UsageError(
            "--overlap, --min-tissue and --masks decide where patches lie: write the patches with "
            "--patches-only first, then encode them."
        )

    from gcemil.bags.foreign.dialects import Choice
    from gcemil.bags.foreign.stamp import parse_mpp
    from gcemil.device import pick_device
    from gcemil.features.encode_cohort import choose_patches, encode_cohort
    from gcemil.features.encoders import find_encoder_spec, load_encoder
    from gcemil.features.extract import EncodeSettings
    from gcemil.features.loaders import WeightSource
    from gcemil.features.patching import PatchingRules, find_slides
    from gcemil.files import lock_folder

    cluster = options.find_cluster(engine, address)
    device = str(pick_device(device or "auto"))
    files = find_slides(slides)
    patches = choose_patches(
        out, find_encoder_spec(encoder), patch_size=patch_size, target_mpp=target_mpp
    )
    # The weights come first: a missing licence should be known before hours of patching.
    source = WeightSource(weights, trust_remote_code)
    network = load_encoder(encoder, source=source, device=device, precision=precision)
    with lock_folder(out), progress("encoding slides") as advance:
        encoded = encode_cohort(
            files,
            out,
            network,
            PatchingRules(patches=patches, mpp=None if mpp is None else parse_mpp(mpp)),
            EncodeSettings(batch_size=batch_size, workers=jobs, dtype=dtype),
            labels=labels,
            choice=Choice(task=task, target=target),
            classes=None if classes is None else classes.split(","),
            force=force,
            on_slide=advance,
            cluster=cluster,
            source=source,
        )
    report, tables = encoded.report, encoded.tables
    if as_json:
        content = {"slides": [asdict(slide) for slide in report.slides], "notes": encoded.notes}
        print_json({**content, "cohort": None if tables is None else asdict(tables)})
    else:
        total = sum(slide.patches for slide in report.slides)
        say(f"{out}: {total} patches of {len(report.usable)} slides as {network.name} features.")
        _print_problems(report, "features")
        for line in (*encoded.notes, *(tables.lines if tables else ())):
            say(line)
        if tables is not None or (out / "cohort.yaml").is_file():
            say(f"next: gcemil validate {out}, then gcemil split {out}")
        else:
            again = f"gcemil encode {' '.join(map(str, slides))} --out {out} --labels labels.csv"
            say(f"next: {again}   (features are kept; this adds the labels)")
    raise typer.Exit(1 if encoded.has_troubles else 0)


def _write_patches(
    slides: list[Path],
    out: Path,
    patches: PatchSettings,
    masks: Path | None,
    mpp: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write coordinates in TRIDENT's layout and contact sheets; exit with 1 if a slide failed."""
    from gcemil.bags.foreign.stamp import parse_mpp
    from gcemil.features.patching import PatchingRules, patch_slides
    from gcemil.files import lock_folder

    if masks is not None and not masks.is_dir():
        raise UsageError(
            f"{masks} is not a folder of masks. It should hold <slide>.png or <slide>.geojson."
        )
    rules = PatchingRules(patches=patches, masks=masks, mpp=None if mpp is None else parse_mpp(mpp))
    with lock_folder(out), progress("patching slides") as advance:
        report = patch_slides(slides, out, rules, force=force, on_slide=advance)
    if as_json:
        print_json({"slides": [asdict(slide) for slide in report.slides], "notes": report.notes})
    else:
        total = sum(slide.patches for slide in report.slides)
        fine = len(report.slides) - len(report.problems)
        say(f"{out}: {total} patches of {fine} slides. Look at {out / 'contact_sheets'}.")
        _print_problems(report, "patches")
        for note in report.notes:
            say(note)
    raise typer.Exit(1 if report.problems or report.notes else 0)


def _print_problems(report: Any, what: str) -> None:
    """Slides that failed, and why."""
    rows = [(slide.slide_id, slide.message) for slide in report.problems]
    if rows:
        title = f"Slides without {what}: {len(rows)}"
        print_table(title, ("slide", "why and what to do"), rows)


def annotate(
    cohort: Path = typer.Argument(help="A cohort folder with coordinates."),
    annotations: Path = typer.Argument(
        help="A folder with <slide>.xml (ASAP), <slide>.geojson (QuPath), or <slide>_mask or "
        "<slide> as .tif, .tiff or .png."
    ),
    negative_class: str | None = typer.Option(
        None, help="The class whose slides have no lesion, such as normal; they need no file."
    ),
    min_overlap: float = typer.Option(0.01, help="Annotated share that makes evidence."),
    group: list[str] = typer.Option(
        [],
        help="What a group or class means, as name=tumour or "
        "name=exclusion; may be repeated. All classes of a "
        "GeoJSON file are tumour until one is named.",
    ),
    downsample: float | None = typer.Option(None, help="Level-0 pixels per pixel of a mask."),
    tumour_values: str | None = typer.Option(
        None, help="Values of a mask that mean tumour, such as 1,2; white on black needs none."
    ),
    mpp: str | None = typer.Option(
        None, help="Micrometres per level-0 pixel, or a table of slide_id, mpp."
    ),
    force: bool = options.flag("--force", "Replace truth that exists already."),
    as_json: options.Json = False,
) -> None:
    """Write truth/<slide>.h5 from annotations, to compare the evidence with lesions.

    Training never reads it. Slides without a file are left without truth, unless their label is the
    negative class; they are listed, and the command then exits with 1.

    Example: gcemil annotate cohorts/camelyon16 annotations/ --negative-class normal
    """
    from gcemil.bags.annotations.truth import write_truth
    from gcemil.bags.cohort import Cohort
    from gcemil.bags.foreign.stamp import parse_mpp

    values = None
    if tumour_values is not None:
        form = "--tumour-values are whole numbers such as 2 or 1,2"
        values = options.parse_numbers(tumour_values, form)
    form = "A group is written name=tumour or name=exclusion"
    report = write_truth(
        Cohort.load(cohort),
        annotations,
        negative_class=negative_class,
        min_overlap=min_overlap,
        roles=options.parse_pairs(group, form, _parse_role),
        downsample=downsample,
        tumour_values=values,
        microns_per_pixel=None if mpp is None else parse_mpp(mpp),
        replace=force,
    )
    if as_json:
        print_json(asdict(report))
    else:
        for note in report.notes:
            say(note)
        say(
            f"{cohort}: {len(report.annotated)} slides annotated, {len(report.normal)} without a "
            f"lesion, {len(report.missing)} without truth."
        )
        if report.missing:
            say(f"Neither annotated nor of the negative class: {', '.join(report.missing)}.")
    raise typer.Exit(1 if report.missing else 0)


def _parse_role(text: str) -> Role:
    """One of the two meanings of a group."""
    if text not in ("tumour", "exclusion"):
        raise ValueError
    return text  # type: ignore[return-value]
