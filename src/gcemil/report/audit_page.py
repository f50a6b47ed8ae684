"""An audit as one HTML page: verdicts, keep and removal curves of every rule, and their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from gcemil.files import write_bytes
from gcemil.findings import Count, Finding, Row, compare_counts
from gcemil.metrics import METRICS
from gcemil.report import style
from gcemil.report.html import Picture, render, render_page, render_section
from gcemil.rules import CONTROLS, find_rule, order_rules
from gcemil.tables import Column, Line, Table, metric_cell

TITLES = {
    "whole bag": "The model on whole bags",
    "full-kept": "Patches kept and removed",
    "curves": "Areas under the curves",
    "soft-kept": "Gates against patches",
}
"""Any other comparison is a changed bag, by which stability is measured."""
CURVES = {
    "keep_curve": "Keep only: share of Φ(X) ↑",
    "removal_curve": "Remove: Φ lost ↑",
}
CAPTION = (
    "Mean over the bags. Left: the output from the first patches of a ranking alone, as a share of "
    "that of the whole bag. Right: what is lost without them. Dashed: the controls. AUKC and "
    "removal area are the means of these lines."
)
Records = Mapping[str, Sequence[Mapping[str, Any]]]
"""The bags, by rule."""


def write_audit_page(path: Path, finding: Finding) -> Path:
    """The page of a finding of `gcemil audit`."""
    about = finding.provenance
    records: dict[str, list[Mapping[str, Any]]] = {}
    for record in finding.slides:
        records.setdefault(record["rule"], []).append(record)
    counts = {}
    for rule, own in records.items():
        held = sum(bool(one["sufficient_share"] and one["necessary_share"]) for one in own)
        counts[rule] = Count(held, len(own))
    facts = (
        f"cohort {about.get('cohort', '')}",
        f"part {about.get('part', '')}",
        f"{counts['random'].of} bags",
        f"{100 * finding.settings['budget']:g} % of the patches",
    )
    verdicts = [
        compare_counts(rule, count, counts["random"])
        for rule, count in counts.items()
        if rule not in CONTROLS
    ]
    title = f"Audit of {about.get('model', 'a model')}"
    notes = [note for note in finding.notes if note not in verdicts]
    lead = render("audit_lead.html", title=title, facts=facts, verdicts=verdicts, notes=notes)
    with matplotlib.rc_context(style.STYLE):
        figure = _draw_curves(records, finding.settings["curve_shares"])
    groups: dict[str, list[Row]] = {}
    for row in finding.rows:
        groups.setdefault(row.labels["comparison"], []).append(row)
    tables = [_tabulate(name, rows) for name, rows in groups.items()]
    section = render_section("audit", "Keep and remove", figure=figure, tables=tables)
    return write_bytes(path, render_page(title, lead, [section]))


def _tabulate(comparison: str, rows: Sequence[Row]) -> Table:
    """The rows of one comparison; what is undefined for all of them has no column."""
    names = dict.fromkeys(
        name for row in rows for name in row.values
        if any(other.values.get(name) is not None for other in rows)
    )  # fmt: skip
    lines = []
    for row in rows:
        rule, deviations = row.labels["rule"], row.deviations
        cells = [metric_cell(name, row.values.get(name), deviations.get(name)) for name in names]
        lines.append(
            Line(
                (style.readable_name(rule),),
                "ours",
                tuple(cells),
                comparison=None if rule in CONTROLS else comparison,
                role="control" if rule in CONTROLS else "",
            )
        )
    columns = tuple(Column(name, METRICS[name].label, name) for name in names)
    title = TITLES.get(comparison, f"Bags changed: {comparison}")
    return Table("", title, "", ("Patches chosen by",), columns, tuple(lines))


def _draw_curves(records: Records, shares: Sequence[float]) -> Picture:
    """Both curves of every rule, mean over its bags."""
    figure = style.new_figure(3.4)
    rules, percent = order_rules(records), [100 * share for share in shares]
    panels = style.add_panels(figure, len(CURVES))
    for axes, (key, title) in zip(panels, CURVES.items(), strict=True):
        handles: list[Any] = []
        for number, rule in enumerate(rules):
            values = np.array([record[key] for record in records[rule]], dtype=float)
            # A bag of one patch has nothing left to lose.
            mean = np.ma.masked_invalid(values).mean(axis=0).filled(0)
            look = style.number_look(number)
            if rule in CONTROLS:
                look |= {"color": find_rule(rule).color, "linestyle": (0, (4, 2))}
            handles += axes.plot(percent, mean, **look)
        style.mark_shares(axes, percent, title)
        axes.axhline(0, color=style.MUTED, linewidth=0.7)
    names = [style.readable_name(rule) for rule in rules]
    figure.legend(handles, names, loc="outside lower left", ncols=4)
    alt = "Output from the kept patches and loss without them, over the share of patches, by rule"
    return Picture(style.encode_figure(figure, "svg"), alt, "image/svg+xml", CAPTION)
