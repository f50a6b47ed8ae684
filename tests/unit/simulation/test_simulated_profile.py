"""The ten profiles say what the datasets say."""

import pytest

from gcemil.families import load_family
from gcemil.resources import shipped_names
from gcemil.simulation.plan import true_label
from gcemil.simulation.profile import (
    Profile,
    load_profile,
    plain_words,
    resolve_dials,
)


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
