"""Extraction with an encoder solvable by hand: the mean colour of a patch."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from builders.encoders import colour_encoder
from builders.slides import tissue_image, write_slide
from gcemil.bags import store
from gcemil.bags.cohort import find_slide_file
from gcemil.bags.foreign import trident
from gcemil.errors import UsageError
from gcemil.features import extract
from gcemil.features.encode_cohort import link_slides
from gcemil.features.extract import EncodeSettings, encode_patches, encode_slides, feature_file
from gcemil.features.patching import find_slides, patch_slides, patches_path, read_patch_file
from gcemil.slides.grid import PatchSettings, read_patch
from gcemil.slides.reader import open_slide


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """Three patched slides of two patches each; tests work on copies."""
    folder = tmp_path_factory.mktemp("patched")
    for seed, name in enumerate("amz"):
        write_slide(folder / "slides" / f"{name}.tif", tissue_image(seed=seed))
    patch_slides([folder / "slides"], folder)
    return folder


@pytest.fixture
def batch(patched, tmp_path):
    return Path(shutil.copytree(patched, tmp_path / "batch"))


def encoded(folder: Path, encoder=None, settings=None, **options):
    slides = find_slides([folder / "slides"])
    return encode_slides(slides, folder, encoder or colour_encoder(), settings, **options)


def statuses(report):
    return [slide.status for slide in report.slides]


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 1), (1, 3), (8, 2)])
def test_features_are_the_patches_in_the_order_of_their_coordinates(batch, batch_size, workers):
    settings = EncodeSettings(batch_size=batch_size, workers=workers, dtype="float32")
    report = encoded(batch, settings=settings)
    assert statuses(report) == ["encoded"] * 3
    for name in "amz":
        grid = read_patch_file(patches_path(batch, PatchSettings(), name))
        with open_slide(batch / "slides" / f"{name}.tif") as slide:
            means = [
                read_patch(slide, grid, row, patch_px=32).mean(axis=(0, 1)) / 255
                for row in range(2)
            ]
        path = feature_file(batch, name)
        np.testing.assert_allclose(store.read(path, "features"), means, atol=1e-5)
        np.testing.assert_array_equal(store.read(path, "coords"), grid.coords)


def test_files_say_what_made_them_and_trident_readers_understand_them(batch):
    encoded(batch)
    path = feature_file(batch, "a")
    found = store.attributes(path)
    assert (found["encoder"], found["encoder_fingerprint"], found["precision"]) == (
        "colour",
        "one",
        "float32",
    )
    assert store.describe(path)["features"].dtype == np.float16
    folder = trident.LAYOUT.read(batch / "features")
    assert folder.encoder == "colour"
    assert [slide.patch_size for slide in folder.slides] == [256, 256, 256]
    assert (batch / "encoding.csv").read_text().splitlines()[1] == "a,encoded,2,"


def test_chosen_rows_alone_can_be_encoded(batch):
    grid = read_patch_file(patches_path(batch, PatchSettings(), "a"))
    with open_slide(batch / "slides" / "a.tif") as slide:
        whole = encode_patches(slide, grid, colour_encoder())
        second = encode_patches(slide, grid, colour_encoder(), rows=np.array([1]))
        nothing = encode_patches(slide, grid, colour_encoder(), rows=np.array([], dtype=np.int64))
    np.testing.assert_allclose(second, whole[1:], rtol=1e-5)
    assert nothing.shape == (0, 3)


def test_a_second_run_reads_no_pixel(batch):
    encoded(batch)
    table = (batch / "encoding.csv").read_bytes()
    encoder = colour_encoder()
    assert statuses(encoded(batch, encoder)) == ["already done"] * 3
    assert encoder.network.calls == 0
    assert (batch / "encoding.csv").read_bytes() == table


def test_one_folder_never_mixes_encoders(batch):
    encoded(batch)
    with pytest.raises(
        UsageError, match="features of 'colour' with other weights.*never mixes encoders"
    ):
        encoded(batch, colour_encoder(fingerprint="two"))
    # All slides at once may be done again; some of them would mix.
    other = colour_encoder("other", "two")
    with pytest.raises(UsageError, match="never mixes encoders"):
        encode_slides({"a": batch / "slides" / "a.tif"}, batch, other, force=True)
    assert statuses(encoded(batch, other, force=True)) == ["encoded"] * 3
    assert store.attributes(feature_file(batch, "m"))["encoder"] == "other"


def fault(folder: Path, **options):
    """The one line about slide m, once the others are done and nothing is half-written."""
    report = encoded(folder, **options)
    (problem,) = report.problems
    assert report.usable == ("a", "z")
    assert not list(folder.rglob("*.partial"))
    assert not feature_file(folder, "m").exists()
    assert "\n" not in problem.message
    return problem


def test_a_slide_that_was_exchanged_is_a_line(batch):
    write_slide(batch / "slides" / "m.tif", tissue_image(seed=9))
    assert "was made from another file" in fault(batch).message


def test_a_slide_that_breaks_while_it_is_read_is_a_line(batch, monkeypatch):
    whole = extract.read_patches

    def breaking(slide, *arguments, **options):
        if slide.name == "m.tif":
            raise ZeroDivisionError("no such thing")
        return whole(slide, *arguments, **options)

    monkeypatch.setattr(extract, "read_patches", breaking)
    assert fault(batch).message.endswith("m.tif: ZeroDivisionError: no such thing")


def test_features_too_large_for_float16_are_told(batch):
    report = encoded(batch, colour_encoder(scale=1e6))
    assert statuses(report) == ["failed"] * 3
    assert "Use --dtype float32" in report.problems[0].message


def test_slides_are_linked_into_the_cohort_and_those_of_several_files_are_not(tmp_path):
    scans = tmp_path / "scans"
    scans.mkdir()
    for name in ("A.svs", "B.MRXS", "C.tif"):
        (scans / name).write_bytes(b"slide")
    slides = {"A": scans / "A.svs", "B": scans / "B.MRXS", "C": scans / "C.tif"}
    out = tmp_path / "cohort"
    (out / "slides").mkdir(parents=True)
    (out / "slides" / "C.svs").write_bytes(b"mine")
    link_slides(slides, out)
    assert find_slide_file(out, "A").resolve() == scans / "A.svs"
    assert find_slide_file(out, "B") is None
    assert find_slide_file(out, "C").read_bytes() == b"mine"
    # A source that moved is linked anew.
    (scans / "A.svs").rename(tmp_path / "A.svs")
    link_slides({"A": tmp_path / "A.svs"}, out)
    assert find_slide_file(out, "A").resolve() == tmp_path / "A.svs"
