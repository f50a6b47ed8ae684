"""New slides: gcemil predict, through a trained run and with evidence, and gcemil prefilter, a student that spares most patches the encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from gcemil.cli.console import print_json, print_table, progress, say, warn_of_model
from gcemil.cli.options import (
    ADDRESS,
    DEVICE,
    ENGINE,
    HEATMAP,
    JSON,
    PRECISION,
    TRUST_HOST,
    TRUST_REMOTE_CODE,
    UNIT,
    WEIGHTS,
    Engine,
    HeatMapName,
    Precision,
    Unit,
    find_cluster,
    jobs_option,
    one_target,
    parse_folds,
    seed_option,
)
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.exports.new_slides import NewPrediction, NewSlides


Mode = Literal["full", "gce", "soft", "discrete", "prefilter"]
"""The predictions of a run that new slides can have, and the prefilter for slide files."""


def predict(
    run: Path = typer.Argument(help="A run folder; one of several targets predicts each of them."),
    slides: list[Path] = typer.Argument(
        help="Slides (.svs, .tif ...), features (.h5 or .pt of gcemil, CLAM, TRIDENT or STAMP), folders of both, or patterns."
    ),
    mode: Mode | None = typer.Option(
        None,
        help="gce: host and evidence together; full: the host alone; soft, discrete: gce under gates, from the evidence alone; prefilter: only "
        "promising patches of a slide file are encoded. By default the main prediction of the run: gce, or full for a plain or a given host.",
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
    explain: bool = typer.Option(
        False,
        "--explain",
        help="Also write everything 'gcemil explain' writes, in a folder per slide.",
    ),
    unit: Unit = UNIT,
    heatmap: list[HeatMapName] = HEATMAP,
    all_patches: bool = typer.Option(
        False, "--all-patches", help="With --explain: the GeoJSON shows unselected patches too."
    ),
    mpp: float | None = typer.Option(
        None,
        help="Micrometres per level-0 pixel, for slides and STAMP features that do not state it.",
    ),
    weights: Path | None = WEIGHTS,
    trust_remote_code: bool = TRUST_REMOTE_CODE,
    again: bool = typer.Option(False, "--again", help="Do slides again that are done."),
    device: str | None = DEVICE,
    precision: Precision | None = PRECISION,
    jobs: int = jobs_option("slides", default=1),
    engine: Engine = ENGINE,
    address: str | None = ADDRESS,
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Predict slides that were not in the cohort, from their features or from the slides themselves.

    The prediction is the mean over the folds. A slide of the run's own cohort is predicted by the folds that did not see
    it, and marked 'train' where all folds were trained on it.

    A slide file is patched and encoded as the cohort of the run was. With --mode prefilter only the patches that the
    student of 'gcemil prefilter' keeps are encoded, and the rest where its answer is not certified. A slide that fails
    is a line of predictions.csv with its reason, and the exit code is 1; slides that are done are not done again.

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
    cluster = find_cluster(engine, address)
    options = PredictOptions(
        mode=mode,
        folds=None if (numbers := parse_folds(folds)) is None else tuple(numbers),
        mpp=mpp,
        explain=ExplainOptions(unit=unit) if explain else None,
        heatmaps=tuple(dict.fromkeys(name.measurement for name in heatmap)),
        all_patches=all_patches,
        precision=precision,
    )
    target = out or Run(run).new_slides
    inputs = find_inputs(slides, out=target)
    source = WeightSource(weights, trust_remote_code)
    targets = Run(run).targets
    answers: dict[str, list[NewPrediction]] = {}
    for name, one_run in (targets or {"": Run(run)}).items():
        opened = NewSlides.open(one_run.path, options, source=source, device=device or "auto")
        place = target / name
        with progress("predicting slides") as advance:
            found = opened.predict(
                inputs.files,
                place,
                again=again,
                jobs=jobs,
                device=device or "auto",
                cluster=cluster,
                on_slide=advance,
            )
        answers[name] = found
        if not as_json:
            _print_run(opened, found, inputs.notes, place)
    if targets:
        joined = write_joined_predictions(target, answers)
    if as_json:
        # Evidence is given as rows of the feature file or of the slide's grid.
        records = {name: [_make_record(one) for one in found] for name, found in answers.items()}
        print_json(records if targets else records[""])
    elif targets:
        say(f"wrote {joined}: the probability of every target")
    everything = [one for found in answers.values() for one in found]
    for reason in dict.fromkeys(
        f"{one.slide_id}: {one.reason}" for one in everything if one.reason
    ):
        say(reason, err=True)
    if failed := {one.slide_id for one in everything if one.status == "failed"}:
        say(f"{len(failed)} of {len(inputs.files)} slides failed; the others are done.", err=True)
        raise typer.Exit(1)


def _make_record(one: NewPrediction) -> dict[str, object]:
    """What is printed of a slide as JSON."""
    return {
        name: value for name, value in vars(one).items() if name not in ("values", "key")
    } | one.values


def _print_run(
    opened: NewSlides, found: Sequence[NewPrediction], notes: Sequence[str], out: Path
) -> None:
    """What a run says of all slides."""
    warn_of_model(opened.model_warning)
    _print_predictions(
        f"{opened.run}, {opened.mode}", [one for one in found if one.status != "failed"]
    )
    if before := [one for one in found if one.status == "already done"]:
        say(
            f"{len(before)} of {len(found)} slides were done before and left alone (--again does them again)."
        )
    for note in (*notes, *_describe_parts(found)):
        say(note)
    say(f"wrote {out / 'predictions.csv'}")


def _print_predictions(title: str, found: Sequence[NewPrediction]) -> None:
    """A table; what was encoded has columns where slide files were given."""
    if not found:
        return
    names = [name for name in found[0].values if not name.startswith(("host_", "evidence_"))]
    beside = [one for one in ("host", "evidence") if f"{one}_{names[0]}" in found[0].values]
    any_file = any(one.n_encoded is not None for one in found)
    rows = []
    for one in found:
        share = "-" if one.evidence is None else f"{len(one.evidence) / (one.n_patches or 1):.3f}"
        main = max(names, key=lambda name, one=one: one.values[name])  # type: ignore[misc]
        row = [
            one.slide_id,
            *(f"{one.values[name]:.3f}" for name in names),
            "-" if one.spread is None else f"{one.spread:.3f}",
            *(f"{one.values[f'{prefix}_{main}']:.3f}" for prefix in beside),
            share,
            one.verdict or "-",
            one.part,
        ]
        if any_file:
            filtered = {None: "-", True: "certified", False: "fell back to all patches"}[
                one.certified
            ]
            row += [
                str(one.n_patches),
                "-" if one.n_encoded is None else str(one.n_encoded),
                filtered,
            ]
        rows.append(row)
    alone = (f"{prefix} alone" for prefix in beside)
    columns = (
        "slide",
        *names,
        "spread over folds",
        *alone,
        "patches in evidence",
        "verdict",
        "part",
    )
    print_table(title, (*columns, "patches", "encoded", "prefilter") if any_file else columns, rows)


def _describe_parts(found: Sequence[NewPrediction]) -> Iterator[str]:
    """What a reader must know of slides that the run was made with."""
    parts = Counter(one.part for one in found if one.status != "failed")
    if n_unseen := parts["test"]:
        yield f"{n_unseen} slides are of the run's own cohort: each is predicted by the folds that did not see it."
    if n_seen := parts["train"] + parts["val"]:
        yield (
            f"{n_seen} slides were used to train these folds, or to choose their epoch (column part): "
            "their predictions do not show how the model does on new slides."
        )


def prefilter(
    run: Path = typer.Argument(
        help="A run folder, trained with evidence on encoded slides.", callback=one_target
    ),
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
        help="Largest chance that a certified answer is not that of all patches.",
    ),
    view_mpp: float = typer.Option(4.0, help="Micrometres per pixel of the view the student sees."),
    epochs: int = typer.Option(10, min=1, help="Passes of the student over the training slides."),
    measure: bool = typer.Option(
        False,
        "--measure",
        help="Also time the test slides with and without the prefilter, for the cost table.",
    ),
    device: str | None = DEVICE,
    seed: int = seed_option("the training of the student"),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Train a small model per fold that selects at low magnification which patches to encode.

    The keep rate, and how doubtful an answer from kept patches may be, are settled on the validation slides. Then
    'gcemil predict RUN slide.svs --mode prefilter' encodes only the patches the student keeps, and all of them where
    the answer is too doubtful.

    Example: gcemil prefilter runs/mine slides/
    """
    from gcemil.features.patching import find_slides
    from gcemil.files import lock_folder
    from gcemil.prefilter.certificate import CertificateSettings
    from gcemil.prefilter.cost import measure_cost
    from gcemil.prefilter.distil import fit_prefilter
    from gcemil.prefilter.student import PrefilterSettings
    from gcemil.runs.folder import Run

    found = find_slides(slides)
    folds = [one.number for one in Run(run).trained_folds()] if fold is None else [fold]
    sight = PrefilterSettings(view_mpp=view_mpp, epochs=epochs, seed=seed)
    promise = CertificateSettings(utility_share=utility, risk=risk)
    reports, costs = [], []
    with lock_folder(run):
        for index in folds:
            with progress(f"fitting the prefilter of fold {index}") as advance:
                reports.append(
                    fit_prefilter(
                        run, index, found, sight, promise, device=device or "auto", on_slide=advance
                    )
                )
            if measure:
                with progress(f"timing the test slides of fold {index}") as advance:
                    costs.append(measure_cost(run, index, found, on_slide=advance))
    if as_json:
        print_json(
            {
                "folds": [asdict(report) for report in reports],
                "cost": [cost.to_json() for cost in costs],
            }
        )
        return
    rows = [
        (
            report.fold,
            f"{report.chosen.keep_rate:g}",
            "-" if report.chosen.doubt_limit is None else f"{report.chosen.doubt_limit:.3f}",
            "-"
            if report.chosen.relative_utility is None
            else f"{report.chosen.relative_utility:.3f}",
            f"{report.chosen.fall_back:.2f}",
            f"{report.chosen.cost:.3f}",
            f"{report.chosen.recall:.2f}",
            report.n_val,
        )
        for report in reports
    ]
    print_table(
        f"{run}, on validation slides",
        ("fold", "keep rate", "doubt up to", "relative utility", "fall back", "patches encoded", "recall of evidence", "slides"),
        rows,
    )  # fmt: skip
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        say(note)
    for cost in costs:
        say(cost.sentence)
    say(f"next: gcemil predict {run} SLIDE --mode prefilter")
