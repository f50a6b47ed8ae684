"""What can go wrong with a batch of slides: each fault is a clear line, nothing is half-written, the rest is done."""

import errno
from pathlib import Path

import pytest

from builders.slides import glass, tissue_image, write_slide
from gcemil.features import patching
from gcemil.features.patching import PatchingRules, patch_slides, patches_path, read_patch_file
from gcemil.slides.grid import PatchSettings


@pytest.fixture
def batch(tmp_path):
    """Two good slides, one before and one after whatever a test adds."""
    for name in ("a", "z"):
        write_slide(tmp_path / "slides" / f"{name}.tif")
    return tmp_path


def done(folder: Path):
    """Slides with whole coordinate files."""
    files = sorted((folder / "out").rglob("*_patches.h5"))
    return [path.name.removesuffix("_patches.h5") for path in files if len(read_patch_file(path)) == 2]


def fault(folder: Path, rules: PatchingRules | None = None):
    """The one line about the bad slide, once the good ones are done and nothing is half-written."""
    report = patch_slides([folder / "slides"], folder / "out", rules)
    (problem,) = report.problems
    assert done(folder) == ["a", "z"]
    assert not list((folder / "out").rglob("*.partial"))
    assert not patches_path(folder / "out", PatchSettings(), problem.slide_id).exists()
    assert "\n" not in problem.message
    assert (folder / "out" / "contact_sheets" / "sheet_0.jpg").is_file()
    return problem


def test_a_slide_without_tissue(batch):
    write_slide(batch / "slides" / "m.tif", glass())
    problem = fault(batch)
    assert problem.status == "no tissue"
    assert "The segmenter found no tissue" in problem.message
    # The picture is there to be looked at.
    assert (batch / "out" / "contours" / "m.jpg").is_file()


def test_a_library_that_breaks_in_its_own_way(batch, monkeypatch):
    write_slide(batch / "slides" / "m.tif")
    whole = patching.find_tissue

    def breaking(slide, settings):
        if slide.name == "m.tif":
            raise ZeroDivisionError("no such thing")
        return whole(slide, settings)

    monkeypatch.setattr(patching, "find_tissue", breaking)
    assert fault(batch).message.endswith("m.tif: ZeroDivisionError: no such thing")


def test_a_full_disk_while_coordinates_are_written(batch, monkeypatch):
    write_slide(batch / "slides" / "m.tif")
    whole = Path.replace

    def failing(path, target):
        if path.name.startswith(".m_patches"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    assert "No space left on device" in fault(batch).message


@pytest.mark.parametrize("step", ["find_tissue", "draw_kept_tissue", "write_patch_file"])
def test_an_interrupted_run_goes_on_where_it_stopped(batch, monkeypatch, step):
    write_slide(batch / "slides" / "m.tif", tissue_image(seed=1))
    whole = getattr(patching, step)
    calls = []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(patching, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            patch_slides([batch / "slides"], batch / "out")
    assert done(batch) == ["a"]
    assert not list((batch / "out").rglob("*.partial"))

    report = patch_slides([batch / "slides"], batch / "out")
    assert [slide.status for slide in report.slides] == ["already done", "patched", "patched"]
    assert done(batch) == ["a", "m", "z"]
