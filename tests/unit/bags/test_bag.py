import numpy as np
import pytest

from builders import PATCH, grid_coords, make_bag
from gcemil.bags.bag import case_bag, coordinate_step, slide_bag
from gcemil.errors import BagError


def test_a_bag_with_fewer_coordinates_than_rows_cannot_be_built():
    with pytest.raises(BagError, match="3 coordinates for 4 feature rows"):
        slide_bag("A-17", np.zeros((4, 2), np.float32), grid_coords(3))


def test_slides_of_a_case_are_sorted_and_never_touch():
    case = case_bag("case", [make_bag(9, slide_id="b", seed=1), make_bag(16, slide_id="a", seed=2)])
    assert case.slide_ids == ("a", "b")
    first, second = case.coords[case.rows_of("a")], case.coords[case.rows_of("b")]
    assert second[:, 0].min() - first[:, 0].max() == 16 * PATCH


def test_evidence_of_a_case_goes_back_to_the_coordinates_of_its_slides():
    slides = [make_bag(9, slide_id="b"), make_bag(16, slide_id="a"), make_bag(5, slide_id="c")]
    case = case_bag("case", slides)
    for slide in slides:
        np.testing.assert_array_equal(case.slide_coords(slide.bag_id), slide.coords)
        np.testing.assert_array_equal(case.features[case.rows_of(slide.bag_id)], slide.features)


def test_sampling_a_case_keeps_track_of_its_slides():
    case = case_bag("case", [make_bag(4, slide_id="a", seed=1), make_bag(4, slide_id="b", seed=2)])
    sampled = case.take_rows(np.array([1, 3, 6]))
    assert [(span.slide_id, span.start, span.stop) for span in sampled.spans] == [
        ("a", 0, 2),
        ("b", 2, 3),
    ]
    np.testing.assert_array_equal(sampled.features, case.features[[1, 3, 6]])
    # A slide that loses all its rows keeps an empty span.
    first = case.take_rows(np.array([0, 1]))
    assert [(span.start, span.stop) for span in first.spans] == [(0, 2), (2, 2)]


def test_a_case_of_slides_with_and_without_coordinates_is_refused():
    with pytest.raises(BagError, match="some have none"):
        case_bag("case", [make_bag(4, slide_id="a"), slide_bag("b", np.zeros((2, 8), np.float32))])


@pytest.mark.parametrize(
    ("coords", "step"),
    [
        ([[0, 0], [512, 0], [1024, 0], [1024, 512], [1029, 512]], 512),
        ([[7, 7]], 1),
        ([[0, 0], [5, 9]], 1),
    ],
)
def test_the_grid_step_is_the_commonest_one_between_neighbours(coords, step):
    assert coordinate_step(np.array(coords)) == step
