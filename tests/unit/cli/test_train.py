"""What the options of `gcemil train` make of the settings."""

import pytest

from gcemil.cli.options import resolve_settings
from gcemil.errors import UsageError


def resolved(*, config=None, host="abmil", gce=True, preset="common", epochs=None, overrides=()):
    return resolve_settings(
        config=config, host=host, gce=gce, preset=preset, epochs=epochs, overrides=list(overrides)
    )


def test_a_preset_is_how_the_authors_train_the_host():
    settings = resolved(host="dsmil", preset="published", gce=False)
    assert (settings.optimizer, settings.betas, settings.learning_rate) == (
        "adam",
        (0.5, 0.9),
        1e-4,
    )
    assert (settings.epochs, settings.schedule, settings.final_rate) == (50, "cosine", 5e-6)


def test_options_and_assignments_win_over_a_preset():
    settings = resolved(
        preset="published", epochs=3, overrides=["host.options.dropout=0.5", "betas=[0.8, 0.9]"]
    )
    assert settings.epochs == 3
    assert settings.host.options == {"dropout": 0.5}
    assert settings.betas == (0.8, 0.9)
    assert settings.learning_rate == 5e-4


def test_a_preset_and_a_file_are_one_too_many(tmp_path):
    with pytest.raises(UsageError, match="--preset published and --config both set the training"):
        resolved(config=tmp_path / "train.yaml", preset="published")


def test_a_class_that_the_config_of_a_run_names_is_not_imported(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "cohort: c\nsettings: {host: {name: 'their.module:Host'}}\n"
    )
    with pytest.raises(UsageError, match="opening it would run that code"):
        resolved(config=tmp_path / "config.yaml")
