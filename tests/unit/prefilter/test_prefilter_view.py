"""What the prefilter sees of a slide: crops of a known image, white beyond its edge, and stains
taken out.
"""

import numpy as np
import pytest

from builders.slides import write_slide
from gcemil.prefilter.student import LowView, cut_crops, densities, density_table, read_view
from gcemil.slides.grid import PatchGrid, PatchSettings
from gcemil.slides.reader import Bounds, open_slide

SETTINGS = PatchSettings(patch_px=16, target_mpp=0.5)


def numbered_view(bounds=None):
    """Six by four pixels, each of its own grey; sixteen level-0 pixels to a pixel."""
    image = np.repeat(np.arange(24, dtype=np.uint8).reshape(4, 6, 1), 3, axis=2)
    return LowView(image, bounds or Bounds(0, 0, 96, 64))


def grid(*corners, mpp=0.5):
    coords = np.array(corners, dtype=np.int64)
    return PatchGrid(coords, SETTINGS, mpp, np.ones(len(coords)))


def test_a_crop_is_centred_on_its_patch():
    crops = cut_crops(numbered_view(), grid((32, 16), (16, 32)), 3)
    assert crops.shape == (2, 3, 3, 3)
    # The patch at (32, 16) is pixel (2, 1), which has grey 1 * 6 + 2.
    assert crops[0, ..., 0].tolist() == [[1, 2, 3], [7, 8, 9], [13, 14, 15]]
    assert crops[1, ..., 2].tolist() == [[6, 7, 8], [12, 13, 14], [18, 19, 20]]


def test_what_lies_beyond_the_image_is_white():
    corner, last = cut_crops(numbered_view(), grid((0, 0), (80, 48)), 3)[..., 1]
    assert corner.tolist() == [[255, 255, 255], [255, 0, 1], [255, 6, 7]]
    assert last.tolist() == [[16, 17, 255], [22, 23, 255], [255, 255, 255]]


def test_the_view_of_a_slide_is_read_at_its_resolution(tmp_path):
    image = np.full((512, 512, 3), 250, np.uint8)
    image[128:256, 256:384] = (200, 100, 150)
    with open_slide(write_slide(tmp_path / "slide.tif", image)) as slide:
        view = read_view(slide, 4.0)
    assert view.image.shape == (64, 64, 3)
    assert view.scale == (8.0, 8.0)
    crops = cut_crops(
        view, PatchGrid(np.array([[256, 128], [0, 0]]), PatchSettings(128), 0.5, np.ones(2)), 8
    )
    assert np.abs(crops[0].astype(int) - (200, 100, 150)).max() <= 2
    assert np.abs(crops[1].astype(int) - 250).max() <= 2


def test_density_is_the_logarithm_of_what_is_absorbed():
    # Values 255 and 24 absorb nothing and -log10(25 / 256); two equal halves stand at minus and
    # plus one.
    crops = np.array([255, 24], np.uint8).reshape(2, 1, 1, 1).repeat(3, axis=3)
    assert densities(crops, density_table(crops)).flatten().tolist() == pytest.approx(
        [-1, -1, -1, 1, 1, 1], abs=1e-5
    )
