"""Overlaps, flips and gaps of evidence whose twin is known."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders import make_bag
from builders.folds import few_bags
from builders.runs import TrainedRuns
from gcemil.diagnostics import stability
from gcemil.diagnostics.diagnose import Comparison, measure_fold
from gcemil.diagnostics.snr import OutputScale, RiskScale
from gcemil.diagnostics.stability import (
    RuleEvidence,
    add_noise,
    drop_patches,
    output_gap,
)
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import RunError, UsageError
from gcemil.findings import read_finding

NORMAL, TUMOUR = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
# Probability .88 of tumour beside .12.
APART = float(torch.tensor(2.0).sigmoid() - torch.tensor(-2.0).sigmoid())
CLASSES = OutputScale(2, RiskScale())
RULES = {"whole_bag", "random", "attention", "saliency", "occlusion", "oracle"}
GATED = {"evidence", "soft_thresholded"}


def differ(one, other):
    return one.output_scale.differ(one.kept, other.kept, output_gap(one, other))


def mask(text):
    return torch.tensor([char == "x" for char in text])


def judged(selected, kept, *, full=TUMOUR, gated=None, output_scale=CLASSES):
    return RuleEvidence(mask(selected), full, kept, gated, output_scale)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_a_flip_is_another_class_from_the_evidence_alone():
    # Both networks say tumour of the whole bag; their evidence does not.
    one, other = judged("x...", TUMOUR), judged("...x", NORMAL)
    assert differ(one, other)
    assert not differ(one, one)
    assert output_gap(one, other) == pytest.approx(APART)


def test_a_flip_of_risks_is_a_move_beyond_the_tolerance():
    ours = OutputScale(1, RiskScale(mean=0.0, deviation=1.0), risk_tolerance=0.2)
    theirs = OutputScale(1, RiskScale(mean=10.0, deviation=2.0), risk_tolerance=0.2)
    one = judged("x", torch.tensor([1.0]), full=torch.tensor([1.0]), output_scale=ours)
    # One deviation above the mean is the same risk in both networks' units.
    same = judged("x", torch.tensor([12.0]), full=torch.tensor([9.0]), output_scale=theirs)
    more = judged("x", torch.tensor([12.5]), full=torch.tensor([9.0]), output_scale=theirs)
    assert output_gap(one, same) == pytest.approx(0)
    assert not differ(one, same)
    assert output_gap(one, more) == pytest.approx(0.25)
    assert differ(one, more)


def test_the_gap_of_gates_is_to_the_gated_bag_and_that_of_others_to_the_whole_one():
    assert judged("x", NORMAL, gated=NORMAL).own_gap == pytest.approx(0, abs=1e-6)
    assert judged("x", NORMAL).own_gap == pytest.approx(APART)


def test_only_patches_that_both_bags_have_are_compared():
    before, after = judged("xx..", TUMOUR), judged("x.x.", TUMOUR)
    figures = stability.pair_figures(
        ("attention", "plain"), [(before, after)], [after], mask("x..."), torch.tensor([0, 2, 3])
    )
    # Patch 1 is gone: {0} beside {0, 2}.
    assert figures["jaccard"] == pytest.approx(1 / 2)
    assert figures["precision"] == pytest.approx(1 / 2)
    assert figures["full_kept_gap"] == pytest.approx(0, abs=1e-6)
    assert "cd_gap" not in figures


def test_dropout_takes_a_share_of_the_patches_and_leaves_one():
    bag = make_bag(20)
    found, rows = drop_patches(bag, 0.25, generator=rng())
    assert len(found) == len(rows) == 15
    assert (np.diff(rows) > 0).all()
    assert (found.features == bag.features[rows]).all()
    assert (found.coords == bag.coords[rows]).all()
    assert len(drop_patches(make_bag(1), 0.9, generator=rng())[0]) == 1
    with pytest.raises(UsageError, match="\\[0, 1\\), got 1"):
        drop_patches(bag, 1.0, generator=rng())


def test_noise_is_measured_in_deviations_of_each_feature():
    bag = make_bag(4000, dim=2)
    bag = replace(bag, features=(bag.features * np.array([1, 10])).astype(np.float16))
    moved = add_noise(bag, 0.5, generator=rng())[0].features - bag.features.astype(np.float32)
    assert moved.std(axis=0) == pytest.approx([0.5, 5.0], rel=0.05)
    one = make_bag(1)
    assert (add_noise(one, 0.5, generator=rng())[0].features == one.features).all()
    with pytest.raises(UsageError, match="at least 0, got -1"):
        add_noise(one, -1.0, generator=rng())


def rows(finding, **labels):
    return [row for row in finding.rows if labels.items() <= row.labels.items()]


def value(finding, metric, **labels):
    (row,) = rows(finding, **labels)
    return row.values[metric]


@pytest.mark.parametrize("kind", ["classification", "survival"])
def test_a_bag_perturbed_by_nothing_keeps_its_evidence(kind, request: pytest.FixtureRequest):
    runs: TrainedRuns = request.getfixturevalue(f"{kind}_runs")
    fold = few_bags(TrainedFold.open(runs.gce, 0, against=runs.host))
    found = stability.measure_stability(fold, dropout=0.0, noise=0.0, repeats=1)
    assert {row.labels["perturbation"] for row in found.rows} == {"dropout 0", "noise 0"}
    for row in found.rows:
        if row.labels["rule"] != "random":
            assert row.values.get("jaccard", 1.0) == pytest.approx(1)
            assert row.values["prediction_flip"] == pytest.approx(0)
            assert row.values["output_gap"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", ["classification", "survival"])
def test_the_oracle_is_steadier_and_truer_than_chance(kind, request: pytest.FixtureRequest):
    runs: TrainedRuns = request.getfixturevalue(f"{kind}_runs")
    fold = few_bags(TrainedFold.open(runs.gce, 0, against=runs.host))
    found = stability.measure_stability(fold, repeats=1)
    assert "no run of another seed" in found.notes[0]
    for network, expected in (("plain", RULES), ("wrapped", RULES | GATED)):
        for perturbation in ("dropout 0.1", "noise 0.1"):
            labels = {"network": network, "perturbation": perturbation}
            assert {row.labels["rule"] for row in rows(found, **labels)} == expected
            for metric in ("jaccard", "precision"):
                oracle = value(found, metric, rule="oracle", **labels)
                assert oracle > value(found, metric, rule="random", **labels)
            assert value(found, "precision", rule="oracle", **labels) >= value(
                found, "precision", rule="attention", **labels
            )
    for row in found.rows:
        # Two different gaps, never in one row.
        assert ("cd_gap" in row.values) == (row.labels["rule"] in GATED)
        assert not {"cd_gap", "full_kept_gap"} <= set(row.values)
    assert found.to_json()["metrics"]["prediction_flip"]["direction"] == "lower"


def test_a_run_and_its_copy_have_the_same_evidence(classification_runs: TrainedRuns, tmp_path):
    shutil.copytree(classification_runs.gce, tmp_path / "twin")
    folds = [
        few_bags(TrainedFold.open(run, 0)) for run in (classification_runs.gce, tmp_path / "twin")
    ]
    both = stability.measure_stability(folds[0], others=folds[1:], repeats=1)
    assert {row.labels["perturbation"] for row in both.rows} == {
        "seeds",
        "dropout 0.1",
        "noise 0.1",
    }
    assert both.settings["seeds"] == [0, 0]
    found = replace(
        both, rows=tuple(row for row in both.rows if row.labels["perturbation"] == "seeds")
    )
    assert {row.labels["rule"] for row in found.rows} == RULES | GATED
    for row in found.rows:
        if row.labels["rule"] != "random":
            assert row.values.get("jaccard", 1.0) == pytest.approx(1)
            assert (row.values["prediction_flip"], row.values["output_gap"]) == pytest.approx(
                (0, 0), abs=1e-6
            )
    assert value(found, "jaccard", rule="random") < 0.5
    assert "same seed" in found.notes[0]


def test_the_command_that_tables_name_gives_the_rivals_rows_across_seeds(
    classification_runs: TrainedRuns, tmp_path
):
    """gcemil diagnose RUN RUN_OF_OTHER_SEED --against HOST_RUN --only stability."""
    for name in ("run", "twin"):
        shutil.copytree(classification_runs.gce, tmp_path / name)
    comparison = Comparison(
        tmp_path / "run",
        against=classification_runs.host,
        others=(tmp_path / "twin",),
        options={"stability": {"repeats": 1}},
    )
    measure_fold(comparison, 0, ["stability"])
    found = read_finding(tmp_path / "run" / "fold_0" / "diagnostics" / "stability.json")
    across = {
        (row.labels["rule"], row.labels["network"])
        for row in found.rows
        if row.labels["perturbation"] == "seeds"
    }
    assert {(rule, "plain") for rule in ("attention", "saliency", "occlusion")} <= across


def test_runs_that_cannot_be_compared_are_refused(
    classification_runs: TrainedRuns, survival_runs: TrainedRuns
):
    fold = TrainedFold.open(classification_runs.gce, 0)
    with pytest.raises(UsageError, match="two or more different runs"):
        stability.measure_stability(fold, others=[fold])
    with pytest.raises(RunError, match="Compare runs of one cohort and one fold"):
        stability.measure_stability(fold, others=[TrainedFold.open(survival_runs.gce, 0)])
    with pytest.raises(UsageError, match="repeats = 0"):
        stability.measure_stability(fold, repeats=0)
