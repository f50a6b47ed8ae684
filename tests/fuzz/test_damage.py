"""Damaged files that campaigns found, one small input of each kind."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from builders import make_cohort
from gcemil.bags import validate
from gcemil.bags.foreign.datasets import _read_camelyon16, load_dataset_spec
from gcemil.bags.foreign.splits import read_splits
from gcemil.bags.foreign.torchmil import read_array
from gcemil.benchmark.results import Results, read_log
from gcemil.errors import CohortError, RunError, StoreError
from gcemil.files import write_json
from gcemil.findings import Row, join_rows, read_finding
from gcemil.runs.folder import measure_spread


def test_validate_looks_for_no_file_outside_the_cohort(tmp_path: Path) -> None:
    cohort = make_cohort(tmp_path / "cohort", n_cases=4)
    table = cohort.folder / "slides.csv"
    first = cohort.slides[0].slide_id
    table.write_text(table.read_text().replace(f"\n{first},", "\n../../outside,"))
    said = [problem.what for problem in validate.validate(cohort.folder) if problem.where == "../../outside"]
    assert any("cannot be a slide id" in what for what in said)
    assert not any("does not exist" in what for what in said)


def test_text_in_place_of_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array(["x", "y"]))
    with pytest.raises(StoreError, match="not real numbers"):
        read_array(path, "inst_labels")


def test_folds_without_slides_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("p,fold_1\nA,train\n")
    with pytest.raises(CohortError, match="a.csv has no column 'slide_id'; it has: p, fold_1"):
        read_splits(table)


def test_a_finding_of_an_unknown_metric_is_refused(tmp_path: Path) -> None:
    rows = [{"labels": {"rule": "evidence"}, "values": {"gap": 0.1}, "deviations": {}}]
    write_json(tmp_path / "snr.json", {"name": "snr", "rows": rows})
    with pytest.raises(RunError, match="snr.json has a value 'gap', which is no metric of gcemil"):
        read_finding(tmp_path / "snr.json")


def test_a_reference_of_one_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reference.csv").write_text("test_001\ntest_002\n")
    with pytest.raises(CohortError, match="has one column, not slide and label"):
        _read_camelyon16(
            load_dataset_spec("camelyon16"), tmp_path / "reference.csv", ["test_001"], source=tmp_path
        )


def test_the_spread_of_folds_leaves_out_what_is_no_number() -> None:
    spread = measure_spread([0.5, math.nan, 0.7, None])
    assert spread["mean"] == pytest.approx(0.6)
    assert spread["std"] == pytest.approx(0.1414, abs=1e-4)


def test_rows_of_folds_leave_out_what_is_no_number() -> None:
    rows = [Row({"rule": "evidence"}, {"gap": value}) for value in (0.2, math.nan, 0.4)]
    assert join_rows(rows).values["gap"] == pytest.approx(0.3)


def test_rubbish_in_the_log_of_a_grid_is_not_read_as_records(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.log.write_text('{"key": "a", "event": "start"}\n' + "a,b,c\n" * 3 + '{"key": "b", "event": "sta')
    assert [record["key"] for record in read_log(results)] == ["a"]


def test_a_fold_folder_without_its_parts_is_named(tmp_path: Path) -> None:
    for name in ("k=0", "k=1"):
        (tmp_path / name).mkdir()
    (tmp_path / "k=0" / "train.csv").write_text("slide_id\na\n")
    with pytest.raises(CohortError, match=r"k=1 holds none of train.csv, val.csv and test.csv"):
        read_splits(tmp_path)
