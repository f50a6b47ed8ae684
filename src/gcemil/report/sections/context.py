"""What every section works with: the run, the run it is compared with, its figures, and tables of findings."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from gcemil.diagnostics.table import QUESTIONS
from gcemil.exports.overlay import encode_image
from gcemil.files import write_bytes
from gcemil.findings import Finding, Row
from gcemil.metrics import METRICS
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.run_data import RunData
from gcemil.report.style import COLUMN, encode_figure, readable_name
from gcemil.rules import CONTROLS, order_rules
from gcemil.tables import Column, Line, Table, metric_cell

OWN_RULES = ("evidence", "confirmed evidence", "gce_discrete", "evidence scores")
GROUP_NAMES = {"guarantee": "Promise", "failure": "Failures"}
"""What a criterion is called above its columns where that is not its own word."""
RULE_HEADINGS = {"rule": "Patches chosen by", "network": "Predicted by"}
Naming = Callable[[str], str]
NO_NAMING: Mapping[str, Naming] = {}
LARGEST_SVG = 400_000
"""Bytes above which a page shows a JPEG instead: tissue is large as PNG. The files are complete either way."""


@dataclass(frozen=True, eq=False)
class Context:
    """One run to report, beside the plain host where there is one."""

    run: RunData
    against: RunData | None
    figures: Path
    """The folder of the figures."""
    seed: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    """What the page cannot show and the command that would add it; listed once, at its end."""
    unmeasured: list[str] = field(default_factory=list)
    """Diagnostics that were not made."""

    def read_values(self, mode: str, metric: str) -> dict[int, float]:
        """The metric of every fold under one mode; the plain host is another run."""
        if mode != "plain":
            return self.run.values(mode, metric)
        return {} if self.against is None else self.against.values("full", metric)

    def count_units(self, count: int) -> str:
        """So many slides or cases, in words."""
        return f"{count} {self.run.bag_unit}{'' if count == 1 else 's'}"

    def name_network(self, key: str) -> str:
        """Whose prediction; a run without the wrapper has its host alone."""
        is_plain = key == "wrapped" and (not self.run.is_wrapped or self.run.is_same_network)
        return "host" if is_plain else readable_name(key)

    def diagnose_command(self, name: str) -> str:
        """The command that makes a diagnostic."""
        against = "" if self.against is None else f" --against {quote_path(self.against.folder)}"
        if not against and "significance" in name.split(","):
            against = " --against HOST_RUN"
        return f"gcemil diagnose {quote_path(self.run.folder)}{against} --only {name}"

    def find(self, name: str) -> Finding | None:
        """The finding of a diagnostic; one that was not made is noted for the list at the end."""
        finding = self.run.finding(name)
        if finding is None:
            self.list_unmeasured(name)
        return finding

    def list_unmeasured(self, name: str) -> None:
        """Note a diagnostic that was not made for the list at the end."""
        if name not in self.unmeasured:
            self.unmeasured.append(name)

    def list_missing(self, what: str, remedy: str) -> None:
        """Note what cannot be shown, and the command that adds it, for the list at the end."""
        self.missing[what] = remedy

    def describe_spread(self, name: str) -> str:
        """What the deviations in a table of this finding are."""
        return f"± standard deviation over {self.run.spread(name)}."

    def make_table(
        self,
        rows: Sequence[Row],
        metrics: Sequence[str],
        *,
        labels: Mapping[str, str] = RULE_HEADINGS,
        naming: Mapping[str, Naming] = NO_NAMING,
        caption: str = "",
        notes: Sequence[str] = (),
        grouped: bool = True,
        bold: bool = True,
        within: str = "",
    ) -> Table:
        """Rows of a finding as a table, by default one line per rule and network.

        `labels` gives headings, `naming` words for values, `within` the label whose lines compete for bold.
        """
        words: dict[str, Naming] = {"network": self.name_network, **naming}
        shown = [name for name in metrics if any(row.values.get(name) is not None for row in rows)]
        columns = []
        for name in shown:
            metric = METRICS[name]
            group = (
                GROUP_NAMES.get(metric.criterion, metric.criterion.capitalize()) if grouped else ""
            )
            columns.append(Column(name, metric.label, name, group=group))
        lines = []
        for row in rows:
            rule = row.labels.get("rule")
            is_own = rule in OWN_RULES and row.labels.get("network", "wrapped") == "wrapped"
            lines.append(
                Line(
                    tuple(
                        words.get(label, readable_name)(row.labels.get(label, ""))
                        for label in labels
                    ),
                    "ours",
                    tuple(
                        metric_cell(name, row.values.get(name), row.deviations.get(name))
                        for name in shown
                    ),
                    # A control knows the truth or nothing: random patches that mark everything hit every lesion.
                    comparison=row.labels.get(within, "")
                    if bold and rule not in CONTROLS
                    else None,
                    role="own" if is_own else "control" if rule in CONTROLS else "",
                )
            )
        return Table(
            "",
            caption,
            "",
            tuple(labels.values()),
            tuple(columns),
            tuple(lines),
            notes=tuple(notes),
        )

    def render_missing(self) -> Section | None:
        """Everything that the page does not show, in one place; None where it shows all."""
        if not self.unmeasured and not self.missing:
            return None
        return render_section(
            "missing",
            "Not measured",
            questions=[QUESTIONS[name] for name in self.unmeasured],
            command=self.diagnose_command(",".join(self.unmeasured)),
            others=self.missing,
        )


def save_figure(folder: Path, name: str, figure: Figure, *, alt: str, caption: str) -> Picture:
    """Write the figure as PNG and SVG, and return it as a part of the page."""
    vector, pixels = (encode_figure(figure, form) for form in ("svg", "png"))
    write_bytes(folder / f"{name}.svg", vector)
    write_bytes(folder / f"{name}.png", pixels)
    is_wide = figure.get_figwidth() > COLUMN
    if len(vector) <= LARGEST_SVG:
        return Picture(vector, alt, "image/svg+xml", caption, is_wide=is_wide)
    with Image.open(io.BytesIO(pixels)) as image:
        small = encode_image(image.convert("RGB"), "JPEG", quality=82, optimize=True)
    return Picture(small, alt, "image/jpeg", caption, is_wide=is_wide)


def quote_path(path: Path) -> str:
    """A path as a shell wants it."""
    return shlex.quote(str(path))


def filter_rows(rows: Sequence[Row], **labels: str) -> list[Row]:
    """The rows that carry all these labels."""
    return [
        row for row in rows if all(row.labels.get(name) == value for name, value in labels.items())
    ]


def order_rows(rows: Sequence[Row]) -> list[Row]:
    """Ours first, then rivals, controls last; under each, the run's own network first."""
    rank = {
        rule: number
        for number, rule in enumerate(order_rules([row.labels["rule"] for row in rows]))
    }
    return sorted(
        rows, key=lambda row: (rank[row.labels["rule"]], row.labels["network"] != "wrapped")
    )
