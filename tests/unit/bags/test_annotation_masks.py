import numpy as np
import pytest
from PIL import Image
from shapely import Polygon, box

from gcemil.bags.annotations import shapes as masks
from gcemil.bags.annotations.shapes import TumourMask, area_share, mask_share, read_mask
from gcemil.errors import InputError
from gcemil.slides.grid import box_shares

PATCH = 512
GRID = np.array([[x * PATCH, y * PATCH] for y in range(3) for x in range(3)])


def test_a_rectangle_covers_its_share_of_the_patches_it_lies_on():
    assert area_share(GRID, PATCH, box(0, 0, PATCH, PATCH)).tolist() == pytest.approx([1] + [0] * 8)
    overlap = area_share(GRID, PATCH, box(256, 384, 768, 640))
    assert overlap.tolist() == pytest.approx([0.125, 0.125, 0, 0.125, 0.125, 0, 0, 0, 0])


def test_patches_off_the_grid_and_far_apart_are_measured_where_they_are():
    coords = np.array([[100, 50], [100_000, 200_000], [100, 50 + 40 * PATCH]])
    lesions = box(100, 50, 356, 562) | box(100_000, 200_000, 100_512, 200_128)
    assert area_share(coords, PATCH, lesions).tolist() == pytest.approx([0.5, 0.25, 0])


def test_without_tumour_or_patches_there_is_no_overlap():
    assert area_share(GRID, PATCH, Polygon()).tolist() == [0] * 9
    assert len(area_share(np.zeros((0, 2), dtype=np.int64), PATCH, box(0, 0, 99, 99))) == 0


def test_a_disc_has_the_area_of_a_disc():
    angle = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    disc = Polygon(np.stack([771.3 + 600 * np.cos(angle), 764.8 + 600 * np.sin(angle)], axis=1))
    assert area_share(GRID, PATCH, disc).sum() * PATCH**2 == pytest.approx(disc.area)


def test_box_shares_equal_the_mean_of_the_pixels_inside():
    generator = np.random.default_rng(0)
    canvas = generator.random((40, 30)) < 0.4
    low = generator.integers(0, 20, size=(50, 2)).astype(float)
    high = low + generator.integers(1, 10, size=(50, 2))
    expected = [
        canvas[int(y0) : int(y1), int(x0) : int(x1)].mean()
        for (x0, y0), (x1, y1) in zip(low, high, strict=True)
    ]
    assert box_shares(canvas, low, high) == pytest.approx(expected)


def test_a_white_mask_in_lower_resolution_is_laid_over_the_patches(tmp_path):
    values = np.zeros((12, 12), dtype=np.uint8)
    values[0:4, 0:2] = 255
    Image.fromarray(values).save(tmp_path / "mask.png")
    with pytest.raises(InputError, match="Give downsample"):
        read_mask(tmp_path / "mask.png")
    found = mask_share(GRID, PATCH, read_mask(tmp_path / "mask.png", downsample=128))
    assert found.tolist() == pytest.approx([0.5, 0, 0, 0, 0, 0, 0, 0, 0])


def test_a_pyramid_is_read_at_its_finest_page_that_fits(tmp_path, monkeypatch):
    full = np.zeros((48, 96), dtype=np.uint8)
    full[:16, :16] = 255
    pages = [Image.fromarray(full[::step, ::step]) for step in (1, 2, 4)]
    pages[0].save(tmp_path / "mask.tif", save_all=True, append_images=pages[1:])
    # The first page of a real slide is beyond what Pillow opens; it is never decoded.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)
    with pytest.raises(Image.DecompressionBombError, match="exceeds limit"):
        Image.open(tmp_path / "mask.tif")
    monkeypatch.setattr(masks, "LARGEST_MASK", 48 * 24)
    found = read_mask(tmp_path / "mask.tif")
    assert found.pixels.shape == (24, 48)
    assert found.downsample == pytest.approx((2.0, 2.0))
    assert mask_share(np.array([[0, 0], [8, 8], [16, 0]]), 16, found).tolist() == pytest.approx(
        [1.0, 0.25, 0.0]
    )
    monkeypatch.setattr(masks, "LARGEST_MASK", 100)
    with pytest.raises(InputError, match="its smallest page has 24 x 12 pixels"):
        read_mask(tmp_path / "mask.tif")


def test_labels_have_to_be_named(tmp_path):
    values = np.zeros((4, 4), dtype=np.uint8)
    values[0], values[1] = 1, 2
    Image.fromarray(values).save(tmp_path / "mask.png")
    with pytest.raises(InputError, match=r"holds the values 0, 1, 2, .* tumour_values=\(2,\)"):
        read_mask(tmp_path / "mask.png", downsample=1)
    found = read_mask(tmp_path / "mask.png", downsample=1, tumour_values=(2,))
    assert found.pixels.sum(axis=1).tolist() == [0, 4, 0, 0]


def test_colour_and_bilevel_masks_are_understood(tmp_path):
    white = np.zeros((4, 4, 3), dtype=np.uint8)
    white[0] = 255
    Image.fromarray(white).save(tmp_path / "colour.png")
    Image.fromarray(white[..., 0]).convert("1").save(tmp_path / "bilevel.tiff")
    for name in ("colour.png", "bilevel.tiff"):
        assert read_mask(tmp_path / name, downsample=1).pixels.sum() == 4


def test_a_patch_outside_the_mask_says_that_the_downsample_is_wrong():
    mask = TumourMask(np.zeros((4, 4), dtype=bool), (16.0, 16.0))
    with pytest.raises(
        InputError, match=r"patch at \[512, 0\] lies outside a mask of 4 x 4 pixels"
    ):
        mask_share(GRID, PATCH, mask)
