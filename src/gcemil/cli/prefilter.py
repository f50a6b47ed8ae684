"""gcemil prefilter: a student that spares most patches the encoder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from gcemil.cli.options import TRUST_HOST, seed_option


def prefilter(
    run: Path = typer.Argument(help="A run folder, trained with evidence on encoded slides."),
    slides: list[Path] = typer.Argument(help="The slide files of its cohort, or folders of them."),
    fold: int | None = typer.Option(None, min=0, help="One fold instead of all."),
    utility: float = typer.Option(
        0.98, min=0.01, help="Smallest task metric on validation slides, as a share of that of all patches."
    ),
    risk: float = typer.Option(
        0.1, min=0.001, max=0.999, help="Largest chance that a certified answer is not that of all patches."
    ),
    view_mpp: float = typer.Option(4.0, help="Micrometres per pixel of the view the student sees."),
    epochs: int = typer.Option(10, min=1, help="Passes of the student over the training slides."),
    measure: bool = typer.Option(
        False,
        "--measure",
        help="Also time the test slides with and without the prefilter, for the cost table.",
    ),
    seed: int = seed_option("the training of the student"),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print every keep rate that was tried as JSON."),
) -> None:
    """Distil the selector of every fold into a student that sees slides at low magnification only.

    The keep rate, and how doubtful an answer from kept patches may be, are settled on the validation slides. Then
    'gcemil predict RUN slide.svs --mode prefilter' encodes only the patches the student keeps, and all of them where
    the answer is too doubtful.

    Example: gcemil prefilter runs/mine slides/
    """
    from gcemil.bags.patching import find_slides
    from gcemil.cli.console import print_json, print_table, progress, say
    from gcemil.files import working_in
    from gcemil.prefilter.certificate import CertificateSettings
    from gcemil.prefilter.cost import measure_cost
    from gcemil.prefilter.distil import fit_prefilter
    from gcemil.prefilter.student import PrefilterSettings
    from gcemil.runs.folder import RunFolder

    found = find_slides(slides)
    folds = [one.number for one in RunFolder(run).trained_folds()] if fold is None else [fold]
    sight = PrefilterSettings(view_mpp=view_mpp, epochs=epochs, seed=seed)
    promise = CertificateSettings(utility_share=utility, risk=risk)
    reports, costs = [], []
    with working_in(run):
        for index in folds:
            with progress(f"fitting the prefilter of fold {index}") as advance:
                reports.append(fit_prefilter(run, index, found, sight, promise, on_slide=advance))
            if measure:
                with progress(f"timing the test slides of fold {index}") as advance:
                    costs.append(measure_cost(run, index, found, on_slide=advance))
    if as_json:
        print_json(
            {"folds": [asdict(report) for report in reports], "cost": [cost.to_json() for cost in costs]}
        )
        return
    rows = [
        (
            report.fold,
            f"{report.chosen.keep_rate:g}",
            "-" if report.chosen.doubt_limit is None else f"{report.chosen.doubt_limit:.3f}",
            "-" if report.chosen.relative_utility is None else f"{report.chosen.relative_utility:.3f}",
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
