"""The report: one HTML file of a run, of a run and its plain host, or of a grid.

Figures are written beside the run. The same run gives the same bytes: there is no date in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib

from gcemil.errors import RunError
from gcemil.files import write_bytes
from gcemil.report.context import Context
from gcemil.report.html import Section, render_page
from gcemil.report.sections.controls import render_controls
from gcemil.report.sections.examples import choose_examples, render_examples
from gcemil.report.sections.grid import render_grid_page
from gcemil.report.sections.headline import render_claim, render_lead, render_provenance
from gcemil.report.sections.mechanism import render_mechanism
from gcemil.report.sections.performance import render_performance
from gcemil.report.sections.representations import render_representations
from gcemil.report.sections.slides import link_bags, render_slides
from gcemil.report.sections.snr import render_snr
from gcemil.report.sections.tables import (
    render_cost,
    render_failures,
    render_review,
    render_robustness,
    render_truth,
)
from gcemil.report.style import STYLE
from gcemil.report.targets import write_targets_page
from gcemil.runs.folder import Run

OnStep = Callable[[int, int], None]


def write_report(
    run: Path,
    out: Path,
    *,
    against: Path | None = None,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Path:
    """Write the page to `out` and the figures to RUN/figures; `run` may be a results folder."""
    with matplotlib.rc_context(STYLE):
        # A results folder keeps its grids and is not a run.
        if (run / "grids").is_dir() and not Run(run).is_begun:
            if against is not None:
                raise RunError(
                    f"{run} holds a grid of runs, which is compared within itself. "
                    "Leave --against out."
                )
            return write_bytes(out, render_grid_page(run))
        if targets := Run(run).targets:
            pages = {name: out.with_name(f"{out.stem}_{name}{out.suffix}") for name in targets}
            for name, page in pages.items():
                beside = None if against is None else Run(against).targets[name].path
                write_report(targets[name].path, page, against=beside, seed=seed, on_step=on_step)
            return write_targets_page(Run(run), out, pages)
        context = Context.open(run, against, run / "figures", seed)
        # The cohort may have been moved away; if it is there, it must not have changed.
        if (context.run.cohort / "cohort.yaml").is_file():
            Run(run).open_cohort()
        lead, title = render_lead(context), f"Evidence report: {run.name or run}"
        return write_bytes(out, render_page(title, lead, render_sections(context, on_step)))


def render_sections(context: Context, on_step: OnStep | None = None) -> list[Section]:
    """The sections with content, in the order of the page."""
    examples = choose_examples(context.run) if context.run.is_wrapped else {}
    makers: list[Callable[[Context], Section | None]] = [
        render_performance,
        render_claim,
        render_snr,
        render_controls,
        partial(render_examples, chosen=examples),
        partial(render_mechanism, example=next(iter(examples.values()), None)),
        render_truth,
        render_review,
        render_robustness,
        render_representations,
        partial(render_failures, places=link_bags(context)),
        render_cost,
        render_slides,
        render_provenance,
        # Last, since the others note there what they lack.
        Context.render_missing,
    ]
    sections = []
    for done, make in enumerate(makers, start=1):
        if (section := make(context)) is not None:
            sections.append(section)
        if on_step:
            on_step(done, len(makers))
    return sections
