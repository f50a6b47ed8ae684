"""Settings are frozen, closed and bounded; YAML and overrides come back as values or as one readable error."""

import pytest

from gcemil.config import EvidenceSettings, HostSettings, RecoverySettings, TrainSettings
from gcemil.errors import ConfigError
from gcemil.hosts.table import HOSTS, create_host, patch_limit, with_overrides, with_preset
from gcemil.runs.checkpoint import build_host


def test_settings_survive_yaml(tmp_path):
    settings = TrainSettings(epochs=3, evidence=EvidenceSettings(budget=0.1))
    path = tmp_path / "config.yaml"
    path.write_text(settings.to_yaml())
    assert TrainSettings.from_yaml(path) == settings
    assert TrainSettings.from_yaml(path).hash == settings.hash


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


def test_overrides_reach_into_the_tree_and_keep_types():
    changed = with_overrides(
        TrainSettings(),
        ["evidence.budget=0.1", "evidence.recovery.repair=false", "host.name=transmil"],
    )
    assert changed.evidence.budget == 0.1
    assert changed.evidence.recovery == RecoverySettings(repair=False)
    assert changed.host.name == "transmil"
    assert changed.epochs == TrainSettings().epochs


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "written key=value, such as epochs=20; got 'epochs'"),
        ("evidence.budgte=1", r"no setting 'evidence.budgte'\. Did you mean evidence.budget\?"),
        ("evidnce.budget=1", "no setting 'evidnce.budget'"),
        ("epochs=0", r"epochs must be at least 1 \(got 0\)"),
        ("evidence.bridge_weight=.inf", r"^evidence\.bridge_weight is not a finite number\.$"),
        ("epochs=[1", "The value of 'epochs' is not valid YAML"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(override, message):
    with pytest.raises(ConfigError, match=message):
        with_overrides(TrainSettings(), [override])


def test_an_override_below_a_stage_that_is_off_says_so():
    with pytest.raises(ConfigError, match="'evidence' is switched off"):
        with_overrides(TrainSettings(evidence=None), ["evidence.budget=0.1"])


def test_patches_of_a_training_bag_are_limited_by_the_host_unless_the_settings_say_otherwise():
    limits = {name: patch_limit(TrainSettings(host=HostSettings(name=name))) for name in HOSTS}
    assert {name for name, limit in limits.items() if limit == 512} == {"transmil", "camil"}
    assert limits["abmil"] == 2048
    assert patch_limit(TrainSettings(max_patches=100)) == 100
    assert patch_limit(TrainSettings(max_patches="all")) is None


def published(host, **settings):
    return with_preset(TrainSettings(host=HostSettings(name=host), **settings), "published")


PUBLISHED = [name for name, spec in HOSTS.items() if spec.published is not None]


def test_every_host_has_published_settings_but_the_baselines():
    assert set(HOSTS) - set(PUBLISHED) == {"additive", "mean", "max", "linear"}


@pytest.mark.parametrize("host", PUBLISHED)
def test_published_settings_are_valid_and_their_options_exist(host):
    settings = published(host, evidence=None)
    assert TrainSettings.model_validate(settings.model_dump(mode="json")) == settings
    assert settings.host.name == host
    assert settings.optimizer != "adamw" or host == "acmil"
    assert settings.max_patches == "all"
    create_host(host, in_dim=8, n_outputs=2, options=settings.host.options)


def test_a_preset_keeps_what_it_does_not_speak_of_and_the_users_options():
    host = HostSettings(name="abmil", gate_mode="deletion", options={"hidden": 64, "dropout": 0.1})
    settings = with_preset(TrainSettings(host=host, seed=3), "published")
    assert settings.seed == 3
    assert settings.host.gate_mode == "deletion"
    assert settings.host.options == {"hidden": 64, "dropout": 0.1}
    assert settings.learning_rate == 5e-4


def test_a_host_is_built_with_the_options_of_the_host_table_unless_the_settings_say_otherwise():
    def degree(settings):
        return build_host(settings.host, in_dim=8, n_outputs=2).bag_heads.coefficients.shape[-1] - 1

    hdmil = HostSettings(name="hdmil")
    assert degree(TrainSettings(host=hdmil)) == HOSTS["hdmil"].options["degree"]
    assert degree(published("hdmil")) == 12
    assert degree(with_overrides(TrainSettings(host=hdmil), ["host.options.degree=5"])) == 5


def test_a_host_without_a_publication_is_refused():
    with pytest.raises(
        ConfigError, match="Host 'mine:Host' has no published settings. Those with: abmil"
    ):
        published("mine:Host")


def test_a_gate_that_does_not_exist_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="evidence.gate.*'top_k'.*'consecutive'"):
        with_overrides(TrainSettings(), ["evidence.gate=topk"])
    assert with_overrides(TrainSettings(), ["evidence.gate=top_k"]).evidence.gate == "top_k"
