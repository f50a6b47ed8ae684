"""gcemil demo: the whole story in about a minute, nothing to download."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gcemil.cli.console import Advance
from gcemil.cli.options import seed_option

if TYPE_CHECKING:
    from gcemil.diagnostics.budget import RuleRow

PROFILE = "nsclc"
SLIDES = 100
FOLDS = (0, 1)
EPOCHS = 15
TOTAL_EPOCHS = EPOCHS * len(FOLDS)
REPORTED = ("snr", "failures")
"""Diagnostics of the demo's report; the others are a command away, and the report names it."""


def demo(
    out: Path = typer.Option(Path("demo"), help="Where cohort and runs are written."),
    seed: int = seed_option("the cohort and the training"),
) -> None:
    """Simulate a cohort with known evidence, train a host without and with the wrapper, and compare their evidence.

    Example: gcemil demo --out demo
    """
    from gcemil.bags import guards
    from gcemil.bags.cohort import Cohort
    from gcemil.bags.folds import make_folds, write_folds
    from gcemil.cli.console import progress, say
    from gcemil.config import EvidenceSettings, TrainSettings
    from gcemil.simulation.simulate import simulate
    from gcemil.training.run import train_run

    started = time.monotonic()
    cohort_folder = out / "cohort"
    if not (cohort_folder / "cohort.yaml").is_file():
        with progress("simulating slides") as advance:
            simulate(PROFILE, cohort_folder, seed=seed, slides=SLIDES, on_slide=advance)
    cohort = Cohort.load(cohort_folder)
    write_folds(cohort, make_folds(cohort, seed=seed))
    guards.refuse_errors(cohort_folder, guards.validate(cohort_folder))
    say(f"cohort    {cohort_folder}: {len(cohort.slides)} slides, simulated '{PROFILE}', evidence known")

    plain = TrainSettings(evidence=None, epochs=EPOCHS, seed=seed)
    wrapped = TrainSettings(evidence=EvidenceSettings(), epochs=EPOCHS, seed=seed)
    for name, settings in (("host", plain), ("host_gce", wrapped)):
        with progress(f"training {name}") as advance:
            report = _count_epochs(advance)
            train_run(cohort_folder, out / name, settings, folds=FOLDS, on_epoch=report)
        say(f"trained   {out / name}")
    _print_story(out, seed)
    say(f"report    {_write_demo_report(out, seed)}")
    say(f"look      gcemil view {out / 'host_gce'}")
    say(f"{time.monotonic() - started:.0f} s in all.")


def _write_demo_report(out: Path, seed: int) -> Path:
    """Sufficiency, necessity, recoverability and failures of every test slide, as one HTML file."""
    from gcemil.cli.console import progress
    from gcemil.diagnostics.diagnose import Comparison, diagnose_run
    from gcemil.report.run_report import write_report

    run, host = out / "host_gce", out / "host"
    with progress("diagnosing") as advance:
        diagnose_run(Comparison(run, host, seed=seed), names=REPORTED, on_done=advance)
    with progress("writing the report") as advance:
        return write_report(run, run / "report.html", against=host, seed=seed, on_step=advance)


def _count_epochs(advance: Advance) -> Callable[[int, dict[str, Any]], None]:
    """Counts epochs of all folds towards the total."""
    done = 0

    def report(_fold: int, _record: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        advance(done, TOTAL_EPOCHS)

    return report


def _print_story(out: Path, seed: int) -> None:
    """Task metrics of both arms, then every subset rule at the same size."""
    from statistics import fmean

    from gcemil.cli.console import print_table
    from gcemil.files import read_json
    from gcemil.runs.folder import RunFolder

    summaries = {name: read_json(RunFolder(out / name).summary) for name in ("host", "host_gce")}
    rows = [("host, all patches", *_format_metrics(summaries["host"]["full"]))]
    rows += [
        ("host + GCE, all patches gated", *_format_metrics(summaries["host_gce"]["soft"])),
        ("host + GCE, evidence alone", *_format_metrics(summaries["host_gce"]["discrete"])),
    ]
    print_table("Prediction on test slides", ("bag", "accuracy", "Macro-F1", "AUC"), rows)

    found = [_compare_rules(out / "host_gce", out / "host", fold, seed) for fold in FOLDS]
    table = []
    for position, first in enumerate(found[0]):
        rule = [rows[position] for rows in found]
        scores = [row.snr for row in rule]
        truths = [row.truth for row in rule if row.truth is not None]
        table.append(
            (
                first.rule,
                f"{fmean(s.evidence_fraction for s in scores):.3f}",
                f"{fmean(s.evidence_sufficiency for s in scores):.3f}",
                f"{fmean(s.keep_only_drop for s in scores):+.3f}",
                f"{fmean(s.complement_degradation or 0.0 for s in scores):+.3f}",
                f"{fmean(s.cd_gap for s in scores if s.cd_gap is not None):.3f}"
                if first.snr.cd_gap is not None
                else "-",
                f"{fmean(t.precision for t in truths):.3f}",
                f"{fmean(t.recall for t in truths):.3f}",
            )
        )
    columns = (
        "rule",
        "size",
        "keep-only F1 ↑",
        "keep-only drop ↓",
        "complement degr. ↑",
        "C-D gap ↓",
        "precision ↑",
        "recall ↑",
    )
    print_table(
        "The same number of patches, chosen by four rules (precision and recall against truth)",
        columns,
        table,
    )


def _compare_rules(wrapped: Path, plain: Path, fold: int, seed: int) -> list[RuleRow]:
    """Every subset rule on the test slides of one fold, from the two trained networks."""
    from gcemil.bags.cohort import Cohort
    from gcemil.bags.folds import read_fold
    from gcemil.diagnostics.budget import same_budget_rows
    from gcemil.runs.folder import RunFolder, fold_parts, read_run
    from gcemil.runs.network import load_network
    from gcemil.tasks.task import create_task, stacked_targets

    card = read_run(wrapped)
    cohort = Cohort.load(card.cohort)
    model = load_network(RunFolder(wrapped).fold(fold).checkpoint)[0].model
    host = load_network(RunFolder(plain).fold(fold).checkpoint)[0].host
    bags = fold_parts(cohort, read_fold(cohort, fold)).test
    task = create_task(cohort, card.settings)
    return same_budget_rows(model, host, cohort, bags, stacked_targets(bags), task, seed=seed)  # type: ignore[arg-type]


def _format_metrics(values: dict[str, dict[str, float]]) -> tuple[str, ...]:
    from gcemil.tables import format_spread

    return tuple(
        format_spread(values[name]["mean"], values[name]["std"]) for name in ("accuracy", "macro_f1", "auc")
    )
