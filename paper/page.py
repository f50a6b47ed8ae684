"""The page of the paper's comparisons: what the paper reports, what is measured here with its
interval, and a verdict.

An effect of the paper is
  reproduced      if the whole interval is at least half of it
  not reproduced  if the whole interval is less than half of it
  undecided       otherwise
A bound of the paper (a gap, a cost) is reproduced if the whole interval is below it, and not if the
whole interval is above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Literal

from gcemil.tables import Table
from paper.comparison import PaperFigures
from paper.intervals import ALL, COMPARISONS, DEFAULT, PARTS, Interval
from paper.measured import Measured, Query, select_values
from paper.prediction import host_name
from paper.tables import TABLES

Verdict = Literal["reproduced", "not reproduced", "undecided", "cannot be compared", "not measured"]
Labels = tuple[str, ...]
"""Row labels that a line must all have; * matches anything."""
HALF = 0.5
SIGNIFICANT = 0.05
GRIDS = Path(__file__).parent / "grids"


def share_significant(found: list[float]) -> float:
    """How many of the p-values are below 0.05."""
    return fmean(p < SIGNIFICANT for p in found)


@dataclass(frozen=True)
class Check:
    """A question about a table: the number of the paper's lines, and how ours is held against it."""

    question: str
    column: str = "*"
    """Key of the columns whose cells count."""
    rows: Labels = ()
    minus: Labels | None = None
    """Given, the same number of these rows is subtracted."""
    combine: Callable[[list[float]], float] = fmean
    kind: Literal["effect", "bound", "level"] = "effect"
    """A level is printed with its ceiling and not judged: other slides have other levels."""
    remark: str = ""
    """What a reader must know to read the verdict."""

    def number(self, table: Table) -> float | None:
        """The number by the paper's lines; None where it prints no such cell."""
        parts = [
            list(self._values(table, rows)) for rows in (self.rows, self.minus) if rows is not None
        ]
        if not all(parts):
            return None
        first, *second = (self.combine(values) for values in parts)
        return first - sum(second)

    def _values(self, table: Table, wanted: Labels) -> Iterator[float]:
        for line in table.lines:
            is_wanted = all(
                any(fnmatchcase(label, one) for label in line.row_labels) for one in wanted
            )
            if line.origin != "paper" or not is_wanted:
                continue
            for column, cell in zip(table.columns, line.cells, strict=True):
                if fnmatchcase(column.key, self.column) and cell.value is not None:
                    yield cell.value


def judge(check: Check, paper: float | None, ours: Interval | None) -> Verdict:
    """The verdict by the rules of this module."""
    if check.kind == "level" or paper is None:
        return "cannot be compared"
    if ours is None:
        return "not measured"
    learned = ours.at_chance < ours.runs or COMPARISONS[ours.comparison].is_gain
    if not learned:
        return "cannot be compared"
    if check.kind == "bound":
        return (
            "reproduced"
            if ours.high <= paper
            else "not reproduced"
            if ours.low > paper
            else "undecided"
        )
    limit, sign = HALF * abs(paper), 1 if paper > 0 else -1
    low, high = sorted((sign * ours.low, sign * ours.high))
    return "reproduced" if low >= limit else "not reproduced" if high < limit else "undecided"


GAIN: Labels = ("*+GCE Δ",)
WRAPPED: Labels = ("*+GCE",)
ATTENTION: Labels = ("Attention top-k",)
HEAD = "The default's gain comes from its evidence head, which the paper does not have."
CHECKS: dict[str, Check] = {
    "classification": Check("gain in Macro-F1 over the plain host", "*.macro_f1", GAIN, remark=HEAD),
    "survival": Check("gain in C-index over the plain host", rows=GAIN, remark=HEAD),
    "components": Check(
        "C-D gap of the naive selector minus that of the full method", "cd_gap", ("Naive selector",), ("Full GCE",),
    ),
    "intervention": Check(
        "keep-only change of the evidence minus that of attention", "keep_only", ("GCE evidence",), ATTENTION,
        remark="Each change is from the full bag of the same network; attention is that of the plain host.",
    ),
    "same_budget_short": Check(
        "Macro-F1 of 5 % of the patches, evidence minus attention", "macro_f1", ("GCE discrete",), ATTENTION,
        remark="Both sets are tested on the same network.",
    ),
    "same_budget": Check(
        "complement degradation at 5 %, evidence minus attention", "complement_degradation", ("GCE discrete evidence",), ATTENTION,
        remark="Each model loses its own patches, as in the paper.",
    ),
    "diagnostics_bracs": Check(
        "largest C-D gap of a host", "*cd_gap", WRAPPED, combine=max, kind="bound",
        remark="The default drops free riders from the set, so gates and set differ; the paper's parts have a temperature of 0.4.",
    ),
    "diagnostics": Check(
        "complement degradation, mean over hosts and datasets", "*.complement_degradation", WRAPPED, kind="level",
        remark="Levels on other slides cannot be compared; shares of the ceiling can.",
    ),
    "stability": Check(
        "Jaccard across seeds, evidence minus attention", "jaccard", ("GCE discrete recovered", "seeds"), (*ATTENTION, "seeds"),
    ),
    "posthoc": Check(
        "keep-only metric, evidence minus occlusion", "keep_only_macro_f1", ("GCE discrete",), ("Occlusion top-k",),
        remark="Both sets are tested on the same network. Hosts without a closed form of occlusion are left out.",
    ),
    "minimal_subsets": Check(
        "per cent of slides with two disjoint sufficient subsets of 8", "slides_with_2", ("8", "Sufficient-prefix"),
        remark="Validation slides of 200 to 3,000 patches, ranked by attention.",
    ),
    "localisation": Check(
        "gain in Dice over the attention map", "dice", ("* Δ",),
        remark="The map shows the continuous evidence scores, with a threshold chosen on validation slides.",
    ),
    "significance_classification": Check(
        "share of p-values below 0.05, Macro-F1", combine=share_significant, remark="A test over slides for each host and dataset, without correction.",
    ),
    "significance_survival": Check(
        "share of p-values below 0.05, C-index", combine=share_significant, remark="A test over slides for each host and dataset, without correction.",
    ),
    "budget": Check("Macro-F1 at a budget of 0.05 minus that at 0.01", "macro_f1", ("0.05",), ("0.01",)),
    "selector": Check(
        "C-D gap of hard top-k minus that of the consecutive selector", "cd_gap", ("Top-k hard (k=5%)",), ("Consecutive selector (ours)",),
        remark="Gates are read at the temperature of training, and repair is on for both.",
    ),
    "grounding": Check(
        "complement degradation of the full method minus that without grounding", "complement_degradation",
        ("TITAN + constrained bridge (Full)",), ("No grounding",),
    ),
    "encoders": Check(
        "gain over encoders, hosts and both datasets", "delta", kind="level",
        remark="Simulated features need no encoder; the paper's three need real slides or gated weights.",
    ),
    "cost": Check(
        "MIL aggregation from a known subset, relative to the full bag", "aggregation_time", ("GCE discrete, cached features",), kind="bound",
        remark="This excludes the search for the evidence (table `cost`).",
    ),
}  # fmt: skip
"""By table. Others are text, or depend on thresholds that the paper does not give."""
SECOND_ROWS = {
    "localisation": ("localisation of the set",),
    "stability": ("stability with patches missing", "stability with noise"),
    "grounding": ("average precision by grounding",),
}
"""Further comparisons under the same heading."""
UNPRINTED = (*SECOND_ROWS["stability"], *SECOND_ROWS["grounding"])
"""Of these the paper prints no figure."""
UNPRINTED_NOTE = "The paper has no such number, so there is no verdict."
TEXT_TABLES = ("definitions", "failure_audit", "anchor_protocol", "capacity", "dataset_card")
ARMS = {
    DEFAULT: "default (prompts)",
    "examples": "default (ten examples per concept)",
    "prototypes": "default (prototypes)",
    "taught": "`taught`",
    "paper": "`paper`",
    PARTS: "`paper_budget`",
    "host_long": "the plain host trained twice as long",
}


@dataclass(frozen=True)
class Finding:
    """One comparison: the paper's number and the measured intervals."""

    name: str
    check: Check
    paper: float | None
    lines: tuple[Interval, ...]

    def line(self, arm: str, host: str = ALL) -> Interval | None:
        """The interval of an arm."""
        return next((one for one in self.lines if (one.arm, one.host) == (arm, host)), None)

    def verdict(self, arm: str) -> Verdict:
        return judge(self.check, self.paper, self.line(arm))

    @property
    def sentence(self) -> str:
        """The quantity, where the ceiling leaves no room for the effect, and what a reader must know."""
        if self.name in UNPRINTED:
            return UNPRINTED_NOTE
        said = [f"{self.check.question[:1].upper()}{self.check.question[1:]}."]
        if not self.lines:
            said.append("Not measured here.")
        for arm in (DEFAULT, PARTS):
            if self.verdict(arm) not in ("cannot be compared", "not measured"):
                said.append(_explain(self, arm))
        return " ".join(part for part in (*said, self.check.remark) if part)


def _explain(finding: Finding, arm: str) -> str:
    """A note where even the true patches reach less than the paper's effect demands; the table holds the verdict."""
    line, paper = finding.line(arm), finding.paper or 0.0
    if (
        finding.check.kind == "bound"
        or finding.verdict(arm) == "reproduced"
        or line is None
        or line.ceiling is None
        or line.ceiling >= HALF * paper
    ):
        return ""
    who = f"{ARMS[arm][:1].upper()}{ARMS[arm][1:]}" if arm == DEFAULT else ARMS[arm]
    return f"{who}: the ceiling itself is {line.ceiling:+.3f}, so there is no room for it on these hosts and slides."


def judge_tables(measured: Measured, paper: PaperFigures) -> list[Finding]:
    """Every comparison, judged."""
    found = []
    for name, check in CHECKS.items():
        number = check.number(TABLES[name](measured, paper))
        for one in (name, *SECOND_ROWS.get(name, ())):
            lines = tuple(line for line in measured.intervals if line.comparison == one)
            found.append(Finding(one, check, None if one in UNPRINTED else number, lines))
    return found


def render_page(measured: Measured, paper: PaperFigures) -> str:
    """The page as Markdown."""
    found = judge_tables(measured, paper)
    main = [one for one in found if one.name in CHECKS]
    lines = [
        "# The paper's tables",
        "",
        *summarise(main),
        "",
        "The paper's numbers come from real cohorts, nine hosts, nine datasets and five folds. **Ours come from a reduced grid on "
        f"simulated cohorts**: {describe_grid(measured)}. `python -m paper page` writes this page from `paper/results`; "
        "`python -m paper tables` prints all tables.",
        "",
        "*Default* is the recipe of this package with prompts; *the paper's parts* is the recipe `paper_budget`. An effect is "
        "*reproduced* if the whole 95 % interval is at least half of the paper's, *not reproduced* if the whole interval is less, "
        "and *undecided* otherwise; a bound is reproduced if the whole interval is below the paper's. Evidence of networks that "
        "have not learned is not judged. Intervals are bootstraps over slides and runs. The *ceiling* is what the true patches "
        "reach on the same network and slides, or the largest possible value; the share is the estimate over the ceiling.",
        "",
        f"{count_verdicts(main)} {describe_missing(measured)}",
        "",
        "| comparison | paper | default | verdict | ceiling, share | the paper's parts | verdict | "
        "ceiling, share |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        cells = [one.name, _number(one.paper)]
        for arm in (DEFAULT, PARTS):
            line = one.line(arm)
            judged = (
                one.verdict(arm)
                if line is not None or one.check.kind == "level" or not one.lines
                else "-"
            )
            mark = " †" if line is not None and line.at_chance else ""
            cells += [_interval(line) + mark, judged, _ceiling(line, one.check)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "† rests on networks that have not learned.", "", *describe_levels(measured), ""]
    for one in found:
        lines += [f"## {one.name}", "", one.sentence, ""]
        if one.lines:
            lines += _details(one)
    lines += [
        "## Tables without a comparison",
        "",
        f"{', '.join(f'`{name}`' for name in TEXT_TABLES)}: text, counts of cohorts, or numbers that depend on thresholds which the paper "
        "does not give.",
    ]
    return "\n".join(lines).rstrip() + "\n"


def summarise(found: list[Finding]) -> list[str]:
    """Three lines: which claims hold, which do not, and for both on which hosts."""
    lines = []
    for verdict, words in (
        ("reproduced", "Hold"),
        ("not reproduced", "Do not hold"),
        ("undecided", "Undecided at this size"),
    ):
        parts = []
        for arm, who in ((DEFAULT, "default"), (PARTS, "the paper's parts")):
            names = [name for one in found if (name := _name_hosts(one, arm, verdict))]
            parts.append(f"*{who}*: {'; '.join(names) or 'none'}.")
        lines.append(f"- **{words}.** {' '.join(parts)}")
    return lines


def _name_hosts(finding: Finding, arm: str, verdict: Verdict) -> str:
    """The comparison, with the hosts of this verdict where hosts differ; empty where none has it."""
    claim = finding.check.question if finding.name in CHECKS else finding.name
    own = [one for one in finding.lines if one.arm == arm and one.host != ALL]
    verdicts = {one.host: judge(finding.check, finding.paper, one) for one in own}
    if len(set(verdicts.values())) < 2:
        return claim if finding.verdict(arm) == verdict else ""
    hosts = [host_name(host) for host, said in verdicts.items() if said == verdict]
    return f"{claim} ({', '.join(hosts)})" if hosts else ""


def describe_missing(measured: Measured) -> str:
    """The reduced grids that have not been run."""
    planned = sorted(path.stem for path in GRIDS.glob("reduced*.yaml"))
    missing = [f"`{name}`" for name in planned if name not in measured.grids]
    return f"Grids that have not been run: {', '.join(missing) or 'none'}."


def describe_grid(measured: Measured) -> str:
    """Hosts, cohorts and seeds that were run."""
    cohorts = ", ".join(one.description for one in measured.cohorts)
    hosts = ", ".join(dict.fromkeys(measured.runs.host))
    seeds = sorted(set(measured.runs.seed))
    return f"{hosts}; {cohorts}; one fold; seeds {', '.join(map(str, seeds))}"


def describe_levels(measured: Measured) -> list[str]:
    """The task metric of plain hosts, and which networks have not learned."""
    names = [one.name for one in measured.cohorts]
    lines = [
        "Plain hosts (Macro-F1 or C-index, mean of seeds):",
        "",
        f"| host | {' | '.join(names)} |",
        f"|---{'|---' * len(names)}|",
    ]
    values = select_values(measured, Query(label="host", labels={"mode": "full"}, encoder="*"))
    for host in dict.fromkeys(measured.runs.host):
        cells = []
        for name in names:
            own = [
                value
                for (cohort, one, _, _), value in values.items()
                if (cohort, one) == (name, host)
            ]
            cells.append(f"{fmean(own):.3f}" if own else "-")
        lines.append(f"| {host} | {' | '.join(cells)} |")
    weak = [f"{one.cohort}, {one.host}, {one.label}, seed {one.seed}" for one in measured.unlearned]
    said = "; ".join(weak) if weak else "none"
    return [
        *lines,
        "",
        f"Networks at chance, or that have not fitted their training slides: {said}.",
    ]


def count_verdicts(found: list[Finding]) -> str:
    """How often each verdict was given."""
    parts = []
    for arm, who in ((DEFAULT, "Default"), (PARTS, "The paper's parts")):
        counts = Counter(one.verdict(arm) for one in found if one.line(arm) is not None)
        said = ", ".join(
            f"{counts[name]} {name}"
            for name in ("reproduced", "not reproduced", "undecided", "cannot be compared")
            if counts[name]
        )
        parts.append(f"{who}: {said or 'nothing measured'}")
    return f"{'. '.join(parts)}. Of {len(found)} comparisons {sum(not one.lines for one in found)} were not measured."


def _details(finding: Finding) -> list[str]:
    """A line for every arm and host."""
    lines = [
        "| recipe | host | ours | verdict | ceiling, share | runs |",
        "|---|---|---|---|---|---|",
    ]
    for one in finding.lines:
        who = "all hosts" if one.host == ALL else host_name(one.host)
        verdict = judge(finding.check, finding.paper, one)
        runs = f"{one.runs}" + (
            f", {one.at_chance} with a network that has not learned" if one.at_chance else ""
        )
        lines.append(
            f"| {ARMS[one.arm]} | {who} | {_interval(one)} | {verdict} | "
            f"{_ceiling(one, finding.check)} | {runs} |"
        )
    return [*lines, ""]


def _number(value: float | None) -> str:
    # Minus zero would be printed as a loss.
    return "-" if value is None else f"{round(value, 3) + 0.0:.3f}"


def _interval(line: Interval | None) -> str:
    return (
        "-"
        if line is None
        else f"{_number(line.value)} [{_number(line.low)}, {_number(line.high)}]"
    )


def _ceiling(line: Interval | None, check: Check) -> str:
    """The ceiling, and the share of it that is reached, except of a bound."""
    if line is None or line.ceiling is None:
        return "-"
    has_share = check.kind != "bound" and line.ceiling > 0 and line.value > 0
    return f"{_number(line.ceiling)}{f', {line.value / line.ceiling:.0%}' if has_share else ''}"
