"""What fuzzing found, one small input of each kind."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from builders import make_cohort
from gcemil.bags import validate
from gcemil.bags.fingerprint import content_hash, file_fingerprint
from gcemil.bags.foreign.clam import read_tensor_shape
from gcemil.bags.foreign.datasets import _read_camelyon16, load_dataset_spec
from gcemil.bags.foreign.inspect import inspect
from gcemil.bags.foreign.label_tables import read_labels
from gcemil.bags.foreign.splits import read_splits
from gcemil.bags.foreign.torchmil import read_array
from gcemil.benchmark.grid import Grid
from gcemil.benchmark.results import Results, read_log
from gcemil.errors import CohortError, ConfigError, InputError, RunError, StoreError
from gcemil.files import parse_json, parse_yaml, write_json
from gcemil.findings import Row, join_rows, read_finding
from gcemil.report.run_data import _named_slides
from gcemil.runs import checkpoint
from gcemil.runs.folder import FoldFolder, measure_spread
from gcemil.viewer.security import inside


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.npy", partial(read_array, key="features")),
        ("a.pt", read_tensor_shape),
        ("a.h5", content_hash),
        ("a.svs", file_fingerprint),
    ],
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    # A reader that waits is let go, so that this test fails and does not hang.
    release = threading.Timer(5, lambda: os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)))
    release.start()
    try:
        with pytest.raises(InputError, match=f"{name} is not a regular file, so it is not read"):
            read(pipe)
    finally:
        release.cancel()


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


def test_a_checkpoint_that_memory_cannot_map_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("Cannot allocate memory")

    monkeypatch.setattr(checkpoint, "safe_open", refuse)
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(RunError, match="a.safetensors is not a gcemil checkpoint"):
        checkpoint.load_tensors(tmp_path / "a.safetensors")


def test_a_link_to_itself_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert inside(tmp_path, "loop") == tmp_path / "loop"
    grid = tmp_path / "grid.yaml"
    grid.write_text("name: toy\ncohorts: {mine: {folder: loop}}\nhosts: [abmil]\narms: [host]\nfolds: [0]\n")
    assert Grid.load(grid).cohorts["mine"].folder == Path(os.path.realpath(tmp_path)) / "loop"


def test_folds_without_slides_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("p,fold_1\nA,train\n")
    with pytest.raises(CohortError, match="a.csv has no column 'slide_id'; it has: p, fold_1"):
        read_splits(table)


def test_a_long_message_is_made_in_no_time() -> None:
    text = f"a.csv{' ' * 10**6}is\n\n damaged."
    started = time.process_time()
    said = str(InputError(text))
    assert time.process_time() - started < 5
    assert said.startswith("a.csv ")
    assert said.endswith(" is damaged.")
    assert len(said) < 2100


def test_a_name_too_long_for_the_system_is_told() -> None:
    with pytest.raises(InputError, match="cannot be looked at \\(File name too long\\)"):
        inspect(Path("x" * 300))


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


def test_deep_json_is_refused() -> None:
    assert parse_json("[" * 90 + "]" * 90, "shallow") is not None
    limit = sys.getrecursionlimit()
    # Other libraries may have raised the limit of this process.
    sys.setrecursionlimit(1_000)
    try:
        with pytest.raises(InputError, match="nested too deeply"):
            parse_json("[" * 10_000 + "]" * 10_000, "deep")
    finally:
        sys.setrecursionlimit(limit)


def test_a_tag_without_a_name_is_no_yaml() -> None:
    with pytest.raises(InputError, match="is not valid YAML"):
        parse_yaml("epochs: !!int ''", "settings.yaml")


def test_the_spread_of_folds_leaves_out_what_is_no_number() -> None:
    spread = measure_spread([0.5, math.nan, 0.7, None])
    assert spread["mean"] == pytest.approx(0.6)
    assert spread["std"] == pytest.approx(0.1414, abs=1e-4)


def test_rows_of_folds_leave_out_what_is_no_number() -> None:
    rows = [Row({"rule": "evidence"}, {"gap": value}) for value in (0.2, math.nan, 0.4)]
    assert join_rows(rows).values["gap"] == pytest.approx(0.3)


@pytest.mark.parametrize("names", [None, "a", [["a"]], [{"a": 1}]])
def test_findings_whose_slides_have_no_names_are_refused(tmp_path: Path, names: object) -> None:
    slides = ({"bag_id": "a", "slide_ids": names},)
    fold = SimpleNamespace(files=FoldFolder(tmp_path), findings={"snr": SimpleNamespace(slides=slides)})
    with pytest.raises(RunError, match="a slide has no 'slide_ids'"):
        _named_slides(fold, "snr")  # type: ignore[arg-type]


def test_a_table_of_patients_without_a_row_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("case_id,label\n")
    with pytest.raises(CohortError, match="labels.csv has no row below its header"):
        read_labels(table, slide_ids=["a"])


def test_a_null_character_in_a_folder_of_a_grid_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text('name: x\ncohorts: {ours: {folder: "a\\0b"}}\nhosts: [abmil]\n')
    with pytest.raises(ConfigError, match="a folder has no null character"):
        Grid.load(path)


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
