"""The page that holds the results against the paper, and its verdicts."""

from pathlib import Path

import pytest
from paper.comparison import paper_figures
from paper.measured import read_measured
from paper.page import (
    Check,
    judge,
    render_page,
)

from builders.results import toy_results

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


def test_the_page_says_what_was_found_and_what_is_missing(tmp_path):
    text = render_page(read_measured(toy_results(tmp_path / "r").folder), paper_figures())
    # The gains of the two folds are 0.1 and 0.2.
    assert "| classification | mean gain in Macro-F1 by GCE | 0.024 | 0.150 | reproduced | 210 |" in text
    assert "Plain hosts reach, on average, Macro-F1 0.550 here and" in text
    assert "## cost: cannot be compared" in text
    assert "Not measured here: encoding and the prefilter are timed on slides" in text


def test_the_page_in_the_docs_is_that_of_the_results_kept_here():
    text = render_page(read_measured(), paper_figures())
    assert (ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == text
