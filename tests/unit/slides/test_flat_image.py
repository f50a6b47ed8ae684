"""Slides that are one plain picture."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from builders.slides import tissue_image, write_slide
from gcemil.errors import InputError
from gcemil.features.patching import PatchingRules, find_slides, patch_slides
from gcemil.slides import reader
from gcemil.slides.reader import open_slide, read_overview


def write_flat(path, image):
    """A picture without tiles."""
    if path.suffix == ".png":
        Image.fromarray(image).save(path)
    else:
        tifffile.imwrite(path, image, photometric="rgb", rowsperstrip=16, compression="zlib")
    return path


@pytest.mark.parametrize("name", ["flat.png", "flat.tif"])
def test_a_plain_picture_is_read_with_a_given_pixel_size(tmp_path, name):
    image = tissue_image()
    path = write_flat(tmp_path / name, image)
    with open_slide(path, mpp=0.5) as slide:
        assert (slide.dimensions, slide.mpp, slide.downsamples) == ((1024, 768), 0.5, (1.0,))
        assert (slide.region(256, 256, 0, 64, 32) == image[256:288, 256:320]).all()
        beyond = slide.region(1000, -10, 0, 64, 32)
        assert (beyond[10:, :24] == image[:22, 1000:]).all()
        assert (beyond[:10] == 255).all()
        assert (beyond[:, 24:] == 255).all()
        assert read_overview(slide, 4.0).shape == (96, 128, 3)
    with (
        pytest.raises(InputError, match="does not state its pixel size .* --mpp"),
        open_slide(path),
    ):
        pass


def test_patches_of_a_picture_are_those_of_its_tissue(tmp_path):
    flat = write_flat(tmp_path / "flat.png", tissue_image())
    tiled = write_slide(tmp_path / "tiled.tif", tissue_image(), mpp=0.5)
    rules = PatchingRules(mpp=0.5)
    counts = [
        patch_slides([path], tmp_path / path.stem, rules).slides[0].patches
        for path in (flat, tiled)
    ]
    assert counts[0] == counts[1] > 0


def test_pictures_beside_slides_are_not_slides(tmp_path):
    write_flat(tmp_path / "a.png", tissue_image())
    assert list(find_slides([tmp_path])) == ["a"]
    write_flat(tmp_path / "b.tif", tissue_image())
    assert list(find_slides([tmp_path])) == ["b"]


def test_what_is_no_picture_of_tissue_is_refused(tmp_path, monkeypatch):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    with (
        pytest.raises(InputError, match="broken.png cannot be read as a picture"),
        open_slide(broken, mpp=0.5),
    ):
        pass
    grey = tmp_path / "grey.tif"
    tifffile.imwrite(grey, np.zeros((64, 64), np.uint16), rowsperstrip=16)
    with pytest.raises(InputError, match="a slide has 8-bit RGB"), open_slide(grey, mpp=0.5):
        pass
    monkeypatch.setattr(reader, "LARGEST_PICTURE", 1000)
    large = write_flat(tmp_path / "large.png", tissue_image())
    with pytest.raises(InputError, match="vips tiffsave"), open_slide(large, mpp=0.5):
        pass
