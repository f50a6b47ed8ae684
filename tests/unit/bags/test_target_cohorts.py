"""The targets of a multilabel cohort as cohorts of two classes."""

import numpy as np
import pytest

from builders.cohorts import grid_coords, write_slide
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.bags.fingerprint import record_cohort
from gcemil.bags.folds import describe_part, make_folds, read_fold, write_folds
from gcemil.bags.targets import refuse_targets, write_target_cohorts
from gcemil.bags.validate import validate
from gcemil.errors import CohortError, UsageError

TARGETS = ("ER", "HER2")


def make_targets(folder, n_slides=16):
    """ER is the first bit of a slide's number, HER2 the second; of slide 3 HER2 is not known."""
    rows = []
    for number in range(n_slides):
        labels = (number & 1, None if number == 3 else number >> 1 & 1)
        rows.append(SlideRow(f"s{number:02d}", f"c{number:02d}", labels=labels))
        features = np.random.default_rng(number).normal(size=(6, 4)).astype(np.float32)
        write_slide(folder, rows[-1].slide_id, features, grid_coords(6))
    card = CohortCard(
        name="two", task="multilabel", classes=TARGETS, feature_dim=4, patch_size_level0=512
    )
    cohort = Cohort(folder, card, tuple(rows))
    cohort.save()
    return cohort


def test_a_cohort_is_read_as_it_was_written(tmp_path):
    made = make_targets(tmp_path)
    read = Cohort.load(tmp_path)
    assert read.slides == made.slides
    assert read.n_outputs == 2
    assert read.bags[3].target == (1, None)
    assert (tmp_path / "slides.csv").read_text().splitlines()[:2] == [
        "slide_id,case_id,ER,HER2",
        "s00,c00,0,0",
    ]


def test_each_target_is_a_cohort_of_two_classes_without_the_slides_that_have_no_label(tmp_path):
    first, second = write_target_cohorts(make_targets(tmp_path))
    assert second.folder == tmp_path / "targets" / "HER2"
    read = Cohort.load(second.folder)
    assert read.card.classes == ("not HER2", "HER2")
    assert read.card.negative_index == 0
    assert len(first.slides) == 16
    assert len(read.slides) == 15
    assert [row.label for row in read.slides[:3]] == ["not HER2", "not HER2", "HER2"]
    assert read.read_bag(read.bags[0]).features.shape == (6, 4)


def test_folds_that_are_made_later_are_those_of_every_target(tmp_path):
    cohort = make_targets(tmp_path, n_slides=64)
    _, second = write_target_cohorts(cohort)
    folds = make_folds(cohort, n_folds=4, seed=0)
    write_folds(cohort, folds)
    of_target = read_fold(second, 1)
    assert set(of_target.part_of) == {row.slide_id for row in second.slides}
    assert all(folds[1].part_of[slide_id] == part for slide_id, part in of_target.part_of.items())
    # Stratified by both labels: sixteen slides of each combination in four folds.
    assert describe_part(cohort, folds[0], "test") == "16 (8, 8)"
    assert not [problem for problem in validate(tmp_path) if problem.level == "error"]
    assert not [problem for problem in validate(second.folder) if problem.level == "error"]


def test_changed_labels_reach_the_targets_and_their_anchors_stay(tmp_path):
    cohort = make_targets(tmp_path)
    first, _ = write_target_cohorts(cohort)
    (first.folder / "cohort.yaml").write_text(
        (first.folder / "cohort.yaml").read_text() + "anchors: breast\n"
    )
    rows = (SlideRow("s00", "c00", labels=(1, 0)), *cohort.slides[1:])
    first, second = write_target_cohorts(Cohort(tmp_path, cohort.card, rows))
    assert Cohort.load(first.folder).slides[0].label == "ER"
    assert Cohort.load(first.folder).card.anchors == "breast"
    assert Cohort.load(second.folder).slides[0].label == "not HER2"


def test_a_target_with_folds_of_its_own_is_refused(tmp_path):
    cohort = make_targets(tmp_path)
    first, _ = write_target_cohorts(cohort)
    (first.folder / "splits").unlink()
    (first.folder / "splits").mkdir()
    with pytest.raises(CohortError, match="holds folds of its own"):
        write_target_cohorts(cohort)


def test_a_label_that_is_no_bit_is_named(tmp_path):
    make_targets(tmp_path)
    table = tmp_path / "slides.csv"
    table.write_text(table.read_text().replace("s05,c05,1,0", "s05,c05,1,2"))
    with pytest.raises(CohortError, match="s05: 'HER2' is '2', and a target is 0, 1 or empty"):
        Cohort.load(tmp_path)


def test_a_target_with_one_value_is_an_error_of_the_cohort(tmp_path):
    cohort = make_targets(tmp_path)
    rows = [SlideRow(row.slide_id, row.case_id, labels=(row.labels[0], 1)) for row in cohort.slides]
    Cohort(tmp_path, cohort.card, tuple(rows)).save()
    problems = {one.where: one.what for one in validate(tmp_path) if one.level == "error"}
    assert problems["HER2"] == "the target is 1 on every slide"


def test_a_changed_label_changes_the_record_of_the_cohort(tmp_path):
    cohort = make_targets(tmp_path)
    rows = (SlideRow("s00", "c00", labels=(1, 0)), *cohort.slides[1:])
    before, after = record_cohort(cohort), record_cohort(Cohort(tmp_path, cohort.card, rows))
    assert before.differences(after) == ["the labels"]


def test_one_model_of_one_target_is_asked_for_where_that_is_needed(tmp_path):
    with pytest.raises(UsageError, match="has several targets, .*targets/ER, .*targets/HER2"):
        refuse_targets(make_targets(tmp_path))
