"""Figures and tables of a run for a paper, and captions.md with what they show.

Figures are vector files, tables LaTeX, Markdown and CSV. Test bags of all folds stand together. A
95 % interval is a bootstrap over patients: a draw takes all bags of a patient in all folds. Tables
add mean and standard deviation over the folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from gcemil.errors import RunError, UsageError
from gcemil.files import write_bytes, write_text
from gcemil.report.context import Context
from gcemil.report.publication.evidence import choose_slides, describe_diagnostics, describe_slide
from gcemil.report.publication.performance import describe_performance
from gcemil.report.sample import draw_sample
from gcemil.report.style import STYLE, encode_figure
from gcemil.tables import Table, render_tables

PICTURE_FORMATS = ("svg", "pdf", "png")
TABLE_SUFFIXES = {"latex": ".tex", "markdown": ".md", "csv": ".csv"}
OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Publication:
    """The files, and what the run does not hold."""

    files: list[Path]
    left_out: dict[str, str]
    """What is not shown, and the command that adds it."""


def write_publication(
    run: Path,
    out: Path,
    *,
    against: Path | None = None,
    formats: Sequence[str] = ("svg", "pdf"),
    dpi: int = 300,
    slides: Sequence[str] = (),
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Publication:
    """Write every figure and table that the run allows into `out`.

    `against` is the run of the plain host on the same cohort, for a further line in the curves.
    Pictures of tissue and PNG files have `dpi`. `slides` are test slides whose evidence is drawn;
    by default a typical one and the worst one.
    """
    if unknown := [name for name in formats if name not in PICTURE_FORMATS]:
        raise UsageError(
            f"Figures are written as {', '.join(PICTURE_FORMATS)}, separated by commas; "
            f"got '{unknown[0]}'."
        )
    context = Context.open(run, against, out, seed)
    views = choose_slides(context, slides)
    sample = draw_sample(context)
    if sample is None:
        ((what, remedy),) = context.missing.items()
        raise RunError(f"{what} Make it with '{remedy}'.")
    parts = [
        describe_performance(context, sample),
        describe_diagnostics(context),
        *(describe_slide(context, view, dpi) for view in views),
    ]
    files, captions = [], ""
    # Text in a PDF stays text, so that a journal can set its own font.
    with matplotlib.rc_context({**STYLE, "pdf.fonttype": 42, "savefig.dpi": dpi}):
        for number, part in enumerate(parts, start=1):
            for item in part:
                if isinstance(item, Table):
                    caption = " ".join([f"{item.title}.", *item.notes])
                    for form, suffix in TABLE_SUFFIXES.items():
                        path = out / f"{item.name}{suffix}"
                        files.append(write_text(path, render_tables([item], form)))
                else:
                    caption = item.caption
                    for form in formats:
                        path = out / f"{item.name}.{form}"
                        files.append(write_bytes(path, encode_figure(item.figure, form)))
                captions += f"## {item.name}\n\n{caption}\n\n"
            if on_step:
                on_step(number, len(parts))
    left_out = dict(context.missing)
    for name in context.unmeasured:
        left_out[f"Diagnostic '{name}' was not made."] = context.diagnose_command(name)
    if left_out:
        captions += "## Not shown\n\n"
        captions += "".join(f"- {what} `{how}`\n" for what, how in left_out.items())
    files.append(write_text(out / "captions.md", captions))
    return Publication(files, left_out)
