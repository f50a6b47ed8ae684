"""From slide files to a prediction that encodes few patches: distil, certify, predict, fall back,
and put the cost on record.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from builders.runs import TrainedRuns
from builders.slides import glass, tissue_image, truncate, write_plain_tiff, write_slide
from gcemil.bags import store
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.tables import read_table
from gcemil.cli.predict import predict, prefilter
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.errors import InputError, RunError, UsageError
from gcemil.features.encode_cohort import write_drawn_tables
from gcemil.features.encoders import load_encoder
from gcemil.features.extract import encode_slides
from gcemil.features.patching import find_slides, patch_slides
from gcemil.files import write_table
from gcemil.prefilter.student import PREFILTER_FILE, load_prefilter, save_prefilter
from gcemil.runs.checkpoint import load_tensors, save_tensors
from gcemil.simulation.pixels import simulate_pixels
from gcemil.slides.grid import PatchSettings
from gcemil.slides.reader import open_slide
from gcemil.training.run import train_run

PARTS = ("train", "train", "val", "val", "test", "test")


def invoke(verb, *arguments):
    app = typer.Typer()
    app.command()(verb)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Six drawn slides, one fold trained, its prefilter fitted and timed; read-only."""
    root = tmp_path_factory.mktemp("prefilter")
    cohort, run = root / "cohort", root / "run"
    simulate_pixels("camelyon16", cohort, size="tiny", slides=6, patches=(9, 12))
    slides, encoder = find_slides([cohort / "slides"]), load_encoder("efficientnet_lite0")
    patch_slides(slides.values(), cohort)
    encode_slides(slides, cohort, encoder)
    rows = read_table(cohort / "slides.csv")
    # Every part of the fold needs both classes, which so few drawn slides do not give.
    labelled = [{**row, "label": ("normal", "tumor")[place % 2]} for place, row in enumerate(rows)]
    write_table(cohort / "slides.csv", list(rows[0]), labelled)
    write_drawn_tables(cohort, encoder, PatchSettings())
    parts = [
        {"slide_id": row["slide_id"], "split": part}
        for row, part in zip(labelled, PARTS, strict=True)
    ]
    write_table(cohort / "splits" / "fold_0.csv", ("slide_id", "split"), parts)
    train_run(cohort, run, TrainSettings(evidence=EvidenceSettings(), epochs=2), folds=[0], jobs=1)
    # Two validation slides certify only where a chance of one in two is accepted.
    result = invoke(
        prefilter, run, cohort / "slides", "--risk", 0.9, "--epochs", 2, "--measure", "--json"
    )
    assert result.exit_code == 0, result.output
    return cohort, run, json.loads(result.stdout)


def test_the_prefilter_of_a_fold_is_fitted_and_settled_on_its_validation_slides(drawn):
    _, run, found = drawn
    (report,) = found["folds"]
    assert (report["n_train"], report["n_val"]) == (2, 2)
    fitted = load_prefilter(run / "fold_0" / PREFILTER_FILE)
    assert fitted.keep_rate == report["chosen"]["keep_rate"]
    assert fitted.origin.encoder == "efficientnet_lite0"
    assert [one["keep_rate"] for one in report["ladder"]] == sorted(
        one["keep_rate"] for one in report["ladder"]
    )
    recalls = [one["recall"] for one in report["ladder"]]
    assert recalls == sorted(recalls)


def test_a_certified_slide_encodes_what_is_kept_and_another_encodes_all(drawn, tmp_path):
    cohort, run, _ = drawn
    slide = sorted((cohort / "slides").glob("*.tif"))[5]
    n_patches = len(store.read(cohort / "features" / f"{slide.stem}.h5", "coords"))
    verdicts = {}
    for limit in (1.0, None):
        copied = shutil.copytree(run, tmp_path / f"run_{limit}")
        changed(copied / "fold_0" / PREFILTER_FILE, keep_rate=0.5, doubt_limit=limit)
        result = invoke(
            predict, copied, slide, "--mode", "prefilter", "--json", "--out", tmp_path / f"{limit}"
        )
        assert result.exit_code == 0, result.output
        (verdicts[limit],) = json.loads(result.stdout)
    certified, fallen = verdicts[1.0], verdicts[None]
    assert certified["certified"] is True
    assert (
        certified["n_encoded"]
        == int(np.ceil(0.5 * n_patches))
        < certified["n_patches"]
        == n_patches
    )
    assert fallen["certified"] is False
    assert fallen["n_encoded"] == n_patches
    features = cohort / "features" / f"{slide.stem}.h5"
    (main,) = json.loads(invoke(predict, run, features, "--json").stdout)
    assert fallen["prob_tumor"] == pytest.approx(main["prob_tumor"], abs=1e-6)
    # The evidence that was written lies where the cohort has patches.
    written = store.read(tmp_path / "1.0" / f"{slide.stem}.h5", "coords")
    known = store.read(cohort / "features" / f"{slide.stem}.h5", "coords")
    assert len(written) == certified["n_encoded"]
    assert {tuple(row) for row in written.tolist()} < {tuple(row) for row in known.tolist()}
    assert [known[row].tolist() for row in certified["evidence"]] == certified["evidence_coords"]


def test_a_slide_that_is_not_certified_gets_the_main_prediction_of_the_run(drawn, tmp_path):
    cohort, run, _ = drawn
    copied = shutil.copytree(run, tmp_path / "run")
    checkpoint = copied / "fold_0" / "checkpoint.safetensors"
    tensors, meta = load_tensors(checkpoint)
    # A head with a vote, so that the main prediction is not that of the host.
    tensors["head.weight"] = torch.tensor(0.5)
    tensors["head.bias"] = tensors["head.bias"] + torch.tensor([0.0, 3.0])
    save_tensors(checkpoint, tensors, meta)
    changed(
        copied / "fold_0" / PREFILTER_FILE, doubt_limit=None, model_hash=content_hash(checkpoint)
    )
    slide = sorted((cohort / "slides").glob("*.tif"))[5]
    features = cohort / "features" / f"{slide.stem}.h5"
    (fallen,) = json.loads(invoke(predict, copied, slide, "--mode", "prefilter", "--json").stdout)
    (main,) = json.loads(invoke(predict, copied, features, "--json").stdout)
    assert fallen["certified"] is False
    assert main["prob_tumor"] != pytest.approx(main["host_prob_tumor"], abs=1e-3)
    assert fallen["prob_tumor"] == pytest.approx(main["prob_tumor"], abs=1e-6)


def changed(path, **changes):
    """The same prefilter with something else settled."""
    save_prefilter(path, replace(load_prefilter(path), **changes))


def test_a_folder_of_slides_and_features_is_predicted_and_one_bad_slide_is_a_line(drawn, tmp_path):
    cohort, run, _ = drawn
    slides = sorted((cohort / "slides").glob("*.tif"))
    folder, out = tmp_path / "mixed", tmp_path / "out"
    folder.mkdir()
    shutil.copy(slides[4], folder)
    shutil.copy(cohort / "features" / f"{slides[5].stem}.h5", folder)
    shutil.copy(slides[3], folder / "broken.tif")
    truncate(folder / "broken.tif", 0.1)
    command = (predict, run, folder, "--out", out, "--explain", "--heatmap", "gate", "--json")
    result = invoke(*command)
    assert result.exit_code == 1, result.exception
    found = {one["slide_id"]: one for one in json.loads(result.stdout)}
    assert {name: one["status"] for name, one in found.items()} == {
        slides[4].stem: "done",
        slides[5].stem: "done",
        "broken": "failed",
    }
    assert "broken.tif" in found["broken"]["reason"]
    for slide in slides[4:]:
        names = {path.name for path in (out / slide.stem).iterdir()}
        assert {
            "certificate.json",
            "regions.geojson",
            "heatmap_gate.ome.tif",
            "overlay.png",
        } <= names
    # A slide file knows its pixels, and the map is as large as the slide.
    with (
        open_slide(slides[4]) as reader,
        open_slide(out / slides[4].stem / "heatmap_gate.ome.tif") as layer,
    ):
        width = reader.dimensions[0] * reader.mpp
        assert layer.dimensions[0] * layer.mpp == pytest.approx(width, rel=0.02)
    again = {one["slide_id"]: one["status"] for one in json.loads(invoke(*command).stdout)}
    assert again == {
        slides[4].stem: "already done",
        slides[5].stem: "already done",
        "broken": "failed",
    }


def test_what_cannot_be_filtered_is_refused_with_the_remedy(drawn, tmp_path):
    cohort, run, _ = drawn
    features = next((cohort / "features").glob("*.h5"))
    error = invoke(predict, run, features, "--mode", "prefilter").exception
    assert isinstance(error, UsageError)
    assert "Give the slide itself, or predict with --mode discrete" in str(error)
    no_mpp = write_plain_tiff(tmp_path / "plain.tif", tissue_image())
    assert "Give it with --mpp" in str(
        invoke(predict, run, no_mpp, "--mode", "prefilter").exception
    )
    stated = invoke(predict, run, no_mpp, "--mode", "prefilter", "--mpp", 0.5)
    assert stated.exit_code == 0
    assert "encoded" in stated.output
    empty = write_slide(tmp_path / "empty.tif", glass())
    assert "no patch with enough tissue" in str(
        invoke(predict, run, empty, "--mode", "prefilter").exception
    )
    bare = shutil.copytree(run, tmp_path / "bare")
    (bare / "fold_0" / PREFILTER_FILE).unlink()
    error = invoke(predict, bare, no_mpp, "--mode", "prefilter").exception
    assert isinstance(error, UsageError)
    assert "Fit it with 'gcemil prefilter" in str(error)


def test_a_prefilter_of_another_model_is_refused(drawn, tmp_path):
    cohort, run, _ = drawn
    other = shutil.copytree(run, tmp_path / "other")
    changed(other / "fold_0" / PREFILTER_FILE, model_hash="another")
    slide = next((cohort / "slides").glob("*.tif"))
    error = invoke(predict, other, slide, "--mode", "prefilter").exception
    assert isinstance(error, RunError)
    assert "was distilled from another model" in str(error)


def test_simulated_features_have_no_encoder_to_match(classification_runs: TrainedRuns, tmp_path):
    slide = write_slide(tmp_path / "slide.tif")
    error = invoke(prefilter, classification_runs.gce, slide).exception
    assert isinstance(error, InputError)
    assert "simulated or imported features" in str(error)
    error = invoke(predict, classification_runs.gce, slide, "--mode", "full").exception
    assert "simulated or imported features" in str(error)
    error = invoke(prefilter, classification_runs.host, slide).exception
    assert "has no selector to imitate" in str(error)
