import h5py
import numpy as np
import pytest

from builders.foreign import grid, rows, torchmil_set
from gcemil.bags.foreign.source import ReadOptions
from gcemil.bags.foreign.torchmil import LAYOUT, read_bag_labels
from gcemil.errors import UsageError


def test_bags_features_coordinates_and_labels_are_read(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 512), 1, [0] * 8), "b": (grid(5, 512), 0, [0] * 5)})
    folder = LAYOUT.read(tmp_path)
    features, coords = folder.slides[0].load()
    assert folder.encoder == "UNI"
    assert [slide.patch_size for slide in folder.slides] == [512, 512]
    assert np.array_equal(features, rows(8))
    assert np.array_equal(coords, grid(8, 512))
    assert read_bag_labels(tmp_path) == {"a": "1", "b": "0"}


def test_coordinates_that_count_patches_are_scaled_by_the_patch_size(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 1), 1, [0] * 8)})
    slide = LAYOUT.read(tmp_path).slides[0]
    assert slide.patch_size == 512
    assert np.array_equal(slide.load()[1], grid(8, 512))


def test_plain_parallel_folders_of_h5_are_read(tmp_path):
    for folder, key, values in (
        ("features", "features", rows(4)),
        ("coords", "coords", grid(4, 256)),
        ("labels", "labels", np.array([1])),
    ):
        (tmp_path / folder).mkdir()
        with h5py.File(tmp_path / folder / "a.h5", "w") as file:
            file[key] = values
    slide = LAYOUT.read(tmp_path).slides[0]
    assert np.array_equal(slide.load()[0], rows(4))
    assert slide.patch_size == 256
    assert read_bag_labels(tmp_path) == {"a": "1"}


def test_patch_labels_become_evidence_in_connected_regions(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 512), 1, [1, 0, 0, 1, 0, 0, 0, 1])})
    truth = LAYOUT.read(tmp_path).slides[0].read_truth()
    assert truth["evidence"].tolist() == [1, 0, 0, 1, 0, 0, 0, 1]
    assert truth["region"].tolist() == [1, 0, 0, 2, 0, 0, 0, 2]


def test_two_encoders_need_a_choice(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 512), 1, [0] * 8)})
    other = tmp_path / "patches_512" / "features" / "features_resnet50_bt"
    other.mkdir()
    np.save(other / "a.npy", rows(8))
    with pytest.raises(UsageError, match="must hold one torchmil features folder"):
        LAYOUT.read(tmp_path)
    assert LAYOUT.read(tmp_path, ReadOptions(encoder="resnet50_bt")).encoder == "resnet50_bt"
