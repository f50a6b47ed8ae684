import numpy as np
import pytest

from builders import make_cohort
from gcemil.bags.cohort import Cohort
from gcemil.errors import CohortError


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def test_a_cohort_comes_back_as_it_was_saved(tmp_path):
    saved = make_cohort(tmp_path, n_cases=4)
    loaded = Cohort.load(tmp_path)
    assert loaded.card == saved.card
    assert loaded.slides == saved.slides


def test_classification_makes_a_bag_per_slide(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=3, slides_per_case=2)
    assert [bag.bag_id for bag in cohort.bags] == [
        "s000_0",
        "s000_1",
        "s001_0",
        "s001_1",
        "s002_0",
        "s002_1",
    ]
    assert [bag.target for bag in cohort.bags] == [0, 0, 1, 1, 0, 0]


def test_survival_makes_a_bag_per_case(tmp_path):
    cohort = make_cohort(tmp_path, task="survival", n_cases=3, slides_per_case=2)
    assert [bag.slide_ids for bag in cohort.bags] == [
        ("s000_0", "s000_1"),
        ("s001_0", "s001_1"),
        ("s002_0", "s002_1"),
    ]
    bag = cohort.read_bag(cohort.bags[0])
    assert bag.bag_id == "c000"
    assert len(bag) == 24


def test_some_rows_of_a_case_equal_the_rows_of_the_whole_case(tmp_path):
    cohort = make_cohort(tmp_path, task="survival", n_cases=3, slides_per_case=2)
    spec = cohort.bags[1]
    rows = np.array([0, 5, 11, 12, 23])
    whole, some = cohort.read_bag(spec), cohort.read_bag(spec, rows=rows)
    np.testing.assert_array_equal(some.features, whole.features[rows])
    np.testing.assert_array_equal(some.coords, whole.coords[rows])


def test_features_of_another_width_are_refused_when_read(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=2)
    edit(tmp_path / "cohort.yaml", "feature_dim: 8", "feature_dim: 16")
    cohort = Cohort.load(tmp_path)
    with pytest.raises(
        CohortError, match=r"shape \(12, 8\), but cohort.yaml states feature_dim 16"
    ):
        cohort.read_bag(cohort.bags[0])
