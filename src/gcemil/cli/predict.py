"""gcemil predict: new slides through a trained run, with evidence."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.options import TRUST_HOST

if TYPE_CHECKING:
    from gcemil.prefilter.slide_files import SlideFilePrediction, SlidePredictor
    from gcemil.runs.predict import Mode as FeatureMode
    from gcemil.runs.predict import SlidePrediction


class Mode(StrEnum):
    """The modes of a run (runs.records.MODES), and the prefilter for slide files."""

    full = "full"
    soft = "soft"
    discrete = "discrete"
    prefilter = "prefilter"


def predict(
    run: Path = typer.Argument(help="A run folder."),
    slides: list[Path] = typer.Argument(help="Feature files (.h5 with features and coords), or slide files."),
    mode: Mode = typer.Option(
        Mode.discrete,
        help="All patches, all patches gated, or the evidence alone; prefilter: only promising patches of a slide file are encoded.",
    ),
    fold: int | None = typer.Option(None, min=0, help="One fold instead of the mean over all."),
    out: Path | None = typer.Option(None, help="Also write the evidence of each slide into this folder."),
    mpp: float | None = typer.Option(
        None, help="Micrometres per level-0 pixel for slide files that do not state it."
    ),
    weights: Path | None = typer.Option(None, help="A local copy of the encoder's page, for slide files."),
    trust_remote_code: bool = typer.Option(
        False, "--trust-remote-code", help="Run the Python code that comes with the encoder's page."
    ),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print the predictions as JSON."),
) -> None:
    """Predict slides that were not in the cohort, from their feature files or from the slides themselves.

    A slide file is patched and encoded as the cohort of the run was. With --mode prefilter only the patches that the
    student of 'gcemil prefilter' keeps are encoded, and the rest where its answer is not certified.

    Example: gcemil predict runs/bracs_abmil features/new_slide.h5 --mode discrete
    """
    from gcemil.bags.tables import file_fingerprint
    from gcemil.cli.console import print_json, progress
    from gcemil.errors import UsageError
    from gcemil.features.loaders import WeightSource
    from gcemil.prefilter.slide_files import SlidePredictor, is_slide_file
    from gcemil.runs.evidence_files import write_evidence
    from gcemil.runs.predict import predict_slide

    predictor: SlidePredictor | None = None
    found: list[SlidePrediction | SlideFilePrediction] = []
    for slide in slides:
        if mode is Mode.prefilter and not is_slide_file(slide):
            raise UsageError(
                f"{slide} is no slide file: its patches are encoded already, and there is nothing to filter. "
                "Give the slide itself, or predict with --mode discrete."
            )
    with progress("predicting slides") as advance:
        for done, slide in enumerate(slides, start=1):
            prediction: SlidePrediction | SlideFilePrediction
            if is_slide_file(slide):
                predictor = predictor or SlidePredictor.open(
                    run, mode=mode.value, fold=fold, source=WeightSource(weights, trust_remote_code)
                )
                prediction = predictor.predict(slide, mpp=mpp)
            else:
                prediction = predict_slide(run, slide, mode=_find_feature_mode(mode), fold=fold)
            found.append(prediction)
            if out is not None and prediction.evidence is not None:
                what = "slide" if is_slide_file(slide) else "features"
                hashes = {what: file_fingerprint(slide)}
                write_evidence(out / f"{prediction.slide_id}.h5", prediction.evidence, hashes)
            advance(done, len(slides))
    if as_json:
        print_json([_describe_prediction(one) for one in found])
    else:
        _print_predictions(f"{run}, {mode.value}", found)


def _find_feature_mode(mode: Mode) -> FeatureMode:
    """A mode that feature files can be predicted in."""
    known: dict[Mode, FeatureMode] = {Mode.full: "full", Mode.soft: "soft", Mode.discrete: "discrete"}
    return known[mode]


def _describe_prediction(prediction: SlidePrediction | SlideFilePrediction) -> dict[str, object]:
    """One prediction for a script; evidence is given as rows of the feature file or of the slide's grid."""
    from gcemil.prefilter.slide_files import SlideFilePrediction

    evidence = prediction.evidence
    record: dict[str, object] = {"slide_id": prediction.slide_id, **prediction.values}
    if not isinstance(prediction, SlideFilePrediction):
        return {**record, "evidence": None if evidence is None else evidence.indices.tolist()}
    return {
        **record,
        "evidence": None if evidence is None else prediction.evidence_rows,
        "evidence_coords": None
        if evidence is None or evidence.coords is None
        else evidence.coords[evidence.indices].tolist(),
        "n_patches": prediction.n_patches,
        "n_encoded": prediction.n_encoded,
        "certified": prediction.certified,
        "seconds": prediction.seconds,
    }


def _print_predictions(title: str, found: list[SlidePrediction | SlideFilePrediction]) -> None:
    """A table; what was encoded has columns where slide files were given."""
    from gcemil.cli.console import print_table
    from gcemil.prefilter.slide_files import SlideFilePrediction

    names = list(found[0].values)
    any_file = any(isinstance(one, SlideFilePrediction) for one in found)
    rows = []
    for one in found:
        row = [one.slide_id, *(f"{one.values[name]:.3f}" for name in names)]
        if not isinstance(one, SlideFilePrediction):
            row.append("-" if one.evidence is None else f"{one.evidence.fraction:.3f}")
            rows.append((*row, "-", "-", "-") if any_file else tuple(row))
            continue
        row.append("-" if one.evidence is None else f"{len(one.evidence_rows) / one.n_patches:.3f}")
        verdict = {None: "-", True: "certified", False: "fell back to all patches"}[one.certified]
        rows.append((*row, str(one.n_patches), str(one.n_encoded), verdict))
    columns = ("slide", *names, "evidence")
    print_table(title, (*columns, "patches", "encoded", "prefilter") if any_file else columns, rows)
