"""Features as CLAM, TRIDENT, STAMP and torchmil write them, and the slide ids of their names."""

import h5py
import numpy as np
import pytest
import torch

from builders.foreign import (
    clam_coords,
    clam_features,
    clam_tensor,
    grid,
    rows,
    stamp_features,
    torchmil_set,
    trident_features,
    write_table,
)
from gcemil.bags.foreign import clam, stamp, torchmil, trident
from gcemil.bags.foreign.source import ReadOptions, plain_id, plain_ids, tcga_case_id
from gcemil.errors import CohortError, StoreError, UsageError

LAYOUTS = {one.LAYOUT.tool: one.LAYOUT for one in (clam, stamp, torchmil, trident)}


def slide_of(tool, folder, **options):
    """The only slide of a folder, its rows and what was assumed of the folder."""
    read = LAYOUTS[tool].read(folder, ReadOptions(**options))
    return read.slides[0], read.slides[0].load(), " ".join(read.assumptions)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf.svs", "TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf"),
        ("TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf", "TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf"),
        ("HP19.754.A5.ccRCC.scn", "HP19.754.A5.ccRCC"),
        ("folder/a.svs.h5", "a"),
        ("C:\\slides\\b.OME.TIFF", "b"),
        ("v1.2", "v1.2"),
        (".svs", ".svs"),
    ],
)
def test_known_extensions_come_off_and_other_dots_stay(name, expected):
    assert plain_id(name) == expected


def test_ids_that_would_be_one_slide_or_have_no_case_are_refused():
    with pytest.raises(CohortError, match=r"'a.svs' and 'a.tif' would both be slide 'a'"):
        plain_ids(["a.svs", "a.tif"], where="here")
    assert tcga_case_id("TCGA-05-4244-01Z-00-DX1.d4ff32cd") == "TCGA-05-4244"
    with pytest.raises(CohortError, match="'slide_7' is not a TCGA barcode"):
        tcga_case_id("slide_7")


# CLAM


def test_t2_clam_patch_size_is_that_of_the_coords_file_or_else_the_stride(tmp_path):
    clam_features(tmp_path / "F", "A", grid(8, 400))
    slide, _, assumed = slide_of("clam", tmp_path / "F")
    assert slide.patch_size == 400
    assert "inferred from the stride of 1 slides" in assumed
    clam_coords(tmp_path / "patches", "A", grid(8, 400), patch_size=256, downsample=4.0)
    slide, _, assumed = slide_of("clam", tmp_path / "F")
    assert slide.patch_size == 1024
    assert "read from the attributes of the coords files" in assumed


def test_clam_tensors_take_coordinates_from_the_coords_folder(tmp_path):
    clam_tensor(tmp_path, "A", 8)
    clam_coords(tmp_path / "results", "A", grid(8, 512), patch_size=256, downsample=2.0)
    slide, (features, coords), _ = slide_of("clam", tmp_path, coords_dir=tmp_path / "results")
    assert (slide.linkable, slide.patch_size) == (False, 512)
    assert np.array_equal(features, rows(8))
    assert np.array_equal(coords, grid(8, 512))
    clam_coords(tmp_path / "patches", "A", grid(7, 512), patch_size=256, downsample=2.0)
    with pytest.raises(CohortError, match=r"8 feature rows, but .* has 7 coordinates"):
        slide_of("clam", tmp_path)


def test_a_clam_tensor_is_used_only_for_a_slide_without_h5(tmp_path):
    clam_features(tmp_path, "A", grid(8, 512))
    clam_tensor(tmp_path, "A", 8)
    clam_tensor(tmp_path, "B", 5)
    slides = clam.LAYOUT.read(tmp_path).slides
    assert [(one.slide_id, one.path.suffix) for one in slides] == [("A", ".h5"), ("B", ".pt")]


class Payload:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_a_tensor_file_with_python_objects_is_never_unpickled(tmp_path, capsys):
    (tmp_path / "pt_files").mkdir()
    torch.save(Payload(), tmp_path / "pt_files" / "A.pt")
    with pytest.raises(StoreError, match="never unpickled"):
        clam.LAYOUT.read(tmp_path)
    assert capsys.readouterr().out == ""


# TRIDENT


@pytest.mark.parametrize(
    ("attributes", "size", "assumed"),
    [
        ({"level0": 512}, 512, ""),
        ({"level0": None}, 512, ""),
        (
            {"level0": None, "magnifications": ("None", "None")},
            300,
            "inferred from the stride of 1 slides",
        ),
    ],
)
def test_t1_trident_patch_size_is_the_one_at_level_zero(tmp_path, attributes, size, assumed):
    trident_features(tmp_path, "A", grid(8, 300), encoder="conch_v15", **attributes)
    slide, _, lines = slide_of("trident", tmp_path)
    assert (slide.patch_size, slide.encoder) == (size, "conch_v15")
    assert assumed in lines


def test_empty_trident_slides_are_named(tmp_path):
    trident_features(tmp_path, "A", grid(8, 512))
    trident_features(tmp_path, "B", np.zeros((0, 2)))
    assert trident.LAYOUT.read(tmp_path).empty == ("B",)


def test_trident_features_are_of_one_encoder(tmp_path):
    for encoder in ("uni_v1", "conch_v1"):
        path = trident_features(tmp_path, "A", grid(8, 512), encoder=encoder)
    with pytest.raises(UsageError, match="features_conch_v1, .*features_uni_v1"):
        trident.LAYOUT.read(tmp_path)
    assert trident.LAYOUT.read(tmp_path, ReadOptions(encoder="uni_v1")).encoder == "uni_v1"
    trident_features(tmp_path, "B", grid(8, 512), encoder="conch_v1")
    with h5py.File(path, "a") as file:
        file["features"].attrs["encoder"] = "virchow"
    with pytest.raises(CohortError, match=r"several encoders \(conch_v1, virchow\)"):
        trident.LAYOUT.read(tmp_path, ReadOptions(encoder="conch_v1"))


# STAMP


def test_t3_stamp_micrometres_become_pixels_and_half_precision_stays(tmp_path):
    stamp_features(tmp_path, "A", grid(8, 256))
    slide, (features, coords), _ = slide_of("stamp", tmp_path, mpp=0.5)
    assert (slide.linkable, slide.patch_size) == (False, 512)
    assert np.array_equal(coords, grid(8, 512))
    assert (coords.dtype, features.dtype) == (np.int64, np.float16)
    assert np.array_equal(features, rows(8).astype(np.float16))


@pytest.mark.parametrize(
    ("stride", "attributes", "size"),
    [
        (128, {"tile_size": 128.0, "unit": "um"}, 256),
        # The oldest files count pixels of 224 px patches that span 256 micrometres.
        (224, {"extractor": "ctp"}, 512),
    ],
)
def test_older_stamp_files_are_read(tmp_path, stride, attributes, size):
    stamp_features(tmp_path, "A", grid(8, stride), attributes=attributes)
    slide, (_, coords), _ = slide_of("stamp", tmp_path, mpp=0.5)
    assert slide.patch_size == size
    assert np.array_equal(coords, grid(8, size))


def test_stamp_coordinates_need_a_unit_and_a_resolution(tmp_path):
    stamp_features(tmp_path / "new", "A", grid(8, 256))
    with pytest.raises(UsageError, match="Give it with --mpp"):
        stamp.LAYOUT.read(tmp_path / "new")
    stamp_features(tmp_path / "old", "A", grid(8, 100), attributes={})
    with pytest.raises(CohortError, match=r"its stride is 100.0, so its coordinates have no unit"):
        stamp.LAYOUT.read(tmp_path / "old", ReadOptions(mpp=0.5))


def test_nested_stamp_files_have_ids_and_resolutions_of_their_own(tmp_path):
    for slide in ("A.svs", "B"):
        stamp_features(tmp_path / "uni2-0a1b2c3d" / "batch1", slide, grid(8, 256))
    table = write_table(tmp_path / "mpp.csv", "slide_id,mpp", "A.svs,0.25", "B.svs,0.5")
    mpp = stamp.parse_mpp(str(table))
    assert (stamp.parse_mpp("0.5"), mpp) == (0.5, {"A": 0.25, "B": 0.5})
    folder = stamp.LAYOUT.read(tmp_path, ReadOptions(mpp=mpp))
    assert folder.encoder == "uni2"
    assert {one.slide_id: one.patch_size for one in folder.slides} == {"A": 1024, "B": 512}
    assert any("taken off 1 ids" in line for line in folder.assumptions)


# torchmil


def test_torchmil_bags_are_read_with_their_labels(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 512), 1, [0] * 8), "b": (grid(5, 512), 0, [0] * 5)})
    slide, (features, coords), _ = slide_of("torchmil", tmp_path)
    assert (slide.encoder, slide.patch_size) == ("UNI", 512)
    assert np.array_equal(features, rows(8))
    assert np.array_equal(coords, grid(8, 512))
    assert torchmil.read_bag_labels(tmp_path) == {"a": "1", "b": "0"}


def test_torchmil_coordinates_that_count_patches_are_scaled_by_the_patch_size(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 1), 1, [0] * 8)})
    slide, (_, coords), _ = slide_of("torchmil", tmp_path)
    assert slide.patch_size == 512
    assert np.array_equal(coords, grid(8, 512))


def test_plain_parallel_folders_of_h5_are_read(tmp_path):
    arrays = {"features": rows(4), "coords": grid(4, 256), "labels": np.array([1])}
    for name, values in arrays.items():
        (tmp_path / name).mkdir()
        with h5py.File(tmp_path / name / "a.h5", "w") as file:
            file[name] = values
    slide, (features, _), _ = slide_of("torchmil", tmp_path)
    assert np.array_equal(features, rows(4))
    assert slide.patch_size == 256
    assert torchmil.read_bag_labels(tmp_path) == {"a": "1"}


def test_torchmil_patch_labels_become_evidence_in_connected_regions(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 512), 1, [1, 0, 0, 1, 0, 0, 0, 1])})
    truth = torchmil.LAYOUT.read(tmp_path).slides[0].read_truth()
    assert truth["evidence"].tolist() == [1, 0, 0, 1, 0, 0, 0, 1]
    assert truth["region"].tolist() == [1, 0, 0, 2, 0, 0, 0, 2]


def test_two_encoders_of_torchmil_need_a_choice(tmp_path):
    torchmil_set(tmp_path, {"a": (grid(8, 512), 1, [0] * 8)})
    other = tmp_path / "patches_512" / "features" / "features_resnet50_bt"
    other.mkdir()
    np.save(other / "a.npy", rows(8))
    with pytest.raises(UsageError, match="must hold one torchmil features folder"):
        torchmil.LAYOUT.read(tmp_path)
    chosen = torchmil.LAYOUT.read(tmp_path, ReadOptions(encoder="resnet50_bt"))
    assert chosen.encoder == "resnet50_bt"
