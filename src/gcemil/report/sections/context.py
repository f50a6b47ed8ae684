"""What every section works with: the run, the run it is compared with, the folder its figures go into, and tables of findings."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from PIL import Image

from gcemil.diagnostics.table import QUESTIONS
from gcemil.exports.overlay import encode_image
from gcemil.files import write_bytes
from gcemil.findings import Finding, Row
from gcemil.metrics import METRICS
from gcemil.report.html import HtmlTable, Picture, Section, render_section
from gcemil.report.run_data import RunData
from gcemil.report.style import encode_png, encode_svg, fix_layout, readable_name
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
class FigureFolder:
    """Where figures are kept as files."""

    folder: Path

    def save(self, name: str, figure: Figure, *, alt: str, caption: str) -> Picture:
        """Write the figure as PNG and SVG, and return it as a part of the page."""
        ready = fix_layout(figure)
        vector, pixels = encode_svg(ready), encode_png(ready)
        write_bytes(self.folder / f"{name}.svg", vector)
        write_bytes(self.folder / f"{name}.png", pixels)
        if len(vector) <= LARGEST_SVG:
            return Picture(vector, alt, "image/svg+xml", caption)
        with Image.open(io.BytesIO(pixels)) as image:
            small = encode_image(image.convert("RGB"), "JPEG", quality=82, optimize=True)
        return Picture(small, alt, "image/jpeg", caption)


@dataclass(frozen=True, eq=False)
class Context:
    """One run to report, beside the plain host where there is one."""

    run: RunData
    against: RunData | None
    figures: FigureFolder
    seed: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    """What the page cannot show and the command that would add it; listed once, at its end."""
    unmeasured: list[str] = field(default_factory=list)
    """Diagnostics that were not made."""

    @property
    def unit(self) -> str:
        """What a bag is."""
        return self.run.bag_unit

    def count_units(self, count: int) -> str:
        """So many slides or cases, in words."""
        return f"{count} {self.unit}{'' if count == 1 else 's'}"

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
        """What a diagnostic found; one that was not made is noted for the list at the end."""
        found = self.run.finding(name)
        if found is None:
            self.list_unmeasured(name)
        return found

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
        **options: Any,
    ) -> HtmlTable:
        """Rows of a finding as a table, by default one line per rule and network; options as in finding_table."""
        words: dict[str, Naming] = {"network": self.name_network, **naming}
        return HtmlTable.of(finding_table(rows, labels, metrics, naming=words, **options))

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


def quote_path(path: Path) -> str:
    """A path as a shell wants it."""
    return shlex.quote(str(path))


def finding_table(
    rows: Sequence[Row],
    labels: Mapping[str, str],
    metrics: Sequence[str],
    *,
    caption: str = "",
    notes: Sequence[str] = (),
    naming: Mapping[str, Naming] = NO_NAMING,
    grouped: bool = True,
    bold: bool = True,
    within: str = "",
) -> Table:
    """One line per row; `labels` gives headings, `naming` words for values, `within` the label whose lines compete."""
    shown = [name for name in metrics if any(row.values.get(name) is not None for row in rows)]
    lines = []
    for row in rows:
        # The oracle knows the truth, so it competes with nothing.
        competes = bold and row.labels.get("rule") != "oracle"
        lines.append(
            Line(
                tuple(naming.get(label, readable_name)(row.labels.get(label, "")) for label in labels),
                "ours",
                tuple(metric_cell(name, row.values.get(name), row.deviations.get(name)) for name in shown),
                comparison=row.labels.get(within, "") if competes else None,
                role=_find_role(row),
            )
        )
    return Table(
        name="",
        title=caption,
        label="",
        row_labels=tuple(labels.values()),
        columns=tuple(_metric_column(name, grouped=grouped) for name in shown),
        lines=tuple(lines),
        notes=tuple(notes),
    )


def _metric_column(name: str, *, grouped: bool) -> Column:
    metric = METRICS[name]
    group = GROUP_NAMES.get(metric.criterion, metric.criterion.capitalize()) if grouped else ""
    return Column(name, metric.label, name, group=group)


def _find_role(row: Row) -> Literal["", "own", "control"]:
    rule = row.labels.get("rule")
    if rule in OWN_RULES and row.labels.get("network", "wrapped") == "wrapped":
        return "own"
    return "control" if rule in CONTROLS else ""


def filter_rows(rows: Sequence[Row], **labels: str) -> list[Row]:
    """The rows that carry all these labels."""
    return [row for row in rows if all(row.labels.get(name) == value for name, value in labels.items())]


def order_rows(rows: Sequence[Row]) -> list[Row]:
    """Ours first, then rivals, controls last; under each, the run's own network first."""
    rank = {rule: number for number, rule in enumerate(order_rules([row.labels["rule"] for row in rows]))}
    return sorted(rows, key=lambda row: (rank[row.labels["rule"]], row.labels["network"] != "wrapped"))
