"""gcemil predict: new slides through a trained run, with evidence."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer


class Mode(StrEnum):
    full = "full"
    soft = "soft"
    discrete = "discrete"


def predict(
    run: Path = typer.Argument(help="A run folder."),
    slides: list[Path] = typer.Argument(help="Feature files (.h5 with features and coords)."),
    mode: Mode = typer.Option(Mode.discrete, help="All patches, all patches gated, or the evidence alone."),
    fold: int | None = typer.Option(None, min=0, help="One fold instead of the mean over all."),
    out: Path | None = typer.Option(None, help="Also write the evidence of each slide into this folder."),
    as_json: bool = typer.Option(False, "--json", help="Print the predictions as JSON."),
) -> None:
    """Predict slides that were not in the cohort, from their feature files.

    Example: gcemil predict runs/bracs_abmil features/new_slide.h5 --mode discrete
    """
    from gcemil.bags.tables import file_fingerprint
    from gcemil.cli.console import print_json, print_table, progress
    from gcemil.training.fold import write_slide_evidence
    from gcemil.training.reevaluate import predict_slide

    found = []
    with progress("predicting slides") as advance:
        for done, slide in enumerate(slides, start=1):
            prediction = predict_slide(run, slide, mode=mode.value, fold=fold)
            found.append(prediction)
            if out is not None and prediction.evidence is not None:
                hashes = {"features": file_fingerprint(slide)}
                write_slide_evidence(out / f"{prediction.slide_id}.h5", prediction.evidence, hashes)
            advance(done, len(slides))
    if as_json:
        print_json(
            [
                {
                    "slide_id": p.slide_id,
                    **p.values,
                    "evidence": None if p.evidence is None else p.evidence.indices.tolist(),
                }
                for p in found
            ]
        )
        return
    names = list(found[0].values)
    rows = [
        (
            p.slide_id,
            *(f"{p.values[name]:.3f}" for name in names),
            "-" if p.evidence is None else f"{p.evidence.fraction:.3f}",
        )
        for p in found
    ]
    print_table(f"{run}, {mode.value}", ("slide", *names, "evidence"), rows)
