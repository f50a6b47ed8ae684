"""A reviewer's marks against what a rule chose, on toys counted by hand."""

import numpy as np
import pytest

from builders import PATCH, grid_coords
from gcemil.diagnostics.agreement import (
    Agreement,
    RuleReview,
    count_agreement,
    judge_patches,
    mark_of,
    review_rows,
    review_slide_table,
    review_table,
)
from gcemil.errors import InputError
from gcemil.findings import Finding
from gcemil.slides.geojson import parse_objects

COORDS = grid_coords(16, width=4)


def region(name, column, row, columns=1.0, rows=1.0):
    """A mark over so many patches from this cell on."""
    left, top, right, bottom = (
        PATCH * value for value in (column, row, column + columns, row + rows)
    )
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    return feature(name, "Polygon", [ring])


def feature(name, kind, coordinates):
    return {
        "type": "Feature",
        "geometry": {"type": kind, "coordinates": coordinates},
        "properties": {"classification": name and {"name": name}},
    }


def judged(*features, origin=(0, 0)):
    return judge_patches(
        parse_objects(list(features), "marks"), COORDS, PATCH, where="marks.geojson", origin=origin
    )


def verdicts_of(*features, **options):
    found = judged(*features, **options)[0]
    return np.flatnonzero(found > 0).tolist(), np.flatnonzero(found < 0).tolist()


def choose(*patches):
    chosen = np.zeros(16, dtype=bool)
    chosen[list(patches)] = True
    return chosen


MARKS = (
    region("accept", 0, 0, columns=3),
    region("missed", 1, 1),
    region("reject", 3, 0),
    region("reject", 0, 1),
)


def test_a_review_by_hand():
    verdicts, notes = judged(*MARKS)
    assert np.flatnonzero(verdicts == 1).tolist() == [0, 1, 2, 5]
    assert np.flatnonzero(verdicts == -1).tolist() == [3, 4]
    assert notes == []
    found = count_agreement(verdicts, choose(0, 1, 2, 3, 8))
    assert found == Agreement(3, 1, 1, 1)
    # Agreement 4/6; by chance (4/6)(4/6) + (2/6)(2/6) = 20/36; kappa (24 - 20) / (36 - 20).
    assert found.figures == pytest.approx({"precision": 3 / 4, "recall": 3 / 4, "kappa": 1 / 4})
    assert found.agreement == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("counts", "figures"),
    [
        ((0, 0, 0, 0), (None, None, None)),
        ((3, 0, 0, 0), (1.0, 1.0, None)),
        ((0, 0, 2, 2), (None, 0.0, None)),
        ((0, 2, 0, 2), (0.0, None, None)),
        ((2, 0, 0, 2), (1.0, 1.0, 1.0)),
        ((0, 2, 2, 0), (0.0, 0.0, -1.0)),
    ],
)
def test_figures_that_do_not_exist_are_none(counts, figures):
    found = Agreement(*counts).figures
    assert tuple(found.values()) == tuple(
        value if value is None else pytest.approx(value) for value in figures
    )


def test_a_patch_marked_both_ways_is_not_judged_and_counted():
    found, notes = judged(region("accept", 0, 0), region("reject", 0, 0), region("missed", 1, 0))
    assert np.flatnonzero(found).tolist() == [1]
    assert notes == ["1 patches marked as much to accept as to reject, and not judged"]


def test_a_point_judges_the_patch_that_holds_it():
    points = feature("missed", "MultiPoint", [[1.5 * PATCH, 10], [99 * PATCH, 0]])
    assert verdicts_of(points, feature("reject", "Point", [0, 0])) == ([1], [0])


def test_synonyms_and_capitals_are_understood():
    names = (
        "Accept",
        "TRUE  positive",
        "agree",
        "Rejected",
        "false positive",
        "Missed",
        "fn",
        "Tumor",
        "",
    )
    assert [mark_of(name) for name in names] == [
        "accept", "accept", "accept", "reject", "reject", "missed", "missed", None, None,
    ]  # fmt: skip


def test_other_classes_and_lines_are_counted_and_left_out():
    line = feature("accept", "LineString", [[0, 0], [9, 9]])
    _, notes = judged(
        region("accept", 0, 0), region("GCE evidence", 1, 0), region("Tumor", 1, 0), line
    )
    assert notes == [
        "1 objects of class 'GCE evidence' are not marks",
        "1 objects of class 'Tumor' are not marks",
        "1 marks of kind 'LineString' mark no patch",
    ]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            [region("accept", 0, 0), region(None, 1, 0)],
            "marks.geojson: 1 of 2 objects have no class",
        ),
        (
            [region("Tumor", 0, 0)],
            "marks.geojson holds no mark: none of its 1 objects has the class accept",
        ),
        ([], "marks.geojson holds no mark"),
    ],
)
def test_marks_that_say_nothing_are_refused(features, message):
    with pytest.raises(InputError, match=message):
        judged(*features)


def reviews(**counts):
    return [
        RuleReview(slide_id, 0, "evidence", "wrapped", Agreement(*own), n_chosen=5)
        for slide_id, own in counts.items()
    ]


def test_slides_are_pooled_and_drawn_again_as_wholes():
    (row,), _ = review_rows(reviews(a=(3, 1, 1, 1), b=(0, 1, 0, 1)), seed=0, resamples=2000)
    # Together (3, 2, 1, 2). Draws are both slides (half of them), a twice or b twice: precision
    # 3/5, 3/4 or 0.
    assert row.values["review_precision"] == pytest.approx(3 / 5)
    assert (
        row.values["review_precision_low"],
        row.values["review_precision_high"],
    ) == pytest.approx((0, 3 / 4))
    # b has no positive patch, so b twice has no recall; every other draw has 3/4.
    assert (row.values["review_recall_low"], row.values["review_recall_high"]) == pytest.approx(
        (3 / 4, 3 / 4)
    )
    assert row.values["review_kappa"] == pytest.approx(1 / 4)
    assert row.values["judged_patches"] == 8
    assert row.values["judged_share"] == pytest.approx(5 / 10)


def test_the_interval_of_one_slide_holds_its_figure_and_depends_on_the_seed_alone():
    found = [
        review_rows(reviews(a=(30, 10, 10, 10)), seed=seed, resamples=500)[1] for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]
    (slide,) = found[0]
    assert slide["review_kappa_low"] < slide["review_kappa"] < slide["review_kappa_high"]
    # The deviation of a share of 3/4 in about 40 patches is 0.068; the interval has about four of
    # them.
    assert slide["review_precision_high"] - slide["review_precision_low"] == pytest.approx(
        0.27, abs=0.06
    )


def test_a_figure_that_hardly_ever_exists_has_no_interval():
    (row,), _ = review_rows(reviews(a=(1, 0, 0, 0), b=(0, 0, 0, 3)), seed=0, resamples=500)
    assert row.values["review_kappa"] == pytest.approx(1)
    assert row.values["review_precision_low"] == pytest.approx(1)
    (row,), _ = review_rows(reviews(a=(1, 0, 1, 0)), seed=0, resamples=500)
    assert row.values["review_kappa"] is None
    assert row.values["review_kappa_low"] is None


def test_tables_print_figures_with_their_intervals():
    rows, slides = review_rows(reviews(a=(3, 1, 1, 1), b=(0, 1, 0, 1)), seed=0, resamples=2000)
    finding = Finding("review", rows, slides, notes=("Mind this.",))
    (line,) = review_table(finding).lines
    assert line.row_labels == ("GCE evidence", "wrapped")
    assert [cell.text for cell in line.cells][0::3] == ["0.60 [0.00, 0.75]", "8"]
    assert [one.row_labels[0] for one in review_slide_table(finding).lines] == ["a", "b"]
    assert review_slide_table(finding).lines[1].cells[1].text == "\N{EM DASH}"
