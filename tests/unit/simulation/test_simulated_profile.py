"""The profiles fit their datasets; dials are closed, bounded and explained."""

import pytest

from gcemil.errors import ConfigError
from gcemil.families import load_family
from gcemil.resources import shipped_names
from gcemil.simulation.plan import true_label
from gcemil.simulation.profile import Dials, Profile, load_profile, plain_words, resolve_dials


@pytest.mark.parametrize("name", shipped_names("simulator"))
def test_profile_fits_its_family_and_the_dials(name):
    profile = load_profile(name)
    resolve_dials(profile.dials, {})
    prompts = {plain_words(prompt.concept) for prompt in load_family(profile.family).prompts}
    causes = {plain_words(concept) for concept in profile.kinds}
    assert len(prompts) == 8
    assert causes & prompts
    assert profile.unrelated_family != profile.family
    assert len(load_family(profile.unrelated_family).prompts) == 8
    assert 200 <= profile.default_patches[0] < profile.default_patches[1] <= 3000


@pytest.mark.parametrize("name", ["bracs", "panda", "brca", "nsclc", "camelyon16"])
def test_every_cause_makes_its_own_class_and_no_later_one(name):
    profile = load_profile(name)
    for index, rule in enumerate(profile.classes):
        assert [true_label(cause, profile) for cause in rule.causes] == [index] * len(rule.causes)
        assert set(rule.causes) or index == 0


def test_class_without_cause_after_the_first_is_refused():
    broken = load_profile("camelyon16").model_dump()
    broken["classes"] = tuple(reversed(broken["classes"]))
    with pytest.raises(ValueError, match="only the first class may have no cause"):
        Profile.model_validate(broken)


def test_caller_overrides_profile_and_profile_overrides_default():
    dials = resolve_dials({"label_noise": 0.1, "sites": 2}, {"label_noise": 0.2})
    assert (dials.label_noise, dials.sites, dials.pairs) == (0.2, 2, 2000)


def test_unknown_dial_is_refused_by_name():
    with pytest.raises(ConfigError, match="'evidence_strenght'"):
        resolve_dials({}, {"evidence_strenght": 3})


def test_dial_out_of_bounds_is_refused_with_its_value():
    with pytest.raises(ConfigError, match=r"label_noise must be at most 0.8 \(got 0.9\)"):
        resolve_dials({}, {"label_noise": 0.9})


def test_reversed_range_is_refused():
    with pytest.raises(ConfigError, match="evidence_min 0.1 exceeds evidence_max 0.05"):
        resolve_dials({}, {"evidence_min": 0.1, "evidence_max": 0.05})


@pytest.mark.parametrize("name", sorted(Dials.model_fields))
def test_every_dial_is_explained_and_bounded(name):
    field = Dials.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    bounds = {type(bound).__name__ for bound in field.metadata}
    assert bounds & {"Ge", "Gt"}
    assert bounds & {"Le", "Lt"}
