from pathlib import Path

import numpy as np
import pytest

from builders.slides import (
    REAL_SLIDE,
    ArraySlide,
    glass,
    tissue_image,
    write_plain_tiff,
    write_slide,
)
from gcemil.errors import InputError
from gcemil.slides.reader import (
    Bounds,
    open_slide,
    read_overview,
    read_region,
    resolve_mpp,
    scanned_bounds,
    stated_mpp,
)

NAME = Path("s.tif")


def test_a_pyramid_opens_with_its_pixel_size_and_levels(tmp_path):
    image = tissue_image(1100, 1300)
    with open_slide(write_slide(tmp_path / "s.tif", image, mpp=0.2527)) as slide:
        assert slide.mpp == pytest.approx(0.2527, rel=1e-4)
        assert slide.dimensions == (1300, 1100)
        assert slide.downsamples == pytest.approx((1.0, 4.0), rel=1e-2)
        assert slide.bounds == Bounds(0, 0, 1300, 1100)
        np.testing.assert_array_equal(slide.region(250, 300, 0, 40, 30), image[300:330, 250:290])


def test_pixels_outside_the_slide_are_white(tmp_path):
    with open_slide(write_slide(tmp_path / "s.tif", np.zeros((300, 300, 3), np.uint8))) as slide:
        read = slide.region(290, 0, 0, 20, 4)
    assert (read[:, :10] == 0).all()
    assert (read[:, 10:] == 255).all()


def test_a_slide_without_a_pixel_size_asks_for_it(tmp_path):
    path = write_plain_tiff(tmp_path / "s.tif", glass(300, 300))
    with (
        pytest.raises(
            InputError, match=r"s.tif does not state its pixel size .* Give it with --mpp"
        ),
        open_slide(path),
    ):
        pass
    with open_slide(path, fallback_mpp=0.25) as slide:
        assert slide.mpp == 0.25


def test_a_given_pixel_size_beats_the_stated_one_and_that_the_fallback():
    stated = {"openslide.mpp-x": "0.5", "openslide.mpp-y": "0.5"}
    assert resolve_mpp(NAME, stated, None, 0.25) == 0.5
    assert resolve_mpp(NAME, stated, 0.3, 0.25) == 0.3
    assert resolve_mpp(NAME, {}, None, 0.25) == 0.25
    with pytest.raises(InputError, match=r"0.5 by 0.25 micrometres, not square"):
        stated_mpp(NAME, stated | {"openslide.mpp-y": "0.25"})
    almost = stated_mpp(NAME, stated | {"openslide.mpp-y": "0.501"})
    assert almost == pytest.approx(0.5005, abs=1e-4)


def test_bounds_of_the_file_are_honoured_and_cut_to_the_slide():
    stated = {
        f"openslide.bounds-{key}": value
        for key, value in (("x", "100"), ("y", "50"), ("width", "300"), ("height", "900"))
    }
    assert scanned_bounds(stated, (1000, 800)) == Bounds(100, 50, 300, 750)
    assert scanned_bounds({}, (1000, 800)) == Bounds(0, 0, 1000, 800)


def test_a_file_that_is_no_slide_is_named(tmp_path):
    path = tmp_path / "s.svs"
    path.write_bytes(b"not a slide at all")
    with (
        pytest.raises(InputError, match=r"s.svs cannot be opened as a slide .* leave it out"),
        open_slide(path),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"gone.svs does not exist"),
        open_slide(tmp_path / "gone.svs"),
    ):
        pass


def test_a_view_at_the_own_resolution_is_the_pixels_themselves():
    image = np.random.default_rng(0).integers(0, 256, size=(80, 90, 3), dtype=np.uint8)
    seen = read_region(ArraySlide(image), left=10, top=20, width=30, height=40, size=(30, 40))
    np.testing.assert_array_equal(seen, image[20:60, 10:40])


@pytest.mark.parametrize(
    ("left", "width", "pixels"), [(0, 512, 256), (100, 506.53, 256), (37, 300, 64), (8.25, 100, 50)]
)
def test_a_resampled_view_lies_right_to_half_a_pixel(left, width, pixels):
    # The red value of this slide is the position itself, so a view tells where it was read.
    ramp = np.broadcast_to(
        (np.arange(1024) // 4).astype(np.uint8)[None, :, None], (8, 1024, 3)
    ).copy()
    for downsamples in ((1.0,), (1.0, 2.0)):
        slide = ArraySlide(ramp, downsamples=downsamples)
        seen = read_region(slide, left=left, top=0, width=width, height=8, size=(pixels, 2))[
            0, :, 0
        ].astype(float)
        centres = left + (np.arange(pixels) + 0.5) * width / pixels
        inner = slice(2, -2)
        assert abs((seen * 4 + 1.5 - (centres - 0.5))[inner].mean()) < 0.75


def test_an_overview_is_pieced_together_without_seams(monkeypatch):
    image = np.asarray(np.add.outer(np.arange(400), np.arange(600)) // 4, np.uint8)[
        ..., None
    ].repeat(3, axis=2)
    slide = ArraySlide(image, mpp=0.5)
    whole = read_overview(slide, 2.0)
    monkeypatch.setattr("gcemil.slides.reader.LARGEST_READ", 128)
    pieced = read_overview(slide, 2.0)
    assert whole.shape == (100, 150, 3)
    assert np.abs(whole.astype(int) - pieced).max() <= 1


@pytest.mark.skipif(
    not REAL_SLIDE.is_file(), reason=f"{REAL_SLIDE} is absent; 'make install' fetches it"
)
def test_a_real_aperio_slide_is_read():
    with open_slide(REAL_SLIDE) as slide:
        assert slide.dimensions == (2220, 2967)
        assert slide.mpp == pytest.approx(0.499)
        tissue = read_region(slide, left=1000, top=2000, width=256.5, height=256.5, size=(256, 256))
        corner = read_region(slide, left=0, top=600, width=100, height=100, size=(10, 10))
    assert tissue.shape == (256, 256, 3)
    assert tissue.std() > 20
    assert corner.min() > 220
