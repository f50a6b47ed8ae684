import numpy as np
import pytest

from builders.slides import PINK, ArraySlide, SceneSlide, glass, tissue_image
from gcemil.errors import InputError
from gcemil.slides.grid import PatchSettings, covered_share, patch_grid, read_patch
from gcemil.slides.tissue import TissueMask, find_tissue


def everywhere(slide, rows=8, columns=8):
    return TissueMask(np.ones((rows, columns), bool), slide.bounds)


def test_covered_share_by_hand():
    mask = np.array([[1, 0], [0, 0]], bool)
    corners = np.array([0.0, 0.5, 1.0, -0.5, 0.0]).repeat(2).reshape(-1, 2)
    share = covered_share(mask, corners, (1.0, 1.0))
    assert share.tolist() == pytest.approx([1.0, 0.25, 0.0, 0.25, 1.0])
    assert covered_share(mask, corners[:1], (2.0, 2.0)).tolist() == pytest.approx([0.25])


def test_a_full_grid_in_rows():
    slide = ArraySlide(glass(600, 800))
    grid = patch_grid(slide, everywhere(slide))
    assert grid.coords.tolist() == [[0, 0], [256, 0], [512, 0], [0, 256], [256, 256], [512, 256]]
    assert grid.patch_size_level0 == 256
    assert grid.tissue_share.tolist() == pytest.approx([1.0] * 6)


def test_a_patch_needs_its_share_of_tissue():
    slide = ArraySlide(glass(256, 768))
    kept = np.zeros((4, 12), bool)
    kept[:, 0] = True  # a quarter of the first patch
    kept[:, 4:7] = True  # three quarters of the second
    found = {
        share: patch_grid(slide, TissueMask(kept, slide.bounds), PatchSettings(min_tissue=share))
        .coords[:, 0]
        .tolist()
        for share in (0.1, 0.25, 0.5, 0.8)
    }
    assert found == {0.1: [0, 256], 0.25: [0, 256], 0.5: [256], 0.8: []}


@pytest.mark.parametrize("mpp", [0.25, 0.3127, 0.4637])
def test_the_same_tissue_gives_the_same_patches_in_micrometres_on_every_scanner(mpp):
    def blob(x, y):
        return ((x - 900) / 500) ** 2 + ((y - 700) / 420) ** 2 < 1

    grids = []
    for size in (0.5, mpp):
        slide = SceneSlide(blob, size, 1800, 1400)
        grids.append(patch_grid(slide, find_tissue(slide)))
    reference, found = grids
    cells = [np.round(grid.coords * grid.mpp / 128).astype(int) for grid in grids]
    common = {tuple(cell) for cell in cells[0].tolist()} & {
        tuple(cell) for cell in cells[1].tolist()
    }
    # Patches at the rim may fall on either side of the smallest share; all others are common.
    assert len(reference) >= 40
    assert len(common) >= max(len(reference), len(found)) - 1
    assert np.abs(found.coords * mpp - cells[1] * 128).max() <= mpp / 2 + 1e-9
    assert np.abs(reference.coords * 0.5 - cells[0] * 128).max() <= 0.25 + 1e-9


def test_a_slide_too_coarse_for_the_patches_is_refused():
    slide = ArraySlide(glass(), mpp=1.0)
    with pytest.raises(
        InputError, match=r"'array' has 1 micrometres per pixel, too coarse .* --target-mpp 1"
    ):
        patch_grid(slide, everywhere(slide))


def test_patches_are_arrays_at_the_resolution_asked_for():
    image = tissue_image(1024, 1024, box=(512, 0, 1024, 1024))
    slide = ArraySlide(image, mpp=0.25)
    grid = patch_grid(slide, find_tissue(slide))
    assert grid.coords.tolist() == [[512, 0], [512, 512]]
    patch = read_patch(slide, grid, 0)
    assert patch.shape == (256, 256, 3)
    assert patch.mean(axis=(0, 1)) == pytest.approx(PINK, abs=1)
    assert read_patch(slide, grid, 0, patch_px=16).shape == (16, 16, 3)
