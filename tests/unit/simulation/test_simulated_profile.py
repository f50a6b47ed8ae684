"""The ten profiles say what the datasets say."""

import pytest

from gcemil.errors import UsageError
from gcemil.families import load_family
from gcemil.resources import shipped_names
from gcemil.simulation.plan import true_label
from gcemil.simulation.profile import (
    Profile,
    load_profile,
    plain_words,
    resolve_dials,
)

SLIDES_IN_PAPER = {
    "bracs": 525,
    "panda": 10616,
    "brca": 1021,
    "nsclc": 1053,
    "luad": 516,
    "stad": 441,
    "ucec": 537,
    "kirp": 259,
    "kirc": 519,
}
N_CLASSES = {"bracs": 7, "panda": 6, "brca": 2, "nsclc": 2, "camelyon16": 2}


def test_unknown_profile_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"'brac'.*bracs.*ucec"):
        load_profile("brac")


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


@pytest.mark.parametrize("name", shipped_names("simulator"))
def test_concepts_have_distinct_names_and_nuisance_tissue_is_there(name):
    names = [concept.name for concept in load_profile(name).concepts]
    assert len(set(names)) == len(names) < 256
    assert {tissue.kind for tissue in load_profile(name).tissues} >= {
        "stroma",
        "adipose",
        "muscle",
        "artifact",
    }


@pytest.mark.parametrize("name", sorted(N_CLASSES))
def test_every_cause_makes_its_own_class_and_no_later_one(name):
    profile = load_profile(name)
    for index, rule in enumerate(profile.classes):
        assert [true_label(cause, profile) for cause in rule.causes] == [index] * len(rule.causes)
        assert set(rule.causes) or index == 0


@pytest.mark.parametrize("name", sorted(set(SLIDES_IN_PAPER) - set(N_CLASSES)))
def test_survival_profiles_know_harm_and_protection(name):
    weights = load_profile(name).factors.values()
    assert min(weights) < 0 < max(weights)


@pytest.mark.parametrize("name", shipped_names("simulator"))
def test_distractors_go_with_groups_that_exist(name):
    profile = load_profile(name)
    groups = set(profile.class_names) or {"severe", "mild"}
    assert profile.distractors
    assert all(set(distractor.goes_with) < groups for distractor in profile.distractors)


def test_class_without_cause_after_the_first_is_refused():
    broken = load_profile("camelyon16").model_dump()
    broken["classes"] = tuple(reversed(broken["classes"]))
    with pytest.raises(ValueError, match="only the first class may have no cause"):
        Profile.model_validate(broken)
