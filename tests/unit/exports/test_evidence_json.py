import json

import numpy as np
import pytest

from gcemil.exports.geojson import BLOCK
from gcemil.exports.slide_export import list_evidence


def listed(coords):
    return list_evidence(
        "s",
        np.array([False, True]),
        coords,
        rule="recovered evidence",
        patch_size=256,
        measurements={"gate": np.array([0.1, 0.9], dtype=np.float32)},
        stop_reason="covered",
        hashes={"model": "abc"},
    )


def test_selected_patches_are_listed_with_place_and_numbers():
    found = listed(np.array([[0, 0], [256, 512]])).to_json()
    assert found["patches"] == [{"index": 1, "x": 256, "y": 512, "gate": 0.9}]
    assert (found["fraction"], found["n_patches"]) == pytest.approx((0.5, 2))


def test_without_coordinates_patches_have_no_place():
    assert listed(None).to_json()["patches"] == [{"index": 1, "gate": 0.9}]


def test_the_text_in_parts_is_the_value():
    found = listed(np.array([[0, 0], [256, 512]]))
    assert json.loads("".join(found.blocks())) == found.to_json()


def test_a_long_list_in_parts_and_an_empty_one_are_json():
    for n_patches in (0, 1, 2 * BLOCK, 2 * BLOCK + 1):
        found = list_evidence(
            "s",
            np.ones(n_patches + 1, dtype=bool) if n_patches else np.zeros(1, dtype=bool),
            None,
            rule="r",
            patch_size=None,
            measurements={},
            stop_reason=None,
            hashes={},
        )
        assert len(json.loads("".join(found.blocks()))["patches"]) == (n_patches + 1 if n_patches else 0)
