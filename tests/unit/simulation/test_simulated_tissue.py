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


def test_mixture_by_hand():
    concept = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0])
    shares = mix_concepts(concept, 2, find_neighbours(SQUARE), 0.4)
    assert shares[4].tolist() == pytest.approx([0.4, 0.6])
    assert shares[0].tolist() == pytest.approx([0.95, 0.05])


def test_tissue_has_exactly_the_patches_asked_for_in_raster_order():
    cells = draw_tissue_cells(777, 4, np.random.default_rng(0))
    assert len({tuple(cell) for cell in cells.tolist()}) == 777
    assert cells.tolist() == sorted(cells.tolist())


def test_regions_have_the_sizes_asked_for():
    table = find_neighbours(draw_tissue_cells(500, 3, np.random.default_rng(2)))
    region = grow_regions(table, [30, 1, 12], np.random.default_rng(3))
    assert np.bincount(region).tolist() == [457, 30, 1, 12]


def test_slide_without_room_is_an_error_that_names_the_dials():
    regions = [Region("necrosis", "evidence", 45), Region("ink", "bystander", 45)]
    with pytest.raises(UsageError, match=r"90 patches .* slide of 90\. Lower evidence_max"):
        draw_layout(load_profile("bracs"), Dials(), 90, regions, np.random.default_rng(0))


def test_smooth_fields_vary_slowly_with_variance_one():
    cells = np.stack(np.divmod(np.arange(40 * 40), 40), axis=1)
    fields = smooth_fields(cells, 5.0, 200, np.random.default_rng(6)).reshape(40, 40, 200)
    assert fields.var(axis=2).mean() == pytest.approx(1, abs=0.05)
    beside = (fields[:, 1:] * fields[:, :-1]).mean()
    apart = (fields[:, 20:] * fields[:, :-20]).mean()
    assert beside > 0.7 > 0.1 > abs(apart)
