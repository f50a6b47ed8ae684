"""The datasets: the paper's, and the cohorts that stand for them here."""

from __future__ import annotations

from gcemil.benchmark.measured import CohortFacts, MeasuredResults
from gcemil.benchmark.paper_figures import PaperFigures, PaperTable
from gcemil.benchmark.tables.comparison import PAPER_MARK, legend, our_origin, paper_cell
from gcemil.tables import MISSING, UNDEFINED, Cell, Column, Line, Table

COLUMNS = (
    Column("source", "Source"),
    Column("task", "Task"),
    Column("split_unit", "Split unit"),
    Column("size", "Size and labels"),
    Column("patches", "Patches per slide"),
    Column("features", "Features"),
)


def dataset_card(measured: MeasuredResults, paper: PaperFigures) -> Table:
    table = paper.table("dataset_details")
    known = [row.key for row in table.rows]
    lines = [line for key in known for line in (paper_line(table, key), *our_lines(measured, key))]
    lines += [
        our_line(measured, cohort) for cohort in measured.cohorts if cohort.dataset not in known
    ]  # fmt: skip
    return Table(
        "dataset_card", "the datasets", table.label, ("dataset", "figures"), COLUMNS, tuple(lines),
        legend=legend(measured), notes=tuple(f"In the paper: {note}" for note in table.notes),
    )  # fmt: skip


def paper_line(table: PaperTable, key: str) -> Line:
    row = table.row(key)
    cells = tuple(paper_cell(table.cell(key, column.key)) for column in COLUMNS)
    return Line((row.name if row else key, PAPER_MARK), "paper", cells)


def our_lines(measured: MeasuredResults, dataset: str) -> list[Line]:
    """One line per cohort of the dataset, or one that says that there is none."""
    found = measured.dataset(dataset)
    if not found:
        return [Line((dataset.upper(), "ours"), "ours", tuple(MISSING for _ in COLUMNS))]
    return [our_line(measured, cohort) for cohort in found]


def our_line(measured: MeasuredResults, cohort: CohortFacts) -> Line:
    row_labels = (cohort.name, our_origin(measured))
    record = cohort.record
    if record is None:
        return Line(row_labels, "ours", tuple(MISSING for _ in COLUMNS))
    patches = record["patches"]
    provenance = record["provenance"]
    source = (
        f"simulated, profile {provenance.get('profile')}, seed {provenance.get('seed')}"
        if cohort.is_simulated
        else str(provenance.get("source", "real"))
    )
    cells = (
        Cell(source),
        Cell(str(record["task"]).capitalize()),
        # Folds that put a case into two parts are refused.
        Cell("Case"),
        Cell(f"{record['slides']} slides, {record['cases']} cases; {labels_of(cohort)}"),
        Cell(f"{patches['fewest']} to {patches['most']}"),
        Cell(f"{record['feature_dim']}-d, {record['encoder']}") if record["encoder"] else UNDEFINED,
    )
    return Line(row_labels, "ours", cells)


def labels_of(cohort: CohortFacts) -> str:
    record = cohort.record or {}
    if "classes" in record:
        return ", ".join(f"{name} {count}" for name, count in record["classes"].items())
    return f"{record.get('events')} events"
