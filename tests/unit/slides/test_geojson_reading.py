"""GeoJSON as QuPath exports it, through the one reader of it."""

import json

import numpy as np
import pytest
from shapely import Polygon

from gcemil.errors import InputError
from gcemil.slides.geojson import count_ignored, parse_objects, read_objects, trace_outlines

SQUARE = [[0, 0], [8, 0], [8, 8], [0, 8], [0, 0]]
HOLE = [[2, 2], [5, 2], [5, 5], [2, 5], [2, 2]]
ISLAND = [[3, 3], [4, 3], [4, 4], [3, 4], [3, 3]]


def feature(kind, coordinates, classification=None, object_type="annotation"):
    return {
        "type": "Feature",
        "geometry": {"type": kind, "coordinates": coordinates},
        "properties": {"objectType": object_type, "classification": classification},
    }


ONE = feature("Polygon", [SQUARE], {"name": "Tumor", "color": [1, 2, 3]})


@pytest.mark.parametrize(
    "content", [{"type": "FeatureCollection", "features": [ONE]}, {"features": [ONE]}, [ONE], ONE]
)
def test_a_collection_a_list_and_one_feature_say_the_same(content):
    (found,) = parse_objects(content, "file")
    assert found.class_name == "Tumor"
    assert found.area.equals(Polygon(SQUARE))


def test_holes_and_islands_stay_with_their_polygon():
    (found,) = parse_objects(feature("MultiPolygon", [[SQUARE, HOLE], [ISLAND]], "Tumor"), "file")
    assert found.area.equals(Polygon(SQUARE, [HOLE]).union(Polygon(ISLAND)))


def test_an_outline_that_crosses_itself_is_even_odd():
    bow_tie = [[0, 0], [8, 8], [8, 0], [0, 8], [0, 0]]
    assert parse_objects(feature("Polygon", [bow_tie]), "file")[0].area.area == pytest.approx(32)


@pytest.mark.parametrize(
    ("classification", "name"),
    [
        (None, ""),
        ("Tumor", "Tumor"),
        ({"name": " Tumor: Positive "}, "Tumor: Positive"),
        ({"names": ["Tumor", "Positive"]}, "Tumor: Positive"),
        ({"color": [1, 2, 3]}, ""),
    ],
)
def test_a_class_is_a_name_however_it_is_written(classification, name):
    assert parse_objects(feature("Polygon", [SQUARE], classification), "file")[0].class_name == name


def test_points_are_kept_and_lines_are_counted():
    found = parse_objects(
        [
            feature("Point", [1, 2], "a"),
            feature("MultiPoint", [[3, 4, 0], [5, 6, 0]], "a"),
            feature("LineString", [[0, 0], [1, 1]], "a"),
            {"type": "Feature", "geometry": None, "properties": None},
        ],
        "file",
    )
    assert np.concatenate([one.points for one in found]).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert count_ignored(found) == {"LineString": 1, "no geometry": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text", "neither a FeatureCollection nor a list"),
        ({"features": 3}, "neither a FeatureCollection nor a list"),
        ([ONE, {"geometry": {}}], "object 1 is not a GeoJSON feature"),
        ({"type": "Feature", "geometry": [1]}, "geometry without a type"),
        (feature("Polygon", [SQUARE], {"name": 3}), "classification that is not a name"),
        (feature("MultiPolygon", None), "geometry without points"),
        (feature("Polygon", [[[0, 0], [1, float("nan")], [1, 1]]]), "one that is not finite"),
        (feature("Point", [2e9, 0]), "farther than any slide"),
    ],
)
def test_what_is_no_geojson_is_refused_in_one_sentence_that_names_the_object(
    tmp_path, content, message
):
    path = tmp_path / "s.geojson"
    path.write_text(json.dumps(content).replace("NaN", "1e999"))
    with pytest.raises(InputError, match=message) as refused:
        read_objects(path)
    assert str(path) in str(refused.value)


def test_outlines_by_hand():
    mask = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 1, 0]], bool)
    ring, single = trace_outlines(mask)
    assert ring[0].tolist() == [[0, 0], [3, 0], [3, 2], [4, 2], [4, 3], [0, 3]]
    assert [hole.tolist() for hole in ring[1:]] == [[[1, 1], [1, 2], [2, 2], [2, 1]]]
    assert single[0].tolist() == [[4, 1], [5, 1], [5, 2], [4, 2]]
    assert trace_outlines(np.zeros((3, 3), bool)) == []
