"""Weights trained elsewhere as a run: the same predictions, the folds they are judged in, and what is refused."""

import csv
import json

import pytest
import torch

from builders import make_cohort
from builders.authors import small_checkpoint
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.config import HostSettings, TrainSettings
from gcemil.errors import RunError, UsageError, WeightsError
from gcemil.explanation import bag_tensors
from gcemil.hosts.clam import ClamSb
from gcemil.runs.checkpoint import load_network
from gcemil.runs.folder import fold_parts
from gcemil.training.adopt import UNKNOWN_TRAINING, adopt_run, pair_folds
from gcemil.training.run import one_thread, train_run

CLAM = HostSettings(name="clam_sb")
BY_HAND = {
    "attention_net.0": "project.0",
    "attention_net.3.attention_a.0": "attention.content",
    "attention_net.3.attention_b.0": "attention.gate",
    "attention_net.3.attention_c": "attention.score",
    "classifiers": "head",
    "instance_classifiers.0": "instance_heads.0",
    "instance_classifiers.1": "instance_heads.1",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cohort of three folds, a checkpoint in CLAM's naming, and the run of it on two folds."""
    folder = tmp_path_factory.mktemp("adopted")
    cohort = make_cohort(folder / "cohort", n_cases=18, n_patches=30)
    write_folds(cohort, make_folds(cohort, n_folds=3, seed=0))
    torch.save(small_checkpoint("clam_sb", in_dim=8), folder / "s_0_checkpoint.pt")
    adopted = adopt_run(
        [folder / "s_0_checkpoint.pt"], folder / "cohort", folder / "run", CLAM, folds=[0, 2]
    )
    return folder, cohort, adopted


def predictions(path):
    with path.open() as file:
        return {row["slide_id"]: float(row["prob_malignant"]) for row in csv.DictReader(file)}


def test_the_run_predicts_what_the_given_model_predicts_bit_for_bit(made):
    folder, cohort, _ = made
    theirs = small_checkpoint("clam_sb", in_dim=8)
    copied = ClamSb(8, 2, width=16, hidden=8).eval()
    for their_name, our_name in BY_HAND.items():
        for part in ("weight", "bias"):
            copied.get_parameter(f"{our_name}.{part}").data.copy_(theirs[f"{their_name}.{part}"])
    found = predictions(folder / "run" / "fold_0" / "predictions.csv")
    parts = fold_parts(cohort, read_fold(cohort, 0))
    assert len(found) == len(parts.val) + len(parts.test)
    network, _ = load_network(folder / "run" / "fold_0" / "checkpoint.safetensors")
    with torch.no_grad(), one_thread():
        for spec in (*parts.val, *parts.test):
            bag = bag_tensors(cohort.read_bag(spec))
            logits = copied(*bag).logits
            assert torch.equal(logits, network.host(*bag).logits)
            assert found[spec.slide_ids[0]] == logits.softmax(dim=0)[1].item()


def test_a_run_says_where_its_weights_came_from_and_what_nobody_knows(made):
    folder, _, adopted = made
    assert [number for number, _, _ in adopted.folds] == [0, 2]
    assert adopted.settings.host.options == {"width": 16, "hidden": 8}
    assert adopted.summary["warnings"] == [UNKNOWN_TRAINING]
    details = json.loads((folder / "run" / "fold_2" / "metrics.json").read_text())["details"]
    assert details["weights"]["sha256"] == adopted.settings.host.weights.sha256
    assert details["weights"]["source"].endswith("s_0_checkpoint.pt")


def test_adopting_again_changes_nothing_and_other_weights_are_refused(made, tmp_path):
    folder, _, adopted = made
    source = folder / "s_0_checkpoint.pt"
    again = adopt_run([source], folder / "cohort", folder / "run", CLAM, folds=[0, 2])
    assert again.summary == adopted.summary
    torch.save(small_checkpoint("clam_sb", in_dim=8, seed=1), tmp_path / "other.pt")
    with pytest.raises(RunError, match=r"host.weights.sha256: \w+ then, \w+ now"):
        adopt_run([tmp_path / "other.pt"], folder / "cohort", folder / "run", CLAM, folds=[0, 2])


def test_one_file_serves_every_fold_and_several_one_each(made, tmp_path):
    _, cohort, _ = made
    files = [tmp_path / f"{k}.pt" for k in range(3)]
    assert pair_folds(cohort, files[:1], None) == dict.fromkeys(range(3), files[0])
    assert pair_folds(cohort, files, None) == dict(enumerate(files))
    assert pair_folds(cohort, files[:2], [2, 0]) == {2: files[0], 0: files[1]}
    with pytest.raises(UsageError, match=r"2 files for 3 folds \(0, 1, 2\)"):
        pair_folds(cohort, files[:2], None)


def test_files_of_two_sizes_are_no_run(made, tmp_path):
    folder, _, _ = made
    other = small_checkpoint("clam_sb", in_dim=8)
    for key in ("attention_net.3.attention_a.0", "attention_net.3.attention_b.0"):
        other |= {f"{key}.weight": torch.zeros(4, 16), f"{key}.bias": torch.zeros(4)}
    other["attention_net.3.attention_c.weight"] = torch.zeros(1, 4)
    torch.save(other, tmp_path / "narrow.pt")
    files = [folder / "s_0_checkpoint.pt", tmp_path / "narrow.pt"]
    with pytest.raises(WeightsError, match=r"narrow.pt is of other sizes than .*'hidden': 4"):
        adopt_run(files, folder / "cohort", tmp_path / "run", CLAM, folds=[0, 1])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_checkpoint_of_a_run_is_adopted_without_its_wrapper(made, tmp_path, wrapped):
    folder, _, _ = made
    base = TrainSettings(host=HostSettings(name="abmil", options={"hidden": 4}), epochs=1)
    settings = base if wrapped else base.model_copy(update={"evidence": None})
    train_run(folder / "cohort", tmp_path / "trained", settings, folds=[0], jobs=1)
    checkpoint = tmp_path / "trained" / "fold_0" / "checkpoint.safetensors"
    adopt_run([checkpoint], folder / "cohort", tmp_path / "run", HostSettings(), folds=[0])
    name = "predictions_full.csv" if wrapped else "predictions.csv"
    expected = predictions(tmp_path / "trained" / "fold_0" / name)
    assert predictions(tmp_path / "run" / "fold_0" / "predictions.csv") == expected
    with pytest.raises(WeightsError, match="is a checkpoint of host 'abmil', not of 'clam_sb'"):
        adopt_run([checkpoint], folder / "cohort", tmp_path / "other", CLAM, folds=[0])
