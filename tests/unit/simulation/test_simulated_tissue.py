"""Slides look like tissue, and regions have exactly the size of their plan."""

import numpy as np
import pytest

from gcemil.errors import UsageError
from gcemil.simulation.layout import (
    draw_layout,
    draw_tissue_cells,
    find_neighbours,
    grow_regions,
    mix_concepts,
    smooth_fields,
)
from gcemil.simulation.plan import Region
from gcemil.simulation.profile import Dials, load_profile

SQUARE = np.stack(np.divmod(np.arange(9), 3), axis=1)
"""Cells of a full 3 by 3 grid in raster order."""


def test_neighbours_are_sides_then_corners_and_minus_one_off_tissue():
    table = find_neighbours(SQUARE)
    assert table[4].tolist() == [1, 3, 5, 7, 0, 2, 6, 8]
    assert table[0].tolist() == [-1, -1, 1, 3, -1, -1, -1, 4]


def test_mixture_by_hand():
    concept = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0])
    shares = mix_concepts(concept, 2, find_neighbours(SQUARE), 0.4)
    assert shares[4].tolist() == pytest.approx([0.4, 0.6])
    assert shares[0].tolist() == pytest.approx([0.95, 0.05])


def test_tissue_has_exactly_the_patches_asked_for_in_raster_order():
    cells = draw_tissue_cells(777, 4, np.random.default_rng(0))
    assert len({tuple(cell) for cell in cells.tolist()}) == 777
    assert cells.tolist() == sorted(cells.tolist())


def test_tissue_is_compact_yet_irregular():
    cells = draw_tissue_cells(2000, 4, np.random.default_rng(1))
    sides = (find_neighbours(cells)[:, :4] >= 0).sum()
    assert sides / (4 * 2000) > 0.85
    height, width = np.ptp(cells, axis=0) + 1
    assert 2000 / (height * width) < 0.95


def test_regions_have_the_sizes_asked_for():
    table = find_neighbours(draw_tissue_cells(500, 3, np.random.default_rng(2)))
    region = grow_regions(table, [30, 1, 12], np.random.default_rng(3))
    assert np.bincount(region).tolist() == [457, 30, 1, 12]


def test_regions_that_cannot_be_placed_are_none_rather_than_smaller():
    assert grow_regions(find_neighbours(SQUARE), [4, 4], np.random.default_rng(0)) is None


def test_slide_without_room_is_an_error_that_names_the_dials():
    regions = [Region("necrosis", "evidence", 45), Region("ink", "bystander", 45)]
    with pytest.raises(UsageError, match=r"90 patches .* slide of 90\. Lower evidence_max"):
        draw_layout(load_profile("bracs"), Dials(), 90, regions, np.random.default_rng(0))


def test_background_is_spatially_coherent():
    layout = draw_layout(load_profile("bracs"), Dials(), 2000, [], np.random.default_rng(4))
    table = find_neighbours(layout.cells)[:, 2]
    beside = table >= 0
    same = (layout.concept[beside] == layout.concept[table[beside]]).mean()
    shares = np.bincount(layout.concept) / 2000
    assert same > 0.8 > (shares**2).sum()


def test_bystanders_are_painted_but_are_no_evidence():
    regions = [Region("ink", "bystander", 20), Region("necrosis", "evidence", 10)]
    layout = draw_layout(load_profile("bracs"), Dials(), 600, regions, np.random.default_rng(5))
    names = np.array([concept.name for concept in load_profile("bracs").concepts])
    assert (names[layout.concept] == "ink").sum() == 20
    assert set(names[layout.concept[layout.evidence]]) == {"necrosis"}
    assert layout.region.max() == 1


def test_smooth_fields_vary_slowly_with_variance_one():
    cells = np.stack(np.divmod(np.arange(40 * 40), 40), axis=1)
    fields = smooth_fields(cells, 5.0, 200, np.random.default_rng(6)).reshape(40, 40, 200)
    assert fields.var(axis=2).mean() == pytest.approx(1, abs=0.05)
    beside = (fields[:, 1:] * fields[:, :-1]).mean()
    apart = (fields[:, 20:] * fields[:, :-20]).mean()
    assert beside > 0.7 > 0.1 > abs(apart)
