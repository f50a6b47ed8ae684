"""Evidence measured: gcemil diagnose, by intervention; review, by marks; audit, of any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_records, print_table, progress, say, warn_of_model
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.findings import Finding, Row


FEW_FIGURES = 5
"""Figures of a row that are printed without --all."""


def diagnose(
    runs: list[Path] = typer.Argument(
        help="A run folder, of several targets each in turn; further runs of other seeds add to "
        "its stability."
    ),
    against: Path | None = typer.Option(None, help="The run of the plain host, for more rivals."),
    only: str | None = typer.Option(
        None, help="Names such as snr,budget; all but sanity by default."
    ),
    folds: options.Folds = "all",
    everything: bool = options.flag("--all", "Print every row and every figure."),
    jobs: int | None = options.jobs("folds"),
    device: options.Device = None,
    engine: options.Engine = "local",
    address: options.Address = None,
    again: bool = options.flag("--again", "Measure again what is already there."),
    seed: int = options.seed("random subsets and perturbations"),
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Measure by intervention whether the evidence is sufficient, necessary and recoverable.

    Every rule is shown with oracle and random patches.

    Example: gcemil diagnose runs/bracs_gce --against runs/bracs_host --only snr,budget
    """
    from gcemil.diagnostics.diagnose import Comparison, diagnose_run
    from gcemil.files import without_nan
    from gcemil.runs.folder import Run

    targets = Run(runs[0]).targets
    # The same target of every run; a run of one target is itself.
    below = [Path("targets", name) for name in targets] or [Path()]
    cluster = options.find_cluster(engine, address)
    answers = {}
    for place in below:
        first, *others = (run / place for run in runs)
        comparison = Comparison(
            first, against and against / place, tuple(others), seed, device or "auto"
        )
        with progress("diagnosing") as advance:
            findings = diagnose_run(
                comparison,
                names=None if only is None else only.split(","),
                folds=options.parse_folds(folds),
                again=again,
                jobs=jobs,
                cluster=cluster,
                on_done=advance,
            )
        answers[place.name] = without_nan({finding.name: finding.to_json() for finding in findings})
        if as_json:
            continue
        warn_of_model(Run(first).model_warning)
        for finding in findings:
            if finding.name == "snr":
                print_answer(first)
            if finding.name != "snr" or everything:
                print_finding(finding, everything=everything)
        say(
            f"Findings of each fold, slide by slide: {first}/fold_<k>/diagnostics; joined: "
            f"{first}/diagnostics"
        )
    if as_json:
        print_json(answers if targets else answers[""])
        return
    if not everything:
        say("More rows and figures: the same command with --all.")


def print_answer(run: Path) -> None:
    """Does the evidence hold? Every rule by the same criteria, and the sentence that follows."""
    from gcemil.report.run_data import RunData

    claim = RunData(run).claim
    rules = claim.rules if claim else ()
    knows_truth = any(one.mean("precision") is not None for one in rules)
    records = []
    for one in rules:
        record = {
            "patches chosen by": one.words,
            "Sufficient": one.count("sufficient").words,
            "Necessary": one.count("necessary").words,
            "Both": one.both.words,
            "Recoverable: C-D gap": _format_mean(one.mean("cd_gap"), ".3f"),
            "Size": _format_mean(one.mean("evidence_fraction"), ".1%"),
        }
        if knows_truth:
            record["Precision"] = _format_mean(one.mean("precision"), ".3f")
        records.append(record)
    if records:
        print_records(
            f"{run}: does the evidence hold? Test slides, the same number of patches for every "
            "rule; more is better, but for the C-D gap",
            records,
        )
    for text in claim.describe() if claim else ():
        say(text)


def _format_mean(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def print_finding(finding: Finding, *, everything: bool = False) -> None:
    """Print its rows as tables, and its notes below.

    Rows with different figures are in different tables, so that no column is mostly empty.
    """
    shown = list(finding.rows) if everything else _choose_rows(finding)
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in shown:
        figures = tuple(name for name, value in row.values.items() if value is not None)
        # A figure that a few rows lack does not make them another kind of row.
        kind = (*row.labels, row.labels.get("comparison", ""), *(figures[:1]))
        kinds.setdefault(kind, []).append(row)
    for rows in kinds.values():
        _print_rows(finding.name, rows, None if everything else FEW_FIGURES)
    if finding.is_same_network:
        say("  The plain host and the wrapped one are the same network: each rule is shown once.")
    for note in finding.notes:
        say(f"  note: {note}")


def _choose_rows(finding: Finding) -> list[Row]:
    """The main rows: one network if both are the same, no smoothed rules, one size."""
    from gcemil.rules import SMOOTHED

    rows = [row for row in finding.rows if not row.labels.get("rule", "").endswith(SMOOTHED)]
    if finding.is_same_network:
        rows = [row for row in rows if row.labels.get("network") != "plain"]
    for name, wanted in (("class", "all"), ("budget", "recovered"), ("k", "16")):
        if any(row.labels.get(name) == wanted for row in rows):
            rows = [row for row in rows if row.labels.get(name, wanted) == wanted]
    return [row for row in rows if "froc" not in row.labels] or list(finding.rows)


def _print_rows(title: str, rows: Sequence[Row], most: int | None) -> None:
    from gcemil.metrics import METRICS
    from gcemil.tables import format_spread

    labels = dict.fromkeys(name for row in rows for name in row.labels)
    # A label that all rows share goes into the title.
    shared = [name for name in labels if len({row.labels.get(name) for row in rows}) == 1]
    shared = shared if len(rows) > 1 else []
    title = ", ".join([title, *(rows[0].labels[name] for name in shared)])
    own = [name for name in labels if name not in shared]
    figures = list(
        dict.fromkeys(
            name for row in rows for name, value in row.values.items() if value is not None
        )
    )
    chosen = figures[:most]
    table = []
    for row in rows:
        spreads = (
            format_spread(row.values.get(name), row.deviations.get(name) or None) for name in chosen
        )
        table.append((" · ".join(filter(None, map(row.labels.get, own))), *spreads))
    columns = [f"{METRICS[name].label} {METRICS[name].arrow}".strip() for name in chosen]
    print_table(title, (" · ".join(own), *columns), table)
    if len(figures) > len(chosen):
        say(f"  {len(figures) - len(chosen)} more figures per row with --all.")


def review(
    run: Path | None = options.run_argument("A run folder.", None),
    marks: list[Path] = typer.Argument(
        None,
        help="<slide>.geojson as QuPath exports it, folders of such files, or reviews that the "
        "viewer saved; by default those of the run.",
    ),
    against: Path | None = typer.Option(
        None, help="The run of the plain host, to judge its attention."
    ),
    seed: int = options.seed("the bootstrap and the random patches"),
    resamples: int = typer.Option(2000, min=1, help="Draws of the bootstrap."),
    script: Path | None = typer.Option(
        None, help="Only write the QuPath script for marks to this file."
    ),
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Measure how far a reviewer agrees with the evidence, and with attention.

    Marks are regions or points of the class accept, reject or missed. A patch is judged if marks
    cover at least half of it: positive under accept or missed, negative under reject. Precision,
    recall and Cohen's kappa come with bootstrap intervals, over all slides and slide by slide.
    Slides that no trained fold tests are listed, and the command then exits with 1.

    Example: gcemil review runs/bracs_abmil reviews/
    """
    from gcemil.diagnostics.agreement import review_slide_table, review_table
    from gcemil.diagnostics.review import review_run
    from gcemil.files import without_nan, write_text
    from gcemil.resources import read_shipped_text

    if script is not None:
        write_text(script, read_shipped_text("qupath", "gcemil_review.groovy"))
        say(f"wrote {script}; in QuPath: Automate > Script editor, open it, Run")
        return
    if run is None:
        raise UsageError(
            "Name the run that was reviewed: gcemil review RUN MARKS. For the QuPath script: "
            "--script FILE."
        )
    finding, left_out = review_run(
        run, marks or (), against=against, seed=seed, resamples=resamples
    )
    if as_json:
        print_json(without_nan({**finding.to_json(), "left_out": left_out}))
    else:
        for table in (review_table(finding), review_slide_table(finding)):
            columns = [f"{one.header} {one.arrow}".strip() for one in table.columns]
            rows = [(*line.row_labels, *(cell.text for cell in line.cells)) for line in table.lines]
            print_table(table.title, (*table.row_labels, *columns), rows)
        for note in finding.notes:
            say(f"note: {note}")
        say(f"wrote {run / 'diagnostics' / 'review.json'}")
    raise typer.Exit(1 if left_out else 0)


Part = Literal["train", "val", "test", "all"]
Arrays = Literal["torch", "numpy"]


def audit(
    cohort: Path = typer.Argument(help="A cohort folder; truth/ in it adds the oracle."),
    model: str = typer.Option(
        ...,
        help="A run folder, whose fold is audited; or pkg.module:callable, whose module is "
        "imported, which RUNS ITS CODE: name only code you trust.",
    ),
    scores: list[Path] = typer.Option(
        [],
        help="A folder of <slide_id>.h5, .csv or .npy with one score per patch; may be repeated.",
    ),
    column: str | None = typer.Option(None, help="Dataset or column of the score files."),
    gates: bool = options.flag(
        "--gates", "The scores are gates in [0, 1]: measure recoverability too."
    ),
    part: Part = typer.Option("test", help="Bags of the fold; all needs no folds."),
    fold: int = typer.Option(0, min=0, help="The fold the model was not trained on."),
    budget: float = typer.Option(0.05, min=0, max=1, help="Share of patches of every rule."),
    arrays: Arrays = typer.Option("torch", help="What the callable receives."),
    repeats: int = typer.Option(
        3, min=0, help="Changed versions of each bag, for stability; 0 leaves it out."
    ),
    device: options.Device = None,
    out: Path = typer.Option(Path("audit.json"), help="Where the finding is written."),
    html: Path | None = typer.Option(None, help="Also write a page with verdict and curves."),
    seed: int = options.seed("random subsets and perturbations"),
    as_json: options.Json = False,
) -> None:
    """Test an explanation of any model: keep and remove its patches.

    Random patches and, if known, the true ones are judged too. The callable gets float32 features
    (n, d) and integer coords (n, 2) of one bag, all of it or some of its patches, and returns
    logits (one per class, in the order of cohort.yaml, or one risk), or the tuple (logits, scores)
    with one score per patch. Without scores of its own or from --scores, the slope of its output by
    each patch is audited.

    Example: gcemil audit cohorts/bracs --model my_lab.models:predict --scores attention/ --fold 0
    """
    from gcemil.diagnostics.audit_inputs import audit_cohort
    from gcemil.files import without_nan, write_json

    if html is not None:
        from gcemil.cli.report import needs_matplotlib

        # Imported before the audit, so that a missing extra is reported at once.
        with needs_matplotlib():
            from gcemil.report.audit_page import write_audit_page
    with progress("auditing bags") as advance:
        finding = audit_cohort(
            cohort,
            model,
            scores=scores,
            column=column,
            gates=gates,
            part=part,
            fold=fold,
            budget=budget,
            arrays=arrays,
            repeats=repeats,
            seed=seed,
            device=device or "auto",
            on_bag=advance,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, finding.to_json())
    if html is not None:
        write_audit_page(html, finding)
    if as_json:
        print_json(without_nan(finding.to_json()))
        return
    for comparison in dict.fromkeys(row.labels["comparison"] for row in finding.rows):
        rows = tuple(
            replace(row, labels={"rule": row.labels["rule"]})
            for row in finding.rows
            if row.labels["comparison"] == comparison
        )
        part_of = replace(finding, name=f"audit, {comparison}", rows=rows, notes=())
        print_finding(part_of, everything=True)
    for line in (*finding.notes, f"wrote {out}", *([f"wrote {html}"] if html else [])):
        say(line)
