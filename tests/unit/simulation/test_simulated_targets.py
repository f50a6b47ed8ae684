"""Simulated cohorts of several targets: labels follow from what is shown, and each target has truth
of its own.
"""

import numpy as np
import pytest

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.errors import UsageError
from gcemil.simulation.profile import as_targets, load_profile
from gcemil.simulation.simulate import simulate


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return simulate_targets(tmp_path_factory.mktemp("simulated") / "nsclc")


def simulate_targets(folder, **changes):
    dials = {"slides_per_case": 1, **changes.pop("dials", {})}
    return simulate(
        "nsclc", folder, size="tiny", slides=40, multilabel=True, dials=dials, **changes
    )


def test_labels_are_those_of_the_concepts_a_slide_shows(cohort):
    profile = as_targets(load_profile("nsclc"))
    concepts = [concept.name for concept in profile.concepts]
    for row in cohort.slides:
        path = cohort.truth_file(row.slide_id)
        evidence = store.read(path, "evidence").astype(bool)
        shown = {concepts[index] for index in np.unique(store.read(path, "concept")[evidence])}
        for rule, label in zip(profile.classes, row.labels, strict=True):
            assert label == any(set(cause) <= shown for cause in rule.causes)


def test_targets_are_drawn_apart_so_that_all_combinations_occur(cohort):
    assert {row.labels for row in cohort.slides} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_truths_of_the_targets_are_disjoint_and_together_the_evidence(cohort):
    targets = [Cohort.load(cohort.folder / "targets" / name) for name in cohort.card.classes]
    for row in cohort.slides:
        own = [store.read(one.truth_file(row.slide_id), "evidence") for one in targets]
        assert (
            np.sum(own, axis=0) == store.read(cohort.truth_file(row.slide_id), "evidence")
        ).all()
        assert tuple(int(one.any()) for one in own) == row.labels


def test_the_same_simulation_again_changes_nothing(cohort):
    before = (cohort.folder / "slides.csv").read_bytes()
    again = simulate_targets(cohort.folder, replace_files=False)
    assert again.slides == cohort.slides
    assert (cohort.folder / "slides.csv").read_bytes() == before


def test_noise_flips_the_stated_share_of_each_target(tmp_path):
    noisy = simulate_targets(tmp_path, dials={"label_noise": 0.25})
    true = [
        [int(store.attributes(noisy.truth_file(row.slide_id))[name]) for name in noisy.card.classes]
        for row in noisy.slides
    ]
    wrong = np.array(true) != np.array([row.labels for row in noisy.slides])
    assert wrong.sum(axis=0).tolist() == [10, 10]


@pytest.mark.parametrize("name", ["camelyon16", "kirc"])
def test_a_profile_with_fewer_than_two_causes_is_refused(name):
    with pytest.raises(
        UsageError, match="several targets need two or more. Use nsclc, brca, bracs or panda"
    ):
        as_targets(load_profile(name))
