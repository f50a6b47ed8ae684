"""Figures and tables of a run for a paper: vector files, tables as LaTeX, Markdown and CSV, and captions.md with what they show.

Test bags of all folds stand together. A 95 % interval is a bootstrap over patients: a draw takes all bags of a patient in
all folds. Tables add mean and standard deviation over the folds. What a run does not hold is left out and named, with the
command that measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

from gcemil.errors import RunError, UsageError
from gcemil.files import write_bytes, write_text
from gcemil.report.publication.evidence import choose_slides, describe_diagnostics, describe_slide
from gcemil.report.publication.performance import describe_performance
from gcemil.report.run_data import read_run_data
from gcemil.report.run_report import check_pair
from gcemil.report.sample import draw_sample, read_folds
from gcemil.report.sections.context import Context, quote_path
from gcemil.report.style import STYLE, encode_figure
from gcemil.tables import Table, render_tables

PICTURE_FORMATS = ("svg", "pdf", "png")
TABLE_SUFFIXES = {"latex": ".tex", "markdown": ".md", "csv": ".csv"}
OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Publication:
    """What was written, and what the run does not hold."""

    files: list[Path] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
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
    """Write every figure and table that the run allows into `out`; figures in all `formats`, pictures in them at `dpi`.

    Args:
        run: A run folder with finished folds.
        out: The folder to write; files of the same name are replaced.
        against: The run of the plain host on the same cohort, for a further line in the curves.
        formats: Of svg, pdf and png.
        dpi: Pixels per inch of tissue and of png.
        slides: Test slides whose evidence is drawn; by default a typical one and the worst one.
        seed: Where the bootstrap starts.
        on_step: Called with the number of parts that are done, and of all.

    Returns:
        The files, and what was left out with the command that adds it.

    Raises:
        UsageError: For an unknown format or slide.
        RunError: Where a fold has no table of predictions.

    Example:
        >>> written = write_publication(Path("runs/bracs"), Path("paper"))  # doctest: +SKIP
        >>> [path.name for path in written.files]  # doctest: +SKIP
        ['roc.svg', 'roc.pdf', ...]
    """
    if unknown := [name for name in formats if name not in PICTURE_FORMATS]:
        raise UsageError(
            f"Figures are written as {', '.join(PICTURE_FORMATS)}, separated by commas; got '{unknown[0]}'."
        )
    data = read_run_data(run)
    rival = None if against is None else read_run_data(against)
    if rival is not None:
        check_pair(data, rival)
    context = Context(data, rival, out, seed)
    views = choose_slides(data, slides)
    folds = []
    for fold, found in zip(data.folds, read_folds(context), strict=True):
        if found is None:
            raise RunError(
                f"{fold.files.path} has no table of predictions. Make it with 'gcemil train {quote_path(run)} --again'."
            )
        folds.append(found)
    sample = draw_sample(context, folds)
    parts = [
        describe_performance(context, sample),
        describe_diagnostics(context),
        *(describe_slide(context, view, dpi) for view in views),
    ]
    done, captions = Publication(), []
    # Text in a PDF stays text, so that a journal can set its own font.
    with matplotlib.rc_context({**STYLE, "pdf.fonttype": 42, "savefig.dpi": dpi}):
        for number, part in enumerate(parts, start=1):
            for item in part:
                if isinstance(item, Table):
                    text = " ".join([f"{item.title}.", *item.notes])
                    done.files.extend(
                        write_text(out / f"{item.name}{suffix}", render_tables([item], form))
                        for form, suffix in TABLE_SUFFIXES.items()
                    )
                else:
                    text = item.caption
                    done.files.extend(
                        write_bytes(out / f"{item.name}.{form}", encode_figure(item.figure, form))
                        for form in formats
                    )
                captions.append((item.name, text))
            if on_step:
                on_step(number, len(parts))
    done.left_out.update(context.missing)
    done.left_out.update(
        {
            f"Diagnostic '{name}' was not made.": context.diagnose_command(name)
            for name in context.unmeasured
        }
    )
    text = "".join(f"## {name}\n\n{caption}\n\n" for name, caption in captions)
    if done.left_out:
        text += "## Not shown\n\n" + "".join(
            f"- {what} `{how}`\n" for what, how in done.left_out.items()
        )
    done.files.append(write_text(out / "captions.md", text))
    return done
