"""gcemil demo: the whole story in about a minute, nothing to download."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import typer

from gcemil.cli import options
from gcemil.cli.console import print_records, progress, say

PROFILE = "nsclc"
SLIDES = 100
FOLDS = (0, 1)
MIN_STEPS, MAX_PATCHES = 700, 512
"""Less than the default: enough on slides this clear, and the demo stays below two minutes."""
RIVALS = ["attention", "contribution", "occlusion", "single"]
OPTIONS: dict[str, dict[str, Any]] = {
    "budget": {"attributions": RIVALS},
    "posthoc": {"attributions": RIVALS},
    "stability": {"repeats": 2},
    "cost": {"repeats": 3, "timed_bags": 4},
}
"""Cheaper forms of the slowest diagnostics: rivals that cost one pass, fewer repeats."""


def demo(
    out: Path = typer.Option(Path("demo"), help="Where cohort and runs are written."),
    seed: int = options.seed("the cohort and the training"),
) -> None:
    """Simulate slides with known evidence, train on them, explain them and write a report.

    Example: gcemil demo --out demo
    """
    from gcemil.bags.cohort import Cohort
    from gcemil.bags.folds import make_folds, write_folds
    from gcemil.bags.validate import refuse_errors, validate
    from gcemil.cli.diagnose import print_answer
    from gcemil.config import EvidenceSettings, TrainSettings
    from gcemil.diagnostics.diagnose import Comparison, diagnose_run
    from gcemil.report.run_report import write_report
    from gcemil.runs.predict import represent_runs
    from gcemil.simulation.simulate import simulate
    from gcemil.training.run import planned_epochs, train_run

    started = time.monotonic()
    cohort_folder = out / "cohort"
    if not (cohort_folder / "cohort.yaml").is_file():
        with progress("simulating slides") as advance:
            simulate(PROFILE, cohort_folder, seed=seed, slides=SLIDES, on_slide=advance)
    cohort = Cohort.load(cohort_folder)
    write_folds(cohort, make_folds(cohort, seed=seed))
    refuse_errors(cohort_folder, validate(cohort_folder))
    say(
        f"cohort    {cohort_folder}: {len(cohort.slides)} slides, simulated '{PROFILE}', evidence "
        "known"
    )

    run = out / "run"
    settings = TrainSettings(
        evidence=EvidenceSettings(), min_steps=MIN_STEPS, max_patches=MAX_PATCHES, seed=seed
    )
    with progress("training") as advance:
        n_epochs, epochs = planned_epochs(cohort, settings, FOLDS), count(1)
        train_run(
            cohort_folder,
            run,
            settings,
            folds=FOLDS,
            on_epoch=lambda _fold, _record: advance(next(epochs), n_epochs),
        )
    say(f"trained   {run}")
    _print_predictions(run)
    with progress("diagnosing") as advance:
        diagnose_run(Comparison(run, seed=seed, options=OPTIONS), on_done=advance)
    with progress("representing slides") as advance:
        represent_runs([run], on_bag=advance)
    print_answer(run)
    with progress("writing the report") as advance:
        report_file = write_report(run, run / "report.html", seed=seed, on_step=advance)
    say(f"report    {report_file}")
    say(f"look      gcemil view {run}")
    say(f"{time.monotonic() - started:.0f} s in all.")


def _print_predictions(run: Path) -> None:
    """Task metrics of the host, of host and evidence together, and of the evidence alone."""
    from gcemil.files import read_json
    from gcemil.runs.folder import Run
    from gcemil.tables import format_spread

    summary = read_json(Run(run).summary)
    modes = {
        "host, all patches": "full",
        "host + evidence (GCE)": "gce",
        "host + evidence, from the evidence alone": "discrete",
    }
    records = []
    for words, mode in modes.items():
        record = {"bag": words}
        for column, name in {"accuracy": "accuracy", "Macro-F1": "macro_f1", "AUC": "auc"}.items():
            value = summary[mode][name]
            record[column] = format_spread(value["mean"], value["std"], len(value["folds"]))
        records.append(record)
    print_records("Prediction on test slides", records)
