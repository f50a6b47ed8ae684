import json

import numpy as np
import pytest
from PIL import Image

from builders.slides import ArraySlide, glass
from gcemil.errors import InputError
from gcemil.slides.mask_files import read_mask, tissue_geojson
from gcemil.slides.reader import Bounds
from gcemil.slides.tissue import TissueMask


def slide(**options):
    return ArraySlide(glass(400, 800), mpp=0.5, **options)


def write_png(path, mask):
    Image.fromarray((np.asarray(mask) * 255).astype(np.uint8)).save(path)
    return path


def write_geojson(path, content):
    path.write_text(json.dumps(content))
    return path


def polygon(*rings):
    return {"type": "Polygon", "coordinates": [[*ring, ring[0]] for ring in rings]}


SQUARE = [[160, 80], [480, 80], [480, 320], [160, 320]]
HOLE = [[320, 160], [400, 160], [400, 240], [320, 240]]


def test_a_picture_of_any_size_is_a_mask(tmp_path):
    mask = np.zeros((10, 20), bool)
    mask[2:8, 4:12] = True
    found = read_mask(write_png(tmp_path / "s.png", mask), slide())
    np.testing.assert_array_equal(found.kept, mask)
    assert found.scale == pytest.approx((40.0, 40.0))


def test_a_picture_of_another_shape_is_refused(tmp_path):
    path = write_png(tmp_path / "s.png", np.ones((20, 20)))
    with pytest.raises(
        InputError, match=r"s.png is 20 x 20, of another shape than the slide's 800 x 400"
    ):
        read_mask(path, slide())


def test_a_polygon_with_a_hole_by_hand(tmp_path):
    path = write_geojson(
        tmp_path / "s.geojson",
        {"type": "Feature", "geometry": polygon(SQUARE, HOLE), "properties": {}},
    )
    kept = read_mask(path, slide(), mpp=20.0).kept
    expected = np.zeros((10, 20), bool)
    expected[2:8, 4:12] = True
    expected[4:6, 8:10] = False
    np.testing.assert_array_equal(kept, expected)


def test_outlines_read_back_are_the_mask_itself(tmp_path):
    generator = np.random.default_rng(0)
    mask = np.kron(generator.random((10, 20)) < 0.6, np.ones((3, 3), bool)).astype(bool)
    whole = ArraySlide(glass(300, 600), mpp=0.5, bounds_box=(0, 0, 600, 300))
    path = write_geojson(
        tmp_path / "s.geojson", tissue_geojson(TissueMask(mask, whole.bounds), "s")
    )
    found = read_mask(path, whole, mpp=5.0).kept
    np.testing.assert_array_equal(found, mask)


def test_outlines_are_what_qupath_reads():
    mask = TissueMask(np.ones((2, 2), bool), Bounds(0, 0, 20, 20))
    (feature,) = tissue_geojson(mask, "s")["features"]
    assert feature["geometry"]["coordinates"] == [[[0, 0], [20, 0], [20, 20], [0, 20], [0, 0]]]
    assert feature["properties"]["objectType"] == "annotation"
    assert feature["properties"]["classification"]["color"]
    assert tissue_geojson(mask, "s") == tissue_geojson(mask, "s")
