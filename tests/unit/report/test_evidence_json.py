import numpy as np
import pytest

from gcemil.errors import StoreError
from gcemil.report.evidence_json import evidence_json
from gcemil.report.write import write_json


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
    assert (found["fraction"], found["n_patches"]) == (0.5, 2)


def test_without_coordinates_patches_have_no_place():
    assert listed(None)["patches"] == [{"index": 1, "gate": 0.9}]


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="x.json cannot be written"):
        write_json(tmp_path / "file" / "x.json", {})
