"""The report: one HTML file of a run, of a run beside the plain host, or of a grid; figures beside the run.

The same run gives the same bytes: no date, no machine beyond what the run itself recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gcemil.errors import RunError
from gcemil.files import read_record, write_bytes
from gcemil.report.html import Section, encode_page, render_page
from gcemil.report.run_data import Record, RunData, read_run_data
from gcemil.report.sections import (
    controls,
    examples,
    failures,
    grid,
    headline,
    mechanism,
    performance,
    provenance,
    representations,
    robustness,
    slides,
    snr,
    truth,
)
from gcemil.report.sections.context import Context, FigureFolder
from gcemil.runs.folder import RunFolder, check_cohort_if_there

OnStep = Callable[[int, int], None]


def write_report(
    run: Path, out: Path, *, against: Path | None = None, seed: int = 0, on_step: OnStep | None = None
) -> Path:
    """Write the page to `out` and the figures to RUN/figures; `run` may be a results folder of `gcemil benchmark`."""
    # A results folder keeps its grids and is no run itself.
    if (run / "grids").is_dir() and not RunFolder(run).is_begun:
        if against is not None:
            raise RunError(
                f"{run} holds a grid of runs, which is compared within itself. Leave --against out."
            )
        page = grid.render_grid_page(read_grid_summary(run), run, FigureFolder(run / "figures"))
        return write_bytes(out, encode_page(page))
    data = read_run_data(run)
    rival = None if against is None else read_run_data(against)
    if rival is not None:
        _check_pair(data, rival)
    check_cohort_if_there(run, data.cohort)
    context = Context(data, rival, FigureFolder(run / "figures"), seed)
    lead = headline.render_lead(context)
    page = render_page(f"Evidence report: {run.name or run}", lead, render_sections(context, on_step))
    return write_bytes(out, encode_page(page))


def render_sections(context: Context, on_step: OnStep | None = None) -> list[Section]:
    """Every section that has something to say, in the order of the page."""
    views = examples.choose_examples(context.run) if context.run.is_wrapped else {}
    example = next(iter(views.values()), None)
    makers: list[Callable[[], Section | None]] = [
        lambda: performance.render_section(context),
        lambda: snr.render_section(context),
        lambda: controls.render_section(context),
        lambda: examples.render_section(context, views),
        lambda: mechanism.render_section(context, example),
        lambda: truth.render_section(context),
        lambda: truth.render_review_section(context),
        lambda: robustness.render_section(context),
        lambda: representations.render_section(context),
        lambda: failures.render_section(context, slides.link_bags(context)),
        lambda: robustness.render_cost_section(context),
        lambda: slides.render_section(context),
        lambda: provenance.render_section(context),
    ]
    found = []
    for done, make in enumerate(makers, start=1):
        if (section := make()) is not None and section.body:
            found.append(section)
        if on_step:
            on_step(done, len(makers))
    missing = context.render_missing()
    return found if missing is None else [*found, missing]


def read_grid_summary(results: Path) -> Record:
    """What the benchmark wrote of a results folder: means over folds and seeds."""
    path = results / "summary.json"
    if not path.is_file():
        raise RunError(
            f"{results} has no summary.json. Make it with 'gcemil benchmark GRID.yaml --out {results}'."
        )
    return read_record(path, Record, error=RunError, remedy="Make it again with 'gcemil benchmark'.")


def _check_pair(run: RunData, against: RunData) -> None:
    """Two runs are a pair when they were trained on the same bags."""
    ours, theirs = (one.config.cohort_fingerprint for one in (run, against))
    if ours != theirs:
        raise RunError(
            f"{against.folder} was trained on other data than {run.folder}: their cohorts have different fingerprints. "
            "Compare runs of one cohort."
        )
    if run.task != against.task:
        raise RunError(f"{against.folder} is a {against.task} run, {run.folder} a {run.task} run: no pair.")
