"""Composed cohorts: real patches on planned slides, with nothing shared between training and test."""

import numpy as np
import pytest
from pydantic import ValidationError

from builders.pools import CLASSES, make_pool, make_recipe
from gcemil.bags import store
from gcemil.bags.bag import connected_regions, patch_cells
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.store import read_anchors, read_pairs
from gcemil.errors import UsageError
from gcemil.simulation.compose import compose
from gcemil.simulation.patch_pool import read_pool


def truth_of(cohort, slide_id, name):
    return store.read(cohort.truth_file(slide_id), name)


def patches_of(cohort, slide_ids):
    return {int(row) for slide_id in slide_ids for row in truth_of(cohort, slide_id, "patch")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    pool = make_pool(60)
    return pool, compose(
        pool, make_recipe(), tmp_path_factory.mktemp("composed") / "cohort", seed=3
    )


def test_every_feature_is_a_patch_of_the_class_that_truth_names(made):
    pool, composition = made
    names = np.array(composition.cohort.card.provenance["concepts"])
    for row in composition.cohort.slides:
        rows = truth_of(composition.cohort, row.slide_id, "patch")
        features = store.read(composition.cohort.feature_file(row.slide_id), "features")
        assert np.array_equal(features, pool.features[rows])
        concept = truth_of(composition.cohort, row.slide_id, "concept")
        assert pool.labels[rows].tolist() == names[concept].tolist()


def test_evidence_is_the_class_of_the_label_in_contiguous_regions_of_the_share_asked_for(made):
    pool, composition = made
    evidence_of = {"healthy": set(), "benign": {"adenoma"}, "cancer": {"tumour"}}
    for row in composition.cohort.slides:
        evidence = truth_of(composition.cohort, row.slide_id, "evidence").astype(bool)
        rows = truth_of(composition.cohort, row.slide_id, "patch")
        assert set(pool.labels[rows[evidence]]) == evidence_of[row.label]
        assert set(pool.labels[rows[~evidence]]) <= {"normal", "fat"}
        if row.label != "healthy":
            assert 0.05 - 1 / len(rows) <= evidence.mean() <= 0.10 + 1 / len(rows)
            coords = store.read(composition.cohort.feature_file(row.slide_id), "coords")
            region = truth_of(composition.cohort, row.slide_id, "region")
            found = connected_regions(patch_cells(coords, 256), evidence)
            assert len(np.unique(found)) == len(np.unique(region)) <= 4


def test_no_patch_of_a_held_out_slide_is_trained_on(made):
    cohort = made[1].cohort
    for index in range(3):
        fold = read_fold(cohort, index)
        parts = {part: patches_of(cohort, fold.slides(part)) for part in ("train", "val", "test")}
        assert all(parts.values())
        assert not parts["train"] & parts["test"]
        assert not parts["train"] & parts["val"]
        assert not parts["val"] & parts["test"]


def test_no_patient_of_a_held_out_slide_is_trained_on(tmp_path):
    pool = make_pool(120, patients=40)
    cohort = compose(pool, make_recipe(), tmp_path / "c").cohort
    for index in range(3):
        fold = read_fold(cohort, index)
        train, test = (
            {pool.patients[row] for row in patches_of(cohort, fold.slides(part))}
            for part in ("train", "test")
        )
        assert train
        assert not train & test


def test_one_split_has_the_slides_asked_for_with_every_label_in_every_part(tmp_path):
    cohort = compose(make_pool(60), make_recipe(parts=(12, 6, 21)), tmp_path / "c").cohort
    fold = read_fold(cohort, 0)
    labels = {row.slide_id: row.label for row in cohort.slides}
    assert [len(fold.slides(part)) for part in ("train", "val", "test")] == [12, 6, 21]
    for part in ("train", "val", "test"):
        counts = np.unique([labels[name] for name in fold.slides(part)], return_counts=True)[1]
        assert len(counts) == 3
        assert counts.max() - counts.min() <= 2


def test_a_slide_draws_its_background_from_its_own_share_of_the_patches(tmp_path):
    pool = make_pool(60)
    cohort = compose(pool, make_recipe(slide_pool=0.25), tmp_path / "cohort", seed=3).cohort
    test = [row for row in cohort.slides if read_fold(cohort, 0).part_of[row.slide_id] == "test"]
    of_slides = [
        {row for row in patches_of(cohort, [slide.slide_id]) if pool.labels[row] == "normal"}
        for slide in test
    ]
    everything = set.union(*of_slides)
    assert max(map(len, of_slides)) < 0.75 * len(everything)
    assert not set.intersection(*of_slides)


def test_held_out_examples_enter_no_bag(tmp_path):
    pool = make_pool(60)
    cohort = compose(pool, make_recipe(examples_per_class=5), tmp_path / "c").cohort
    examples = read_pool(cohort.folder / "examples.h5")
    assert sorted(examples.labels.tolist()) == sorted(name for name in CLASSES for _ in range(5))
    used = pool.features[sorted(patches_of(cohort, [row.slide_id for row in cohort.slides]))]
    assert not (examples.features[:, None] == used[None]).all(axis=2).any()


def test_a_text_like_bank_points_at_the_patches_of_its_class(tmp_path):
    recipe = make_recipe(
        examples_per_class=10, text_like=True, pairs=40, anchor_dim=8, prompt_noise=0.2
    )
    cohort = compose(make_pool(60), recipe, tmp_path / "c").cohort
    anchors, prompts = read_anchors(cohort.folder / "anchors.h5")
    _, images = read_pairs(cohort.folder / "anchor_pairs.h5")
    assert prompts == ["normal", "fat", "adenoma", "tumour"]
    labels = read_pool(cohort.folder / "examples.h5").labels
    cosines = (images[: len(labels)] @ anchors.T) / np.linalg.norm(
        images[: len(labels)], axis=1, keepdims=True
    )
    nearest = np.array(prompts)[(cosines / np.linalg.norm(anchors, axis=1)).argmax(axis=1)]
    assert (nearest == labels).mean() > 0.9


def test_survival_follows_the_hazards(tmp_path):
    recipe = make_recipe(
        labels={}, hazards={"tumour": 2.0, "adenoma": -2.0}, slides=120, censoring=0.2
    )
    cohort = compose(make_pool(60), recipe, tmp_path / "c").cohort
    assert cohort.card.task == "survival"
    risks = [store.attributes(cohort.truth_file(row.slide_id))["log_risk"] for row in cohort.slides]
    times = [row.time for row in cohort.slides]
    harmful = np.array(risks) > 0
    assert np.median(np.array(times)[harmful]) < np.median(np.array(times)[~harmful])
    assert np.mean([row.event for row in cohort.slides]) == pytest.approx(0.8, abs=0.01)


def test_a_cohort_that_is_whole_is_left_alone_and_another_is_refused(tmp_path):
    pool, recipe = make_pool(60), make_recipe(slides=9)
    cohort = compose(pool, recipe, tmp_path / "c").cohort
    before = cohort.feature_file(cohort.slides[0].slide_id).stat().st_mtime_ns
    assert compose(pool, recipe, tmp_path / "c", replace_files=False).cohort.slides == cohort.slides
    assert cohort.feature_file(cohort.slides[0].slide_id).stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="is not empty"):
        compose(pool, make_recipe(slides=12), tmp_path / "c", replace_files=False)
    assert len(Cohort.load(tmp_path / "c").slides) == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": {}}, "either labels"),
        ({"hazards": {"tumour": 1.0}}, "either labels"),
        ({"labels": {"cancer": ["tumour"]}}, "at least two labels"),
        ({"labels": {"cancer": ["tumour"], "healthy": []}}, "put it first"),
        ({"labels": {"a": ["fat"], "b": ["tumour"]}}, "class 'fat' is background and evidence"),
        ({"labels": {"a": ["tumour"], "b": ["tumour"]}}, "evidence for two labels"),
        ({"background": {}}, "background needs at least one class"),
        ({"patches": (90, 10)}, "patches go from a smaller"),
        ({"evidence": (0.1, 0.9)}, "at most half"),
        ({"parts": (10, 0, 10)}, "at least one each"),
        ({"text_like": True}, "needs examples_per_class"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        make_recipe(**changes)
