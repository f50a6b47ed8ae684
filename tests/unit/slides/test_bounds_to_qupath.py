"""A slide of which only a part was scanned, as MRXS has it: from its reader to the polygons that QuPath draws."""

import json

import numpy as np
import pytest

from builders.slides import ArraySlide, glass, tissue_image
from gcemil.bags import store
from gcemil.bags.store import stated_bounds
from gcemil.exports.geojson import describe_patches
from gcemil.exports.overlay import Thumbnail, fit_frame
from gcemil.features import patching
from gcemil.features.patching import PatchingRules, patch_slide, patches_path, read_patch_file
from gcemil.slides.grid import PatchSettings

LEFT, TOP = 700, 300
SETTINGS = PatchSettings()


@pytest.fixture
def patched(tmp_path, monkeypatch):
    """A slide of 2048 x 1600 pixels; scanned are 1024 x 768 of them, with tissue in the middle."""
    image = glass(1600, 2048)
    image[TOP : TOP + 768, LEFT : LEFT + 1024] = tissue_image()
    slide = ArraySlide(image, bounds_box=(LEFT, TOP, 1024, 768), name="m.mrxs")

    class Opened:
        def __enter__(self):
            return slide

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(patching, "open_slide", lambda *_arguments, **_options: Opened())
    path = tmp_path / "m.mrxs"
    path.write_bytes(b"a slide")
    outcome = patch_slide(path, "m", tmp_path, PatchingRules())
    assert (outcome.status, outcome.patches) == ("patched", 2)
    return tmp_path


def test_coordinates_count_from_the_corner_of_the_whole_file(patched):
    path = patches_path(patched, SETTINGS, "m")
    assert read_patch_file(path).coords.tolist() == [
        [LEFT + 256, TOP + 256],
        [LEFT + 512, TOP + 256],
    ]
    known = store.attributes(path, "coords")
    assert [known[f"bounds_{key}"] for key in ("x", "y", "width", "height")] == [
        LEFT,
        TOP,
        1024,
        768,
    ]


def test_polygons_lie_in_the_picture_that_qupath_shows(patched):
    path = patches_path(patched, SETTINGS, "m")
    grid = read_patch_file(path)
    features = describe_patches(
        "m",
        grid.coords,
        np.ones(2, dtype=bool),
        patch_size=256,
        ranked_by=np.ones(2),
        measurements={},
        model="x",
        bounds=stated_bounds(store.attributes(path, "coords"), str(path)),
    )
    corners = [feature["geometry"]["coordinates"][0][0] for feature in features]
    assert corners == [[256, 256], [512, 256]]
    # The outlines of the tissue, made for QuPath by the same command, lie in the same frame.
    outlines = json.loads((patched / "contours_geojson" / "m.geojson").read_text())["features"]
    ring = np.array(outlines[0]["geometry"]["coordinates"][0])
    assert np.abs(ring.min(axis=0) - [256, 256]).max() <= 16
    assert np.abs(ring.max(axis=0) - [768, 512]).max() <= 16


def test_an_overlay_on_the_thumbnail_of_the_scanned_part_lies_on_the_tissue():
    thumbnail = Thumbnail(
        np.zeros((96, 128, 3), dtype=np.uint8), downsample=8.0, origin=(LEFT, TOP)
    )
    frame = fit_frame(np.array([[LEFT + 256, TOP + 256]]), 256, thumbnail)
    assert frame.corners(np.array([[LEFT + 256, TOP + 256]])).tolist() == [[32, 32]]
