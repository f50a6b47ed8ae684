"""Near names, and findings of pydantic in plain words."""

import pytest
from pydantic import ValidationError

from gcemil.config import TrainSettings, read_train_settings
from gcemil.errors import ConfigError
from gcemil.files import parse_yaml
from gcemil.wording import dotted_names, near_path, readable, suggest_name

NAMES = ["epochs", "learning_rate", "evidence.budget", "evidence.recovery.threshold", "Grade"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lr", "learning_rate"),
        ("epoch", "epochs"),
        ("budget", "evidence.budget"),
        ("learning-rate", "learning_rate"),
        ("grade", "Grade"),
        ("evidnce.budgt", "evidence.budget"),
        ("colour", None),
        ("x", None),
    ],
)
def test_the_name_that_was_meant_is_found(name, meant):
    assert suggest_name(name, NAMES) == meant


def test_a_near_path_is_one_of_the_same_folder(tmp_path):
    (tmp_path / "cohort").mkdir()
    assert near_path(tmp_path / "cohrot") == f" Did you mean {tmp_path / 'cohort'}?"
    assert near_path(tmp_path / "slides") == ""
    for name in ("bom.csv", "labels.csv"):
        (tmp_path / name).touch()
    assert near_path(tmp_path / "lables.csv") == f" Did you mean {tmp_path / 'labels.csv'}?"
    assert near_path(tmp_path / "none" / "cohort") == ""
    assert near_path(tmp_path / ("x" * 300)) == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"epochs": 1.5}, "epochs must be a whole number (got 1.5)"),
        ({"clip": "much"}, "clip must be a number (got 'much')"),
        ({"host": 3}, "host must be keys with values (got 3)"),
        ({"schedule": "linear"}, "schedule must be 'cosine', 'constant' or 'step' (got 'linear')"),
        ({"betas": [1]}, "betas.1 is missing"),
        (
            {"evidence": {"repair": True}},
            "there is no key 'repair'. There are: anchors, n_prototypes",
        ),
    ],
)
def test_what_is_wrong_is_said_in_plain_words(values, said):
    with pytest.raises(ValidationError) as found:
        TrainSettings.model_validate(values)
    assert readable(found.value, TrainSettings).startswith(said)


def test_every_setting_is_explained_and_the_printed_file_is_read_back():
    text = TrainSettings().to_commented_yaml()
    assert TrainSettings.from_values(parse_yaml(text, "printed"), "printed") == TrainSettings()
    settings = [line.strip() for line in text.splitlines()]
    for name in dotted_names(TrainSettings):
        key = name.rpartition(".")[2]
        if name.startswith("host.weights."):
            continue
        place = next(number for number, line in enumerate(settings) if line.startswith(f"{key}:"))
        assert settings[place - 1].startswith("# "), name


def test_settings_come_from_a_file_a_run_or_its_folder(tmp_path):
    (tmp_path / "config.yaml").write_text("cohort: c\nsettings_hash: x\nsettings: {epochs: 3}\n")
    (tmp_path / "own.yaml").write_text("epochs: 4\n")
    for path, epochs, is_run in (
        (tmp_path, 3, True),
        (tmp_path / "config.yaml", 3, True),
        (tmp_path / "own.yaml", 4, False),
    ):
        settings, found = read_train_settings(path)
        assert (settings.epochs, found) == (epochs, is_run)
    with pytest.raises(
        ConfigError, match="none.yaml does not exist. 'gcemil train --print-config' prints a file"
    ):
        read_train_settings(tmp_path / "none.yaml")
