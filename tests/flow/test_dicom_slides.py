"""DICOM slides: a real slide rewritten as a DICOM series gives the patches of the picture it was made from."""

import json

import numpy as np
import pytest
from PIL import Image

from builders.commands import gcemil
from builders.dicom import write_dicom
from builders.slides import REAL_SLIDE
from gcemil.bags import store
from gcemil.errors import UsageError
from gcemil.exports.new_slides import find_inputs
from gcemil.features.patching import find_slides
from gcemil.slides.reader import name_slide, open_slide

pytest.importorskip("pydicom", reason="pydicom is not installed: extra dev")
MPP = 0.499


def noise(seed=0):
    return np.random.default_rng(seed).integers(0, 255, (600, 500, 3), dtype=np.uint8)


@pytest.mark.skipif(not REAL_SLIDE.is_file(), reason="make install fetches the real slide")
def test_a_real_slide_as_dicom_gives_the_same_patches(tmp_path):
    with open_slide(REAL_SLIDE) as slide:
        pixels = slide.region(0, 0, 0, *slide.dimensions)
    write_dicom(tmp_path / "scans" / "S-17", pixels, MPP)
    Image.fromarray(pixels).save(tmp_path / "S-17.png", compress_level=1)
    for source, out in (("scans", "dicom"), ("S-17.png", "picture")):
        done = gcemil(
            "encode",
            tmp_path / source,
            "--out",
            tmp_path / out,
            "--patches-only",
            "--mpp",
            MPP,
            "--json",
        )
        assert done.exit_code == 0, done.output
        (slide,) = json.loads(done.stdout)["slides"]
        assert (slide["slide_id"], slide["status"]) == ("S-17", "patched")
    first, second = (
        next((tmp_path / name).rglob("S-17_patches.h5")) for name in ("dicom", "picture")
    )
    assert len(store.read(first, "coords")) > 20
    assert (store.read(first, "coords") == store.read(second, "coords")).all()


def test_a_series_is_one_slide_whose_pixels_and_levels_are_those_of_its_files(tmp_path):
    pixels = noise()
    paths = write_dicom(tmp_path / "A", pixels, MPP, n_levels=3)
    write_dicom(
        tmp_path / "A", noise(1), MPP, n_levels=1, tag=1, kind_of_image="LABEL", name="label"
    )
    assert find_slides([tmp_path]) == {"A": paths[0]}
    assert dict(find_inputs([tmp_path / "A"]).files) == {"A": paths[0]}
    assert name_slide(paths[0]) == "A"
    with open_slide(paths[0]) as slide:
        assert slide.dimensions == (500, 600)
        assert slide.mpp == pytest.approx(MPP)
        assert slide.downsamples == pytest.approx((1, 2, 4), rel=0.01)
        assert (slide.region(0, 0, 0, 500, 600) == pixels).all()


def test_series_of_single_files_are_slides_of_their_own(tmp_path):
    for tag in (1, 2):
        write_dicom(tmp_path, noise(tag), MPP, n_levels=1, tag=tag, name=f"slide{tag}")
    assert list(find_slides([tmp_path])) == ["slide1_0", "slide2_0"]


def test_two_pyramids_in_one_folder_are_refused(tmp_path):
    for tag in (1, 2):
        write_dicom(tmp_path, noise(tag), MPP, tag=tag, name=f"slide{tag}")
    with pytest.raises(UsageError, match="2 DICOM series of several files each.*folder of its own"):
        find_slides([tmp_path])


def test_a_damaged_file_is_named(tmp_path):
    for name in ("a.dcm", "b.dcm"):
        (tmp_path / name).write_bytes(b"no slide")
    done = gcemil("encode", tmp_path, "--out", tmp_path / "out", "--patches-only", "--json")
    assert done.exit_code == 1
    messages = [slide["message"] for slide in json.loads(done.stdout)["slides"]]
    assert len(messages) == 2
    assert all("cannot be opened as a slide" in one for one in messages)
