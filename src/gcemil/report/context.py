"""What every section uses: the run, the run beside it, figures, and tables of findings."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from gcemil.diagnostics.table import QUESTIONS
from gcemil.errors import RunError
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
"""Headings of criteria that differ from their names."""
RULE_HEADINGS = {"rule": "Patches chosen by", "network": "Predicted by"}
LARGEST_SVG = 400_000
"""Bytes above which a page shows a JPEG instead: tissue is large as PNG."""


@dataclass(frozen=True, eq=False)
class Plate:
    """A figure with its file name and caption."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True, eq=False)
class Context:
    """One run to report, and the plain host's run if there is one."""

    run: RunData
    against: RunData | None
    figures: Path
    """The folder of the figures."""
    seed: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    """What cannot be shown, and the command that adds it; listed at the end of the page."""
    unmeasured: list[str] = field(default_factory=list)
    """Diagnostics that were not made."""

    @classmethod
    def open(cls, run: Path, against: Path | None, figures: Path, seed: int) -> Context:
        """Two runs can be compared if they have the same task and were trained on the same bags."""
        data = RunData(run)
        rival = None if against is None else RunData(against)
        if rival is not None:
            if data.config.cohort_fingerprint != rival.config.cohort_fingerprint:
                raise RunError(
                    f"{against} was trained on other data than {run}: their cohorts have different "
                    "fingerprints. Compare runs of one cohort."
                )
            if data.task != rival.task:
                raise RunError(
                    f"{against} is a {rival.task} run and {run} a {data.task} run. "
                    "Compare runs of one task."
                )
        return cls(data, rival, figures, seed)

    @property
    def path(self) -> str:
        """The run folder, quoted for a shell."""
        return quote_path(self.run.folder)

    def read_values(self, mode: str, metric: str) -> dict[int, float]:
        """The metric of every fold; mode "plain" is that of the plain host's run."""
        if mode != "plain":
            return self.run.values(mode, metric)
        return {} if self.against is None else self.against.values("full", metric)

    def count_units(self, count: int) -> str:
        return f"{count} {self.run.bag_unit}{'' if count == 1 else 's'}"

    def name_network(self, key: str) -> str:
        """A run without the wrapper has one host."""
        is_plain = key == "wrapped" and (not self.run.is_wrapped or self.run.is_same_network)
        return "host" if is_plain else readable_name(key)

    def diagnose_command(self, name: str) -> str:
        """The command that makes a diagnostic."""
        against = "" if self.against is None else f" --against {quote_path(self.against.folder)}"
        if not against and "significance" in name.split(","):
            against = " --against HOST_RUN"
        return f"gcemil diagnose {self.path}{against} --only {name}"

    def find(self, name: str) -> Finding | None:
        """The finding of a diagnostic; one that was not made is noted for the end of the page."""
        finding = self.run.finding(name)
        if finding is None and name not in self.unmeasured:
            self.unmeasured.append(name)
        return finding

    def describe_spread(self, name: str) -> str:
        """What the deviations in a table of this finding are."""
        return f"± standard deviation over {self.run.spread(name)}."

    def draw(self, name: str, figure: Figure, alt: str, caption: str) -> Picture:
        """Write the figure beside the run, and return it for the page."""
        return save_figure(self.figures, name, figure, alt, caption)

    def show(self, plate: Plate) -> Picture:
        """The same of a plate, whose first sentence describes it."""
        return self.draw(plate.name, plate.figure, plate.caption.partition(". ")[0], plate.caption)

    def make_table(
        self,
        rows: Sequence[Row],
        metrics: Sequence[str],
        caption: str = "",
        *,
        labels: Mapping[str, str] = RULE_HEADINGS,
        naming: Mapping[str, Callable[[str], str]] | None = None,
        notes: Sequence[str] = (),
        grouped: bool = True,
        within: str | None = "",
    ) -> Table:
        """Rows of a finding as a table; a metric without any value has no column.

        `labels` gives headings, and `naming` words for values. Lines with one value of the label
        `within` compete for bold; None marks nothing.
        """
        words = {"network": self.name_network, **(naming or {})}
        shown = [name for name in metrics if any(row.values.get(name) is not None for row in rows)]
        columns = []
        for name in shown:
            group = METRICS[name].criterion
            heading = GROUP_NAMES.get(group, group.capitalize()) if grouped else ""
            columns.append(Column(name, METRICS[name].label, name, group=heading))
        lines = []
        for row in rows:
            rule = row.labels.get("rule")
            is_control = rule in CONTROLS
            is_own = rule in OWN_RULES and row.labels.get("network", "wrapped") == "wrapped"
            names = [words.get(key, readable_name)(row.labels.get(key, "")) for key in labels]
            cells = [
                metric_cell(key, row.values.get(key), row.deviations.get(key)) for key in shown
            ]
            # A control uses the truth or nothing: random patches that mark all hit every lesion.
            is_rival = within is not None and not is_control
            lines.append(
                Line(
                    tuple(names),
                    "ours",
                    tuple(cells),
                    comparison=row.labels.get(within or "", "") if is_rival else None,
                    role="own" if is_own else "control" if is_control else "",
                )
            )
        headings = tuple(labels.values())
        return Table("", caption, "", headings, tuple(columns), tuple(lines), notes=tuple(notes))

    def render_missing(self) -> Section | None:
        """What the page does not show; None if it shows everything."""
        if not self.unmeasured and not self.missing:
            return None
        return render_section(
            "missing",
            "Not measured",
            questions=[QUESTIONS[name] for name in self.unmeasured],
            command=self.diagnose_command(",".join(self.unmeasured)),
            others=self.missing,
        )


def save_figure(folder: Path, name: str, figure: Figure, alt: str, caption: str) -> Picture:
    """Write the figure as PNG and SVG, and return it for the page."""
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
    return shlex.quote(str(path))


def pick_rows(rows: Sequence[Row], **labels: str) -> list[Row]:
    """The rows with these labels: our rules first, controls last, the run's own network first."""
    picked = [row for row in rows if labels.items() <= row.labels.items()]
    rules = order_rules([row.labels.get("rule", "") for row in picked])
    return sorted(
        picked,
        key=lambda row: (
            rules.index(row.labels.get("rule", "")),
            row.labels.get("network", "wrapped") != "wrapped",
        ),
    )
