"""New slides: gcemil predict, with evidence, and gcemil prefilter, which encodes fewer patches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_records, progress, say, warn_of_model
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.exports.new_slides import NewPrediction, NewSlides


Mode = Literal["full", "gce", "soft", "discrete", "prefilter"]
"""The predictions of a run that new slides can have, and the prefilter for slide files."""


def predict(
    run: Path = typer.Argument(help="A run folder; one of several targets predicts each of them."),
    slides: list[Path] = typer.Argument(
        help="Slides (.svs, .tif ...), features (.h5 or .pt of gcemil, CLAM, TRIDENT or STAMP), "
        "folders of both, or patterns."
    ),
    mode: Mode | None = typer.Option(
        None,
        help="gce: host and evidence together; full: the host alone; soft, discrete: gce under "
        "gates, from the evidence alone; prefilter: only promising patches of a slide file are "
        "encoded. By default gce, or full for a plain or a given host.",
    ),
    folds: str = typer.Option(
        "all",
        "--folds",
        "--fold",
        metavar="NUMBERS",
        help="The mean over all, or over some such as 0,2.",
    ),
    out: Path | None = typer.Option(
        None, help="Where predictions.csv and the evidence go; by default RUN/predictions."
    ),
    explain: bool = options.flag(
        "--explain", "Also write everything that 'gcemil explain' writes."
    ),
    unit: options.Unit = "patch",
    heatmap: options.HeatMaps = None,
    all_patches: bool = options.flag("--all-patches", "The GeoJSON shows unselected patches too."),
    mpp: float | None = typer.Option(
        None, help="Micrometres per level-0 pixel, for a file that does not state it."
    ),
    weights: options.Weights = None,
    trust_remote_code: options.TrustRemoteCode = False,
    again: bool = options.flag("--again", "Predict again slides that are already done."),
    device: options.Device = None,
    precision: options.Precision = None,
    jobs: int = options.jobs("slides", default=1),
    engine: options.Engine = "local",
    address: options.Address = None,
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Predict new slides, from their features or from the slides themselves.

    The prediction is the mean over the folds. A slide of the run's own cohort is predicted by the
    folds that did not see it, and marked 'train' if all folds were trained on it.

    A slide file is patched and encoded as the cohort of the run was. With --mode prefilter only the
    patches that the model of 'gcemil prefilter' keeps are encoded, and the rest if the prediction
    is not certified. A slide that fails is a line of predictions.csv with its reason, and the exit
    code is 1; slides that are already done are skipped.

    Example: gcemil predict runs/bracs_abmil new_slides/ --explain
    """
    from gcemil.exports.explain import ExplainOptions
    from gcemil.exports.new_slides import (
        NewSlides,
        PredictOptions,
        find_inputs,
        write_joined_predictions,
    )
    from gcemil.features.loaders import WeightSource
    from gcemil.runs.folder import Run

    if not explain and (heatmap or all_patches or unit != "patch"):
        raise UsageError(
            "--unit, --heatmap and --all-patches are about explanations: add --explain."
        )
    cluster = options.find_cluster(engine, address)
    numbers = options.parse_folds(folds)
    plan = PredictOptions(
        mode=mode,
        folds=None if numbers is None else tuple(numbers),
        mpp=mpp,
        explain=ExplainOptions(unit=unit) if explain else None,
        heatmaps=tuple(heatmap or ()),
        all_patches=all_patches,
        precision=precision,
    )
    target = out or Run(run).new_slides
    inputs = find_inputs(slides, out=target)
    source = WeightSource(weights, trust_remote_code)
    targets = Run(run).targets
    predictions: dict[str, list[NewPrediction]] = {}
    for name, one_run in (targets or {"": Run(run)}).items():
        opened = NewSlides.open(one_run.path, plan, source=source, device=device or "auto")
        with progress("predicting slides") as advance:
            predictions[name] = opened.predict(
                inputs.files,
                target / name,
                again=again,
                jobs=jobs,
                device=device or "auto",
                cluster=cluster,
                on_slide=advance,
            )
        if not as_json:
            _print_run(opened, predictions[name], inputs.notes, target / name)
    if targets:
        joined = write_joined_predictions(target, predictions)
    if as_json:
        # Evidence is given as rows of the feature file or of the slide's grid.
        records = {name: [_make_record(one) for one in some] for name, some in predictions.items()}
        print_json(records if targets else records[""])
    elif targets:
        say(f"wrote {joined}: the probability of every target")
    everything = [one for some in predictions.values() for one in some]
    for reason in dict.fromkeys(
        f"{one.slide_id}: {one.reason}" for one in everything if one.reason
    ):
        say(reason, err=True)
    if failed := {one.slide_id for one in everything if one.status == "failed"}:
        say(f"{len(failed)} of {len(inputs.files)} slides failed; the others are done.", err=True)
        raise typer.Exit(1)


def _make_record(one: NewPrediction) -> dict[str, object]:
    """One slide as JSON."""
    facts = {name: value for name, value in vars(one).items() if name not in ("values", "key")}
    return facts | one.values


def _print_run(
    opened: NewSlides, predictions: Sequence[NewPrediction], notes: Sequence[str], out: Path
) -> None:
    """The table of a run, and a warning about slides that it was trained on."""
    warn_of_model(opened.model_warning)
    done = [one for one in predictions if one.status != "failed"]
    if done:
        _print_predictions(f"{opened.run}, {opened.mode}", done)
    if before := [one for one in done if one.status == "already done"]:
        say(
            f"{len(before)} of {len(predictions)} slides were done before and left alone (--again "
            "does them again)."
        )
    for note in notes:
        say(note)
    parts = Counter(one.part for one in done)
    if n_unseen := parts["test"]:
        say(
            f"{n_unseen} slides are of the run's own cohort: each is predicted by the folds that "
            "did not see it."
        )
    if n_seen := parts["train"] + parts["val"]:
        say(
            f"{n_seen} slides were used to train these folds, or to choose their epoch (column "
            "part): their predictions do not show how the model does on new slides."
        )
    say(f"wrote {out / 'predictions.csv'}")


def _print_predictions(title: str, predictions: Sequence[NewPrediction]) -> None:
    """A table; slide files have columns for what was encoded."""
    values = predictions[0].values
    names = [name for name in values if not name.startswith(("host_", "evidence_"))]
    beside = [one for one in ("host", "evidence") if f"{one}_{names[0]}" in values]
    is_encoded = any(one.n_encoded is not None for one in predictions)
    words = {None: "-", True: "certified", False: "fell back to all patches"}
    rows = []
    for one in predictions:
        share = None if one.n_selected is None else one.n_selected / (one.n_patches or 1)
        main = max(names, key=one.values.__getitem__)
        row: dict[str, object] = {
            "slide": one.slide_id,
            **{name: _show(one.values[name]) for name in names},
            "spread over folds": _show(one.spread),
            **{f"{name} alone": _show(one.values[f"{name}_{main}"]) for name in beside},
            "patches in evidence": _show(share),
            "verdict": one.verdict or "-",
            "part": one.part,
        }
        if is_encoded:
            row["patches"] = one.n_patches
            row["encoded"] = "-" if one.n_encoded is None else one.n_encoded
            row["prefilter"] = words[one.certified]
        rows.append(row)
    print_records(title, rows)


def _show(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else f"{value:{form}}"


def prefilter(
    run: Path = options.run_argument("A run folder, trained with evidence on encoded slides."),
    slides: list[Path] = typer.Argument(help="The slide files of its cohort, or folders of them."),
    fold: int | None = typer.Option(None, min=0, help="One fold instead of all."),
    utility: float = typer.Option(
        0.98,
        min=0.01,
        help="Smallest task metric on validation slides, as a share of that of all patches.",
    ),
    risk: float = typer.Option(
        0.1,
        min=0.001,
        max=0.999,
        help="Largest chance that a certified prediction is not that of all patches.",
    ),
    view_mpp: float = typer.Option(
        4.0, help="Micrometres per pixel of the view that the model reads."
    ),
    epochs: int = typer.Option(10, min=1, help="Passes over the training slides."),
    measure: bool = options.flag("--measure", "Also time the test slides with and without it."),
    device: options.Device = None,
    seed: int = options.seed("the training of the student"),
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Train a small model per fold that selects at low magnification which patches to encode.

    The keep rate and the largest doubt of a prediction from kept patches are chosen on the
    validation slides. Then 'gcemil predict RUN slide.svs --mode prefilter' encodes only the patches
    that the model keeps, and all of them if the prediction is too doubtful.

    Example: gcemil prefilter runs/mine slides/
    """
    from gcemil.features.patching import find_slides
    from gcemil.files import lock_folder
    from gcemil.prefilter.certificate import CertificateSettings
    from gcemil.prefilter.cost import measure_cost
    from gcemil.prefilter.distil import fit_prefilter
    from gcemil.prefilter.student import PrefilterSettings
    from gcemil.runs.folder import Run

    files = find_slides(slides)
    folds = [one.number for one in Run(run).trained_folds()] if fold is None else [fold]
    sight = PrefilterSettings(view_mpp=view_mpp, epochs=epochs, seed=seed)
    promise = CertificateSettings(utility_share=utility, risk=risk)
    reports, costs = [], []
    with lock_folder(run):
        for index in folds:
            with progress(f"fitting the prefilter of fold {index}") as advance:
                report = fit_prefilter(
                    run, index, files, sight, promise, device=device or "auto", on_slide=advance
                )
                reports.append(report)
            if measure:
                with progress(f"timing the test slides of fold {index}") as advance:
                    costs.append(measure_cost(run, index, files, on_slide=advance))
    if as_json:
        content = {"folds": [asdict(one) for one in reports]}
        print_json(content | {"cost": [cost.to_json() for cost in costs]})
        return
    rows = [
        {
            "fold": report.fold,
            "keep rate": f"{report.chosen.keep_rate:g}",
            "doubt up to": _show(report.chosen.doubt_limit),
            "relative utility": _show(report.chosen.relative_utility),
            "fall back": _show(report.chosen.fall_back, ".2f"),
            "patches encoded": _show(report.chosen.cost),
            "recall of evidence": _show(report.chosen.recall, ".2f"),
            "slides": report.n_val,
        }
        for report in reports
    ]
    print_records(f"{run}, on validation slides", rows)
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        say(note)
    for cost in costs:
        say(cost.sentence)
    say(f"next: gcemil predict {run} SLIDE --mode prefilter")
