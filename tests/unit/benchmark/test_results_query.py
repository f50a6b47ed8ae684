"""Figures looked up in a results folder: what fits, how it is averaged, what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gcemil.benchmark.exported import Block, export_figures, pack_rows
from gcemil.benchmark.results import read_results
from gcemil.benchmark.tables.comparison import Query, Unit, cell, estimate, find_values, paper_figures
from gcemil.benchmark.tables.table import TABLES
from gcemil.errors import RunError
from gcemil.findings import Finding, Row, write_finding
from gcemil.tables import render_tables
from results_builders import ResultsFolder, diagnose, gce_folds, host_folds


@pytest.fixture
def folder(tmp_path):
    """BRACS, ABMIL, two folds."""
    results = ResultsFolder(tmp_path / "results")
    results.cohort("bracs")
    results.run("bracs", "abmil", "host", host_folds(0.5, 0.6))
    results.run("bracs", "abmil", "gce", gce_folds(0.6, 0.8))
    return results


def gce_run(folder):
    return folder.folder / "runs" / "bracs" / "abmil" / "gce" / "seed_0"


def test_each_cohort_and_host_counts_once_in_a_mean(folder):
    folder.run("bracs", "dsmil", "gce", gce_folds(0.9))
    measured = read_results(folder.folder)
    found = find_values(measured, Query("macro_f1", labels={"mode": "soft"}))
    # 0.7 from two folds of ABMIL and 0.9 from one of DSMIL.
    summary = estimate(found)
    assert summary.mean == pytest.approx(0.8)
    assert summary.deviation == pytest.approx(0.2 / 2**0.5)
    assert summary.n == 3


def test_no_value_is_missing_and_a_single_one_has_no_deviation(folder):
    assert cell({}).text == "missing"
    measured = read_results(folder.folder)
    one = find_values(measured, Query("macro_f1", labels={"mode": "soft"}, host="dsmil"))
    assert cell(one).text == "missing"
    assert cell({Unit("bracs", "abmil", 0, 0): -0.0001}, signed=True).text == "+0.000"


def test_labels_match_however_they_are_written(folder):
    diagnose(gce_run(folder), "budget", [Row({"rule": "Top-k", "budget": "0.050"}, {"precision": 0.5})])
    measured = read_results(folder.folder)
    query = Query("precision", source="budget", labels={"rule": ("topk", "top_k"), "budget": "0.05"})
    assert list(find_values(measured, query).values()) == [0.5]
    assert not find_values(measured, query.where(labels={"budget": "0.1"}))


def test_a_folder_without_runs_says_how_to_make_some(tmp_path):
    with pytest.raises(RunError, match="holds no run. Make some with 'gcemil benchmark GRID.yaml --out"):
        read_results(tmp_path)


def test_a_broken_config_is_named(folder):
    path = gce_run(folder) / "config.yaml"
    path.write_text("settings: {epochs: none}", encoding="utf-8")
    with pytest.raises(
        RunError, match="config.yaml is not what it should be: cohort is missing.*settings.epochs must be"
    ):
        read_results(folder.folder)


def test_a_finding_about_the_whole_run_has_no_fold(folder):
    rows = (Row({"mode": "soft", "metric": "macro_f1"}, {"p_paired_t": 0.2}),)
    write_finding(gce_run(folder) / "diagnostics", Finding("significance", rows))
    found = find_values(read_results(folder.folder), Query("p_paired_t", source="significance"))
    assert found == {Unit("bracs", "abmil", 0, None): 0.2}


def test_joined_findings_are_not_counted_beside_their_folds(folder):
    diagnose(gce_run(folder), "snr", [Row({"rule": "evidence"}, {"cd_gap": 0.1})])
    write_finding(
        gce_run(folder) / "diagnostics", Finding("snr", (Row({"rule": "evidence"}, {"cd_gap": 0.9}),))
    )
    found = find_values(read_results(folder.folder), Query("cd_gap", source="snr"))
    assert list(found.values()) == [0.1]


def test_a_cohort_without_a_record_is_said_to_have_none(folder):
    folder.run("lost", "abmil", "host", host_folds(0.5))
    lost = read_results(folder.folder).dataset("lost")
    assert [cohort.description for cohort in lost] == ["lost (no record of it)"]


def test_a_negative_scale_turns_the_mean_and_not_the_deviation():
    found = {Unit("a", "h", 0, 0): 0.1, Unit("a", "h", 0, 1): 0.3}
    assert cell(found, scale=-1.0, signed=True).text == "-0.200±0.141"


def untrained_host(tmp_path):
    """A grid whose only arm is the wrapped one."""
    results = ResultsFolder(tmp_path / "derived")
    results.grid(bracs={"profile": "bracs"})
    results.cohort("bracs")
    run = results.run("bracs", "abmil", "gce", gce_folds(0.6, 0.8))
    attention, evidence = (
        Row({"rule": rule, "network": "wrapped", "class": "all"}, {"precision": value})
        for rule, value in (("attention", 0.3), ("evidence", 0.5))
    )
    diagnose(run, "snr", [attention, evidence], [attention, evidence])
    return results


def test_a_host_left_alone_is_read_from_its_wrapped_run_where_none_was_trained(tmp_path):
    measured = read_results(untrained_host(tmp_path).folder)
    host = find_values(measured, Query("macro_f1", label="host", labels={"mode": "full"}))
    assert sorted(host.values()) == pytest.approx([0.5, 0.7])
    assert find_values(measured, Query("macro_f1", label="host", labels={"mode": "soft"})) == {}
    asked = Query("precision", source="snr", labels={"network": "plain"})
    assert set(find_values(measured, asked.where(labels={"rule": "attention"})).values()) == {0.3}
    assert find_values(measured, asked.where(labels={"rule": "evidence"})) == {}


def test_a_host_that_was_trained_or_taught_is_not_read_from_the_wrapped_run(folder, tmp_path):
    hosts = [run for run in read_results(folder.folder).runs if run.label == "host"]
    assert [run.folder.parent.name for run in hosts] == ["host"]
    taught = untrained_host(tmp_path)
    config = gce_run(taught) / "config.yaml"
    config.write_text(config.read_text().replace("teaches_host: false", "teaches_host: true"))
    assert [run.label for run in read_results(taught.folder).runs] == ["gce"]


def test_exported_figures_give_the_same_tables_without_the_runs(tmp_path):
    results = untrained_host(tmp_path)
    written = export_figures(read_results(results.folder), tmp_path / "small")
    assert written == tmp_path / "small" / "figures.json"
    for name in ("classification", "diagnostics_bracs", "dataset_card"):
        expected, found = (
            render_tables([TABLES[name](read_results(folder), paper_figures())], "markdown")
            for folder in (results.folder, tmp_path / "small")
        )
        assert found == expected


def test_exported_figures_that_were_damaged_are_refused_with_the_remedy(tmp_path):
    folder = tmp_path / "small"
    export_figures(read_results(untrained_host(tmp_path).folder), folder)
    path = folder / "figures.json"
    path.write_text(path.read_text().replace('"cohort":"bracs"', '"cohort":"panda"'))
    with pytest.raises(RunError, match="none of its cohorts.*--export"):
        read_results(folder)


def test_exporting_exported_figures_changes_nothing(tmp_path):
    measured = read_results(untrained_host(tmp_path).folder)
    first = export_figures(measured, tmp_path / "small", expected_seconds=90.0)
    assert read_results(tmp_path / "small").expected_seconds == 90.0
    again = export_figures(read_results(tmp_path / "small"), tmp_path / "again")
    assert again.read_text() == first.read_text()
    assert json.loads(first.read_text())["grids"] == ["toy"]


def test_rows_are_packed_in_their_order_and_without_single_classes():
    rows = [
        (0, Row({"class": "all", "rule": "a"}, {"precision": 0.123456789, "recall": None})),
        (0, Row({"class": "N", "rule": "a"}, {"precision": 0.1, "recall": 0.2})),
        (1, Row({"class": "all", "rule": "b"}, {"precision": 0.3, "recall": float("nan")})),
        (None, Row({"rule": "c"}, {"precision": 0.4})),
    ]
    blocks = pack_rows(rows)
    assert [block.rows for block in blocks] == [
        [[0, "all", "a", 0.123457, None], [1, "all", "b", 0.3, None]],
        [[None, "c", 0.4]],
    ]
    unpacked = [row for block in blocks for row in block.unpack()]
    assert [fold for fold, _ in unpacked] == [0, 1, None]
    assert unpacked[2] == rows[3]
    assert unpacked[0][1].values == {"precision": 0.123457, "recall": None}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([0, "a"], "2 entries for 3 columns"),
        (["0", "a", 0.1], "begins with its fold, not with '0'"),
        ([0, 0.1, 0.1], "a label is no text"),
        ([0, "a", "0.1"], "a value is no number"),
    ],
)
def test_a_block_that_is_no_rectangle_of_labels_and_numbers_is_refused(row, said):
    with pytest.raises(ValueError, match=said):
        Block.model_validate({"labels": ["rule"], "values": ["precision"], "rows": [row]})


def test_printing_exported_figures_loads_nothing_that_reads_runs():
    code = (
        "import sys, pathlib, gcemil.benchmark.tables.table as t, gcemil.benchmark.results as r;"
        "from gcemil.benchmark.tables.comparison import paper_figures;"
        "t.TABLES['classification'](r.read_results(pathlib.Path('results/paper_small')), paper_figures());"
        "print({'torch', 'scipy', 'numpy', 'h5py', 'jaxtyping'} & set(sys.modules))"
    )
    root = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
