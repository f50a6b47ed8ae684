import numpy as np
import pytest
import torch

from builders.foreign import clam_coords, clam_features, clam_tensor, grid, rows
from gcemil.bags.foreign.clam import LAYOUT
from gcemil.bags.foreign.source import ReadOptions
from gcemil.errors import CohortError, StoreError


def test_t2_patch_size_without_a_coords_file_is_the_stride_and_says_so(tmp_path):
    clam_features(tmp_path, "A", grid(8, 512))
    folder = LAYOUT.read(tmp_path)
    assert folder.slides[0].patch_size == 512
    assert any("inferred from the stride of 1 slides" in line for line in folder.assumptions)


def test_patch_size_comes_from_the_coords_file_at_its_level(tmp_path):
    clam_features(tmp_path / "FEATURES", "A", grid(8, 400))
    clam_coords(tmp_path / "patches", "A", grid(8, 400), patch_size=256, downsample=4.0)
    folder = LAYOUT.read(tmp_path / "FEATURES")
    assert folder.slides[0].patch_size == 1024
    assert any(
        "read from the attributes of the coords files" in line for line in folder.assumptions
    )


def test_pt_files_take_coordinates_from_the_coords_folder(tmp_path):
    clam_tensor(tmp_path, "A", 8)
    clam_coords(tmp_path / "results", "A", grid(8, 512), patch_size=256, downsample=2.0)
    slide = LAYOUT.read(tmp_path, ReadOptions(coords_dir=tmp_path / "results")).slides[0]
    features, coords = slide.load()
    assert not slide.linkable
    assert slide.patch_size == 512
    assert np.array_equal(features, rows(8))
    assert np.array_equal(coords, grid(8, 512))


def test_pt_file_is_used_only_for_a_slide_without_h5(tmp_path):
    clam_features(tmp_path, "A", grid(8, 512))
    clam_tensor(tmp_path, "A", 8)
    clam_tensor(tmp_path, "B", 5)
    assert [(slide.slide_id, slide.path.suffix) for slide in LAYOUT.read(tmp_path).slides] == [
        ("A", ".h5"),
        ("B", ".pt"),
    ]


def test_pt_rows_that_do_not_match_the_coords_file_are_refused(tmp_path):
    clam_tensor(tmp_path, "A", 8)
    clam_coords(tmp_path / "patches", "A", grid(7, 512), patch_size=256, downsample=2.0)
    slide = LAYOUT.read(tmp_path).slides[0]
    with pytest.raises(CohortError, match=r"8 feature rows, but .* has 7 coordinates"):
        slide.load()


class Payload:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_pt_file_with_python_objects_is_never_unpickled(tmp_path, capsys):
    (tmp_path / "pt_files").mkdir()
    torch.save(Payload(), tmp_path / "pt_files" / "A.pt")
    with pytest.raises(StoreError, match="never unpickled"):
        LAYOUT.read(tmp_path)
    assert capsys.readouterr().out == ""
