"""Numbers of an epoch go to TensorBoard, MLflow or Weights & Biases, and go on there when training is continued."""

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest

from gcemil.config import TrainSettings
from gcemil.errors import MissingExtraError, RunError
from gcemil.files import read_json
from gcemil.training.trackers import TensorBoard, check_tracker, open_tracker, remember_tracker

RECORD = {"epoch": 3, "stage": "train", "val": 0.5, "terms": {"task": 0.25}, "warnings": []}
NUMBERS = {"epoch": 3, "val": 0.5, "terms/task": 0.25}


def test_numbers_of_an_epoch_are_read_back_by_tensorboard_before_the_tracker_ends(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard(tmp_path / "run" / "fold_0", TrainSettings())
    tracker.add(RECORD, step=3)
    curves = EventAccumulator(str(tmp_path / "run" / "fold_0" / "tensorboard")).Reload()
    found = {
        name: [(point.step, point.value) for point in curves.Scalars(name)]
        for name in curves.Tags()["scalars"]
    }
    assert found == {"epoch": [(3, 3.0)], "val": [(3, 0.5)], "terms/task": [(3, 0.25)]}
    tracker.close()


@pytest.fixture
def fold(tmp_path):
    folder = tmp_path / "my_run" / "fold_2"
    folder.mkdir(parents=True)
    return folder


def fake_mlflow(monkeypatch, **replaced):
    """A module that notes every call."""
    module, calls = ModuleType("mlflow"), []

    def note(name):
        def call(*args, **options):
            calls.append((name, args, options))
            return SimpleNamespace(info=SimpleNamespace(run_id="id-7"))

        return call

    for name in ("set_experiment", "start_run", "log_params", "log_metrics", "end_run"):
        setattr(module, name, replaced.get(name, note(name)))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return calls


def test_mlflow_gets_settings_and_numbers_in_an_experiment_named_after_the_run(fold, monkeypatch):
    calls = fake_mlflow(monkeypatch)
    remember_tracker(fold.parent, "mlflow")
    tracker = open_tracker(fold, TrainSettings(learning_rate=0.01))
    tracker.add(RECORD, step=3)
    tracker.close()
    names = [name for name, _, _ in calls]
    expected = ["set_experiment"] * 2 + ["start_run", "log_params", "log_metrics", "end_run"]
    assert names == expected
    assert calls[0][1] == ("my_run",)
    assert calls[2][2] == {"run_id": None, "run_name": "fold_2"}
    assert calls[3][1][0]["learning_rate"] == 0.01
    assert calls[3][1][0]["host.name"] == "abmil"
    assert calls[4][1:] == ((NUMBERS,), {"step": 3})


def test_training_that_is_continued_goes_on_in_the_same_run_of_mlflow(fold, monkeypatch):
    calls = fake_mlflow(monkeypatch)
    remember_tracker(fold.parent, "mlflow")
    open_tracker(fold, TrainSettings()).close()
    # The second command does not name the tracker again.
    remember_tracker(fold.parent, None)
    open_tracker(fold, TrainSettings()).close()
    begun = [options["run_id"] for name, _, options in calls if name == "start_run"]
    assert begun == [None, "id-7"]
    assert sum(name == "log_params" for name, _, _ in calls) == 1


def test_a_tracker_that_fails_is_one_sentence_with_the_way_on(fold, monkeypatch):
    def refuse(*args, **options):
        raise ConnectionError("no route to host")

    fake_mlflow(monkeypatch, log_metrics=refuse)
    remember_tracker(fold.parent, "mlflow")
    tracker = open_tracker(fold, TrainSettings())
    with pytest.raises(RunError, match=r"MLflow failed.*no route to host.*--tracker none"):
        tracker.add(RECORD, step=3)


def test_weights_and_biases_gets_a_run_per_fold_grouped_by_the_run_folder(fold, monkeypatch):
    logged, begun = [], []

    def init(**options):
        begun.append(options)
        return SimpleNamespace(id="w1", log=logged.append, finish=lambda: logged.append("end"))

    module = ModuleType("wandb")
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    remember_tracker(fold.parent, "wandb")
    for _ in range(2):
        tracker = open_tracker(fold, TrainSettings())
        tracker.add(RECORD, step=3)
        tracker.close()
    assert logged == [NUMBERS, "end"] * 2
    assert [(one["project"], one["group"], one["name"]) for one in begun] == [
        ("mine", "my_run", "my_run-fold_2")
    ] * 2
    assert [one["id"] for one in begun] == [None, "w1"]


@pytest.mark.parametrize(
    ("name", "extra"), [("mlflow", "mlflow"), ("wandb", "wandb"), ("tensorboard", "tracking")]
)
def test_a_tracker_that_is_not_installed_is_refused_with_the_command_that_adds_it(
    name, extra, monkeypatch
):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"gcemil\[{extra}\]"):
        check_tracker(name)


def test_none_draws_nothing(fold):
    remember_tracker(fold.parent, "none")
    tracker = open_tracker(fold, TrainSettings())
    tracker.add(RECORD, step=3)
    tracker.close()
    assert list(fold.iterdir()) == []


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow_itself_reads_the_numbers_back(fold, tmp_path, monkeypatch):
    import mlflow

    mlflow.set_tracking_uri(f"file://{tmp_path / 'store'}")
    remember_tracker(fold.parent, "mlflow")
    tracker = open_tracker(fold, TrainSettings())
    tracker.add(RECORD, step=3)
    tracker.close()
    found = mlflow.get_run(read_json(fold / "tracker.json")["mlflow"])
    assert found.data.metrics["terms/task"] == 0.25
