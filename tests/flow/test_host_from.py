"""A wrapped run can take the hosts of a plain run, and is then the run that training anew would give."""

from unittest.mock import patch

import pytest

from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import RECIPES, TrainSettings
from gcemil.errors import GcemilError
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run


def test_a_host_taken_from_a_plain_run_gives_the_same_run(tmp_path):
    cohort = simulate("nsclc", tmp_path / "cohort", size="tiny", seed=0)
    write_folds(cohort, make_folds(cohort, seed=0))
    settings = TrainSettings(epochs=2)
    plain, wrapped, taken = (tmp_path / name for name in ("plain", "wrapped", "taken"))
    train_run(cohort.folder, plain, settings.model_copy(update={"evidence": None}), folds=[0])
    train_run(cohort.folder, wrapped, settings, folds=[0])
    with patch("gcemil.training.fold.train", side_effect=AssertionError("trained again")):
        train_run(cohort.folder, taken, settings, folds=[0], host_from=plain)
    files = [
        "checkpoint.safetensors",
        "history.jsonl",
        "metrics.json",
        "predictions.csv",
        "predictions_full.csv",
    ]
    for name in files:
        assert (taken / "fold_0" / name).read_bytes() == (wrapped / "fold_0" / name).read_bytes(), (
            name
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 3}, "did not train its host with these settings"),
        ({"evidence": RECIPES["joint"].evidence}, "train the host with its evidence"),
    ],
)
def test_a_host_trained_otherwise_is_not_taken(tmp_path, change, message):
    cohort = simulate("nsclc", tmp_path / "cohort", size="tiny", seed=0)
    write_folds(cohort, make_folds(cohort, seed=0))
    settings = TrainSettings(epochs=2)
    train_run(
        cohort.folder, tmp_path / "plain", settings.model_copy(update={"evidence": None}), folds=[0]
    )
    with pytest.raises(GcemilError, match=message):
        train_run(
            cohort.folder,
            tmp_path / "other",
            settings.model_copy(update=change),
            folds=[0],
            host_from=tmp_path / "plain",
        )
