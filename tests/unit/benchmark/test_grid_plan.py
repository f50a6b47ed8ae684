"""Which runs a grid means, in which order, under which settings and paths."""

import pytest

from builders.grids import small_grid
from gcemil.benchmark.grid import (
    RunKey,
    other_seeds,
    plain_rival,
    plan_runs,
    plan_work,
    run_settings,
)
from gcemil.config import PAPER, EvidenceSettings
from gcemil.errors import ConfigError


def paths(keys):
    return [str(key.path) for key in keys]


def test_a_grid_is_planned_cohort_by_cohort_and_the_plain_host_comes_first():
    cohorts = {"a": {"profile": "nsclc"}, "b": {"profile": "kirc"}}
    assert paths(plan_runs(small_grid(cohorts=cohorts, arms=["gce", "host"], folds=[0]))) == [
        "runs/a/abmil/host/seed_0/fold_0",
        "runs/a/abmil/gce/seed_0/fold_0",
        "runs/b/abmil/host/seed_0/fold_0",
        "runs/b/abmil/gce/seed_0/fold_0",
    ]


def test_a_host_may_have_folds_of_its_own():
    grid = small_grid(hosts=["abmil", "transmil"], folds=[0, 1, 2], folds_by_host={"transmil": [1]})
    assert [key.fold for key in plan_runs(grid) if key.host == "transmil"] == [1, 1]
    assert [key.fold for key in plan_runs(grid) if key.host == "abmil"] == [0, 1, 2, 0, 1, 2]


def test_cohorts_come_before_runs_and_runs_before_their_diagnostics():
    grid = small_grid(folds=[0], diagnostics=["snr"])
    assert paths(plan_work(grid)) == [
        "cohorts/lung",
        "runs/lung/abmil/host/seed_0/fold_0",
        "runs/lung/abmil/gce/seed_0/fold_0",
        "runs/lung/abmil/gce/seed_0/fold_0/diagnostics",
    ]


def test_a_wrapped_fold_is_diagnosed_beside_the_plain_host_and_the_other_seeds():
    grid = small_grid(seeds=[0, 7], diagnostics=["stability"])
    run = RunKey("lung", "abmil", "gce", None, 0, 1)
    assert paths([plain_rival(grid, run), *other_seeds(grid, run)]) == [
        "runs/lung/abmil/host/seed_0/fold_1",
        "runs/lung/abmil/gce/seed_7/fold_1",
    ]
    keys = plan_work(grid)
    assert len(set(keys)) == len(keys) == 1 + 8 + 4


def test_a_variant_changes_the_wrapped_host_and_lies_under_its_own_name():
    grid = small_grid(
        settings={"epochs": 3, "evidence.budget": 0.02}, variants={"wide": {"evidence.budget": 0.2}}
    )
    runs = {key.label: key for key in plan_runs(grid)}
    assert list(runs) == ["host", "gce", "wide"]
    assert (runs["wide"].arm, runs["wide"].variant) == ("gce", "wide")
    assert run_settings(grid, runs["host"]).evidence is None
    assert run_settings(grid, runs["gce"]).evidence == EvidenceSettings(budget=0.02)
    assert run_settings(grid, runs["wide"]).evidence == EvidenceSettings(budget=0.2)
    assert {run_settings(grid, key).epochs for key in runs.values()} == {3}


def test_fairness_arms_train_twice_as_long_or_with_random_anchors():
    grid = small_grid(arms=["host_long", "gce_random_anchors", "gce_paper"])
    settings = {key.label: run_settings(grid, key) for key in plan_runs(grid)}
    assert (settings["host_long"].epochs, settings["host_long"].evidence) == (4, None)
    assert settings["gce_random_anchors"].evidence == EvidenceSettings(anchors="random")
    assert settings["gce_paper"].evidence == PAPER


def test_a_published_preset_is_each_hosts_own_and_the_grid_changes_it():
    grid = small_grid(
        preset="published", hosts=["dsmil", "dtfd"], arms=["host"], settings={"epochs": 2}
    )
    found = {key.host: run_settings(grid, key) for key in plan_runs(grid)}
    assert found["dsmil"].betas == (0.5, 0.9)
    assert found["dtfd"].schedule == "step"
    assert {settings.epochs for settings in found.values()} == {2}
    assert run_settings(small_grid(), plan_runs(small_grid())[0]).optimizer == "adamw"


def test_seed_and_device_follow_from_the_grid():
    key = RunKey("lung", "abmil", "gce", None, 3, 0)
    assert run_settings(small_grid(), key).seed == 3
    assert run_settings(small_grid(), key).device == "cpu"
    assert run_settings(small_grid(resources={"gpus": 0.5}), key).device == "cuda"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": ["resnet"]}, "Unknown host 'resnet'. Choose one of: abmil"),
        ({"variants": {"x": {"evidence.bugdet": 1}}}, "Grid 'four', 'x'.*bugdet"),
        ({"variants": {"x": {"evidence.budget": 2}}}, "Grid 'four', 'x'.*must be at most 1"),
        ({"settings": {"epochs": 0}}, "Grid 'four', 'host'.*must be at least 1"),
        ({"settings_by_host": {"abmil": {"epochs": 0}}}, "'host' of abmil.*must be at least 1"),
        ({"cohorts": {"a": {"profile": "nsclc", "dials": {"strenght": 3}}}}, "strenght"),
    ],
)
def test_what_does_not_exist_is_found_before_anything_runs(changes, message):
    with pytest.raises(ConfigError, match=message):
        plan_runs(small_grid(**changes))
