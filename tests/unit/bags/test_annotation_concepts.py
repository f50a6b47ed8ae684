"""Patches that somebody has named: outlines, masks and points by concept."""

import json

import numpy as np
import pytest
from PIL import Image

from builders import PATCH, grid_coords
from gcemil.bags.annotations.shapes import (
    masked_patches,
    named_patches,
    read_annotation,
    read_point_table,
)
from gcemil.errors import InputError

COORDS = grid_coords(16, width=4)


def square(column, row, side=1):
    """The outline of `side` x `side` patches whose first is at this cell."""
    left, top, right, bottom = (PATCH * value for value in (column, row, column + side, row + side))
    return [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]


def feature(concept, kind, coordinates):
    return {
        "type": "Feature",
        "geometry": {"type": kind, "coordinates": coordinates},
        "properties": {"objectType": "annotation", "classification": concept},
    }


def write_geojson(path, *features):
    path.write_text(json.dumps({"type": "FeatureCollection", "features": list(features)}))
    return path


def named_in(path, min_overlap=0.5):
    return named_patches(COORDS, PATCH, read_annotation(path), min_overlap)


def test_outlines_of_qupath_name_their_patches_and_holes_do_not(tmp_path):
    path = write_geojson(
        tmp_path / "s.geojson",
        feature({"name": "tumour", "color": [1, 2, 3]}, "Polygon", [square(0, 0, 3), square(1, 1)]),
        feature("stroma", "MultiPolygon", [[square(3, 0)], [square(3, 3)]]),
    )
    found = named_in(path)
    assert {row for row, name in found.items() if name == "tumour"} == {0, 1, 2, 4, 6, 8, 9, 10}
    assert {row for row, name in found.items() if name == "stroma"} == {3, 15}


def test_a_patch_belongs_to_the_concept_that_covers_most_and_enough_of_it(tmp_path):
    part = [[0, 0], [0.4 * PATCH, 0], [0.4 * PATCH, PATCH], [0, PATCH]]
    path = write_geojson(tmp_path / "s.geojson", feature("less", "Polygon", [part]))
    assert named_in(path) == {}
    assert named_in(path, min_overlap=0.3) == {0: "less"}
    both = (feature("less", "Polygon", [part]), feature("more", "Polygon", [square(0, 0)]))
    assert named_in(write_geojson(tmp_path / "t.geojson", *both), 0.3) == {0: "more"}


def test_points_name_the_patch_that_holds_them(tmp_path):
    path = write_geojson(
        tmp_path / "s.geojson",
        feature("mitosis", "MultiPoint", [[1.5 * PATCH, 10], [PATCH * 50, 0]]),
        feature("necrosis", "Point", [0, 0]),
    )
    assert named_in(path) == {1: "mitosis", 0: "necrosis"}


def test_the_image_of_qupath_may_begin_inside_the_slide(tmp_path):
    path = write_geojson(
        tmp_path / "s.geojson",
        feature("tumour", "Polygon", [square(0, 0)]),
        feature("mitosis", "Point", [PATCH, 0]),
    )
    found = named_patches(COORDS, PATCH, read_annotation(path, origin=(PATCH, 2 * PATCH)), 0.5)
    assert found == {9: "tumour", 10: "mitosis"}


def test_groups_of_asap_are_concepts_and_exclusions_are_cut_out(tmp_path):
    def outline(group, corners):
        points = "".join(
            f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>' for i, (x, y) in enumerate(corners[:-1])
        )
        return f'<Annotation Name="a" Type="Polygon" PartOfGroup="{group}"><Coordinates>{points}</Coordinates></Annotation>'

    body = (
        outline("necrosis", square(0, 0, 2))
        + outline("normal", square(3, 3))
        + outline("_2", square(1, 1))
    )
    path = tmp_path / "s.xml"
    path.write_text(f"<ASAP_Annotations><Annotations>{body}</Annotations></ASAP_Annotations>")
    assert named_in(path) == {0: "necrosis", 1: "necrosis", 4: "necrosis", 15: "normal"}


def test_masks_by_concept_and_masks_with_values_say_the_same(tmp_path):
    tumour, stroma = np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint8)
    tumour[0, :2], stroma[3, 3] = 255, 255
    for name, pixels in (("tumour", tumour), ("stroma", stroma)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    Image.fromarray((tumour // 255 + 2 * (stroma // 255)).astype(np.uint8)).save(
        tmp_path / "both.png"
    )
    values = {"tumour": 1, "stroma": 2}
    found = [
        masked_patches(COORDS, PATCH, masks, downsample=PATCH, values=named, min_overlap=0.5)
        for masks, named in (
            ({name: tmp_path / f"{name}.png" for name in values}, {}),
            (dict.fromkeys(values, tmp_path / "both.png"), values),
        )
    ]
    assert found == [{0: "tumour", 1: "tumour", 15: "stroma"}] * 2


def test_a_table_names_points_by_slide(tmp_path):
    path = tmp_path / "examples.csv"
    path.write_text("slide,x,y,concept\na,1,2,tumour\nb,3,4,stroma\na,5,6,tumour\n")
    found = read_point_table(path)
    assert found["a"].points["tumour"].tolist() == [[1, 2], [5, 6]]
    assert found["b"].points["stroma"].tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slide,x,y\na,1,2\n", "slide, x, y and concept"),
        ("slide,x,y,concept\na,one,2,tumour\n", "line 2: .*one"),
        ("slide,x,y,concept\na,1,2,\n", "needs a slide, two numbers and a concept"),
        ("slide,x,y,concept\na,inf,2,tumour\n", "needs a slide, two numbers and a concept"),
    ],
)
def test_a_table_that_names_nothing_is_refused(tmp_path, text, message):
    path = tmp_path / "examples.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_point_table(path)
