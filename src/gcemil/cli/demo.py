"""gcemil demo: the whole story in about a minute, nothing to download."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from gcemil.cli.console import Advance, print_table, progress, say
from gcemil.cli.options import seed_option

PROFILE = "nsclc"
SLIDES = 100
FOLDS = (0, 1)
MIN_STEPS, MAX_PATCHES = 700, 512
"""Enough at width 128 on slides this clear, and less than the default, so that the demo stays below two minutes."""
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
    seed: int = seed_option("the cohort and the training"),
) -> None:
    """Simulate a cohort with known evidence, train a host with the wrapper, and compare its evidence with attention.

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
        f"cohort    {cohort_folder}: {len(cohort.slides)} slides, simulated '{PROFILE}', evidence known"
    )

    run, settings = (
        out / "run",
        TrainSettings(
            evidence=EvidenceSettings(), min_steps=MIN_STEPS, max_patches=MAX_PATCHES, seed=seed
        ),
    )
    with progress("training") as advance:
        report = _count_epochs(advance, planned_epochs(cohort, settings, FOLDS))
        train_run(cohort_folder, run, settings, folds=FOLDS, on_epoch=report)
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


def _count_epochs(advance: Advance, total: int) -> Callable[[int, dict[str, Any]], None]:
    """Counts epochs of all folds towards the total."""
    done = 0

    def report(_fold: int, _record: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        advance(done, total)

    return report


def _print_predictions(run: Path) -> None:
    """Task metrics of the host, of host and evidence together, and of the evidence alone.

    The wrapper leaves the host as it was, so the host of this run is the plain host.
    """
    from gcemil.files import read_json
    from gcemil.runs.folder import Run

    summary = read_json(Run(run).summary)
    rows = [
        ("host, all patches", *_format_metrics(summary["full"])),
        ("host + evidence (GCE)", *_format_metrics(summary["gce"])),
        ("host + evidence, from the evidence alone", *_format_metrics(summary["discrete"])),
    ]
    print_table("Prediction on test slides", ("bag", "accuracy", "Macro-F1", "AUC"), rows)


def _format_metrics(values: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    from gcemil.tables import format_spread

    return tuple(
        format_spread(values[name]["mean"], values[name]["std"], len(values[name]["folds"]))
        for name in ("accuracy", "macro_f1", "auc")
    )
