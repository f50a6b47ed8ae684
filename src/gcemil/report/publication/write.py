"""Figures and tables of a run for a paper: vector files, tables as LaTeX, Markdown and CSV, and captions.md with what they show.

Test bags of all folds stand together. A 95 % interval is a bootstrap over patients: a draw takes all bags of a patient in
all folds. Tables add mean and standard deviation over the folds. What a run does not hold is left out and named, with the
command that measures it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

from gcemil.errors import UsageError
from gcemil.files import write_bytes, write_text
from gcemil.report import style
from gcemil.report.publication.classes import describe_classes
from gcemil.report.publication.evidence import choose_slides, describe_diagnostics, describe_slide
from gcemil.report.publication.sample import (
    Plate,
    read_sample,
)
from gcemil.report.publication.survival import describe_survival
from gcemil.report.run_data import read_run_data
from gcemil.report.run_report import check_pair
from gcemil.report.sections.context import Context
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
    sample = read_sample(context)
    parts = [
        describe_survival(context, sample) if data.task == "survival" else describe_classes(context, sample),
        describe_diagnostics(context),
        *(describe_slide(context, view, dpi) for view in views),
    ]
    done, captions = Publication(), []
    # Text in a PDF stays text, so that a journal can set its own font.
    with matplotlib.rc_context({**style.STYLE, "pdf.fonttype": 42, "savefig.dpi": dpi}):
        for number, part in enumerate(parts, start=1):
            for item in part:
                done.files.extend(
                    _save_table(item, out) if isinstance(item, Table) else _save_plate(item, out, formats)
                )
                text = " ".join([f"{item.title}.", *item.notes]) if isinstance(item, Table) else item.caption
                captions.append((item.name, text))
            if on_step:
                on_step(number, len(parts))
    done.left_out.update(context.missing)
    done.left_out.update(
        {f"Diagnostic '{name}' was not made.": context.diagnose_command(name) for name in context.unmeasured}
    )
    text = "".join(f"## {name}\n\n{caption}\n\n" for name, caption in captions)
    if done.left_out:
        text += "## Not shown\n\n" + "".join(f"- {what} `{how}`\n" for what, how in done.left_out.items())
    done.files.append(write_text(out / "captions.md", text))
    return done


def _save_table(table: Table, folder: Path) -> list[Path]:
    """The table as LaTeX, Markdown and CSV."""
    return [
        write_text(folder / f"{table.name}{suffix}", render_tables([table], form))
        for form, suffix in TABLE_SUFFIXES.items()
    ]


def _save_plate(plate: Plate, folder: Path, formats: Sequence[str]) -> Iterator[Path]:
    """The figure in every format, without dates, so that the same run gives the same bytes."""
    metadata: dict[str, dict[str, None]] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "png": {"Software": None},
    }
    # Each format would compute the layout again, from where the last one left it.
    plate.figure.draw_without_rendering()
    plate.figure.set_layout_engine("none")
    for form in formats:
        buffer = io.BytesIO()
        plate.figure.savefig(buffer, format=form, metadata=metadata[form])
        yield write_bytes(folder / f"{plate.name}.{form}", buffer.getvalue())
