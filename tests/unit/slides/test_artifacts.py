"""Glass, ink and blur told by pixels, and in the audit of a cohort that names no concept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from builders.slides import write_slide
from gcemil.bags.bag import slide_bag
from gcemil.diagnostics.failures import artifacts_by_pixels
from gcemil.slides.tissue import measure_quality

SIDE = 128


def tissue(seed=0):
    """Pink with dark nuclei of a few pixels."""
    draws = np.random.default_rng(seed)
    nuclei = ndimage.gaussian_filter(draws.normal(size=(SIDE, SIDE)), 2) > 0.1
    image = np.full((SIDE, SIDE, 3), (220, 150, 190), np.uint8)
    image[nuclei] = (110, 60, 140)
    return image


PATCHES = {
    "clean": tissue(),
    "also clean": tissue(1),
    "clean too": tissue(2),
    "glass": np.full((SIDE, SIDE, 3), 244, np.uint8),
    "pen": np.where(
        np.arange(SIDE)[:, None, None] < 40, np.array([20, 120, 60], np.uint8), tissue(3)
    ),
    "blurred": ndimage.gaussian_filter(tissue(4), (12, 12, 0)),
}


def test_each_figure_speaks_of_its_own_artifact():
    clean, glass, pen, blurred = (
        measure_quality(PATCHES[name]) for name in ("clean", "glass", "pen", "blurred")
    )
    assert (clean.background, glass.background) == pytest.approx((0, 1))
    assert (clean.ink, pen.ink) == pytest.approx((0, 40 / SIDE), abs=0.02)
    assert blurred.sharpness < 0.1 * clean.sharpness


def test_artifacts_are_found_among_the_chosen_patches_of_a_slide(tmp_path):
    write_slide(tmp_path / "slides" / "s.tif", np.concatenate(list(PATCHES.values()), axis=1))
    corners = np.array([(SIDE * number, 0) for number in range(len(PATCHES))], np.int64)
    bag = slide_bag("s", np.zeros((len(PATCHES), 4), np.float32), corners, SIDE)
    found = artifacts_by_pixels(tmp_path, bag, torch.ones(len(PATCHES), dtype=torch.bool))
    shown = {name for name, is_artifact in zip(PATCHES, found.tolist(), strict=True) if is_artifact}
    assert shown == {"glass", "pen", "blurred"}
    none = artifacts_by_pixels(tmp_path, bag, torch.zeros(len(PATCHES), dtype=torch.bool))
    assert not none.any()


def test_without_slide_size_or_position_nothing_is_said(tmp_path):
    features, everyone = np.zeros((2, 4), np.float32), torch.ones(2, dtype=torch.bool)
    whole = slide_bag("s", features, np.zeros((2, 2), np.int64), 128)
    assert artifacts_by_pixels(tmp_path, whole, everyone) is None
    write_slide(tmp_path / "slides" / "s.tif")
    for bag in (replace(whole, patch_size=None), replace(whole, coords=None)):
        assert artifacts_by_pixels(tmp_path, bag, everyone) is None
    (tmp_path / "slides" / "s.tif").write_bytes(b"no slide")
    assert artifacts_by_pixels(tmp_path, whole, everyone) is None
