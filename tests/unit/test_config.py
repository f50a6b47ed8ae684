"""Settings are frozen, closed and bounded; YAML and overrides come back as values or as one readable error."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from gcemil.config import (
    PAPER,
    RECIPES,
    EvidenceSettings,
    HostSettings,
    RecoverySettings,
    TrainSettings,
    with_overrides,
)
from gcemil.errors import ConfigError
from gcemil.hosts.table import HOSTS, create_host, patch_limit, with_preset, with_recipe


def test_settings_survive_yaml(tmp_path):
    settings = TrainSettings(epochs=3, evidence=EvidenceSettings(budget=0.1))
    path = tmp_path / "config.yaml"
    path.write_text(settings.to_yaml())
    assert TrainSettings.from_yaml(path) == settings
    assert TrainSettings.from_yaml(path).hash == settings.hash


def test_an_empty_file_is_the_defaults(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("")
    assert TrainSettings.from_yaml(path) == TrainSettings()


def test_settings_do_not_change_once_made():
    with pytest.raises(ValidationError, match="frozen"):
        EvidenceSettings().budget = 0.2


def test_the_hash_follows_the_content():
    assert EvidenceSettings().hash == EvidenceSettings(budget=0.05).hash
    assert EvidenceSettings().hash != EvidenceSettings(budget=0.06).hash


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", r"there is no key 'epoch'\. Did you mean epochs\?"),
        ("evidence: {budget: 1.5}", r"evidence.budget must be at most 1 \(got 1.5\)"),
        ("evidence: {recovery: {coverage_target: 0}}", "evidence.recovery.coverage_target"),
        ("epochs: [", "config.yaml"),
    ],
)
def test_a_wrong_file_names_itself_the_field_and_the_value(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        TrainSettings.from_yaml(path)


def test_a_missing_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml does not exist"):
        TrainSettings.from_yaml(tmp_path / "none.yaml")


def test_overrides_reach_into_the_tree_and_keep_types():
    changed = with_overrides(
        TrainSettings(), ["evidence.budget=0.1", "evidence.recovery.repair=false", "host.name=transmil"]
    )
    assert changed.evidence.budget == 0.1
    assert changed.evidence.recovery == RecoverySettings(repair=False)
    assert changed.host.name == "transmil"
    assert changed.epochs == TrainSettings().epochs


def test_evidence_can_be_switched_off_by_an_override():
    assert with_overrides(TrainSettings(), ["evidence=null"]).evidence is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "written key=value, such as epochs=20; got 'epochs'"),
        ("evidence.budgte=1", r"no setting 'evidence.budgte'\. Did you mean evidence.budget\?"),
        ("evidnce.budget=1", "no setting 'evidnce.budget'"),
        ("epochs=0", r"epochs must be at least 1 \(got 0\)"),
        ("evidence.bridge_weight=.inf", r"^evidence\.bridge_weight: inf is not a finite number\.$"),
        ("epochs=[1", "The value of 'epochs' is not valid YAML"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(override, message):
    with pytest.raises(ConfigError, match=message):
        with_overrides(TrainSettings(), [override])


def test_an_override_below_a_stage_that_is_off_says_so():
    with pytest.raises(ConfigError, match="'evidence' is switched off"):
        with_overrides(TrainSettings(evidence=None), ["evidence.budget=0.1"])


def test_the_paper_recipe_holds_the_papers_constants():
    assert RECIPES["paper"].evidence is PAPER
    assert (PAPER.budget, PAPER.budget_weight, PAPER.grounding_weight) == (0.05, 0.1, 0.5)
    assert (PAPER.temperature_start, PAPER.temperature_end, PAPER.centre) == (1.0, 0.4, "zero")
    assert (PAPER.adapter_rank, PAPER.recovery.threshold, PAPER.recovery.coverage_target) == (32, 0.5, 0.95)
    assert (PAPER.sufficiency_weight, PAPER.necessity_weight, PAPER.ungated_share) == (0.0, 0.0, 0.0)
    assert not PAPER.recovery.reachable
    assert PAPER.recovery.max_fraction == 1.0


@pytest.mark.parametrize("name", HOSTS)
def test_the_paper_recipe_trains_and_gates_every_host_as_the_paper_does(name):
    plain = TrainSettings(host=HostSettings(name=name))
    found = with_recipe(plain, "paper")
    assert found.host.gate_mode == "paper"
    assert (found.learning_rate, found.epochs, found.schedule, found.clip) == (None, 15, "cosine", 5.0)
    assert (found.sampling, found.max_patches, found.chosen_from) == ("patches", 512, 1.0)
    assert with_recipe(plain, "paper", plain=True) == found.model_copy(update={"evidence": None})
    assert with_recipe(plain, "default") == plain


def test_patches_of_a_training_bag_are_limited_by_the_host_unless_the_settings_say_otherwise():
    limits = {name: patch_limit(TrainSettings(host=HostSettings(name=name))) for name in HOSTS}
    assert {name for name, limit in limits.items() if limit == 512} == {"transmil", "camil"}
    assert limits["abmil"] == 2048
    assert patch_limit(TrainSettings(max_patches=100)) == 100
    assert patch_limit(TrainSettings(max_patches="all")) is None
    # As runs of earlier versions wrote it.
    assert TrainSettings.model_validate({"max_patches": None}).max_patches == "all"


def test_the_two_readings_of_the_paper_differ_in_the_bridge_alone():
    free, constrained = RECIPES["paper"], RECIPES["paper_constrained"]
    assert (free.evidence.bridge, constrained.evidence.bridge) == ("free", "proximal")
    assert constrained.evidence == free.evidence.model_copy(update={"bridge": "proximal"})
    assert (constrained.training, constrained.gate_mode) == (free.training, free.gate_mode)


def test_the_paper_says_nothing_of_the_gates_of_a_host_of_ones_own():
    own = TrainSettings(host=HostSettings(name="package.module:Class"))
    assert with_recipe(own, "paper").host.gate_mode is None


def published(host, **settings):
    return with_preset(TrainSettings(host=HostSettings(name=host), **settings), "published")


def test_every_host_has_published_settings():
    assert all(spec.published is not None for spec in HOSTS.values())


@pytest.mark.parametrize("host", HOSTS)
def test_published_settings_are_valid_and_their_options_exist(host):
    settings = published(host, evidence=None)
    assert TrainSettings.model_validate(settings.model_dump(mode="json")) == settings
    assert settings.host.name == host
    assert settings.optimizer != "adamw"
    assert settings.max_patches == "all"
    create_host(host, in_dim=8, n_outputs=2, options=settings.host.options)


def test_the_common_preset_changes_nothing():
    assert with_preset(TrainSettings(seed=3), "common") == TrainSettings(seed=3)


def test_a_preset_keeps_what_it_does_not_speak_of_and_the_users_options():
    host = HostSettings(name="abmil", gate_mode="deletion", options={"hidden": 64, "dropout": 0.1})
    settings = with_preset(TrainSettings(host=host, seed=3), "published")
    assert settings.seed == 3
    assert settings.host.gate_mode == "deletion"
    assert settings.host.options == {"hidden": 64, "dropout": 0.1}
    assert settings.learning_rate == 5e-4


def test_a_wrapped_host_is_not_chosen_while_its_gates_are_warm():
    assert published("transmil", evidence=None).chosen_from == 0.0
    assert published("transmil").chosen_from == TrainSettings().chosen_from
    assert published("dtfd").chosen_from == 0.8


def test_a_host_without_a_publication_is_refused():
    with pytest.raises(ConfigError, match="Host 'mine:Host' has no published settings. Those with: abmil"):
        published("mine:Host")


def documented_presets():
    """The table of docs/training.md, a dictionary of cells for each host."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    table = page[page.index("| host | optimiser |") :].split("\n\n")[0].splitlines()
    names, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: dict(zip(names, row, strict=True)) for row in rows}


@pytest.mark.parametrize("host", HOSTS)
def test_the_documented_preset_is_the_one_that_trains(host):
    settings, told = published(host, evidence=None), documented_presets()[host]
    assert told["optimiser"] == settings.optimizer
    assert float(told["rate"]) == settings.learning_rate
    assert float(told["decay"]) == settings.weight_decay
    assert tuple(map(float, told["betas"].split(","))) == settings.betas
    assert int(told["epochs"]) == settings.epochs
    kind, _, end = told["schedule"].partition(" to ")
    assert (kind, float(end or 0)) == (settings.schedule, settings.final_rate)
    assert told["dropout"] == "none" or float(told["dropout"]) == settings.host.options["dropout"]
    assert (told["dropout"] == "none") == ("dropout" not in settings.host.options)
    chosen = {1.0: "last"}.get(settings.chosen_from) or " ".join(
        ["least loss" if settings.chosen_by == "loss" else "best metric"]
        + ([f"from {settings.chosen_from:g} on"] if settings.chosen_from else [])
    )
    patience = "" if settings.early_stopping is None else f", patience {settings.early_stopping}"
    assert told["chosen epoch"] == chosen + patience


def test_a_gate_that_does_not_exist_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="evidence.gate.*'top_k'.*'consecutive'"):
        with_overrides(TrainSettings(), ["evidence.gate=topk"])
    assert with_overrides(TrainSettings(), ["evidence.gate=top_k"]).evidence.gate == "top_k"


def test_settings_of_earlier_runs_are_read_by_their_old_name():
    assert EvidenceSettings.model_validate({"teaches_host": True}).train_host
    assert RECIPES["taught"] == RECIPES["joint"]
