"""Evidence measured: gcemil diagnose, by intervention; gcemil review, by a pathologist's marks; gcemil audit, of any model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from gcemil.cli.console import print_json, print_table, progress, say, warn_of_model
from gcemil.cli.options import (
    ADDRESS,
    DEVICE,
    ENGINE,
    FOLDS,
    JSON,
    TRUST_HOST,
    Engine,
    find_cluster,
    jobs_option,
    one_target,
    parse_folds,
    seed_option,
)
from gcemil.errors import UsageError

if TYPE_CHECKING:
    from gcemil.findings import Finding, Row
    from gcemil.tables import Table


FEW_FIGURES = 5
"""Figures of a row that are printed without --all."""


def diagnose(
    runs: list[Path] = typer.Argument(
        help="A run folder, of several targets each in turn; further runs of other seeds add to its stability."
    ),
    against: Path | None = typer.Option(
        None, help="The run of the plain host on the same cohort: more rivals."
    ),
    only: str | None = typer.Option(
        None, help="Names such as snr,budget; by default all but sanity."
    ),
    folds: str = FOLDS,
    everything: bool = typer.Option(
        False,
        "--all",
        help="Print every row and every figure, not only those that answer the question.",
    ),
    jobs: int | None = jobs_option("folds"),
    device: str | None = DEVICE,
    engine: Engine = ENGINE,
    address: str | None = ADDRESS,
    again: bool = typer.Option(False, "--again", help="Measure again what is already there."),
    seed: int = seed_option("random subsets and perturbations"),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Measure sufficiency, necessity, recoverability and more by intervention; oracle and random beside every rule.

    Example: gcemil diagnose runs/bracs_gce --against runs/bracs_host --only snr,budget
    """
    from gcemil.diagnostics.diagnose import Comparison, diagnose_run
    from gcemil.files import without_nan
    from gcemil.runs.folder import Run

    targets = Run(runs[0]).targets
    # The same target of every run; a run of one target is itself.
    below = [Path("targets", name) for name in targets] or [Path()]
    cluster = find_cluster(engine, address)
    answers = {}
    for place in below:
        first, *others = (run / place for run in runs)
        comparison = Comparison(
            first, against and against / place, tuple(others), seed, device or "auto"
        )
        with progress("diagnosing") as advance:
            found = diagnose_run(
                comparison,
                names=None if only is None else only.split(","),
                folds=parse_folds(folds),
                again=again,
                jobs=jobs,
                cluster=cluster,
                on_done=advance,
            )
        answers[place.name] = without_nan({finding.name: finding.to_json() for finding in found})
        if as_json:
            continue
        warn_of_model(Run(first).model_warning)
        for finding in found:
            if finding.name == "snr":
                print_answer(first)
            if finding.name != "snr" or everything:
                print_finding(finding, everything=everything)
        say(
            f"Findings of each fold, slide by slide: {first}/fold_<k>/diagnostics; joined: {first}/diagnostics"
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
    rows = [
        (
            one.words,
            one.count("sufficient").words,
            one.count("necessary").words,
            one.both.words,
            _format_mean(one.mean("cd_gap"), "{:.3f}"),
            _format_mean(one.mean("evidence_fraction"), "{:.1%}"),
            *([_format_mean(one.mean("precision"), "{:.3f}")] if knows_truth else []),
        )
        for one in rules
    ]
    columns = [
        "patches chosen by",
        "Sufficient",
        "Necessary",
        "Both",
        "Recoverable: C-D gap",
        "Size",
    ]
    print_table(
        f"{run}: does the evidence hold? Test slides, the same number of patches for every rule; more is better, but for "
        "the C-D gap",
        [*columns, "Precision"] if knows_truth else columns,
        rows,
    )
    for text in claim.describe() if claim else ():
        say(text)


def _format_mean(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def print_finding(finding: Finding, *, everything: bool = False) -> None:
    """Its rows as tables, arrows saying which way is better, and its notes below.

    Rows with different figures stand in different tables, so that no column is mostly empty.
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
    """What answers the question of a diagnostic: one network where both are one, no smoothed rules, one size."""
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

    labels = list(dict.fromkeys(name for row in rows for name in row.labels))
    # A label that all rows share goes into the title.
    shared = [
        name
        for name in labels
        if len({row.labels.get(name) for row in rows}) == 1 and len(rows) > 1
    ]
    title = ", ".join([title, *(rows[0].labels[name] for name in shared if name in rows[0].labels)])
    labels = [name for name in labels if name not in shared]
    figures = list(
        dict.fromkeys(
            name for row in rows for name, value in row.values.items() if value is not None
        )
    )
    chosen = figures[:most]
    table = [
        (
            " · ".join(row.labels.get(name, "") for name in labels if row.labels.get(name)),
            *(
                format_spread(row.values.get(name), row.deviations.get(name) or None)
                for name in chosen
            ),
        )
        for row in rows
    ]
    columns = [f"{METRICS[name].label} {METRICS[name].arrow}".strip() for name in chosen]
    print_table(title, (" · ".join(labels), *columns), table)
    if len(figures) > len(chosen):
        say(f"  {len(figures) - len(chosen)} more figures per row with --all.")


def review(
    run: Path | None = typer.Argument(None, help="A run folder.", callback=one_target),
    marks: list[Path] = typer.Argument(
        None,
        help="<slide>.geojson as QuPath exports it, folders of such files, or reviews that the viewer saved. "
        "By default the reviews that the viewer saved in the run.",
    ),
    against: Path | None = typer.Option(
        None, help="The run of the plain host on the same cohort: its attention is judged too."
    ),
    seed: int = seed_option("the bootstrap and the random patches"),
    resamples: int = typer.Option(2000, min=1, help="Draws of the bootstrap."),
    script: Path | None = typer.Option(
        None,
        help="Write the QuPath script that shows evidence and exports marks to this file, and leave.",
    ),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Measure how far a reviewer agrees with the evidence, and with attention at the same number of patches.

    Marks are regions or points of the class accept, reject or missed. A patch is judged when marks cover at least half of
    it: positive under accept or missed, negative under reject. Precision, recall and Cohen's kappa come with bootstrap
    intervals, over all slides and slide by slide. Slides that no trained fold tests are listed, and the command then exits with 1.

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
            "Name the run that was reviewed: gcemil review RUN MARKS. For the QuPath script: --script FILE."
        )
    finding, left_out = review_run(
        run, marks or (), against=against, seed=seed, resamples=resamples
    )
    if as_json:
        print_json(without_nan({**finding.to_json(), "left_out": left_out}))
    else:
        _print_review(review_table(finding))
        _print_review(review_slide_table(finding))
        for note in finding.notes:
            say(f"note: {note}")
        say(f"wrote {run / 'diagnostics' / 'review.json'}")
    raise typer.Exit(1 if left_out else 0)


def _print_review(table: Table) -> None:
    """One table of a review."""
    columns = [f"{column.header} {column.arrow}".strip() for column in table.columns]
    rows = [(*line.row_labels, *(cell.text for cell in line.cells)) for line in table.lines]
    print_table(table.title, (*table.row_labels, *columns), rows)


Part = Literal["train", "val", "test", "all"]
"""Bags of a fold, or all bags."""


Arrays = Literal["torch", "numpy"]
"""What a callable is handed."""


def audit(
    cohort: Path = typer.Argument(help="A cohort folder; truth/ in it adds the oracle."),
    model: str = typer.Option(
        ...,
        help="A run folder, whose fold is audited; or pkg.module:callable, whose module is imported, "
        "which RUNS ITS CODE: name only code you trust.",
    ),
    scores: list[Path] = typer.Option(
        [],
        help="A folder of <slide_id>.h5, .csv or .npy with one score per patch; may be given several times.",
    ),
    column: str | None = typer.Option(None, help="Dataset or column of the score files."),
    gates: bool = typer.Option(
        False, "--gates", help="The score files hold gates in [0, 1]: measure recoverability too."
    ),
    part: Part = typer.Option("test", help="Which bags of the fold; all needs no folds."),
    fold: int = typer.Option(0, min=0, help="The fold the model was not trained on."),
    budget: float = typer.Option(0.05, min=0, max=1, help="Share of patches every rule may keep."),
    arrays: Arrays = typer.Option("torch", help="What the callable receives."),
    repeats: int = typer.Option(
        3, min=0, help="Changed versions of each bag, for stability; 0 leaves it out."
    ),
    device: str | None = DEVICE,
    out: Path = typer.Option(Path("audit.json"), help="Where the finding is written."),
    html: Path | None = typer.Option(
        None, help="Also write a page with the verdict, curves and tables."
    ),
    seed: int = seed_option("random subsets and perturbations"),
    as_json: bool = JSON,
) -> None:
    """Test an explanation of any model: keep and remove its patches, beside random patches and, if known, the true ones.

    The callable gets float32 features (n, d) and integer coords (n, 2) of one bag, all of it or some of its patches, and
    returns logits (one per class, in the order of cohort.yaml, or one risk), or the tuple (logits, scores) with one score
    per patch. Without scores of its own or from --scores, the slope of its output by each patch is audited.

    Example: gcemil audit cohorts/bracs --model my_lab.models:predict --scores attention/ --fold 0
    """
    from gcemil.diagnostics.audit_cohort import audit_cohort
    from gcemil.files import without_nan, write_json

    if html is not None:
        from gcemil.cli.report import needs_matplotlib

        # Imported before the audit: an extra that is missing is said at once.
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
    _print_audit(finding, out)
    if html is not None:
        say(f"wrote {html}")


def _print_audit(finding: Finding, out: Path) -> None:
    """One table per comparison, then what follows from them."""
    from dataclasses import replace

    for comparison in dict.fromkeys(row.labels["comparison"] for row in finding.rows):
        rows = tuple(
            replace(row, labels={"rule": row.labels["rule"]})
            for row in finding.rows
            if row.labels["comparison"] == comparison
        )
        print_finding(
            replace(finding, name=f"audit, {comparison}", rows=rows, notes=()), everything=True
        )
    for note in finding.notes:
        say(note)
    say(f"wrote {out}")
