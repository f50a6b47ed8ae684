import h5py
import numpy as np
import pytest

from builders.foreign import grid, trident_features
from gcemil.bags.foreign.source import ReadOptions
from gcemil.bags.foreign.trident import LAYOUT
from gcemil.errors import CohortError, UsageError


def test_t1_patch_size_is_the_one_at_level_zero_not_patch_size(tmp_path):
    trident_features(tmp_path, "A", grid(8, 512), level0=512)
    assert LAYOUT.read(tmp_path).slides[0].patch_size == 512


def test_t1_patch_size_is_computed_from_magnifications_when_absent(tmp_path):
    trident_features(tmp_path, "A", grid(8, 512), level0=None)
    assert LAYOUT.read(tmp_path).slides[0].patch_size == 512


def test_none_stored_as_text_falls_back_to_the_stride_and_says_so(tmp_path):
    trident_features(tmp_path, "A", grid(8, 300), level0=None, magnifications=("None", "None"))
    folder = LAYOUT.read(tmp_path)
    assert folder.slides[0].patch_size == 300
    assert any("inferred from the stride of 1 slides" in line for line in folder.assumptions)


def test_empty_slides_do_not_crash_and_are_named(tmp_path):
    trident_features(tmp_path, "A", grid(8, 512))
    trident_features(tmp_path, "B", np.zeros((0, 2)))
    assert LAYOUT.read(tmp_path).empty == ("B",)


def test_encoder_comes_from_the_files(tmp_path):
    trident_features(tmp_path, "A", grid(8, 512), encoder="conch_v15")
    assert LAYOUT.read(tmp_path).encoder == "conch_v15"


def test_several_encoders_need_a_choice(tmp_path):
    for encoder in ("uni_v1", "conch_v1"):
        trident_features(tmp_path, "A", grid(8, 512), encoder=encoder)
    with pytest.raises(UsageError, match="features_conch_v1, .*features_uni_v1"):
        LAYOUT.read(tmp_path)
    assert LAYOUT.read(tmp_path, ReadOptions(encoder="uni_v1")).encoder == "uni_v1"


def test_two_encoders_in_one_folder_are_refused(tmp_path):
    path = trident_features(tmp_path, "A", grid(8, 512))
    trident_features(tmp_path, "B", grid(8, 512))
    with h5py.File(path, "a") as file:
        file["features"].attrs["encoder"] = "virchow"
    with pytest.raises(CohortError, match=r"several encoders \(uni_v1, virchow\)"):
        LAYOUT.read(tmp_path)
