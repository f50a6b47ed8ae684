"""Regions as annotations: outlines of touching patches, with holes, as QuPath takes them."""

import json

import numpy as np

from builders.geojson_rules import violations
from gcemil.exports.geojson import EVIDENCE, SlideRegions, describe_regions, write_geojson
from gcemil.records import RegionVerdict
from gcemil.slides.geojson import outline_squares


def features_of(coords, numbers, verdicts, bounds=(0, 0)):
    coords = np.array(coords)
    return list(
        describe_regions(
            "s",
            SlideRegions(np.array(numbers), tuple(verdicts)),
            coords,
            patch_size=10,
            measurements={"gate": np.linspace(0, 1, len(coords))},
            model="m",
            region_class=EVIDENCE,
            bounds=bounds,
        )
    )


def test_patches_side_by_side_become_one_polygon_from_the_corner_of_the_image():
    verdict = RegionVerdict(
        1, "s", 2, 0.5, kept=0.9, removed=0.25, sufficient=True, necessary=False
    )
    (found,) = features_of([[100, 50], [110, 50]], [1, 1], [verdict], bounds=(100, 50))
    assert found["geometry"]["type"] == "Polygon"
    (ring,) = found["geometry"]["coordinates"]
    assert sorted(map(tuple, ring[:-1])) == [(0, 0), (0, 10), (20, 0), (20, 10)]
    assert found["properties"]["objectType"] == "annotation"
    assert found["properties"]["measurements"] == {
        "patches": 2,
        "score mass": 0.5,
        "kept alone": 0.9,
        "without it": 0.25,
        "sufficient": 1,
        "necessary": 0,
        "mean gate": 0.5,
    }


def test_a_ring_of_patches_has_a_hole_and_a_corner_makes_two_polygons(tmp_path):
    ring = [[x, y] for x in (0, 10, 20) for y in (0, 10, 20) if (x, y) != (10, 10)]
    corner = [[100, 0], [110, 10]]
    verdicts = [RegionVerdict(1, "s", 8, 0.8), RegionVerdict(2, "s", 2, 0.2)]
    first, second = features_of(ring + corner, [1] * 8 + [2] * 2, verdicts)
    assert [len(part) for part in first["geometry"]["coordinates"]] == [5, 5]
    assert second["geometry"]["type"] == "MultiPolygon"
    assert set(second["properties"]["measurements"]) == {"patches", "score mass", "mean gate"}
    text = write_geojson(tmp_path / "r.geojson", [first, second]).read_text()
    assert violations(text) == []
    assert [one["properties"]["metadata"]["region"] for one in json.loads(text)["features"]] == [
        "1",
        "2",
    ]


def test_patches_of_shifted_grids_are_outlined_to_the_pixel():
    ((outer, *holes),) = outline_squares(np.array([[0, 0], [7, 3]]), 10)
    expected = [(0, 0), (10, 0), (10, 3), (17, 3), (17, 13), (7, 13), (7, 10), (0, 10)]
    assert sorted(map(tuple, outer.tolist())) == sorted(expected)
    assert holes == []
