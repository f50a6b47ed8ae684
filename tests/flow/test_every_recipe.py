"""Every recipe trains with the parts it is named for, and none of them goes missing unseen."""

import pytest

from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import RECIPES, TrainSettings
from gcemil.hosts.table import with_recipe
from gcemil.runs.checkpoint import load_network
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run

PAPERS = {"paper", "paper_constrained", "paper_budget"}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    made = simulate(
        "nsclc", tmp_path_factory.mktemp("recipes") / "cohort", size="tiny", slides=18, seed=2
    )
    write_folds(made, make_folds(made, n_folds=3, seed=0))
    return made.folder


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "taught"])
def test_a_recipe_has_the_parts_it_is_named_for(cohort, tmp_path, name):
    settings = with_recipe(TrainSettings(), name).model_copy(update={"epochs": 2})
    summary = train_run(cohort, tmp_path / "run", settings, folds=[0], jobs=1)
    model = load_network(tmp_path / "run" / "fold_0" / "checkpoint.safetensors")[0].model
    assert (model.selector.morphology is not None) == (name in PAPERS)
    moved = name in PAPERS and bool((model.selector.morphology.score_layer.weight != 0).any())
    assert moved == (name in PAPERS)
    assert model.settings.train_host == (name != "default")
    assert ("head" in summary) == (name == "default")
    assert {"full", "gce", "soft", "discrete"} <= set(summary)
    if name == "paper_budget":
        assert (model.settings.centre, model.settings.recovery.max_fraction) == ("slide", 0.1)
