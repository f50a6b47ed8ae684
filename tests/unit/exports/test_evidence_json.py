import json

import numpy as np
import pytest

from gcemil.exports.geojson import BLOCK
from gcemil.exports.slide_export import SlideExport


def listed(coords, selected=(False, True)):
    chosen = np.array(selected)
    return SlideExport(
        slide_id="s",
        selected=chosen,
        coords=coords,
        patch_size=256,
        rule="recovered evidence",
        stop_reason="covered",
        scores=np.linspace(0.1, 0.9, len(chosen), dtype=np.float32),
        evidence=None,
        hashes={"model": "abc"},
    ).to_list()


def test_selected_patches_are_listed_with_place_and_numbers():
    found = listed(np.array([[0, 0], [256, 512]])).to_json()
    assert found["patches"] == [{"index": 1, "x": 256, "y": 512, "attention_score": 0.9}]
    assert (found["fraction"], found["n_patches"]) == pytest.approx((0.5, 2))


def test_without_coordinates_patches_have_no_place():
    assert listed(None).to_json()["patches"] == [{"index": 1, "attention_score": 0.9}]


def test_the_text_in_parts_is_the_value():
    found = listed(np.array([[0, 0], [256, 512]]))
    assert json.loads("".join(found.blocks())) == found.to_json()


def test_a_long_list_in_parts_and_an_empty_one_are_json():
    for n_patches in (0, 1, 2 * BLOCK, 2 * BLOCK + 1):
        found = listed(None, [True] * (n_patches + 1) if n_patches else [False])
        assert len(json.loads("".join(found.blocks()))["patches"]) == (n_patches + 1 if n_patches else 0)
