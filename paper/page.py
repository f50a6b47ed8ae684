"""docs/paper.md: table by table, what the paper found, what the results found, and a verdict.

Of every table of figures the one number that the paper's text quotes, from the paper's lines and from ours:

  effect   reproduced: the same sign and at least half as large; weaker: at least a tenth; else not reproduced
  bound    reproduced: not above the paper's; weaker: not above twice that; else not reproduced

The number is that of some cells, by default their mean, or the difference of two such numbers. A number that the results do
not have, and a table of text, cannot be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Literal

from gcemil.tables import Line, Origin, Table, render_tables
from paper.comparison import PaperFigures
from paper.measured import Measured
from paper.overview import headline_table
from paper.prediction import HOLM, SLIDE_TEST, T_TEST
from paper.tables import TABLES

Verdict = Literal["reproduced", "weaker", "not reproduced", "cannot be compared"]
Labels = tuple[str, ...]
"""Row labels that a line must all have; * matches anything."""
HALF, TENTH = 0.5, 0.1
SIGNIFICANT = 0.05


# Goes when paper/results are measured again.
EARLIER_RECIPE = (
    "**The committed results are of the earlier training recipe** (15 epochs of 4 bags a step; [Training](training.md)), under which several "
    "hosts had not learned. They are marked until they are measured again."
)


def share_significant(found: list[float]) -> float:
    """How many of the p-values are below 0.05."""
    return fmean(p < SIGNIFICANT for p in found)


@dataclass(frozen=True)
class Check:
    """A question about a table: a number of the paper's lines and of ours, and how the two are compared."""

    question: str
    column: str = "*"
    """Key of the columns whose cells count."""
    rows: Labels = ()
    minus: Labels | None = None
    """Given, the same number of these rows is subtracted."""
    combine: Callable[[list[float]], float] = fmean
    kind: Literal["effect", "bound"] = "effect"
    remark: str = ""
    """What a reader must know to read the verdict."""
    without: Labels = ()
    """Lines with one of these labels do not count."""

    def number(self, table: Table, origin: Origin) -> float | None:
        """The number by the lines of one origin; None where a part of it was not measured."""
        parts = [
            list(self._values(table, origin, rows)) for rows in (self.rows, self.minus) if rows is not None
        ]
        if not all(parts):
            return None
        first, *second = (self.combine(values) for values in parts)
        return first - sum(second)

    def _values(self, table: Table, origin: Origin, wanted: Labels) -> Iterator[float]:
        for line in table.lines:
            own = line.row_labels
            is_wanted = all(any(fnmatchcase(label, one) for label in own) for one in wanted)
            if line.origin != origin or not is_wanted or set(own) & set(self.without):
                continue
            for column, cell in zip(table.columns, line.cells, strict=True):
                if fnmatchcase(column.key, self.column) and cell.value is not None:
                    yield cell.value


def judge(check: Check, paper: float | None, ours: float | None) -> Verdict:
    """The verdict by the rules of this module."""
    if paper is None or ours is None:
        return "cannot be compared"
    if check.kind == "bound":
        return "reproduced" if ours <= paper else "weaker" if ours <= 2 * paper else "not reproduced"
    if ours * paper <= 0 or abs(ours) < TENTH * abs(paper):
        return "not reproduced"
    return "reproduced" if abs(ours) >= HALF * abs(paper) else "weaker"


ALONE = (
    "By default the evidence leaves its host alone, so the full bag is the plain host's by construction and only gating "
    "can change a prediction."
)
GAIN: Labels = ("*+GCE Δ",)
WRAPPED: Labels = ("*+GCE",)
ATTENTION: Labels = ("Attention top-k",)
OTHER_TESTS: Labels = (T_TEST, T_TEST + HOLM, SLIDE_TEST + HOLM)
OVER_SLIDES = "Ours is the test over slides without correction, since the paper names none."
CHECKS: dict[str, Check] = {
    "classification": Check("mean gain in Macro-F1 by GCE", "*.macro_f1", GAIN, remark=ALONE),
    "survival": Check("mean gain in C-index by GCE", rows=GAIN, remark=ALONE),
    "components": Check(
        "C-D gap of the naive selector minus that of the full method", "cd_gap", ("Naive selector",), ("Full GCE",),
        remark="Our components differ from the paper's where its text is silent (paper/grids/component.yaml).",
    ),
    "intervention": Check(
        "keep-only change of GCE minus that of attention", "keep_only", ("GCE evidence",), ATTENTION,
        remark="Attention is that of the same host, which is no worse here than the evidence needs.",
    ),
    "same_budget_short": Check("Macro-F1 of 5 % of the patches, GCE minus attention", "macro_f1", ("GCE discrete",), ATTENTION),
    "same_budget": Check(
        "complement degradation at 5 %, GCE minus attention", "complement_degradation", ("GCE discrete evidence",), ATTENTION,
        remark="On one host nearly all of the prediction falls with either set, so there is little left to differ in.",
    ),
    "diagnostics_bracs": Check(
        "largest C-D gap of a host", "*cd_gap", WRAPPED, combine=max, kind="bound",
        remark="Gates are read cold, and repair may not move the output, so gates and set agree by construction.",
    ),
    "diagnostics": Check("mean complement degradation over hosts and datasets", "*.complement_degradation", WRAPPED),
    "stability": Check(
        "Jaccard across seeds, GCE minus attention", "jaccard", ("GCE discrete recovered", "seeds"), (*ATTENTION, "seeds")
    ),
    "posthoc": Check("keep-only metric, GCE minus occlusion", "keep_only_macro_f1", ("GCE discrete",), ("Occlusion top-k",)),
    "minimal_subsets": Check(
        "per cent of slides with two disjoint sufficient subsets of 8", "slides_with_2", ("8", "Sufficient-prefix")
    ),
    "localisation": Check("mean gain in Dice", "dice", ("* Δ",)),
    "significance_classification": Check(
        "share of p-values below 0.05", combine=share_significant, without=OTHER_TESTS, remark=OVER_SLIDES
    ),
    "significance_survival": Check(
        "share of p-values below 0.05", combine=share_significant, without=OTHER_TESTS, remark=OVER_SLIDES
    ),
    "budget": Check("Macro-F1 at a budget of 0.05 minus that at 0.01", "macro_f1", ("0.05",), ("0.01",)),
    "selector": Check(
        "C-D gap of hard top-k minus that of the consecutive selector", "cd_gap", ("Top-k hard (k=5%)",), ("Consecutive selector (ours)",),
        remark="Hard gates are their own set, so a top-k without repair has no gap to close.",
    ),
    "grounding": Check(
        "complement degradation of the full method minus that without grounding", "complement_degradation",
        ("TITAN + constrained bridge (Full)",), ("No grounding",),
    ),
    "encoders": Check(
        "mean gain over encoders, hosts and both datasets", "delta",
        remark="Ours are other encoders than the paper's, two of them untrained, on a few dozen drawn slides.",
    ),
    "cost": Check("MIL aggregation from a known subset, relative to the full bag", "aggregation_time", ("GCE discrete, cached features",), kind="bound"),
}  # fmt: skip
"""By table. One that is not here is text, or its figures hang on thresholds that the paper does not give."""
TEXT_REMARKS = {
    "definitions": "Definitions: the paper's four stand, and ours add the full-kept gap, which rules without gates have.",
    "dataset_card": "Ours are simulated stand-ins, whose counts are ours to choose.",
    "anchor_protocol": "Prompts: the paper prints categories, ours are wordings of the same categories.",
    "failure_audit": "The paper gives no thresholds for its kinds of failure, so rates cannot be held against each other.",
    "capacity": "Questions and answers: the figures behind them are those of the cost and grounding tables.",
}
LEVELS = {"classification": ("Macro-F1", "*.macro_f1"), "survival": ("C-index", "*")}
"""Of the tables with plain hosts, the metric whose level is printed."""


@dataclass(frozen=True)
class Finding:
    """The verdict on one table."""

    table: Table
    question: str
    paper: float | None
    ours: float | None
    verdict: Verdict
    remark: str

    @property
    def sentence(self) -> str:
        """The question, both numbers, and what a reader must know."""
        if not self.question:
            return self.remark
        question = self.question[:1].upper() + self.question[1:]
        return f"{question}: paper {_print(self.paper)}, ours {_print(self.ours)}. {self.remark}".rstrip()


def judge_tables(measured: Measured, paper: PaperFigures) -> list[Finding]:
    """Every table of the paper, judged."""
    return [judge_table(build(measured, paper)) for build in TABLES.values()]


def judge_table(table: Table) -> Finding:
    check = CHECKS.get(table.name)
    if check is None:
        return Finding(table, "", None, None, "cannot be compared", TEXT_REMARKS[table.name])
    theirs, ours = check.number(table, "paper"), check.number(table, "ours")
    remark = f"Not measured here: {table.reason}." if ours is None else check.remark
    return Finding(table, check.question, theirs, ours, judge(check, theirs, ours), remark)


def render_page(measured: Measured, paper: PaperFigures) -> str:
    """The page as Markdown."""
    found = judge_tables(measured, paper)
    lines = [
        "# The paper's tables",
        "",
        "Written by `python -m paper page`; `python -m paper tables` prints the tables themselves, all cells of both sides.",
        "",
        EARLIER_RECIPE,
        "",
        "The paper's figures are its authors', on real cohorts. **Ours are on simulated cohorts**, whose difficulty was set by the "
        "test metric of plain ABMIL, so as to come near the paper's baselines: levels of task metrics are calibrated and say nothing, differences between "
        f"rules on the same slides do. {describe_levels(found)} What cannot be measured without the real slides is said to be so.",
        "",
        "A verdict is a rule, not an opinion. An effect is *reproduced* when ours has the same sign and at least half of the size, "
        "*weaker* down to a tenth of it, *not reproduced* when it is less or the other way round; a bound when ours is not above the "
        f"paper's, *weaker* up to twice that. {count_verdicts(found)}",
        "",
    ]
    if measured.seconds:
        lines += [f"All runs and diagnostics took {measured.seconds / 60:.0f} minutes of one worker.", ""]
    lines += ["| table | question | paper | ours | verdict | empty |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.table.name} | {one.question or 'text'} | {_print(one.paper)} | {_print(one.ours)} | {one.verdict} | {one.table.n_missing} |"
        for one in found
    ]
    lines += ["", render_tables([headline_table(measured, paper)], "markdown"), ""]
    for one in found:
        lines += [
            f"## {one.table.name}: {one.verdict}",
            "",
            one.sentence,
            "",
            *describe_empty_cells(one.table),
        ]
    return "\n".join(lines).rstrip() + "\n"


def describe_levels(found: list[Finding]) -> str:
    """How well plain hosts predict on both sides: where ours are near chance, nothing that follows says much."""
    parts = []
    for one in found:
        metric, column = LEVELS.get(one.table.name, ("", ""))
        plain = [line for line in one.table.lines if not line.row_labels[0].endswith("Δ")]
        table = replace(one.table, lines=tuple(plain))
        paper, ours = (Check("", column).number(table, origin) for origin in ("paper", "ours"))
        if metric and ours is not None:
            parts.append(f"{metric} {_print(ours)} here and {_print(paper)} in the paper")
    return f"Plain hosts reach, on average, {'; '.join(parts)}." if parts else ""


def count_verdicts(found: list[Finding]) -> str:
    """How often each verdict was given, and how much is empty."""
    counts = Counter(one.verdict for one in found)
    missing = sum(one.table.n_missing for one in found)
    cells = sum(len(line.cells) for one in found for line in one.table.lines if line.origin == "ours")
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return (
        f"{said[:1].upper()}{said[1:]}. Of {cells} cells of ours {missing} are empty, for the reasons given."
    )


def describe_empty_cells(table: Table) -> list[str]:
    """How many cells are empty and why, and below which of them, lines with the same gaps together."""
    if not table.n_missing:
        return []
    gaps: dict[Labels, list[str]] = {}
    for line in table.lines:
        if empty := _list_empty(table, line):
            # The last label is the origin of a line, and empty lines are always ours.
            gaps.setdefault(empty, []).append(" · ".join(line.row_labels[:-1]))
    rows = [
        f"- {', '.join(empty) if len(empty) < len(table.columns) else 'all columns'} of {'; '.join(names)}"
        for empty, names in gaps.items()
    ]
    return [f"{table.n_missing} cells are empty: {table.reason}.", "", *rows, ""]


def _list_empty(table: Table, line: Line) -> Labels:
    return tuple(
        f"{column.group} {column.header}".strip()
        for column, cell in zip(table.columns, line.cells, strict=True)
        if cell.state == "missing"
    )


def _print(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
