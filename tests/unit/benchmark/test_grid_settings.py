"""Grid files: what they may say, and that those of the repository say it."""

from pathlib import Path

import pytest

from builders.grids import small_grid
from gcemil.benchmark.grid import Grid, plan_runs, plan_work, run_settings
from gcemil.benchmark.runner import check_diagnostics
from gcemil.config import RECIPES
from gcemil.errors import ConfigError

ROOT = Path(__file__).parents[3]
GRIDS = ROOT / "paper" / "grids"
ALL_GRIDS = sorted([*GRIDS.glob("*.yaml"), *(ROOT / "grids").glob("*.yaml")])
SMALL = """
name: g
cohorts:
  a: {profile: nsclc}
hosts: [abmil]
"""


def load(tmp_path, text):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    return Grid.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + "host: [abmil]", "grid.yaml: there is no key 'host'. Did you mean hosts"),
        (SMALL + "arms: [gse]", "arms.0 must be 'host', 'gce'"),
        (SMALL + "folds: []", "folds: at least one entry is needed"),
        (SMALL + "folds: [0, 0]", "folds: .*an entry is listed twice"),
        (SMALL + "seeds: [-1]", "seeds.0 must be at least 0"),
        (SMALL + "arms: []", "at least one arm, variant or search"),
        (SMALL + "variants: {gce: {epochs: 1}}", "'gce' is the name of an arm"),
        (SMALL + "variants: {a/b: {epochs: 1}}", "'a/b' cannot be a name"),
        (SMALL + "folds_by_host: {dsmil: [0]}", "names 'dsmil', which is not among the hosts"),
        (SMALL + "settings: {seed: 3}", "'seed' follows from the grid itself"),
        (SMALL + "resources: {cpus: 0}", "resources.cpus must be more than 0"),
        ("name: g\nhosts: [abmil]\ncohorts: {}", "cohorts must have at least 1 entries"),
        (
            "name: g\nhosts: [abmil]\ncohorts: {a: {size: tiny}}",
            "cohorts.a: .*either a folder or a profile",
        ),
        (
            "name: g\nhosts: [abmil]\ncohorts: {a: {folder: x, dim: 9}}",
            "cohorts.a: .*not simulated: remove dim",
        ),
        ("name: [", "grid.yaml is not valid YAML .while parsing"),
    ],
)
def test_a_wrong_grid_is_refused_with_the_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_cohort_folder_is_relative_to_the_grid_file(tmp_path):
    grid = load(tmp_path, "name: g\nhosts: [abmil]\ncohorts: {a: {folder: cohorts/real}}")
    assert grid.cohorts["a"].folder == tmp_path / "cohorts" / "real"


def test_an_unknown_diagnostic_is_refused():
    with pytest.raises(ConfigError, match="unknown diagnostic 'srn'. Choose from: snr"):
        check_diagnostics(small_grid(diagnostics=["srn"]))


def test_an_option_that_a_diagnostic_does_not_have_is_refused():
    check_diagnostics(small_grid(diagnostic_options={"budget": {"budgets": ["recovered"]}}))
    with pytest.raises(
        ConfigError, match="'budget' has no option 'sizes'. It has: budgets, attributions"
    ):
        check_diagnostics(small_grid(diagnostic_options={"budget": {"sizes": [0.1]}}))
    with pytest.raises(ConfigError, match="unknown diagnostic 'bugdet'"):
        check_diagnostics(small_grid(diagnostic_options={"bugdet": {}}))


@pytest.mark.parametrize("path", ALL_GRIDS, ids=lambda path: path.stem)
def test_a_grid_of_the_repository_loads_plans_and_is_named_like_its_file(path):
    grid = Grid.load(path)
    assert grid.name == path.stem
    assert plan_work(grid)
    check_diagnostics(grid)


def test_grids_that_share_a_cohort_mean_the_same_cohort_and_runs():
    """The reduced grids of the paper are run into one results folder, and all others but `smoke` and `paper` into another."""
    cohorts, settings = {}, {}
    for path in ALL_GRIDS:
        grid = Grid.load(path)
        if grid.name in ("smoke", "paper"):
            continue
        folder = "reduced" if grid.name.startswith("reduced") else "others"
        for name, cohort in grid.cohorts.items():
            assert cohorts.setdefault((folder, name), cohort) == cohort
        for key in plan_runs(grid):
            place = (folder, key.run_path)
            assert settings.setdefault(place, run_settings(grid, key)) == run_settings(grid, key)


def test_a_variant_may_start_from_a_recipe():
    grid = small_grid(variants={"parts": {"recipe": "paper_budget", "evidence.budget": 0.1}})
    key = next(key for key in plan_runs(grid) if key.label == "parts")
    settings = run_settings(grid, key)
    assert settings.evidence == RECIPES["paper_budget"].evidence.model_copy(update={"budget": 0.1})
    assert settings.host.gate_mode == "paper"


def test_a_recipe_that_does_not_exist_is_refused():
    with pytest.raises(
        ValueError, match="variant 'parts' names the recipe 'papr'; there are: default, joint"
    ):
        small_grid(variants={"parts": {"recipe": "papr"}})
