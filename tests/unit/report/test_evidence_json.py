import numpy as np
import pytest

from gcemil.report.evidence_json import evidence_json


def listed(coords):
    return evidence_json(
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
    found = listed(np.array([[0, 0], [256, 512]]))
    assert found["patches"] == [{"index": 1, "x": 256, "y": 512, "gate": 0.9}]
    assert (found["fraction"], found["n_patches"]) == pytest.approx((0.5, 2))


def test_without_coordinates_patches_have_no_place():
    assert listed(None)["patches"] == [{"index": 1, "gate": 0.9}]
