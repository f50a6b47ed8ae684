"""Damaged files that campaigns found, one small input of each kind."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from builders import make_cohort
from gcemil.bags import validate
from gcemil.benchmark.results import Results, read_log
from gcemil.errors import RunError
from gcemil.files import write_json
from gcemil.findings import Row, join_rows, mean_and_deviation, read_finding


def test_validate_looks_for_no_file_outside_the_cohort(tmp_path: Path) -> None:
    cohort = make_cohort(tmp_path / "cohort", n_cases=4)
    table = cohort.folder / "slides.csv"
    first = cohort.slides[0].slide_id
    table.write_text(table.read_text().replace(f"\n{first},", "\n../../outside,"))
    said = [
        problem.what
        for problem in validate.validate(cohort.folder)
        if problem.where == "../../outside"
    ]
    assert any("cannot be a slide id" in what for what in said)
    assert not any("does not exist" in what for what in said)


def test_a_finding_of_an_unknown_metric_is_refused(tmp_path: Path) -> None:
    rows = [{"labels": {"rule": "evidence"}, "values": {"gap": 0.1}, "deviations": {}}]
    write_json(tmp_path / "snr.json", {"name": "snr", "rows": rows})
    with pytest.raises(
        RunError, match="snr.json has a value 'gap', which is not a metric of gcemil"
    ):
        read_finding(tmp_path / "snr.json")


def test_the_spread_of_folds_leaves_out_what_is_no_number() -> None:
    mean, deviation = mean_and_deviation([0.5, math.nan, 0.7, None])
    assert mean == pytest.approx(0.6)
    assert deviation == pytest.approx(0.1414, abs=1e-4)


def test_rows_of_folds_leave_out_what_is_no_number() -> None:
    rows = [Row({"rule": "evidence"}, {"gap": value}) for value in (0.2, math.nan, 0.4)]
    assert join_rows(rows).values["gap"] == pytest.approx(0.3)


def test_rubbish_in_the_log_of_a_grid_is_not_read_as_records(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.log.write_text(
        '{"key": "a", "event": "start"}\n' + "a,b,c\n" * 3 + '{"key": "b", "event": "sta'
    )
    assert [record["key"] for record in read_log(results)] == ["a"]
