"""Which epoch is kept, in the last stage and in one that prepares."""

import numpy as np
import pytest
import torch

from builders import make_cohort
from builders.wrappers import prepared_host, wrapped
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import PAPER, EvidenceSettings, HostSettings, TrainSettings
from gcemil.files import read_json
from gcemil.hosts.mhim import Mhim
from gcemil.model import GceMil
from gcemil.records import read_adapter, read_representations
from gcemil.runs import predict
from gcemil.runs.folder import RunFold
from gcemil.runs.predict import represent_runs
from gcemil.tasks.task import create_task
from gcemil.training import loop
from gcemil.training.run import train_run


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    made = make_cohort(tmp_path_factory.mktemp("loop") / "cohort", n_cases=20, n_patches=12, dim=8)
    write_folds(made, make_folds(made))
    return made.folder


def settings(host, *, wrapped=False, **changes):
    evidence = EvidenceSettings() if wrapped else None
    return TrainSettings(host=HostSettings(name=host), evidence=evidence, epochs=5, **changes)


class Watched:
    """Validation by a list, and the weights after every epoch."""

    def __init__(self, monkeypatch, values, losses=None):
        self.values, self.weights, self.judged = iter(values), [], []
        self.losses = iter(losses or [1.0] * len(values))
        original = loop.train_epoch

        def train_epoch(loaded, *arguments, **options):
            record = original(loaded, *arguments, **options)
            self.weights.append({k: v.clone() for k, v in loaded.network.state_dict().items()})
            return record

        monkeypatch.setattr(loop, "train_epoch", train_epoch)
        monkeypatch.setattr(loop, "validate", self.validate)

    def validate(self, network, *arguments):
        self.judged.append(isinstance(network, GceMil))
        return {"val": next(self.values), "val_loss": next(self.losses)}


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "gce"])
def test_the_teacher_is_the_best_epoch_of_its_stage_not_the_last(
    cohort, tmp_path, monkeypatch, wrapped
):
    watched = Watched(monkeypatch, [0.9, 0.9, 0.6, 0.8, 0.7, *[0.5] * 5])
    begun, original = [], Mhim.begin_stage

    def begin_stage(host, stage, *arguments):
        begun.append((stage.name, {k: v.clone() for k, v in host.student.state_dict().items()}))
        original(host, stage, *arguments)

    monkeypatch.setattr(Mhim, "begin_stage", begin_stage)
    train_run(cohort, tmp_path / "run", settings("mhim", wrapped=wrapped), folds=[0], jobs=1)
    (_, _), (name, taught) = begun
    assert name == "student"
    prefix = "host.student." if wrapped else "student."
    # Of the last 40 % of the stage, that is of epochs 2 to 4, the fourth epoch is the best.
    for key, weight in taught.items():
        torch.testing.assert_close(weight, watched.weights[3][f"{prefix}{key}"])
    assert not torch.equal(taught["head.weight"], watched.weights[4][f"{prefix}head.weight"])
    # The wrapper leaves the host alone, so it has no part in the choice of an epoch.
    assert watched.judged == [False] * 10


def test_a_preparing_stage_that_keeps_its_last_epoch_is_not_validated(
    cohort, tmp_path, monkeypatch
):
    watched = Watched(monkeypatch, [0.5] * 5)
    train_run(cohort, tmp_path / "run", settings("ibmil"), folds=[0], jobs=1)
    assert len(watched.judged) == 5


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, 2),
        ({"chosen_by": "loss"}, 3),
        ({"chosen_from": 0.0}, 1),
        ({"chosen_from": 1.0}, 4),
        ({"chosen_from": 0.0, "early_stopping": 1}, 1),
    ],
)
def test_the_settings_say_which_epoch_is_chosen(cohort, tmp_path, monkeypatch, changes, chosen):
    watched = Watched(monkeypatch, [0.1, 0.9, 0.8, 0.7, 0.6], [5.0, 4.0, 3.0, 1.0, 2.0])
    train_run(cohort, tmp_path / "run", settings("abmil", **changes), folds=[0], jobs=1)
    metrics = read_json(tmp_path / "run" / "fold_0" / "metrics.json")
    assert metrics["details"]["best_epoch"] == chosen
    assert len(watched.weights) == (3 if "early_stopping" in changes else 5)


def test_validation_searches_for_no_evidence(cohort, monkeypatch):
    def fail(*_):
        raise AssertionError("validation asks for the evidence of a bag")

    monkeypatch.setattr(predict, "explain_bag", fail)
    loaded = Cohort.load(cohort)
    model = wrapped(prepared_host("abmil", n_outputs=2, dim=8))
    record = loop.validate(model, loaded, loaded.bags, create_task(loaded, TrainSettings()))
    assert 0 <= record["val"] <= 1


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "gce"])
def test_kept_epochs_are_stored_and_change_nothing_of_the_training(cohort, tmp_path, wrapped):
    folds = []
    for keeps in (False, True):
        chosen = settings("abmil", wrapped=wrapped, keep_epochs=keeps)
        train_run(cohort, tmp_path / str(keeps), chosen, folds=[0], jobs=1)
        folds.append(RunFold(tmp_path / str(keeps) / "fold_0"))
    plain, kept = folds
    assert plain.kept_epochs() == []
    assert kept.kept_epochs() == [0, 1, 2, 3, 4]
    assert kept.metrics.read_bytes() == plain.metrics.read_bytes()
    assert kept.history.read_bytes() == plain.history.read_bytes()
    first, last = (read_representations(kept.epoch_representations(epoch)) for epoch in (0, 4))
    mode = "soft" if wrapped else "full"
    assert set(first.parts) == {"val", "test"}
    assert not np.array_equal(first.by_mode[mode], last.by_mode[mode])


def test_the_adapter_is_measured_for_a_recipe_that_has_one(cohort, tmp_path):
    for name, evidence in (("ours", EvidenceSettings()), ("paper", PAPER)):
        chosen = settings("abmil").model_copy(update={"evidence": evidence, "epochs": 1})
        train_run(cohort, tmp_path / name, chosen, folds=[0], jobs=1)
        represent_runs([tmp_path / name])
    assert not RunFold(tmp_path / "ours" / "fold_0").adapter.is_file()
    found = read_adapter(RunFold(tmp_path / "paper" / "fold_0").adapter)
    assert len(found.cosines) == len(found.selected)
    # One epoch from near zero: patches are still about where the encoder put them.
    assert np.median(found.cosines) > 0.9
    assert (np.diff(found.strengths) <= 0).all()
