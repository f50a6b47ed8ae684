"""Evidence as files: gcemil explain, of a slide or of many, and gcemil export for other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.console import print_json, print_table, progress, say
from gcemil.cli.options import (
    DEVICE,
    HEATMAP,
    JSON,
    NECESSITY,
    PRECISION,
    RECOVERABILITY,
    RUN,
    SUFFICIENCY,
    TRUST_HOST,
    TRUST_REMOTE_CODE,
    UNIT,
    WEIGHTS,
    HeatMapName,
    Precision,
    Unit,
    parse_folds,
)
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.exports.certificate import Certificate
    from gcemil.exports.explain import ExplainOptions
    from gcemil.exports.slide_export import ExplainedSlide


def explain(
    run: Path = RUN,
    file: Path | None = typer.Argument(
        None,
        help="A slide or feature file outside the cohort; leave it out with --slide or --slides.",
    ),
    slide: str | None = typer.Option(None, help="The id of a slide of the run's cohort."),
    slides: str | None = typer.Option(
        None,
        metavar="all|failures|FILE",
        help="Many slides of the cohort: all that are tested, those that fail, or a list.",
    ),
    target: str | None = typer.Option(
        None, "--class", help="The class whose evidence is shown; by default the predicted one."
    ),
    against: str | None = typer.Option(
        None,
        "--against-class",
        help="Why not this class: patches that speak against it, and a set whose removal leads to it.",
    ),
    folds: str | None = typer.Option(
        None,
        "--folds",
        "--fold",
        metavar="NUMBERS",
        help="For a file the consensus of all, or of some such as 0,2; for a slide of the cohort one, by default the first that "
        "tests it.",
    ),
    out: Path | None = typer.Option(
        None,
        help="By default RUN/fold_<k>/explain/<slide>, or RUN/predictions/<slide> for a file; many slides have a folder each.",
    ),
    unit: Unit = UNIT,
    heatmap: list[HeatMapName] = HEATMAP,
    bounds_x: int | None = typer.Option(
        None,
        help="openslide.bounds-x of the slide; by default the attribute of its feature file, else 0.",
    ),
    bounds_y: int | None = typer.Option(None, help="openslide.bounds-y of the slide."),
    all_patches: bool = typer.Option(
        False,
        "--all-patches",
        help="The GeoJSON shows unselected patches too, for measurement maps.",
    ),
    thumbnail: Path | None = typer.Option(
        None,
        help="A picture of the whole slide, to lie under the overlay; by default the one 'gcemil encode' made.",
    ),
    downsample: float | None = typer.Option(
        None,
        help="Level-0 pixels per pixel of the thumbnail; by default from the slide's width in its feature file.",
    ),
    budget: float | None = typer.Option(
        None, help="Share of patches, for a run without the wrapper (0.05 by default)."
    ),
    sufficiency: float = SUFFICIENCY,
    necessity: float = NECESSITY,
    recoverability: float = RECOVERABILITY,
    mpp: float | None = typer.Option(
        None, help="Micrometres per level-0 pixel, for a file that does not state it."
    ),
    device: str | None = DEVICE,
    precision: Precision | None = PRECISION,
    weights: Path | None = WEIGHTS,
    trust_remote_code: bool = TRUST_REMOTE_CODE,
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Write one slide's evidence as HDF5, JSON, QuPath GeoJSON and overlay, with its keep/remove certificate.

    The certificate says what the model predicts from all patches, from the gated ones, from the evidence alone and
    without it. A slide outside the cohort is explained by all folds: the patches that most of them chose, judged under their
    mean prediction. Of a case with several slides it is about the case. A run without the wrapper has no evidence; there the
    patches of highest attention take its place, named as such. With --unit region it also says which connected
    regions are sufficient and which are necessary. With --class NAME the patches are those that speak for a class, predicted
    or not; with --against-class NAME those that speak for it and against another one.

    Example: gcemil explain runs/bracs_abmil --slide BRACS_1234 --unit region --heatmap gate
    """
    from functools import partial

    from gcemil.diagnostics.snr import Tolerances
    from gcemil.exports.explain import ExplainOptions
    from gcemil.exports.explain_cohort import choose_slides, explain_cohort_slide
    from gcemil.exports.new_slides import NewSlides, PredictOptions, find_inputs
    from gcemil.exports.slide_export import ExplainedSlide
    from gcemil.features.loaders import WeightSource

    if sum(given is not None for given in (file, slide, slides)) != 1:
        raise UsageError(
            "Say what to explain: a FILE outside the cohort, --slide ID, or --slides all, failures or a list."
        )
    if (bounds_x is None) != (bounds_y is None):
        raise UsageError("Bounds are two numbers: give both --bounds-x and --bounds-y, or neither.")
    if slides is not None and (
        thumbnail is not None or downsample is not None or bounds_x is not None
    ):
        raise UsageError(
            "--thumbnail, --downsample and the bounds are of one slide. Leave them out with --slides."
        )
    numbers = None if folds is None else parse_folds(folds)
    if file is None and numbers is not None and len(numbers) > 1:
        raise UsageError(
            f"--folds {folds}: a slide of the cohort is explained by one fold, because others were trained on it. Name one."
        )
    fold = None if numbers is None else numbers[0]
    options = ExplainOptions(
        budget, Tolerances(sufficiency, necessity, recoverability), unit, target, against
    )
    write = partial(
        ExplainedSlide.write_files,
        bounds=None if bounds_x is None or bounds_y is None else (bounds_x, bounds_y),
        thumbnail=thumbnail,
        downsample=downsample,
        all_patches=all_patches,
        heatmaps=tuple(dict.fromkeys(name.measurement for name in heatmap)),
    )
    if slides is not None:
        chosen = choose_slides(run, slides, fold=fold)
        _explain_many(
            run, chosen, write, options, fold, out, device or "auto", precision or "32", as_json
        )
        return
    if file is not None:
        inputs = find_inputs([file]).files
        if len(inputs) != 1:
            raise UsageError(
                f"{file} is {len(inputs)} slides. Explain many new slides with 'gcemil predict {run} {file} --explain'."
            )
        (path,) = inputs.values()
        plan = PredictOptions(
            mode="full",
            folds=None if numbers is None else tuple(numbers),
            mpp=mpp,
            precision=precision,
        )
        opened = NewSlides.open(
            run, plan, source=WeightSource(weights, trust_remote_code), device=device or "auto"
        )
        found = opened.explain(path, options)
    else:
        found = explain_cohort_slide(
            run,
            str(slide),
            fold=fold,
            options=options,
            device=device or "auto",
            precision=precision or "32",
        )
    files = write(found, out)
    if as_json:
        paths = {name: str(path) for name, path in files.items()}
        print_json({"certificate": found.certificate.to_json(), "files": paths})
        return
    _print_certificate(found.certificate)
    for path in files.values():
        say(f"wrote {path}")
    if found.coords is None:
        say("The slide has no coordinates: neither GeoJSON nor overlay can be drawn.")


def _explain_many(
    run: Path,
    slide_ids: Sequence[str],
    write: Callable[..., dict[str, Path]],
    options: ExplainOptions,
    fold: int | None,
    out: Path | None,
    device: str,
    precision: Precision,
    as_json: bool,
) -> None:
    """Every slide with its verdicts; exit code 1 where one failed."""
    from gcemil.exports.explain_cohort import COLUMNS, explain_slides

    def write_slide(found: ExplainedSlide) -> Path:
        folder = found.folder if out is None else out / found.slide_id
        write(found, folder)
        return folder

    table = (out or run) / "explained.csv"
    with progress("explaining slides") as advance:
        found = explain_slides(
            run,
            slide_ids,
            write_slide,
            fold=fold,
            options=options,
            device=device,
            precision=precision,
            table=table,
            on_slide=advance,
        )
    rows = [one.to_row() for one in found]
    if as_json:
        print_json(rows)
    else:
        shown = COLUMNS[:-2]
        print_table(
            f"{run}: {len(rows)} slides",
            shown,
            [[row.get(name, "") for name in shown] for row in rows],
        )
        say(f"wrote {table}")
    failed = [one for one in found if one.certificate is None]
    for one in failed:
        say(f"{one.slide_id}: {one.reason}", err=True)
    if failed:
        say(f"{len(failed)} of {len(found)} slides failed; the others are done.", err=True)
        raise typer.Exit(1)


def _print_certificate(certificate: Certificate) -> None:
    """Four predictions, three verdicts, the anchors, and what a reader must know."""
    from gcemil.exports.certificate import describe_direction

    found = certificate.predictions
    versions = {
        "X, all patches": found.full,
        "X_pi, gated": found.gated,
        "X_S, evidence alone": found.kept,
        "X_notS, without it": found.removed,
    }
    names = list(found.full.values)
    if (agreed := certificate.consensus) is not None:
        folds = zip(agreed.folds, agreed.per_fold, agreed.n_chosen, strict=True)
        shown = [
            (fold, *(f"{one[name]:.3f}" for name in names), count) for fold, one, count in folds
        ]
        print_table(agreed.sentence, ("fold", *names, "patches chosen"), shown)
    rows = [
        (name, *(f"{one.values[column]:.3f}" for column in names), f"{one.output:.3f}")
        for name, one in versions.items()
        if one is not None
    ]
    subject = certificate.subject
    print_table(
        f"{subject.slide_id}: {certificate.rule}, {subject.n_selected} of {subject.n_patches} patches "
        f"({subject.fraction:.1%}); Phi is the {certificate.output_name}",
        ("bag", *names, "Phi"),
        rows,
    )
    if certificate.anchors:
        words = {True: "yes", False: "no", None: "does not count"}
        anchors = [
            (one.prompt, f"{one.coverage:.3f}", f"{one.target:.3f}", words[one.covered])
            for one in certificate.anchors
        ]
        print_table(
            "coverage of the anchors by the evidence",
            ("anchor", "coverage", "target", "covered"),
            anchors,
        )
    if certificate.regions:
        words = {True: "yes", False: "no", None: "not asked"}
        regions = [
            (
                one.number,
                one.slide_id,
                one.n_patches,
                _show(one.kept),
                words[one.sufficient],
                _show(one.removed),
                words[one.necessary],
            )
            for one in certificate.regions
        ]
        columns = (
            "region",
            "slide",
            "patches",
            "Phi alone",
            "sufficient",
            "Phi without",
            "necessary",
        )
        print_table(f"{len(regions)} connected regions, largest score mass first", columns, regions)
    say(certificate.headline)
    say(describe_direction(found))
    for one in certificate.further:
        say(one.sentence)
    for note in (*subject.notes, *certificate.notes):
        say(f"note: {note}")


def _show(output: float | None) -> str:
    return "-" if output is None else f"{output:.3f}"


def export(
    run: Path = RUN,
    pretrained: Path | None = typer.Option(
        None, help="Write config.json, model.safetensors and a model card into this new folder."
    ),
    wsidata: Path | None = typer.Option(
        None,
        help="Write <slide>.zarr of every test slide into this folder: SpatialData, as LazySlide and wsidata read it.",
    ),
    onnx: Path | None = typer.Option(
        None,
        help="Write host and evidence head of one fold as this ONNX file, for any number of patches.",
    ),
    fold: int | None = typer.Option(
        None, min=0, help="One fold; by default the first that is trained, for --wsidata all."
    ),
    license_name: str = typer.Option(
        "unknown", "--license", help="The licence of the model, for the model card."
    ),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Export a model without its run and cohort, or evidence as SpatialData.

    A folder of --pretrained is opened by gcemil.load and taken by 'gcemil predict' in place of a run. An ONNX file
    is compared with the network before it is written.

    Example: gcemil export runs/bracs_abmil --pretrained models/bracs_abmil --fold 0
    """
    from gcemil.runs.folder import Run

    if pretrained is None and wsidata is None and onnx is None:
        raise UsageError(
            "Say what to export: --pretrained FOLDER, --onnx FILE or --wsidata FOLDER."
        )
    written: dict[str, list[str]] = {}
    if pretrained is not None or onnx is not None:
        chosen = Run(run).trained_folds()[0] if fold is None else Run(run).fold(fold)
    if pretrained is not None:
        from gcemil.runs.pretrained import save_pretrained

        written["pretrained"] = [
            str(save_pretrained(chosen.path, pretrained, license_name=license_name))
        ]
    if onnx is not None:
        from gcemil.exports.onnx import write_onnx

        written["onnx"] = [str(write_onnx(chosen.checkpoint, onnx))]
    if wsidata is not None:
        from gcemil.exports.wsidata import write_wsidata

        written["wsidata"] = [str(path) for path in write_wsidata(run, wsidata, fold=fold)]
    if as_json:
        print_json(written)
        return
    for path in (path for paths in written.values() for path in paths):
        say(f"wrote {path}")
