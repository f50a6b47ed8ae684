"""The text files of a run folder: whole ones are values, damaged ones are one sentence that names them."""

import json
import math

import pytest

from gcemil.errors import RunError
from gcemil.runs.folder import Run, RunFold

METRICS = {
    "full": {"accuracy": 0.5, "auc": None},
    "soft": {"accuracy": 0.75},
    "details": {"warnings": ["w"], "anchors": None, "best_epoch": 3},
}
EPOCH = {"stage": "train", "epoch": 0, "terms": {"task": math.nan}, "warnings": []}


def write_fold(run, number, metrics):
    folder = run / f"fold_{number}"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(
        metrics if isinstance(metrics, str) else json.dumps(metrics)
    )
    return folder


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "cohort: x", "settings: {}", "cohort: 1\nsettings: {}", "cohort: x\nsettings: {epochs: .inf}", "a: [", "\x00"],
)  # fmt: skip
def test_a_damaged_config_is_named(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=r"config\.yaml is not .*Restore it"):
        _ = Run(tmp_path).card


@pytest.mark.parametrize(
    "value",
    ["", "[]", "{}", "null", {"full": []}, {"full": {}}, {"full": {"accuracy": "high"}}, {"full": {"accuracy": [1]}},
     {**METRICS, "details": 3}, {**METRICS, "details": {"warnings": "none"}}, {**METRICS, "details": {"risk_deviation": 0}},
     '{"full": {"accuracy": NaN}}', '{"full": {"accuracy": 1e999}}', '{"full": {"accuracy": ' + "9" * 400 + "}}", "[" * 100_000],
)  # fmt: skip
def test_damaged_metrics_are_named(tmp_path, value):
    folder = write_fold(tmp_path, 0, value)
    with pytest.raises(RunError, match=r"metrics\.json is .*gcemil train RUN --again"):
        RunFold(folder).read_metrics()


def test_a_figure_that_a_fold_lacks_is_left_out_of_the_mean(tmp_path):
    write_fold(tmp_path, 0, METRICS)
    write_fold(tmp_path, 1, {**METRICS, "full": {"accuracy": 1.0}, "soft": None})
    write_fold(tmp_path, "x", METRICS)
    assert [fold.path.name for fold in Run(tmp_path).finished_folds()] == ["fold_0", "fold_1"]
    summary = Run(tmp_path).write_summary()
    assert summary["full"]["accuracy"]["mean"] == pytest.approx(0.75)
    assert summary["full"]["auc"] == {"mean": None, "std": None, "folds": [None, None]}
    assert summary["soft"]["accuracy"]["folds"] == [0.75, None]


def test_a_history_may_say_that_training_went_wrong(tmp_path):
    (tmp_path / "history.jsonl").write_text(json.dumps(EPOCH) + "\n")
    assert math.isnan(RunFold(tmp_path).read_history()[0]["terms"]["task"])


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        "{}",
        json.dumps({**EPOCH, "epoch": "first"}),
        json.dumps({**EPOCH, "warnings": None}),
    ],
)
def test_a_damaged_history_is_named_with_its_line(tmp_path, line):
    (tmp_path / "history.jsonl").write_text(f"{json.dumps(EPOCH)}\n{line}\n")
    with pytest.raises(RunError, match=r"history\.jsonl, line 2 is not"):
        RunFold(tmp_path).read_history()
