"""The controls of `sanity` on a trained run, and on hosts that must fail them."""

import pytest
import torch

from builders.runs import TrainedRuns
from gcemil.diagnostics import sanity
from gcemil.diagnostics.sanity import Control, measure_sanity
from gcemil.diagnostics.trained_fold import TrainedFold

CONTROLS = ["random_weights", "shuffled_labels", "planted_shortcut", "no_signal"]


def controls(finding):
    return {row.labels["control"]: row.values for row in finding.rows}


@pytest.fixture(scope="module")
def fold(classification_runs: TrainedRuns):
    return TrainedFold.open(classification_runs.gce, 0)


@pytest.fixture(scope="module")
def finding(fold):
    return measure_sanity(fold, steps=300)


def test_each_control_says_what_it_should_show_and_what_it_shows(finding):
    assert list(controls(finding)) == CONTROLS
    for note, name in zip(finding.notes, CONTROLS, strict=True):
        assert note.startswith(f"{name}: ")
        assert note.rstrip(".").endswith(("pass", "fail", "inconclusive"))


def test_the_same_fold_gives_the_same_controls(fold):
    one, other = (measure_sanity(fold, steps=40, bags=6) for _ in range(2))
    assert one == other


def test_attention_finds_a_planted_mark_that_decides_the_label(finding):
    shortcut = controls(finding)["planted_shortcut"]
    assert shortcut["control_value"] > shortcut["control_beside"]
    assert shortcut["control_value"] > 0.3


def test_a_host_that_is_its_own_fresh_copy_fails_the_control_of_weights(fold, monkeypatch):
    monkeypatch.setattr(sanity, "_fresh_host", lambda fold, seed: fold.host)
    monkeypatch.setattr(sanity.Samples, "fit", lambda self, bags, targets: self.fold.host)
    found = controls(measure_sanity(fold, bags=8))["random_weights"]
    assert found["control_value"] == pytest.approx(1)
    assert found["control_passed"] == 0


def test_labels_that_are_predicted_although_they_were_shuffled_fail(fold, monkeypatch):
    monkeypatch.setattr(sanity.Samples, "score", lambda self, host: (0.9, 0.05))
    monkeypatch.setattr(sanity.Samples, "fit", lambda self, bags, targets: self.fold.host)
    assert controls(measure_sanity(fold, bags=8))["shuffled_labels"]["control_passed"] == 0


def test_a_short_fit_that_learned_nothing_says_nothing(fold, monkeypatch):
    monkeypatch.setattr(sanity.Samples, "score", lambda self, host: (0.5, 0.1))
    monkeypatch.setattr(sanity.Samples, "fit", lambda self, bags, targets: self.fold.host)
    assert controls(measure_sanity(fold, bags=8))["shuffled_labels"]["control_passed"] is None


def test_evidence_that_always_holds_fails_on_bags_without_signal(fold, monkeypatch):
    monkeypatch.setattr(sanity, "_holds", lambda bag: True)
    monkeypatch.setattr(sanity.Samples, "fit", lambda self, bags, targets: self.fold.host)
    assert controls(measure_sanity(fold, bags=8))["no_signal"]["control_passed"] == 0


def test_bags_without_signal_keep_their_size_and_lose_their_patches(fold):
    bag = next(iter(fold.bags("test")))
    width = bag.features.shape[1]
    changed = sanity._without_signal(
        bag, torch.zeros(width), torch.ones(width), torch.Generator().manual_seed(0)
    )
    assert changed.features.shape == bag.features.shape
    assert abs(float(changed.features.float().mean())) < 0.1
    assert not torch.equal(changed.features, bag.features)


def test_survival_has_the_same_controls(survival_runs: TrainedRuns):
    found = measure_sanity(TrainedFold.open(survival_runs.gce, 0), steps=60)
    assert list(controls(found)) == CONTROLS


def test_a_plain_host_is_asked_of_its_attended_patches(
    classification_runs: TrainedRuns, monkeypatch
):
    fold = TrainedFold.open(classification_runs.host, 0)
    monkeypatch.setattr(sanity.Samples, "fit", lambda self, bags, targets: self.fold.host)
    assert 0 <= controls(measure_sanity(fold, bags=8))["no_signal"]["control_beside"] <= 1


def test_a_verdict_stands_at_the_end_of_its_sentence():
    assert Control("a", "it should be small", 0.1, 0.5, None).sentence.endswith("inconclusive.")
