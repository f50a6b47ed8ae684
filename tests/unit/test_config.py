"""Settings are frozen, closed and bounded; YAML and overrides come back as values or as one readable error."""

import pytest
from pydantic import ValidationError

from gcemil.config import PAPER, RECIPES, EvidenceSettings, RecoverySettings, TrainSettings, with_overrides
from gcemil.errors import ConfigError


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
        ("epoch: 3", "epoch: Extra inputs are not permitted"),
        ("evidence: {budget: 1.5}", r"evidence.budget: .*less than or equal to 1 \(got 1.5\)"),
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
        ("epochs", "written key=value, got 'epochs'"),
        ("evidence.budgte=1", "evidence.budgte: Extra inputs"),
        ("evidnce.budget=1", "no setting 'evidnce.budget'"),
        ("epochs=0", "epochs: .*greater than or equal to 1"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(override, message):
    with pytest.raises(ConfigError, match=message):
        with_overrides(TrainSettings(), [override])


def test_an_override_below_a_stage_that_is_off_says_so():
    with pytest.raises(ConfigError, match="'evidence' is switched off"):
        with_overrides(TrainSettings(evidence=None), ["evidence.budget=0.1"])


def test_the_paper_recipe_holds_the_papers_constants():
    assert RECIPES["paper"] is PAPER
    assert (PAPER.budget, PAPER.budget_weight, PAPER.grounding_weight) == (0.05, 0.1, 0.5)
    assert (PAPER.temperature_start, PAPER.temperature_end, PAPER.centre) == (1.0, 0.4, "zero")
    assert (PAPER.adapter_rank, PAPER.recovery.threshold, PAPER.recovery.coverage_target) == (32, 0.5, 0.95)
    assert (PAPER.sufficiency_weight, PAPER.necessity_weight, PAPER.ungated_share) == (0.0, 0.0, 0.0)
    assert not PAPER.recovery.reachable
    assert PAPER.recovery.max_fraction == 1.0
