"""Components, candidates and lesions on small grids drawn as text."""

import numpy as np
import pytest
from skimage.measure import label, regionprops

from gcemil.bags.bag import connected_regions, patch_cells
from gcemil.diagnostics.lesions import (
    NOT_FOUND,
    hits_by_overlap,
    hits_by_point,
    lesion_candidates,
    major_axes,
)
from gcemil.errors import BagError


def grid(*lines):
    """Cells (column, row) and the characters on them, in raster order; a blank is no tissue."""
    found = [
        ((x, y), char) for y, line in enumerate(lines) for x, char in enumerate(line) if char != " "
    ]
    return np.array([cell for cell, _ in found]), np.array([char for _, char in found])


def scored(*lines):
    cells, chars = grid(*lines)
    return cells, np.array([0.0 if char == "." else float(char) for char in chars])


def test_regions_equal_those_of_an_image_library_in_any_order_of_patches():
    generator = np.random.default_rng(0)
    for share in (0.1, 0.4, 0.7):
        image = generator.random((30, 40)) < share
        cells = np.argwhere(np.ones_like(image))[:, ::-1]
        order = generator.permutation(len(cells))
        ours = connected_regions(cells[order], image[cells[order, 1], cells[order, 0]])
        theirs = label(image, connectivity=2)[cells[order, 1], cells[order, 0]]
        assert ours.max() == theirs.max()
        pairs = {(one, other) for one, other in zip(ours.tolist(), theirs.tolist(), strict=True)}
        assert len(pairs) == len(set(ours.tolist()))


def test_coordinates_become_cells_even_when_contours_are_a_little_off():
    coords = np.array([[1000, 2000], [1512, 2000], [2030, 2010]])
    assert patch_cells(coords, 512).tolist() == [[0, 0], [1, 0], [2, 0]]
    assert patch_cells(coords.astype(np.int32), 512).tolist() == [[0, 0], [1, 0], [2, 0]]
    with pytest.raises(BagError, match="at least one pixel, got 0"):
        patch_cells(coords, 0)


def test_a_candidate_has_the_score_and_place_of_its_highest_patch():
    cells, scores = scored("29..", "...5", "..5.")
    found = lesion_candidates(cells, scores, 2.0)
    assert found.number.tolist() == [1, 1, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0]
    assert found.scores.tolist() == [9, 5]
    # The two fives are equal: the lower index is the peak.
    assert found.peaks.tolist() == [1, 7]


def test_by_overlap_one_candidate_hits_every_lesion_it_touches():
    cells, scores = scored("979.4", ".....", "....3")
    lesion = np.zeros(15, dtype=np.int64)
    lesion[0], lesion[2], lesion[12] = 1, 2, 3
    found = hits_by_overlap(lesion_candidates(cells, scores, 3.0), lesion)
    assert found.lesion_scores.tolist() == [9, 9, NOT_FOUND]
    assert sorted(found.false_positives.tolist()) == [3, 4]


def test_by_point_the_peak_alone_decides():
    cells, scores = scored("98..4", ".....", "3...6")
    lesion = np.zeros(15, dtype=np.int64)
    lesion[1], lesion[4], lesion[14] = 1, 2, 2
    candidates = lesion_candidates(cells, scores, 3.0)
    found = hits_by_point(candidates, lesion)
    # The first candidate covers lesion 1, but its peak lies beside it.
    assert found.lesion_scores.tolist() == [NOT_FOUND, 6]
    assert sorted(found.false_positives.tolist()) == [3, 9]


def test_a_point_in_isolated_tumour_cells_is_neither_right_nor_wrong():
    cells, scores = scored("9.5.3")
    lesion = np.array([1, 0, 2, 0, 0])
    found = hits_by_point(lesion_candidates(cells, scores, 1.0), lesion, np.array([True, False]))
    assert found.lesion_scores.tolist() == [5]
    assert found.false_positives.tolist() == [3]


def test_the_major_axis_of_whole_patches_equals_that_of_an_image_library():
    generator = np.random.default_rng(1)
    image = generator.random((20, 20)) < 0.35
    cells = np.argwhere(image)[:, ::-1]
    lesion = connected_regions(cells, np.ones(len(cells), dtype=bool))
    ours = major_axes(cells, lesion, np.ones(len(cells)), 1.0)
    theirs = regionprops(label(image, connectivity=2))
    # The library takes a pixel as a point; the square that it is adds its own variance, 1/12 of its
    # side squared.
    lengths = np.array([one.axis_major_length for one in theirs])
    assert np.sort(ours) == pytest.approx(np.sort(np.sqrt(lengths**2 + 16 / 12)))


def test_a_patch_that_is_a_quarter_tumour_holds_a_lesion_of_half_its_side():
    cells, lesion = np.array([[3, 7]]), np.array([1])
    whole = major_axes(cells, lesion, np.array([1.0]), 128.0)
    assert whole == pytest.approx(4 * 128 / np.sqrt(12))
    assert major_axes(cells, lesion, np.array([0.25]), 128.0) == pytest.approx(whole / 2)
    assert len(major_axes(cells, np.array([0]), np.array([0.0]), 128.0)) == 0
