"""Figures looked up in a results folder: what fits, how it is averaged, what is refused."""

import json

import pytest
from paper.__main__ import main
from paper.comparison import paper_figures
from paper.measured import Query, estimate, read_measured, select_values, write_measured
from paper.tables import TABLES

from builders.results import ResultsFolder, diagnose, gce_folds, host_folds
from gcemil.findings import Finding, Row, write_finding
from gcemil.tables import render_tables


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
    measured = read_measured(folder.folder)
    found = select_values(measured, Query("macro_f1", labels={"mode": "soft"}))
    # 0.7 from two folds of ABMIL and 0.9 from one of DSMIL.
    summary = estimate(found)
    assert summary.mean == pytest.approx(0.8)
    assert summary.deviation == pytest.approx(0.2 / 2**0.5)
    assert summary.n == 3


def test_joined_findings_are_not_counted_beside_their_folds(folder):
    diagnose(gce_run(folder), "snr", [Row({"rule": "evidence"}, {"cd_gap": 0.1})])
    write_finding(
        gce_run(folder) / "diagnostics",
        Finding("snr", (Row({"rule": "evidence"}, {"cd_gap": 0.9}),)),
    )
    found = select_values(read_measured(folder.folder), Query("cd_gap", source="snr"))
    assert list(found) == [0.1]


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
    measured = read_measured(untrained_host(tmp_path).folder)
    host = select_values(measured, Query("macro_f1", label="host", labels={"mode": "full"}))
    assert sorted(host) == pytest.approx([0.5, 0.7])
    assert select_values(measured, Query("macro_f1", label="host", labels={"mode": "soft"})).empty
    asked = Query("precision", source="snr", labels={"network": "plain"})
    assert set(select_values(measured, asked.where(labels={"rule": "attention"}))) == {0.3}
    assert select_values(measured, asked.where(labels={"rule": "evidence"})).empty


def test_written_figures_give_the_same_tables_without_the_runs(tmp_path):
    results = untrained_host(tmp_path)
    measured = read_measured(results.folder)
    write_measured(measured, tmp_path / "small")
    again = read_measured(tmp_path / "small")
    assert json.loads((tmp_path / "small" / "facts.json").read_text())["grids"] == ["toy"]
    for name in ("classification", "diagnostics_bracs", "dataset_card"):
        expected, found = (
            render_tables([TABLES[name](one, paper_figures())], "markdown")
            for one in (measured, again)
        )
        assert found == expected
    write_measured(again, tmp_path / "again")
    for name in ("figures.csv.gz", "facts.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "small" / name).read_bytes()


def test_the_command_writes_the_page_and_the_figures(folder, tmp_path, capsys):
    main(["page", str(folder.folder), "--out", str(tmp_path / "page.md")])
    main(["collect", str(folder.folder), "--out", str(tmp_path / "small")])
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith("# The paper's tables")
    main(["tables", str(tmp_path / "small"), "--table", "classification"])
    assert capsys.readouterr().out.count("## ") == 1
    with pytest.raises(SystemExit, match="nowhere does not exist"):
        main(["tables", str(tmp_path / "nowhere")])
