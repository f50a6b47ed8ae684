"""Several targets from one label table."""

import pytest

from builders.foreign import write_table
from gcemil.bags.foreign.dialects import Choice
from gcemil.bags.foreign.label_tables import choose_classes, count_targets, read_labels
from gcemil.errors import CohortError, UsageError


def read(tmp_path, *lines, target="ER,PR"):
    path = write_table(tmp_path / "labels.csv", *lines)
    return read_labels(path, choice=Choice(task="multilabel", target=target))


def test_words_become_bits_and_a_missing_label_stays_missing(tmp_path):
    table = read(
        tmp_path,
        "slide_id,case_id,ER,PR,age",
        "a,p1,negative,mut,50",
        "b,p1,positive,,60",
        "c,p2,positive,WT,70",
    )
    assert table.task == "multilabel"
    assert table.classes == ("ER", "PR")
    assert {row.slide_id: row.labels for row in table.rows} == {
        "a": (0, 1),
        "b": (1, None),
        "c": (1, 0),
    }
    assert [row.case_id for row in table.rows] == ["p1", "p1", "p2"]
    assert "'PR': 'mut' is 1, 'WT' is 0." in table.assumptions
    assert (
        count_targets(table.rows, table.classes)[1]
        == "target 'PR': 1 slides are 1, 1 are 0, 1 have no label"
    )


def test_a_slide_without_any_label_is_left_out(tmp_path):
    table = read(tmp_path, "slide_id,ER,PR", "a,0,1", "b,1,0", "c,,")
    assert [row.slide_id for row in table.rows] == ["a", "b"]
    assert len(table.excluded) == 2
    assert all("slide 'c'" in line for line in table.excluded)


@pytest.mark.parametrize(
    ("lines", "target", "message"),
    [
        (("a,0,0", "b,1,1", "c,1,2"), "ER,PR", r"'PR' has 3 values \(0, 1, 2\), and each"),
        (("a,0,0", "b,1,1"), "ER,PX", "has no column 'PX'"),
        (("a,0,0", "b,1,1"), "ER", "at least two targets, such as --target ER,PR,HER2"),
        (("a,0,0", "b,1,1"), "ER,ER", "'ER' cannot name a target"),
    ],
)
def test_targets_that_cannot_be_read_are_refused(tmp_path, lines, target, message):
    with pytest.raises((CohortError, UsageError), match=message):
        read(tmp_path, "slide_id,ER,PR", *lines, target=target)


def test_a_target_that_is_alike_on_all_slides_with_features_is_refused(tmp_path):
    table = read(tmp_path, "slide_id,ER,PR", "a,0,0", "b,1,1", "c,1,0")
    with pytest.raises(CohortError, match="'ER' is 1 on every slide with features"):
        choose_classes(table, table.rows[1:], None)
