"""From slides to a cohort: drawn slides with truth, the real slide, and a slide rewritten from a
photograph of real tissue.
"""

import json
import shutil

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from builders.slides import REAL_SLIDE, glass, tissue_image, write_slide
from gcemil.bags import store, validate
from gcemil.bags.cohort import Cohort
from gcemil.cli.anchors import app as anchors_app
from gcemil.cli.slides import encode
from gcemil.errors import UsageError
from gcemil.features.patching import read_patch_file
from gcemil.simulation.pixels import simulate_pixels
from gcemil.simulation.simulate import simulate


def run(*arguments):
    app = typer.Typer()
    app.command()(encode)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Five small drawn slides, patched and encoded by the command; read-only."""
    folder = tmp_path_factory.mktemp("drawn")
    simulate_pixels("camelyon16", folder, size="tiny", slides=5, patches=(9, 12))
    result = run(folder / "slides", "--out", folder, "--batch-size", 16)
    assert result.exit_code == 0, result.output
    return folder, result


def test_drawn_slides_become_a_cohort_that_loads_and_validates(drawn):
    folder, result = drawn
    assert f"next: gcemil validate {folder}" in result.output
    cohort = Cohort.load(folder)
    assert (cohort.card.encoder, cohort.card.feature_dim) == ("efficientnet_lite0", 1280)
    assert cohort.card.patch_size_level0 == 256
    assert not validate.select_errors(validate.validate(folder))
    for spec in cohort.bags:
        bag = cohort.read_bag(spec)
        assert bag.features.dtype == np.float16
        assert len(bag) >= 5
        # Truth lies beside the features, patch by patch.
        assert len(store.read(cohort.truth_file(spec.bag_id), "evidence")) == len(bag)


def test_a_second_run_does_nothing_and_another_encoder_is_refused(drawn, tmp_path):
    folder, _ = drawn
    copy = shutil.copytree(folder, tmp_path / "copy")
    result = run(copy / "slides", "--out", copy, "--json")
    assert result.exit_code == 0, result.output
    assert {slide["status"] for slide in json.loads(result.output)["slides"]} == {"already done"}
    some = next((copy / "features").glob("*.h5"))
    datasets = {name: store.read(some, name) for name in ("features", "coords")}
    store.write(some, datasets, {"encoder": "uni", "encoder_fingerprint": "other"})
    result = run(copy / "slides", "--out", copy)
    assert isinstance(result.exception, UsageError)
    assert "one cohort never mixes encoders" in str(result.exception)


def test_a_label_table_makes_a_cohort_and_a_bad_slide_is_listed(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        write_slide(tmp_path / "slides" / f"{name}.tif", tissue_image(seed=seed))
    write_slide(tmp_path / "slides" / "empty.tif", glass())
    (tmp_path / "labels.csv").write_text(
        "slide_id,case_id,label\na,1,benign\nb,2,tumor\nempty,3,tumor\n"
    )
    out = tmp_path / "cohort"
    first = run(tmp_path / "slides", "--out", out, "--patch-size", 128)
    assert first.exit_code == 1
    assert "usually given patches of 128 micrometres; these have 64" in first.output
    assert "The segmenter found no tissue" in first.output
    assert "--labels labels.csv" in first.output
    assert not (out / "cohort.yaml").exists()
    second = run(tmp_path / "slides", "--out", out, "--labels", tmp_path / "labels.csv")
    assert "label without features: empty" in second.output
    cohort = Cohort.load(out)
    assert cohort.card.classes == ("benign", "tumor")
    assert [row.slide_id for row in cohort.slides] == ["a", "b"]
    assert not validate.select_errors(validate.validate(out))


def encoded_patches(path, out):
    """Features of the slide, which must be finite and differ between patches."""
    result = run(path, "--out", out)
    assert result.exit_code == 0, result.output
    features = store.read(out / "features" / f"{path.stem}.h5", "features").astype(np.float32)
    (patches,) = out.glob("*_overlap/patches/*.h5")
    assert len(read_patch_file(patches)) == len(features) > 1
    assert np.isfinite(features).all()
    assert features.std(axis=0).max() > 0.05
    return features


@pytest.mark.skipif(
    not REAL_SLIDE.is_file(),
    reason="run 'make install', which takes the slide from a wheel into .cache/slides",
)
def test_a_real_slide_is_patched_and_encoded(tmp_path):
    n_patches, width = encoded_patches(REAL_SLIDE, tmp_path / "out").shape
    assert 38 <= n_patches <= 48
    assert width == 1280
    # Its pixels are a little smaller than half a micrometre.
    coords = store.attributes(tmp_path / "out" / "features" / f"{REAL_SLIDE.stem}.h5", "coords")
    assert coords["patch_size_level0"] == 257


def test_real_stained_tissue_as_a_pyramid_is_patched_and_encoded(tmp_path):
    from importlib.resources import files

    from PIL import Image

    with (files("skimage") / "data" / "ihc.png").open("rb") as file:
        tissue = np.asarray(Image.open(file).convert("RGB"))
    image = np.full((1024, 1024, 3), 245, np.uint8)
    image[:] = image + np.random.default_rng(0).integers(-2, 3, image.shape)
    image[256:768, 256:768] = tissue
    path = write_slide(tmp_path / "ihc.tif", image)
    assert len(encoded_patches(path, tmp_path / "out")) >= 4


def test_the_bridge_of_a_simulated_cohort_is_reported(tmp_path):
    cohort = simulate("bracs", tmp_path / "cohort", size="tiny", slides=8).folder
    result = CliRunner().invoke(anchors_app, ["fit-bridge", str(cohort), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["aligned"]
    assert report["centred_cosine"] > 0.5
    assert json.loads((cohort / "bridge_report.json").read_text())["n_pairs"] == report["n_pairs"]
    (cohort / "anchor_pairs.h5").unlink()
    missing = CliRunner().invoke(anchors_app, ["fit-bridge", str(cohort)])
    assert "training uses prototypes" in str(missing.exception)
