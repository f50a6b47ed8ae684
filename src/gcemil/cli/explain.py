"""Evidence as files: gcemil explain, of a slide or of many, and gcemil export for other tools."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_table, progress, say
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.exports.evidence import ExplainedSlide


def explain(
    run: options.RunFolder,
    file: Path | None = typer.Argument(
        None,
        help="A slide or feature file outside the cohort, in place of --slide or --slides.",
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
        help="Why not this class: patches that support the other, and a set whose removal leads to "
        "it.",
    ),
    folds: str | None = typer.Option(
        None,
        "--folds",
        "--fold",
        metavar="NUMBERS",
        help="For a file the consensus of all, or of some such as 0,2; for a slide of the cohort "
        "one, by default the first that tests it.",
    ),
    out: Path | None = typer.Option(
        None,
        help="By default RUN/fold_<k>/explain/<slide>, or RUN/predictions/<slide> for a file; "
        "many slides have a folder each.",
    ),
    unit: options.Unit = "patch",
    heatmap: options.HeatMaps = None,
    bounds_x: int | None = typer.Option(
        None, help="openslide.bounds-x of the slide; by default as in its feature file, else 0."
    ),
    bounds_y: int | None = typer.Option(None, help="openslide.bounds-y of the slide."),
    all_patches: bool = options.flag("--all-patches", "The GeoJSON shows unselected patches too."),
    thumbnail: Path | None = typer.Option(
        None, help="A picture of the slide, under the overlay; by default that of 'gcemil encode'."
    ),
    downsample: float | None = typer.Option(
        None, help="Level-0 pixels per pixel of the thumbnail; by default from the slide's width."
    ),
    budget: float | None = typer.Option(
        None, help="Share of patches, for a run without the wrapper (0.05 by default)."
    ),
    sufficiency: options.Sufficiency = 0.05,
    necessity: options.Necessity = 0.05,
    recoverability: options.Recoverability = 0.01,
    mpp: float | None = typer.Option(
        None, help="Micrometres per level-0 pixel, for a file that does not state it."
    ),
    device: options.Device = None,
    precision: options.Precision = None,
    weights: options.Weights = None,
    trust_remote_code: options.TrustRemoteCode = False,
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Write the evidence of slides as HDF5, JSON, QuPath GeoJSON and overlay, with a certificate.

    The certificate states what the model predicts from all patches, from the gated ones, from the
    evidence alone and without it. A slide outside the cohort is explained by all folds: the patches
    that most of them chose, judged under their mean prediction. A case with several slides is
    explained as one. A run without the wrapper has no evidence; its patches of highest attention
    are used instead. --unit region also judges every connected region. --class NAME shows the
    patches that support a class, predicted or not; --against-class NAME those that support it and
    not another one.

    Example: gcemil explain runs/bracs_abmil --slide BRACS_1234 --unit region --heatmap gate
    """
    from gcemil.diagnostics.snr import Tolerances
    from gcemil.exports.evidence import ExplainedSlide
    from gcemil.exports.explain import ExplainOptions
    from gcemil.exports.explain_cohort import choose_slides, explain_cohort_slide, explain_slides
    from gcemil.exports.new_slides import NewSlides, PredictOptions, find_inputs
    from gcemil.features.loaders import WeightSource

    if sum(given is not None for given in (file, slide, slides)) != 1:
        raise UsageError(
            "Say what to explain: a FILE outside the cohort, --slide ID, or --slides all, "
            "failures or a list."
        )
    if (bounds_x is None) != (bounds_y is None):
        raise UsageError("Bounds are two numbers: give both --bounds-x and --bounds-y, or neither.")
    of_one_slide = (thumbnail, downsample, bounds_x)
    if slides is not None and any(given is not None for given in of_one_slide):
        raise UsageError(
            "--thumbnail, --downsample and the bounds are of one slide. Leave them out with "
            "--slides."
        )
    numbers = None if folds is None else options.parse_folds(folds)
    if file is None and numbers is not None and len(numbers) > 1:
        raise UsageError(
            f"--folds {folds}: a slide of the cohort is explained by one fold, because others "
            "were trained on it. Name one."
        )
    fold = None if numbers is None else numbers[0]
    tolerances = Tolerances(sufficiency, necessity, recoverability)
    question = ExplainOptions(budget, tolerances, unit, target, against)
    computing: dict[str, Any] = {"device": device or "auto", "precision": precision or "32"}
    write = partial(
        ExplainedSlide.write_files,
        bounds=None if bounds_x is None or bounds_y is None else (bounds_x, bounds_y),
        thumbnail=thumbnail,
        downsample=downsample,
        all_patches=all_patches,
        heatmaps=heatmap or (),
    )
    if slides is not None:

        def write_slide(made: ExplainedSlide) -> Path:
            folder = made.folder if out is None else out / made.slide_id
            write(made, folder)
            return folder

        table, chosen = (out or run) / "explained.csv", choose_slides(run, slides, fold=fold)
        with progress("explaining slides") as advance:
            rows = explain_slides(
                run, chosen, write_slide, fold=fold, options=question, table=table,
                on_slide=advance, **computing,
            )  # fmt: skip
        _print_slides(run, rows, table, as_json)
        return
    if file is not None:
        files = find_inputs([file]).files
        if len(files) != 1:
            raise UsageError(
                f"{file} is {len(files)} slides. Explain many new slides with 'gcemil predict "
                f"{run} {file} --explain'."
            )
        (path,) = files.values()
        some = None if numbers is None else tuple(numbers)
        plan = PredictOptions(mode="full", folds=some, mpp=mpp, precision=precision)
        source = WeightSource(weights, trust_remote_code)
        opened = NewSlides.open(run, plan, source=source, device=device or "auto")
        made = opened.explain(path, question)
    else:
        made = explain_cohort_slide(run, str(slide), fold=fold, options=question, **computing)
    written = write(made, out)
    if as_json:
        paths = {name: str(path) for name, path in written.items()}
        print_json({"certificate": made.certificate, "files": paths})
        return
    _print_certificate(made)
    for path in written.values():
        say(f"wrote {path}")
    if made.coords is None:
        say("The slide has no coordinates: neither GeoJSON nor overlay can be drawn.")


def _print_slides(run: Path, rows: list[dict[str, Any]], table: Path, as_json: bool) -> None:
    """Every slide with its verdicts; exit code 1 if one failed."""
    from gcemil.exports.explain_cohort import COLUMNS

    if as_json:
        print_json(rows)
    else:
        shown = COLUMNS[:-2]
        cells = [[row.get(name, "") for name in shown] for row in rows]
        print_table(f"{run}: {len(rows)} slides", shown, cells)
        say(f"wrote {table}")
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed:
        say(f"{row['slide_id']}: {row['reason']}", err=True)
    if failed:
        say(f"{len(failed)} of {len(rows)} slides failed; the others are done.", err=True)
        raise typer.Exit(1)


def _print_certificate(made: ExplainedSlide) -> None:
    """Four predictions, three verdicts, the anchors, and the notes."""
    certificate, subject = made.certificate, made.certificate["subject"]
    predictions = certificate["predictions"]
    names = list(predictions["full"]["values"])
    if (agreed := certificate["consensus"]) is not None:
        folds = zip(agreed["folds"], agreed["per_fold"], agreed["n_chosen"], strict=True)
        print_table(
            f"Mean of {len(agreed['folds'])} folds ({', '.join(map(str, agreed['folds']))}), "
            f"spread {agreed['spread']:.3f}; the patches are those that most folds chose, "
            f"{agreed['n_unanimous']} of them chosen by all.",
            ("fold", *names, "patches chosen"),
            [(fold, *(_show(one[name]) for name in names), count) for fold, one, count in folds],
        )
    versions = {
        "X, all patches": predictions["full"],
        "X_pi, gated": predictions["gated"],
        "X_S, evidence alone": predictions["kept"],
        "X_notS, without it": predictions["removed"],
    }
    print_table(
        f"{subject['slide_id']}: {certificate['rule']}, {subject['n_selected']} of "
        f"{subject['n_patches']} patches ({subject['fraction']:.1%}); Phi is the "
        f"{certificate['output_name']}",
        ("bag", *names, "Phi"),
        [
            (version, *(_show(one["values"][name]) for name in names), _show(one["output"]))
            for version, one in versions.items()
            if one is not None
        ],
    )
    if certificate["anchors"]:
        print_table(
            "coverage of the anchors by the evidence",
            ("anchor", "coverage", "target", "covered"),
            [
                (
                    *(_show(one[key]) for key in ("prompt", "coverage", "target")),
                    "does not count" if one["covered"] is None else _show(one["covered"]),
                )
                for one in certificate["anchors"]
            ],
        )
    if certificate["regions"]:
        columns = {
            "region": "number",
            "slide": "slide_id",
            "patches": "n_patches",
            "Phi alone": "kept",
            "sufficient": "sufficient",
            "Phi without": "removed",
            "necessary": "necessary",
        }
        print_table(
            f"{len(certificate['regions'])} connected regions, largest score mass first",
            list(columns),
            [[_show(one[key]) for key in columns.values()] for one in certificate["regions"]],
        )
    say(certificate["headline"])
    say(certificate["direction"])
    for one, _ in made.further:
        say(one.sentence)
    for note in certificate["notes"]:
        say(f"note: {note}")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


def export(
    run: options.RunFolder,
    pretrained: Path | None = typer.Option(
        None, help="A new folder for config.json, model.safetensors and a model card."
    ),
    wsidata: Path | None = typer.Option(
        None, help="A folder for <slide>.zarr of every test slide."
    ),
    onnx: Path | None = typer.Option(
        None, help="A new ONNX file for host and evidence head of one fold."
    ),
    fold: int | None = typer.Option(
        None, min=0, help="One fold; by default the first, for --wsidata all."
    ),
    license_name: str = typer.Option("unknown", "--license", help="For the model card."),
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Export a model without its run and cohort, or evidence as SpatialData.

    'gcemil predict' and gcemil.load open a folder of --pretrained like a run. An ONNX file takes
    any number of patches and is compared with the network before it is written.

    Example: gcemil export runs/bracs_abmil --pretrained models/bracs_abmil --fold 0
    """
    from gcemil.runs.folder import Run

    if pretrained is None and wsidata is None and onnx is None:
        raise UsageError(
            "Say what to export: --pretrained FOLDER, --onnx FILE or --wsidata FOLDER."
        )
    written: dict[str, list[Path]] = {}
    chosen = Run(run).trained_folds()[0] if fold is None else Run(run).fold(fold)
    if pretrained is not None:
        from gcemil.runs.pretrained import save_pretrained

        folder = save_pretrained(chosen.path, pretrained, license_name=license_name)
        written["pretrained"] = [folder]
    if onnx is not None:
        from gcemil.exports.onnx import write_onnx

        written["onnx"] = [write_onnx(chosen.checkpoint, onnx)]
    if wsidata is not None:
        from gcemil.exports.wsidata import write_wsidata

        written["wsidata"] = write_wsidata(run, wsidata, fold=fold)
    if as_json:
        print_json(written)
        return
    for path in (path for paths in written.values() for path in paths):
        say(f"wrote {path}")
