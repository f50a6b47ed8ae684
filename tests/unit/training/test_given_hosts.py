"""Training that starts from weights: a frozen host stays what it was, another goes on from there."""

import csv

import pytest
import torch

from builders import make_cohort
from builders.authors import small_checkpoint
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, HostWeights, TrainSettings
from gcemil.errors import RunError, UsageError, WeightsError
from gcemil.hosts.table import HOSTS
from gcemil.runs import checkpoint
from gcemil.runs.checkpoint import load_network
from gcemil.training.adopt import adopt_run
from gcemil.training.run import train_run

SMALL = {
    "transmil": {"width": 16, "heads": 2},
    "ibmil": {"width": 16, "n_confounders": 2},
    "camil": {"width": 64},
    "dsmil": {},
    "mean": {"width": 16},
    "max": {"width": 16},
    "linear": {},
}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    made = make_cohort(tmp_path_factory.mktemp("given") / "cohort", n_cases=15, n_patches=30)
    write_folds(made, make_folds(made, n_folds=3, seed=0))
    return made.folder


@pytest.fixture(scope="module")
def clam(cohort):
    """A checkpoint in CLAM's naming, and the run of it."""
    folder = cohort.parent
    torch.save(small_checkpoint("clam_sb", in_dim=8), folder / "clam.pt")
    adopt_run([folder / "clam.pt"], cohort, folder / "clam", HostSettings(name="clam_sb"))
    return folder / "clam"


def settings_of(source, name, *, frozen=True, epochs=2, **more):
    weights = HostWeights(source=str(source), frozen=frozen)
    return TrainSettings(host=HostSettings(name=name, weights=weights), epochs=epochs, **more)


def predictions(path):
    with path.open() as file:
        return {row["slide_id"]: float(row["prob_malignant"]) for row in csv.DictReader(file)}


def host_tensors(fold):
    tensors, meta = checkpoint.load_tensors(fold / "checkpoint.safetensors")
    wrapped = meta["settings"]["evidence"] is not None
    return {
        key.removeprefix("host."): one
        for key, one in tensors.items()
        if not wrapped or key.startswith("host.")
    }


EVERY_HOST = pytest.mark.parametrize(
    "name",
    [
        name if name in ("abmil", "mhim") else pytest.param(name, marks=pytest.mark.slow)
        for name in HOSTS
    ],
)


def check_same_host(before, after, name="predictions.csv"):
    tensors, others = host_tensors(before), host_tensors(after)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(one, others[key]) for key, one in tensors.items())
    assert predictions(after / name) == predictions(before / "predictions.csv")


@EVERY_HOST
def test_a_frozen_host_is_left_as_it_is_whatever_its_stages(cohort, tmp_path, name):
    host = HostSettings(name=name, options=SMALL.get(name, {"width": 16, "hidden": 8}))
    plain = TrainSettings(host=host, evidence=None, epochs=1)
    train_run(cohort, tmp_path / "plain", plain, folds=[0], jobs=1)
    frozen = settings_of(tmp_path / "plain", name)
    summary = train_run(cohort, tmp_path / "frozen", frozen, folds=[0], jobs=1)
    assert {"full", "soft", "discrete"} <= set(summary)
    # The prediction of a given host stays the main one.
    check_same_host(tmp_path / "plain" / "fold_0", tmp_path / "frozen" / "fold_0")
    network, _ = load_network(tmp_path / "frozen" / "fold_0" / "checkpoint.safetensors")
    assert network.model.explains_host


@EVERY_HOST
def test_a_host_that_is_not_trained_jointly_is_bit_for_bit_the_plain_host(cohort, tmp_path, name):
    host = HostSettings(name=name, options=SMALL.get(name, {"width": 16, "hidden": 8}))
    for arm, evidence in (("plain", None), ("wrapped", EvidenceSettings())):
        settings = TrainSettings(host=host, evidence=evidence, epochs=3)
        train_run(cohort, tmp_path / arm, settings, folds=[0], jobs=1)
    folds = (tmp_path / arm / "fold_0" for arm in ("plain", "wrapped"))
    check_same_host(*folds, "predictions_full.csv")


def test_a_stopped_run_goes_on_and_other_weights_are_refused(cohort, clam, tmp_path):
    settings = settings_of(clam, "clam_sb", frozen=False)
    whole = train_run(cohort, tmp_path / "whole", settings, folds=[0], jobs=1)

    def stop(fold, record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(cohort, tmp_path / "run", settings, folds=[0], jobs=1, on_epoch=stop)
    torch.save(small_checkpoint("clam_sb", in_dim=8, seed=1), tmp_path / "other.pt")
    other = settings_of(tmp_path / "other.pt", "clam_sb", frozen=False)
    with pytest.raises(
        RunError, match=r"other settings \(host.weights.sha256: \w+ then, \w+ now\)"
    ):
        train_run(cohort, tmp_path / "run", other, folds=[0], jobs=1)
    assert train_run(cohort, tmp_path / "run", settings, folds=[0], jobs=1) == whole
    assert host_tensors(tmp_path / "run" / "fold_0").keys() == host_tensors(clam / "fold_0").keys()


@pytest.mark.parametrize("name", ["mhim", "ibmil"])
def test_a_host_that_is_not_frozen_goes_on_from_its_weights_in_its_last_stage(
    cohort, tmp_path, name
):
    torch.save(small_checkpoint(name, in_dim=8), tmp_path / "w.pt")
    settings = settings_of(tmp_path / "w.pt", name, frozen=False, epochs=1, learning_rate=1e-9)
    given = adopt_run(
        [tmp_path / "w.pt"], cohort, tmp_path / "adopted", HostSettings(name=name), folds=[0]
    )
    assert given.settings.host.options
    train_run(cohort, tmp_path / "run", settings, folds=[0], jobs=1)
    before, after = (host_tensors(tmp_path / run / "fold_0") for run in ("adopted", "run"))
    for key, one in before.items():
        # The teacher of mhim follows its student.
        if one.is_floating_point() and not key.startswith("teacher."):
            torch.testing.assert_close(after[key], one, atol=1e-4, rtol=1e-4)
    moved = [
        key
        for key, one in before.items()
        if one.is_floating_point() and not torch.equal(after[key], one)
    ]
    assert moved


def test_what_makes_no_sense_is_refused(cohort, clam, tmp_path):
    plain = settings_of(clam, "clam_sb").model_copy(update={"evidence": None})
    with pytest.raises(UsageError, match="frozen host without evidence has nothing to learn"):
        train_run(cohort, tmp_path / "run", plain)
    with pytest.raises(UsageError, match="is a run of host 'clam_sb', not of 'abmil'"):
        train_run(cohort, tmp_path / "run", settings_of(clam, "abmil"))
    with pytest.raises(WeightsError, match=r"does not exist"):
        train_run(cohort, tmp_path / "run", settings_of(tmp_path / "none.pt", "abmil"))
    other = make_cohort(tmp_path / "other", n_cases=15, n_patches=30, seed=4)
    write_folds(other, make_folds(other, n_folds=3, seed=0))
    with pytest.raises(RunError, match="was trained on other data"):
        train_run(other.folder, tmp_path / "run", settings_of(clam, "clam_sb"))
    assert not (tmp_path / "run").exists()


def test_risks_are_frozen_too(tmp_path):
    made = make_cohort(tmp_path / "c", task="survival", n_cases=18, n_patches=20)
    write_folds(made, make_folds(made, n_folds=3, seed=0))
    plain = TrainSettings(evidence=None, epochs=1)
    train_run(made.folder, tmp_path / "plain", plain, folds=[0], jobs=1)
    settings = settings_of(tmp_path / "plain", "abmil", epochs=1)
    train_run(made.folder, tmp_path / "run", settings, folds=[0], jobs=1)
    before, after = (tmp_path / run / "fold_0" / "predictions.csv" for run in ("plain", "run"))
    assert before.read_bytes() == after.read_bytes()
