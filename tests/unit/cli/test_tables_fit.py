"""Every table fits the terminal: nothing is wider than it, and no figure is broken."""

import re

import pytest
from rich.console import Console

from builders.reports import judged_slide, run_folder
from gcemil.cli import console
from gcemil.cli.diagnose import print_answer, print_finding
from gcemil.findings import SAME_NETWORK, Finding, Row
from gcemil.metrics import METRICS

WIDTHS = (80, 100)
BORDERS = "┏┃┡│└"


@pytest.fixture(params=WIDTHS)
def width(request, monkeypatch):
    monkeypatch.setattr(console, "console", lambda: Console(highlight=False, width=request.param))
    return request.param


def table_lines(text):
    return [line for line in text.splitlines() if line[:1] and line[0] in BORDERS]


def test_a_table_with_every_figure_we_have_fits_and_breaks_no_number(width, capsys):
    values = dict.fromkeys(METRICS, 0.123)
    deviations = dict.fromkeys(METRICS, 0.045)
    labels = {
        "rule": "integrated_gradients",
        "network": "wrapped",
        "class": "all",
        "comparison": "full-kept",
    }
    rows = (
        Row(labels, values, deviations),
        Row({**labels, "rule": "evidence"}, values, deviations),
    )
    print_finding(Finding("everything", rows), everything=True)
    text = capsys.readouterr().out
    assert max(map(len, table_lines(text))) <= width
    assert text.count("0.123 ± 0.045") == 2 * len(METRICS)
    assert text.count("integrated_gradients") > 1, "every part begins with what the row is about"


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (("level", "where", "what", "remedy"), ("warning", "TCGA-05-4244-01Z-00-DX1 and 499 more", "w " * 90, "r " * 60)),
        (("slide", *(f"prob_{name}" for name in ("adenocarcinoma", "squamous", "normal", "other"))), ("A" * 60, *["0.123"] * 4)),
        (("check", "status", "detail"), ("torch", "ok", "2.13.0 " * 30)),
        (("cohort", "from", "bags", "patches/bag", "width", "GB", "folds", "to train", "one worker"),
         ("nsclc", "simulated 'nsclc', default", 210, "812", 1024, "12.41", 18, 18, "3 h 12 min")),
        (("anchor", "coverage", "target", "covered"), ("solid nests of polygonal cells with " * 4, "0.123", "0.950", "does not count")),
    ],
)  # fmt: skip
def test_tables_of_text_are_wrapped(width, capsys, columns, row):
    console.print_table("title", columns, [row])
    lines = table_lines(capsys.readouterr().out)
    assert max(map(len, lines)) <= width
    shown = re.sub(r"[\s│┃]", "", "".join(lines))
    assert re.sub(r"\s", "", str(row[-1])) in shown or len(str(row[-1])) > 20


def test_does_the_evidence_hold_is_answered_in_one_table(width, capsys, tmp_path):
    run = run_folder(tmp_path / "run")
    slides = ["s0", "s1", "s2"]
    run.fold(0, slides)
    rivals = [
        judged_slide(name, rule=rule, network=network, precision=0.5)
        for rule in ("attention", "contribution", "occlusion", "single", "random", "oracle")
        for network in ("plain", "wrapped")
        for name in slides
    ]
    run.snr(0, [*(judged_slide(name, precision=0.5) for name in slides), *rivals])
    print_answer(run.folder)
    text = capsys.readouterr().out
    lines = table_lines(text)
    assert max(map(len, lines)) <= width
    for word in ("Sufficient", "Necessary", "Both", "Recoverable", "C-D gap", "Size", "Precision"):
        assert any(word in line for line in lines)
    assert "not what the model uses" in text
    if width == 100:
        assert sum(line.startswith("┏") for line in lines) == 1
        for rule in ("attention of the", "contribution of the", "oracle (truth)"):
            assert any(rule in line for line in lines)
        assert sum("3 of 3" in line for line in lines) == 11


def test_rows_of_one_network_are_printed_once_and_smoothed_rules_with_all(capsys):
    rows = tuple(
        Row({"rule": rule, "network": network}, {"precision": 0.5})
        for rule in ("attention", "attention_smoothed")
        for network in ("plain", "wrapped")
    )
    finding = Finding("budget", rows, provenance={SAME_NETWORK: True})
    print_finding(finding)
    short = capsys.readouterr().out
    assert "the same network" in short
    assert ("plain" in short.partition("The plain host")[0], "attention_smoothed" in short) == (
        False,
        False,
    )
    print_finding(finding, everything=True)
    assert capsys.readouterr().out.count("attention_smoothed") == 2
