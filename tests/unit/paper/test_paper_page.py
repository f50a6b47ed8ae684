"""The page that holds the results against the paper, and its verdicts."""

from pathlib import Path

import pytest
from paper.comparison import paper_figures
from paper.measured import read_measured
from paper.page import (
    CHECKS,
    TEXT_REMARKS,
    Check,
    describe_empty_cells,
    judge,
    judge_tables,
    render_page,
)
from paper.tables import TABLES

from builders.results import toy_results
from gcemil.tables import MISSING, Cell, Column, Line, Table

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("kind", "ours", "verdict"),
    [
        ("effect", 0.10, "reproduced"),
        ("effect", 0.05, "reproduced"),
        ("effect", 0.04, "weaker"),
        ("effect", 0.009, "not reproduced"),
        ("effect", 0.0, "not reproduced"),
        ("effect", -0.2, "not reproduced"),
        ("effect", None, "cannot be compared"),
        ("bound", 0.10, "reproduced"),
        ("bound", 0.15, "weaker"),
        ("bound", 0.21, "not reproduced"),
    ],
)
def test_a_verdict_follows_from_the_two_numbers(kind, ours, verdict):
    assert judge(Check("", kind=kind), 0.10, ours) == verdict


def test_every_table_is_judged_once():
    assert set(CHECKS) | set(TEXT_REMARKS) == set(TABLES)
    assert not set(CHECKS) & set(TEXT_REMARKS)


def test_every_question_has_its_answer_in_the_paper(tmp_path):
    found = judge_tables(read_measured(toy_results(tmp_path / "r").folder), paper_figures())
    assert [one.table.name for one in found if one.question and one.paper is None] == []
    answers = {one.table.name: one.paper for one in found}
    assert answers["intervention"] == pytest.approx(0.082)
    assert answers["same_budget"] == pytest.approx(0.261)
    assert answers["diagnostics_bracs"] == pytest.approx(0.011)
    assert answers["stability"] == pytest.approx(0.277)
    assert answers["selector"] == pytest.approx(0.026)


def test_the_page_says_what_was_found_and_what_is_missing(tmp_path):
    text = render_page(read_measured(toy_results(tmp_path / "r").folder), paper_figures())
    # The gains of the two folds are 0.1 and 0.2.
    assert "| classification | mean gain in Macro-F1 by GCE | 0.024 | 0.150 | reproduced | 210 |" in text
    assert "Plain hosts reach, on average, Macro-F1 0.550 here and" in text
    assert "## cost: cannot be compared" in text
    assert "Not measured here: encoding and the prefilter are timed on slides" in text


def test_empty_cells_are_told_by_line_and_column_with_their_reason():
    table = Table(
        "toy", "", "", ("rule", "figures"), (Column("a", "A"), Column("b", "B", group="G")),
        (
            Line(("first", "paper"), "paper", (Cell("1", 1.0), Cell("2", 2.0))),
            Line(("first", "ours"), "ours", (MISSING, MISSING)),
            Line(("second", "ours"), "ours", (Cell("1", 1.0), MISSING)),
            Line(("third", "ours"), "ours", (MISSING, MISSING)),
        ),
        reason="nobody ran it",
    )  # fmt: skip
    assert describe_empty_cells(table) == [
        "5 cells are empty: nobody ran it.",
        "",
        "- all columns of first; third",
        "- G B of second",
        "",
    ]


def test_a_number_is_that_of_the_lines_and_columns_asked_for():
    lines = (
        Line(("A+GCE", "ours"), "ours", (Cell("1", 1.0), Cell("2", 2.0))),
        Line(("A+GCE", "Holm", "ours"), "ours", (Cell("9", 9.0), Cell("9", 9.0))),
        Line(("B", "ours"), "ours", (Cell("4", 4.0), MISSING)),
        Line(("A+GCE", "paper"), "paper", (Cell("7", 7.0), Cell("7", 7.0))),
    )
    table = Table("toy", "", "", ("rule",), (Column("x.gap", "A"), Column("y.gap", "B")), lines)
    assert Check("", "*.gap", ("*+GCE",), without=("Holm",)).number(table, "ours") == pytest.approx(1.5)
    assert Check("", "x.gap", ("B",), ("*+GCE",), combine=max).number(table, "ours") == pytest.approx(-5)
    assert Check("", "y.gap", ("B",)).number(table, "ours") is None
    assert Check("", "x.gap", ("B",), ("nobody",)).number(table, "ours") is None


def test_the_page_in_the_docs_is_that_of_the_results_kept_here():
    text = render_page(read_measured(), paper_figures())
    assert (ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == text
