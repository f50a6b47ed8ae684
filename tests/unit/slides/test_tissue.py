from dataclasses import replace

import numpy as np
import pytest

from builders.slides import GLASS, PINK, PURPLE, REAL_SLIDE
from gcemil.slides.tissue import (
    TissueSettings,
    disk,
    drop_small_pieces,
    fill_holes,
    find_tissue,
    segment_tissue,
)

# Overviews here have 10 micrometres per pixel: 100 pixels are 0.01 square millimetres.
RULES = TissueSettings(
    mpp=10.0, close_gap=20.0, fill_hole=0.01, drop_speck=0.01, smallest_ink=0.001, ink_margin=20.0
)


def scene(color=PINK, height=100, width=120):
    """Glass with a square of 50 x 50 pixels."""
    image = np.full((height, width, 3), GLASS, np.uint8)
    image[20:70, 30:80] = color
    return image


def square(height=100, width=120):
    mask = np.zeros((height, width), bool)
    mask[20:70, 30:80] = True
    return mask


@pytest.mark.parametrize("color", [PINK, PURPLE, (240, 200, 222), (200, 90, 120), (90, 50, 110)])
def test_stained_tissue_is_kept_to_the_pixel(color):
    np.testing.assert_array_equal(
        _without_corners(segment_tissue(scene(color), RULES)), _without_corners(square())
    )


def _without_corners(mask):
    # A median filter rounds the corners of a square by a pixel.
    kept = mask.copy()
    for row in (20, 69):
        for column in (30, 79):
            kept[row, column] = False
    return kept


def test_an_empty_slide_has_no_tissue():
    noise = np.random.default_rng(0).normal(0, 2, size=(80, 80, 3))
    image = np.clip(np.array(GLASS) + noise, 0, 255).astype(np.uint8)
    assert not segment_tissue(image, RULES).any()
    assert not segment_tissue(np.full((80, 80, 3), 255, np.uint8), RULES).any()


def test_tinted_glass_is_no_tissue():
    assert not segment_tissue(np.full((80, 80, 3), (250, 246, 232), np.uint8), RULES).any()
    image = scene()
    image[~square()] = (250, 244, 226)
    assert segment_tissue(image, RULES).sum() == pytest.approx(2500, abs=8)


@pytest.mark.parametrize(
    "ink",
    [(30, 70, 170), (20, 130, 80), (25, 25, 28), (210, 25, 30), (0, 0, 0)],
    ids=["blue", "green", "black", "red", "edge"],
)
def test_ink_and_black_edges_are_rejected_with_a_margin(ink):
    image = scene()
    image[:, 100:110] = ink
    image[40:50, 60:80] = ink
    kept = segment_tissue(image, RULES)
    assert not kept[:, 98:112].any()
    assert not kept[38:52, 60:80].any()
    assert kept[25:35, 35:75].all()


def test_small_holes_are_filled_and_large_ones_stay():
    image = scene()
    image[25:33, 35:43] = GLASS
    image[40:60, 50:70] = GLASS
    kept = segment_tissue(image, RULES)
    assert kept[25:33, 35:43].all()
    assert not kept[43:57, 53:67].any()


def test_specks_are_dropped():
    image = scene()
    image[80:88, 5:13] = PINK
    assert not segment_tissue(image, RULES)[75:].any()
    assert segment_tissue(image, replace(RULES, drop_speck=0.0))[81:87, 6:12].all()


def test_morphology_by_hand():
    ring = np.array([[1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]], bool)
    everywhere = np.ones((4, 4), bool)
    assert fill_holes(ring, everywhere, 1).sum() == 10
    assert fill_holes(ring, everywhere, 0).sum() == 9
    assert fill_holes(ring, ~everywhere, 1).sum() == 9
    assert drop_small_pieces(ring, 1).sum() == 8
    assert not drop_small_pieces(np.zeros((3, 3), bool), 0).any()
    assert disk(0.4).tolist() == [[True]]
    assert disk(1.0).sum() == 5


@pytest.mark.skipif(
    not REAL_SLIDE.is_file(), reason=f"{REAL_SLIDE} is absent; 'make install' fetches it"
)
def test_tissue_of_a_real_slide_is_found_and_its_ink_is_not():
    from gcemil.slides.reader import open_slide

    with open_slide(REAL_SLIDE) as slide:
        found = find_tissue(slide)
    assert 0.3 < found.kept.mean() < 0.5
    # The slide's lower middle is dermis, its upper right and left edges are glass.
    assert found.kept[150:180, 60:80].mean() > 0.9
    assert not found.kept[:60, 105:].any()
    assert not found.kept[100:130, :25].any()
