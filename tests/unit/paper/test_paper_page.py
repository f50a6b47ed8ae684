"""The page that holds the results against the paper, and its verdicts."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from paper.__main__ import main
from paper.comparison import paper_figures
from paper.intervals import ALL, DEFAULT, PARTS, Interval
from paper.measured import UnlearnedRun, read_measured
from paper.page import CHECKS, TEXT_TABLES, Check, Finding, judge, render_page
from paper.tables import TABLES

from builders.results import toy_results

ROOT = Path(__file__).parents[3]


def interval(
    low, high, *, arm=DEFAULT, host=ALL, comparison="classification", ceiling=0.3, at_chance=0
):
    return Interval(comparison, arm, host, (low + high) / 2, low, high, ceiling, 4, at_chance)


@pytest.mark.parametrize(
    ("kind", "low", "high", "verdict"),
    [
        ("effect", 0.05, 0.40, "reproduced"),
        ("effect", 0.06, 0.08, "reproduced"),
        ("effect", 0.049, 0.40, "undecided"),
        ("effect", -0.10, 0.05, "undecided"),
        ("effect", 0.01, 0.049, "not reproduced"),
        ("effect", -0.30, -0.20, "not reproduced"),
        ("bound", 0.02, 0.10, "reproduced"),
        ("bound", 0.09, 0.11, "undecided"),
        ("bound", 0.11, 0.12, "not reproduced"),
        ("level", 0.09, 0.11, "cannot be compared"),
    ],
)
def test_a_verdict_follows_from_the_interval(kind, low, high, verdict):
    assert judge(Check("", kind=kind), 0.10, interval(low, high)) == verdict


def test_what_was_not_measured_is_said_and_what_was_not_printed_cannot_be_compared():
    assert judge(Check(""), 0.10, None) == "not measured"
    assert judge(Check("", kind="level"), 0.10, None) == "cannot be compared"
    assert judge(Check(""), None, interval(0.1, 0.2)) == "cannot be compared"


def test_evidence_of_networks_that_have_not_learned_is_not_judged():
    assert (
        judge(Check(""), 0.10, interval(0.2, 0.3, comparison="posthoc", at_chance=4))
        == "cannot be compared"
    )
    assert (
        judge(Check(""), 0.10, interval(0.2, 0.3, comparison="posthoc", at_chance=3))
        == "reproduced"
    )
    # That a network does not learn is an outcome of a gain.
    assert judge(Check(""), 0.10, interval(-0.3, -0.2, at_chance=4)) == "not reproduced"


def test_a_loss_in_the_paper_is_held_against_a_loss():
    assert judge(Check(""), -0.10, interval(-0.30, -0.06)) == "reproduced"
    assert judge(Check(""), -0.10, interval(0.06, 0.30)) == "not reproduced"


def test_a_verdict_says_where_there_is_no_room_for_the_effect():
    check = Check("what is gained")
    low = Finding("x", check, 0.10, (interval(0.0, 0.01, ceiling=0.02),))
    assert "ceiling itself is +0.020, so there is no room" in low.sentence
    high = Finding("x", check, 0.10, (interval(0.0, 0.01, ceiling=0.2),))
    assert "no room" not in high.sentence


def page(tmp_path, *intervals, unlearned=()):
    measured = read_measured(toy_results(tmp_path / "r").folder)
    return render_page(replace(measured, intervals=intervals, unlearned=unlearned), paper_figures())


def test_every_comparison_has_an_interval_a_ceiling_and_a_sentence(tmp_path):
    text = page(
        tmp_path,
        interval(0.10, 0.20),
        interval(-0.1, 0.1, arm=PARTS),
        interval(0.0, 0.2, host="abmil"),
    )
    assert (
        "| classification | 0.024 | 0.150 [0.100, 0.200] | reproduced | 0.300, 50% | 0.000 "
        "[-0.100, 0.100] | undecided | 0.300 |" in text
    )
    assert (
        "| default (prompts) | ABMIL | 0.100 [0.000, 0.200] | undecided | 0.300, 33% | 4 |" in text
    )
    assert "Of 19 comparisons 18 were not measured." in text
    for name in CHECKS:
        assert f"## {name}\n" in text


def test_three_lines_say_which_claims_hold_on_which_hosts(tmp_path):
    text = page(
        tmp_path,
        interval(0.10, 0.20),
        interval(0.10, 0.20, host="abmil"),
        interval(-0.20, -0.10, host="dsmil"),
        interval(0.0, 0.9, comparison="survival"),
    )
    gain = "gain in Macro-F1 over the plain host"
    assert f"- **Hold.** *default*: {gain} (ABMIL). *the paper's parts*: none." in text
    assert f"- **Do not hold.** *default*: {gain} (DSMIL). *the paper's parts*: none." in text
    assert (
        "- **Undecided at this size.** *default*: gain in C-index over the plain host. *the "
        "paper's parts*: none." in text
    )


def test_a_network_that_has_not_learned_is_named_and_counted(tmp_path):
    weak = UnlearnedRun("bracs", "abmil", "host", 0, "at chance")
    text = page(tmp_path, interval(0.1, 0.2, at_chance=3), unlearned=(weak,))
    assert "| 4, 3 with a network that has not learned |" in text
    assert "| 0.150 [0.100, 0.200] † | reproduced |" in text
    assert "have not fitted their training slides: bracs, abmil, host, seed 0." in text


def test_every_table_is_a_comparison_or_text():
    assert {*CHECKS, *TEXT_TABLES} == set(TABLES)
    assert len(CHECKS) == 19


def test_one_command_prints_the_page_from_the_committed_results(capsys):
    started = time.process_time()
    main([])
    assert capsys.readouterr().out == (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert time.process_time() - started < 5
