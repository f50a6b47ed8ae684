from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders.slides import PINK, tissue_image, write_plain_tiff, write_slide
from gcemil.bags import store
from gcemil.features.patching import (
    PatchingRules,
    find_slides,
    patch_slides,
    patches_path,
    read_patch_file,
)
from gcemil.slides.grid import PatchSettings

RUN = "20x_256px_0px_overlap"


def one_slide(folder: Path, **options) -> Path:
    return write_slide(folder / "slides" / "a.svs.tif", **options)


def outcome(report):
    (slide,) = report.slides
    return slide


def test_a_slide_becomes_coordinates_and_pictures(tmp_path):
    report = patch_slides([one_slide(tmp_path)], tmp_path / "out")
    assert outcome(report).status == "patched"
    assert outcome(report).slide_id == "a"
    grid = read_patch_file(tmp_path / "out" / RUN / "patches" / "a_patches.h5")
    assert grid.coords.tolist() == [[256, 256], [512, 256]]
    assert grid.mpp == pytest.approx(0.5)
    for name in (
        "thumbnails/a.jpg",
        "contours/a.jpg",
        "contours_geojson/a.geojson",
        "contact_sheets/sheet_0.jpg",
    ):
        assert (tmp_path / "out" / name).stat().st_size > 100
    with Image.open(tmp_path / "out" / "contours" / "a.jpg") as picture:
        assert picture.size == (1024, 768)
        # Kept tissue shows as it is, glass is made pale.
        assert picture.getpixel((400, 400)) == pytest.approx(PINK, abs=25)
    assert not list((tmp_path / "out").rglob("*.partial"))


def test_attributes_are_those_of_trident(tmp_path):
    image = tissue_image(box=(0, 0, 1024, 768))
    patch_slides([one_slide(tmp_path, image=image, mpp=0.25)], tmp_path / "out")
    found = store.attributes(tmp_path / "out" / RUN / "patches" / "a_patches.h5", "coords")
    expected = {
        "patch_size": 256,
        "patch_size_level0": 512,
        "level0_magnification": 40,
        "target_magnification": 20,
        "overlap": 0,
        "name": "a",
        "savetodir": RUN,
        "level0_width": 1024,
        "level0_height": 768,
        "target_mpp": 0.5,
    }
    assert expected.items() <= found.items()


def test_a_second_run_does_nothing(tmp_path):
    slide = one_slide(tmp_path)
    patch_slides([slide], tmp_path / "out")
    path = patches_path(tmp_path / "out", PatchSettings(), "a")
    before = path.stat().st_mtime_ns
    report = patch_slides([slide], tmp_path / "out")
    assert outcome(report).status == "already done"
    assert outcome(report).patches == 2
    assert path.stat().st_mtime_ns == before
    assert not report.problems


def test_other_settings_are_refused_until_forced(tmp_path):
    slide = one_slide(tmp_path)
    patch_slides([slide], tmp_path / "out")
    strict = PatchingRules(patches=PatchSettings(min_tissue=0.9))
    found = outcome(patch_slides([slide], tmp_path / "out", strict))
    assert found.status == "failed"
    assert "was made from other settings" in found.message
    assert "--force" in found.message
    assert outcome(patch_slides([slide], tmp_path / "out", strict, force=True)).status == "patched"


def test_a_mask_takes_the_place_of_the_segmenter(tmp_path):
    masks = tmp_path / "masks"
    masks.mkdir()
    kept = np.zeros((3, 4), np.uint8)
    kept[0, 0] = 255
    Image.fromarray(kept).save(masks / "a.png")
    rules = PatchingRules(masks=masks)
    assert outcome(patch_slides([one_slide(tmp_path)], tmp_path / "out", rules)).patches == 1
    assert read_patch_file(
        patches_path(tmp_path / "out", PatchSettings(), "a")
    ).coords.tolist() == [[0, 0]]


def test_pixel_sizes_fill_in_or_overrule(tmp_path):
    plain = write_plain_tiff(tmp_path / "slides" / "p.tif", tissue_image())
    stated = one_slide(tmp_path)
    filled = patch_slides([plain, stated], tmp_path / "one", PatchingRules(mpp=0.25))
    assert [slide.mpp for slide in filled.slides] == [pytest.approx(0.5), 0.25]
    table = patch_slides(
        [plain, stated], tmp_path / "two", PatchingRules(mpp={"a": 0.25, "p": 0.5})
    )
    assert [slide.mpp for slide in table.slides] == [0.25, 0.5]


def test_a_pixel_size_given_later_concerns_only_the_slide_that_needs_it(tmp_path):
    slides = [write_plain_tiff(tmp_path / "slides" / "p.tif", tissue_image()), one_slide(tmp_path)]

    def statuses(mpp):
        return [
            slide.status
            for slide in patch_slides(slides, tmp_path / "out", PatchingRules(mpp=mpp)).slides
        ]

    assert statuses(None) == ["patched", "failed"]
    assert statuses(0.5) == ["already done", "patched"]
    assert statuses(0.5) == ["already done", "already done"]
    assert statuses(0.4) == ["already done", "failed"]
    report = patch_slides(slides, tmp_path / "out", PatchingRules(mpp=0.4))
    assert "another pixel size (0.5 then, 0.4 now)" in report.problems[0].message


def test_folders_are_searched_and_hidden_files_passed_over(tmp_path):
    for name in ("x/b.tif", "x/y/a.svs", "x/.c.tif", "x/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(find_slides([tmp_path / "x"])) == ["a", "b"]
