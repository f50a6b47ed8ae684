"""What can go wrong with 'gcemil encode': each fault is a clear line, nothing is half-written, the
rest is done.

The encoder is solvable by hand, so that only the batch is tested: the mean colour of a patch.
"""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from builders.encoders import colour_encoder
from builders.slides import (
    damage_level,
    glass,
    tissue_image,
    truncate,
    write_plain_tiff,
    write_slide,
)
from gcemil.bags import store
from gcemil.cli.slides import encode
from gcemil.errors import UsageError
from gcemil.features import extract, patching

LARGE = (1200, 1200)


@pytest.fixture
def batch(tmp_path, monkeypatch):
    """Two good slides before and after those of a test, and an encoder without weights."""
    for name in ("a", "z"):
        write_slide(tmp_path / "slides" / f"{name}.tif")
    monkeypatch.setattr(
        "gcemil.features.encoders.load_encoder", lambda *given, **options: colour_encoder()
    )
    return tmp_path


def run(folder: Path, *options, slides=None):
    app = typer.Typer()
    app.command()(encode)
    given = [slides or folder / "slides", "--out", folder / "out", "--workers", 1, *options]
    return CliRunner().invoke(app, [str(argument) for argument in given])


def outcomes(folder: Path, *options):
    """Exit code, and what the command says of every slide."""
    result = run(folder, *options, "--json")
    return result.exit_code, {
        slide["slide_id"]: slide
        for slide in json.loads(result.output[result.output.index("{") :])["slides"]
    }


def done(folder: Path):
    """Slides with whole features of their two patches."""
    files = sorted((folder / "out" / "features").glob("*.h5"))
    return [
        path.stem for path in files if np.isfinite(store.read(path, "features")).shape == (2, 3)
    ]


def fault(folder: Path, *options):
    """The one line about slide m, once the good ones are done and nothing is half-written."""
    code, found = outcomes(folder, *options)
    assert code == 1
    assert (found["a"]["status"], found["z"]["status"]) == ("encoded", "encoded")
    assert done(folder) == ["a", "z"]
    assert not list((folder / "out").rglob("*.partial"))
    assert not (folder / "out" / "features" / "m.h5").exists()
    assert "\n" not in found["m"]["message"]
    return found["m"]["message"]


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "tpu", "cpu:3"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded(
    batch, monkeypatch, device
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run(batch, "--device", device)
    assert isinstance(result.exception, UsageError)
    assert f"Device '{device}' is not available here, only: cpu" in str(result.exception)
    assert not (batch / "out").exists()


def make_truncated(path):
    truncate(write_slide(path, tissue_image(*LARGE, seed=3)))


def make_unreadable_level(path):
    damage_level(write_slide(path, tissue_image(*LARGE)), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_truncated, "copy it again or leave it out"),
        (Path.touch, "cannot be opened as a slide"),
        (lambda path: write_slide(path, glass()), "The segmenter found no tissue"),
        (make_unreadable_level, "level 1 cannot be read"),
    ],
    ids=["truncated", "empty", "no tissue", "unreadable level"],
)
def test_a_bad_slide_is_one_line(batch, make, message):
    make(batch / "slides" / "m.tif")
    assert message in fault(batch)


def test_a_slide_without_a_pixel_size_needs_it_once(batch):
    write_plain_tiff(batch / "slides" / "m.tif", tissue_image())
    assert "Give it with --mpp" in fault(batch)
    code, found = outcomes(batch, "--mpp", 0.5)
    assert code == 0
    assert [found[name]["status"] for name in "amz"] == ["already done", "encoded", "already done"]
    assert done(batch) == ["a", "m", "z"]


def failing_replace(monkeypatch, start):
    """The disk is full when a file whose hidden name begins so is to appear."""
    whole = Path.replace

    def failing(path, target):
        if path.name.startswith(start):
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, target)

    monkeypatch.setattr(Path, "replace", failing)


@pytest.mark.parametrize("start", [".m.h5", ".m_patches"])
def test_a_full_disk(batch, monkeypatch, start):
    write_slide(batch / "slides" / "m.tif")
    failing_replace(monkeypatch, start)
    message = fault(batch)
    assert "No space left on device" in message
    assert "Free some space" in message


@pytest.mark.parametrize("step", ["encode_patches", "file_fingerprint", "settings_fingerprint"])
def test_an_interrupted_run_goes_on_where_it_stopped(batch, monkeypatch, step):
    write_slide(batch / "slides" / "m.tif", tissue_image(seed=1))
    patching.patch_slides([batch / "slides"], batch / "out")
    whole, calls = getattr(extract, step), []

    def interrupted(*arguments):
        calls.append(arguments)
        # Past the first slide, wherever it is asked.
        if (batch / "out" / "features" / "a.h5").is_file():
            raise KeyboardInterrupt
        return whole(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(extract, step, interrupted)
        assert run(batch).exit_code not in (0, 1)
    assert calls
    assert done(batch) == ["a"]
    assert not list((batch / "out").rglob("*.partial"))
    code, found = outcomes(batch)
    assert code == 0
    assert [found[name]["status"] for name in "amz"] == ["already done", "encoded", "encoded"]
    assert done(batch) == ["a", "m", "z"]
