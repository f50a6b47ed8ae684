"""A continuous biomarker from the label table to the viewer, on a small cohort, and what is refused on the way."""

import csv
import json
import shutil
from functools import partial

import numpy as np
import pytest

from builders.commands import answer, refused, succeeded
from builders.foreign import grid, trident_features, write_table
from builders.viewer import opened, visitor
from gcemil.bags.cohort import Cohort
from gcemil.errors import CohortError
from gcemil.runs.checkpoint import load_network
from gcemil.simulation.simulate import simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A simulated cohort as somebody else's features and table, imported, split and trained on."""
    folder = tmp_path_factory.mktemp("regression")
    simulated = simulate("biomarker", folder / "simulated", size="tiny", slides=30)
    rows = (f"{row.slide_id},{row.case_id},{row.value}" for row in simulated.slides)
    table = write_table(folder / "labels.csv", "slide_id,case_id,score", *rows)
    shutil.copytree(simulated.folder / "features", folder / "features")
    succeeded(
        *(
            f"import {folder}/features --labels {table} --task regression --out {folder}/cohort"
        ).split()
    )
    for name in ("anchors.h5", "anchor_pairs.h5"):
        shutil.copy(simulated.folder / name, folder / "cohort" / name)
    shutil.copytree(simulated.folder / "truth", folder / "cohort" / "truth")
    printed = succeeded("split", folder / "cohort", "--folds", 3)
    assert "mean value" in " ".join(printed.split())
    run = f"train {folder}/cohort --folds 0,1 --jobs 1 --epochs 3 --set min_steps=1".split()
    succeeded(*run, "--out", folder / "gce")
    succeeded(*run, "--no-gce", "--out", folder / "host")
    return folder


def test_the_values_are_those_of_the_table(folder):
    cohort, simulated = Cohort.load(folder / "cohort"), Cohort.load(folder / "simulated")
    assert (cohort.card.task, cohort.n_outputs, cohort.bag_unit) == ("regression", 1, "slide")
    assert {row.slide_id: row.value for row in cohort.slides} == {
        row.slide_id: row.value for row in simulated.slides
    }


def test_predictions_are_written_in_the_unit_of_the_labels(folder):
    rows = read_rows(folder / "gce" / "fold_0" / "predictions.csv")
    assert set(rows[0]) == {"slide_id", "case_id", "split", "target", "value"}
    labels = np.array([row.value for row in Cohort.load(folder / "cohort").slides])
    values = np.array([float(row["value"]) for row in rows])
    assert labels.min() - labels.std() < values.mean() < labels.max() + labels.std()
    network, meta = load_network(folder / "gce" / "fold_0" / "checkpoint.safetensors")
    assert network.label_scale == (meta["label_mean"], meta["label_deviation"])
    metrics = json.loads((folder / "gce" / "fold_0" / "metrics.json").read_text())
    assert set(metrics["gce"]) == {"r2", "pearson", "spearman", "mae"}
    tested = [row for row in rows if row["split"] == "test"]
    errors = [abs(float(row["target"]) - float(row["value"])) for row in tested]
    assert metrics["gce"]["mae"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_evaluation_repeats_the_metrics(folder):
    before = json.loads((folder / "gce" / "summary.json").read_text())
    assert json.loads(succeeded("evaluate", folder / "gce", "--json")) == before


def test_a_slide_is_predicted_and_explained(folder, tmp_path):
    slide, *_ = sorted((folder / "cohort" / "features").glob("*.h5"))
    (found,) = answer("predict", folder / "gce", slide, "--out", tmp_path / "ev")
    assert np.isfinite([found["value"], found["host_value"], found["evidence_value"]]).all()
    row = next(
        row
        for row in read_rows(folder / "gce" / "fold_0" / "predictions.csv")
        if row["split"] == "test"
    )
    succeeded(
        "explain",
        folder / "gce",
        "--slide",
        row["slide_id"],
        "--folds",
        "0",
        "--out",
        tmp_path / "one",
    )
    certificate = json.loads((tmp_path / "one" / "certificate.json").read_text())
    assert certificate["output_name"] == "value in standard deviations of the training labels"
    full = certificate["predictions"]["full"]
    network, _ = load_network(folder / "gce" / "fold_0" / "checkpoint.safetensors")
    mean, deviation = network.label_scale
    # Phi counts in training deviations what the prediction says in the unit of the labels.
    assert full["output"] == pytest.approx((full["values"]["value"] - mean) / deviation, abs=1e-4)
    assert full["values"]["value"] == pytest.approx(float(row["value"]), abs=1e-3)
    message = refused("explain", folder / "gce", "--slide", row["slide_id"], "--class", "value")
    assert "has no classes to explain" in message


def test_diagnostics_report_figures_and_viewer(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "gce", run)
    names = "snr,failures,significance"
    succeeded("diagnose", run, "--against", folder / "host", "--only", names, "--folds", "0")
    rows = json.loads((run / "fold_0" / "diagnostics" / "snr.json").read_text())["rows"]
    own = next(row for row in rows if row["labels"]["rule"] == "evidence")
    assert own["values"]["full_kept_gap"] >= 0
    assert own["values"].get("keep_only_effect") is None
    page = tmp_path / "report.html"
    succeeded("report", run, "--against", folder / "host", "--out", page)
    text = page.read_text()
    assert "no better than the mean of the labels" in text
    for words in ("Prediction against label", "Spearman", "95 % interval", "predicted"):
        assert words in text
    written = answer("figures", run, "--out", tmp_path / "figures", "--format", "svg")["files"]
    assert {"predicted_values.svg", "metrics.tex"} <= {path.rpartition("/")[2] for path in written}
    client = visitor(opened(run))
    described = client.get("/api/slides").json()
    shown = {row["slide"]: (row["label"], row["prediction"]) for row in described["rows"]}
    for row in read_rows(run / "fold_0" / "predictions.csv"):
        if row["split"] == "test":
            assert shown[row["slide_id"]] == (
                f"{float(row['target']):.3g}",
                f"{float(row['value']):.3g}",
            )
    assert client.get(f"/api/slides/{described['first']}").status_code == 200


def test_a_foreign_model_is_audited_by_its_r2(folder, tmp_path, monkeypatch):
    (tmp_path / "lab_value.py").write_text(
        "def burden(features):\n    return features.mean(dim=0)[:1]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    # The audit writes audit.json where it runs.
    monkeypatch.chdir(tmp_path)
    found = answer("audit", folder / "cohort", "--model", "lab_value:burden", "--repeats", 1)
    assert "r2" in found["rows"][0]["values"]


def test_a_host_is_frozen_with_its_own_scale(folder, tmp_path):
    succeeded(
        "train", folder / "cohort", "--host-weights", folder / "host", "--freeze-host", "--folds", "0", "--out", tmp_path / "run"
    )  # fmt: skip
    frozen, _ = load_network(tmp_path / "run" / "fold_0" / "checkpoint.safetensors")
    given, _ = load_network(folder / "host" / "fold_0" / "checkpoint.safetensors")
    assert frozen.label_scale == given.label_scale
    assert (tmp_path / "run" / "fold_0" / "predictions.csv").read_text() == (
        folder / "host" / "fold_0" / "predictions.csv"
    ).read_text()


def read_rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


# What a table cannot be


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    for number in range(8):
        trident_features(folder / "job", f"S{number}", grid(6, 512))
    return folder / "job"


def import_values(job, tmp_path, *values, run=partial(refused, error=CohortError)):
    rows = [f'S{number},"{value}"' for number, value in enumerate(values)]
    table = write_table(tmp_path / "labels.csv", "slide_id,score", *rows)
    arguments = ("--labels", table, "--target", "score", "--task", "regression")
    return run("import", job, *arguments, "--out", tmp_path / "cohort")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["1.5", "high", "2", "3", "4", "5", "6", "7"], "labels.csv: slide 'S1' has 'high' in 'score', which is not a number."),
        (["1.5", "inf", "2", "3", "4", "5", "6", "7"], "labels.csv: slide 'S1' has 'inf' in 'score'. Give a finite number"),
        (["2.5"] * 8, "labels.csv: slides: all 8 slides have the value 2.5, so there is nothing to predict. Name another column"),
        ([""] * 8, "labels.csv: no row has a usable target (slide 'S0': no label in 'score')"),
    ],
)  # fmt: skip
def test_a_column_that_is_no_measurement_is_refused(job, tmp_path, values, words):
    assert words in import_values(job, tmp_path, *values)
    assert not (tmp_path / "cohort").exists()


def test_slides_without_a_value_are_left_out_and_named(job, tmp_path):
    report = import_values(job, tmp_path, "1,5", "", "2,25", "3", "4", "5", "6", "7", run=answer)
    assert report["n_slides"] == 7
    assert report["excluded"] == ["slide 'S1': no label in 'score'"]
    assert any("decimal commas" in line for line in report["assumptions"])
    assert Cohort.load(tmp_path / "cohort").slides[0].value == 1.5


def test_measurements_without_a_task_are_pointed_to_regression(job, tmp_path):
    rows = [f"S{number},{number}.5" for number in range(8)] + ["S8,9.5"]
    shutil.copytree(job, tmp_path / "job")
    trident_features(tmp_path / "job", "S8", grid(6, 512))
    table = write_table(tmp_path / "labels.csv", "slide_id,label", *rows)
    message = refused(
        "import", tmp_path / "job", "--labels", table, "--out", tmp_path / "no", error=CohortError
    )
    assert "Predict it with --task regression" in message


def test_a_damaged_value_in_the_cohort_is_named(folder, tmp_path):
    shutil.copytree(folder / "cohort", tmp_path / "cohort", symlinks=True)
    table = tmp_path / "cohort" / "slides.csv"
    lines = table.read_text().splitlines()
    lines[1] = lines[1].rpartition(",")[0] + ",nan"
    table.write_text("\n".join(lines))
    message = refused("train", tmp_path / "cohort", "--out", tmp_path / "run", error=CohortError)
    assert "slides.csv" in message
    assert "value 'nan' is not a finite number. Correct the value, or take the slide out" in message
