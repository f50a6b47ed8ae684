"""Heat maps as pyramidal OME-TIFF, read back by other readers than the one that wrote them."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import openslide
import pytest
import tifffile

from gcemil.exports.heatmap import draw_heatmap, write_heatmap
from gcemil.exports.overlay import SlidePlace, color_ramp

OME = "{http://www.openmicroscopy.org/Schemas/OME/2016-06}"
SLIDE = SlidePlace(Path("s.h5"), bounds=(1024, 512), size=(40_960, 20_480), mpp=0.25)


def drawn(name="gate", place=SLIDE):
    """Two patches of 512 pixels, the first at the corner of the scanned part."""
    coords = np.array([[1024, 512], [1024 + 20_480, 512 + 10_240]])
    return draw_heatmap(name, coords, np.array([0.0, 0.75]), patch_size=512, place=place)


def test_a_patch_is_sixteen_pixels_at_its_place_and_the_rest_is_white():
    found = drawn()
    assert found.downsample == 32
    assert found.pixels.shape == (640, 1280, 3)
    (colour,) = color_ramp(np.array([0.75])).tolist()
    assert (found.pixels[320:336, 640:656] == colour).all()
    assert (found.pixels == 255).all(axis=2).sum() == 640 * 1280 - 2 * 16**2


def test_scores_are_coloured_by_rank_and_gates_by_value():
    low, high = color_ramp(np.array([0.5, 1.0])).tolist()
    found = drawn("attention_score").pixels
    assert found[0, 0].tolist() == low
    assert found[320, 640].tolist() == high


def test_levels_pixel_size_and_place_are_read_back(tmp_path):
    path = write_heatmap(tmp_path / "h.ome.tif", drawn(), slide_id="s", model="m")
    with tifffile.TiffFile(path) as file:
        assert file.is_ome
        shapes = [level.shape for level in file.series[0].levels]
        np.testing.assert_array_equal(file.series[0].asarray(), drawn().pixels)
        root = ElementTree.fromstring(file.ome_metadata)
    assert shapes == [(640, 1280, 3), (320, 640, 3), (160, 320, 3)]
    pixels, plane = root.find(f".//{OME}Pixels"), root.find(f".//{OME}Plane")
    # 512 level-0 pixels of 0.25 micrometres on 16 pixels.
    assert float(pixels.get("PhysicalSizeX")) == float(pixels.get("PhysicalSizeY")) == 8.0
    assert pixels.get("PhysicalSizeXUnit") == "µm"
    assert (float(plane.get("PositionX")), float(plane.get("PositionY"))) == (256.0, 128.0)
    assert path.stat().st_size < 50_000


def test_without_a_pixel_size_none_is_invented(tmp_path):
    found = drawn(place=SlidePlace(Path("s.h5"), bounds=(1024, 512)))
    # The size of the slide is not known either: the map ends with the last patch.
    assert found.pixels.shape == (336, 656, 3)
    path = write_heatmap(tmp_path / "h.ome.tif", found, slide_id="s", model="m")
    with tifffile.TiffFile(path) as file:
        assert "PhysicalSize" not in file.ome_metadata
        assert file.pages[0].tags["ResolutionUnit"].value == 1


def test_openslide_sees_the_same_pixels(tmp_path):
    path = write_heatmap(tmp_path / "h.ome.tif", drawn(), slide_id="s", model="m")
    with openslide.OpenSlide(path) as slide:
        assert slide.dimensions == (1280, 640)
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(8.0)
        region = np.asarray(slide.read_region((640, 320), 0, (1, 1)))[0, 0, :3]
    assert region.tolist() == drawn().pixels[320, 640].tolist()
