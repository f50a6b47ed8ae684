import numpy as np
import pytest

from builders.foreign import grid, rows, stamp_features, write_table
from gcemil.bags.foreign.source import ReadOptions
from gcemil.bags.foreign.stamp import LAYOUT, parse_mpp
from gcemil.errors import CohortError, UsageError


def test_t3_micrometres_become_level_zero_pixels_and_half_precision_stays(tmp_path):
    stamp_features(tmp_path, "A", grid(8, 256))
    slide = LAYOUT.read(tmp_path, ReadOptions(mpp=0.5)).slides[0]
    features, coords = slide.load()
    assert slide.patch_size == 512
    assert not slide.linkable
    assert np.array_equal(coords, grid(8, 512))
    assert coords.dtype == np.int64
    assert features.dtype == np.float16
    assert np.array_equal(features, rows(8).astype(np.float16))


def test_without_micrometres_per_pixel_nothing_is_guessed(tmp_path):
    stamp_features(tmp_path, "A", grid(8, 256))
    with pytest.raises(UsageError, match="Give it with --mpp"):
        LAYOUT.read(tmp_path)


def test_every_slide_may_have_its_own_resolution(tmp_path):
    for slide in ("A", "B"):
        stamp_features(tmp_path, slide, grid(8, 256))
    sizes = [
        slide.patch_size
        for slide in LAYOUT.read(tmp_path, ReadOptions(mpp={"A": 0.25, "B": 0.5})).slides
    ]
    assert sizes == [1024, 512]


def test_older_files_say_tile_size(tmp_path):
    stamp_features(tmp_path, "A", grid(8, 128), attributes={"tile_size": 128.0, "unit": "um"})
    assert LAYOUT.read(tmp_path, ReadOptions(mpp=0.5)).slides[0].patch_size == 256


def test_oldest_files_count_pixels_of_224_that_span_256_micrometres(tmp_path):
    stamp_features(tmp_path, "A", grid(8, 224), attributes={"extractor": "ctp"})
    slide = LAYOUT.read(tmp_path, ReadOptions(mpp=0.5)).slides[0]
    assert slide.patch_size == 512
    assert np.array_equal(slide.load()[1], grid(8, 512))


def test_coordinates_without_a_unit_are_refused(tmp_path):
    stamp_features(tmp_path, "A", grid(8, 100), attributes={})
    with pytest.raises(CohortError, match=r"its stride is 100.0, so its coordinates have no unit"):
        LAYOUT.read(tmp_path, ReadOptions(mpp=0.5))


def test_nested_files_are_slides_by_their_own_names(tmp_path):
    stamp_features(tmp_path / "uni2-0a1b2c3d" / "batch1", "A.svs", grid(8, 256))
    folder = LAYOUT.read(tmp_path, ReadOptions(mpp=0.5))
    assert folder.slides[0].slide_id == "A"
    assert folder.encoder == "uni2"
    assert any("taken off 1 ids" in line for line in folder.assumptions)


def test_resolution_is_typed_as_a_number_or_as_a_table(tmp_path):
    table = write_table(tmp_path / "mpp.csv", "slide_id,mpp", "A.svs,0.25", "B.svs,0.5")
    assert parse_mpp("0.5") == 0.5
    assert parse_mpp(str(table)) == {"A": 0.25, "B": 0.5}
