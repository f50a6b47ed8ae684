import json
import uuid

import numpy as np
import pytest

from builders.geojson_rules import violations
from gcemil.errors import BagError
from gcemil.exports.geojson import (
    ATTENTION,
    BLOCK,
    UNSELECTED,
    describe_patches,
    encode_features,
    name_measurements,
    write_geojson,
)
from gcemil.records import SlideEvidence

COORDS = np.array([[0, 0], [512, 0], [1024, 512]])
SELECTED = np.array([True, False, True])
GATES = np.array([0.5, 0.1, 0.9], dtype=np.float32)


def features(**changes):
    given = {
        "coords": COORDS,
        "selected": SELECTED,
        "patch_size": 512,
        "ranked_by": GATES,
        "measurements": {"gate": GATES},
        "model": "abc",
        **changes,
    }
    return describe_patches("slide.1", given.pop("coords"), given.pop("selected"), **given)


def parsed(**changes):
    return json.loads("".join(encode_features(features(**changes))))


def test_selected_patches_become_closed_squares_in_whole_pixels():
    found = parsed()
    assert [feature["geometry"] for feature in found["features"]] == [
        {"type": "Polygon", "coordinates": [[[0, 0], [512, 0], [512, 512], [0, 512], [0, 0]]]},
        {
            "type": "Polygon",
            "coordinates": [[[1024, 512], [1536, 512], [1536, 1024], [1024, 1024], [1024, 512]]],
        },
    ]


def test_an_object_is_a_locked_tile_with_class_colour_and_measurements():
    (first, second) = (feature["properties"] for feature in parsed()["features"])
    assert first == {
        "objectType": "tile",
        "isLocked": True,
        "name": "GCE evidence #2",
        "classification": {"name": "GCE evidence", "color": [165, 15, 240]},
        "measurements": {"gate": 0.5},
        "metadata": {"slide_id": "slide.1", "model": "abc", "patch": "0"},
    }
    # The highest gate is number one.
    assert second["name"] == "GCE evidence #1"


def test_bounds_of_the_slide_are_subtracted():
    (first, _) = parsed(coords=COORDS + np.array([3000, 700]), bounds=(3000, 700))["features"]
    assert first["geometry"]["coordinates"][0][0] == [0, 0]


def test_a_patch_over_the_edge_of_the_bounds_stays_and_one_beyond_it_is_refused():
    (first, _) = parsed(bounds=(511, 0))["features"]
    assert first["geometry"]["coordinates"][0][0] == [-511, 0]
    with pytest.raises(
        BagError, match=r"'slide.1': with bounds 512, 0 patch 0 would lie at \(-512, 0\)"
    ):
        parsed(bounds=(512, 0))


def test_ids_depend_on_slide_model_and_patch_alone():
    ids = [feature["id"] for feature in parsed()["features"]]
    assert ids == [feature["id"] for feature in parsed(measurements={}, bounds=(5, 5))["features"]]
    assert {uuid.UUID(text).version for text in ids} == {5}
    assert not set(ids) & {feature["id"] for feature in parsed(model="other")["features"]}


@pytest.mark.parametrize("n_patches", [BLOCK, BLOCK + 1, 2 * BLOCK])
def test_blocks_join_into_one_file(n_patches):
    """Around the size of a block, where a comma could be missing."""
    gates = np.linspace(0, 1, n_patches, dtype=np.float32)
    coords = np.stack([np.arange(n_patches), np.zeros(n_patches, dtype=np.int64)], axis=1)
    odd = gates.copy()
    odd[-1] = np.nan
    found = features(
        coords=coords,
        selected=np.ones(n_patches, dtype=bool),
        ranked_by=gates,
        measurements={"odd": odd, "row": np.arange(n_patches)},
    )
    text = "".join(encode_features(found))
    assert violations(text) == []
    tiles = [feature["properties"] for feature in json.loads(text)["features"]]
    assert [tile["measurements"]["row"] for tile in tiles] == list(range(n_patches))
    assert tiles[0]["name"] == f"GCE evidence #{n_patches}"
    assert tiles[-1]["measurements"]["odd"] == "NaN"


def test_unselected_patches_are_shown_where_they_have_a_class():
    found = parsed(unselected_class=UNSELECTED, selected_class=ATTENTION)["features"]
    assert [feature["properties"]["classification"]["name"] for feature in found] == [
        "Attention top-k",
        "Not selected",
        "Attention top-k",
    ]
    assert found[1]["properties"]["name"] == "patch 1"


@pytest.mark.parametrize("selected", [[True] * 3, [False] * 3, [False, True, False]])
def test_the_file_satisfies_every_rule(tmp_path, selected):
    measurements = {"gate": GATES, "odd": np.array([np.nan, np.inf, 1.0])}
    found = features(selected=np.array(selected), measurements=measurements)
    text = write_geojson(tmp_path / "new" / "e.geojson", found).read_text()
    assert violations(text) == []
    assert len(json.loads(text)["features"]) == sum(selected)


def test_measurements_name_every_anchor_once():
    ones = np.ones(2, dtype=np.float32)
    evidence = SlideEvidence(
        slide_id="s",
        selected=np.array([True, False]),
        coords=None,
        gates=ones,
        scores=ones * 2,
        evidence_scores=ones * 3,
        responses=np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32),
        marginal_gain=ones * 4,
        coverage=ones,
        stop_reason="covered",
        prompts=("necrosis", "necrosis"),
    )
    found = name_measurements(evidence)
    assert list(found) == [
        "gate", "attention_score", "evidence_score", "marginal_gain", "anchor: necrosis", "anchor: necrosis (1)",
    ]  # fmt: skip
    assert found["anchor: necrosis (1)"].tolist() == pytest.approx([0.2, 0.4])
