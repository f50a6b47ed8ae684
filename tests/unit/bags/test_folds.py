from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from builders import make_cohort
from gcemil.bags.folds import (
    fold_indices,
    leaking_cases,
    make_folds,
    make_parts,
    read_fold,
    write_folds,
)
from gcemil.errors import CohortError, UsageError


def test_every_slide_is_tested_once_and_validated_at_most_once(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=23, slides_per_case=2)
    folds = make_folds(cohort)
    assert Counter(slide for fold in folds for slide in fold.slides("test")) == dict.fromkeys(
        [row.slide_id for row in cohort.slides], 1
    )
    assert max(Counter(slide for fold in folds for slide in fold.slides("val")).values()) == 1


def test_validation_is_half_of_the_next_fold(tmp_path):
    folds = make_folds(make_cohort(tmp_path, n_cases=40))
    for fold in folds:
        following = folds[(fold.index + 1) % 5]
        assert set(fold.slides("val")) < set(following.slides("test"))
        assert len(fold.slides("val")) == len(following.slides("test")) // 2


def test_folds_by_slide_would_leak_and_say_so(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=20, slides_per_case=3)
    assert any(leaking_cases(cohort, fold) for fold in make_folds(cohort, unit="slide"))


def test_labels_events_and_values_are_spread_evenly(tmp_path):
    labelled = make_cohort(tmp_path / "a", n_cases=50)
    survival = make_cohort(tmp_path / "b", task="survival", n_cases=60)
    measured = make_cohort(tmp_path / "c", task="regression", n_cases=80)
    edges = np.quantile([row.value for row in measured.slides], [0.25, 0.5, 0.75])

    def count_tested(cohort, key):
        rows = {row.slide_id: row for row in cohort.slides}
        return [
            Counter(key(rows[slide]) for slide in fold.slides("test"))
            for fold in make_folds(cohort)
        ]

    assert count_tested(labelled, lambda row: row.label) == [{"benign": 5, "malignant": 5}] * 5
    assert all(tested[1] in (7, 8, 9) for tested in count_tested(survival, lambda row: row.event))
    quartiles = count_tested(measured, lambda row: int(np.searchsorted(edges, row.value)))
    assert quartiles == [{0: 4, 1: 4, 2: 4, 3: 4}] * 5


def test_slides_of_one_value_are_not_split(tmp_path):
    cohort = make_cohort(tmp_path, task="regression")
    same = replace(cohort, slides=tuple(replace(row, value=2.5) for row in cohort.slides))
    with pytest.raises(
        CohortError, match="all 20 slides have the value 2.5, so there is nothing to predict"
    ):
        make_folds(same)


def test_folds_come_back_from_disk(tmp_path):
    cohort = make_cohort(tmp_path)
    folds = make_folds(cohort)
    write_folds(cohort, folds)
    assert fold_indices(tmp_path) == [0, 1, 2, 3, 4]
    assert [read_fold(cohort, index) for index in range(5)] == folds


def test_a_leaking_fold_on_disk_is_refused(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=10, slides_per_case=2)
    write_folds(cohort, make_folds(cohort))
    path = tmp_path / "splits" / "fold_0.csv"
    lines = path.read_text().splitlines()
    lines[1] = "s000_0," + ("train" if lines[2].endswith("test") else "test")
    path.write_text("\n".join(lines))
    with pytest.raises(CohortError, match="c000: the case is in test and train of fold_0.csv"):
        read_fold(cohort, 0)


def test_too_few_folds_or_cases_are_refused(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=4)
    with pytest.raises(UsageError, match="at least 3 folds"):
        make_folds(cohort, n_folds=2)
    with pytest.raises(CohortError, match="4 cases cannot be split into 5 folds"):
        make_folds(cohort)


def test_a_class_with_a_single_case_is_refused(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=12)
    first = cohort.slides[0]
    slides = (
        replace(first, label="malignant"),
        *(replace(row, label="benign") for row in cohort.slides[1:]),
    )
    with pytest.raises(CohortError, match="class 'malignant': the class has a single case"):
        make_folds(replace(cohort, slides=slides))


def test_fewer_folds_leave_none_of_the_old_ones(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=30)
    write_folds(cohort, make_folds(cohort))
    (tmp_path / "splits" / "README.txt").write_text("dealt by hand")
    write_folds(cohort, make_folds(cohort, n_folds=3))
    assert fold_indices(tmp_path) == [0, 1, 2]
    assert (tmp_path / "splits" / "README.txt").read_text() == "dealt by hand"
    assert {path.name for path in tmp_path.iterdir()} == {
        "cohort.yaml",
        "slides.csv",
        "features",
        "splits",
    }


def test_parts_have_the_sizes_asked_for_and_every_label_in_their_shares(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=60, n_patches=4)
    fold = make_parts(cohort, (30, 10, 20), generator=np.random.default_rng(0))
    assert [len(fold.slides(part)) for part in ("train", "val", "test")] == [30, 10, 20]
    labels = {row.slide_id: row.label for row in cohort.slides}
    for part, share in (("train", 1 / 2), ("val", 1 / 6), ("test", 1 / 3)):
        for label in set(labels.values()):
            of_label = [name for name, found in labels.items() if found == label]
            placed = sum(labels[name] == label for name in fold.slides(part))
            assert abs(placed - share * len(of_label)) <= 1


def test_parts_that_add_up_to_the_slides_deal_whole_cases_in_these_shares(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=30, slides_per_case=2, n_patches=4)
    fold = make_parts(cohort, (30, 10, 20), generator=np.random.default_rng(0))
    assert [len(fold.slides(part)) for part in ("train", "val", "test")] == [30, 10, 20]
    assert leaking_cases(cohort, fold) == []


def test_parts_that_do_not_add_up_are_refused(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=12, n_patches=4)
    with pytest.raises(UsageError, match="has 12 cases, so three parts .* got 6, 3, 4"):
        make_parts(cohort, (6, 3, 4), generator=np.random.default_rng(0))
