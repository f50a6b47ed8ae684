"""A review becomes anchors: truth plays the reviewer, the evidence is fitted again, and the model stays as it is."""

import json

import numpy as np
import pytest

from builders.commands import answer, refused, succeeded
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.config import TrainSettings
from gcemil.errors import InputError, RunError
from gcemil.records import read_evidence
from gcemil.runs.folder import Run
from gcemil.training.run import train_run


@pytest.fixture(scope="module")
def run(classification_runs, tmp_path_factory):
    """Two folds, an epoch each."""
    folder = tmp_path_factory.mktemp("review") / "run"
    train_run(classification_runs.cohort, folder, TrainSettings(epochs=1), folds=[0, 1], jobs=1)
    return folder


def square(left, top, size, name):
    ring = [
        [left, top],
        [left + size, top],
        [left + size, top + size],
        [left, top + size],
        [left, top],
    ]
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {"classification": {"name": name}},
    }


def review_by_truth(cohort, run, slides, folder):
    """True patches are accepted or missed; evidence that is none is rejected."""
    folder.mkdir()
    for number, slide_id in slides:
        evidence = read_evidence(Run(run).fold(number).evidence(slide_id))
        truth = store.read(cohort.truth_file(slide_id), "evidence") > 0
        marks = [
            (row, "accept" if evidence.selected[row] else "missed") for row in np.flatnonzero(truth)
        ]
        marks += [(row, "reject") for row in np.flatnonzero(~truth & evidence.selected)]
        size = int(cohort.slide_patch_size(slide_id, evidence.coords))
        features = [square(*evidence.coords[row].tolist(), size, name) for row, name in marks]
        content = {"type": "FeatureCollection", "features": features}
        (folder / f"{slide_id}.geojson").write_text(json.dumps(content))


def test_a_review_gives_anchors_and_the_model_stays(run, classification_runs, tmp_path):
    cohort = Cohort.load(classification_runs.cohort)
    tested = {number: read_fold(cohort, number).slides("test") for number in (0, 1)}
    label = {row.slide_id: row.label for row in cohort.slides}
    # A slide of each class that one fold tests and the other trains on.
    slides = {
        (number, label[name]): (number, name)
        for number in tested
        for name in tested[number]
        if read_fold(cohort, 1 - number).part_of[name] == "train"
    }
    review_by_truth(cohort, run, slides.values(), tmp_path / "marks")
    out = tmp_path / "reviewed"
    said = succeeded("anchors", "from-review", run, tmp_path / "marks", "--out", out, "--k", 4)
    assert "accepted, LUAD" in said
    assert f"--host-from {run}" in said.replace("\n", "")
    assert (out / "features").is_symlink()
    succeeded(f"train {out} --config {run} --set evidence.anchors=examples --host-from {run} --folds "
f"0,1 --jobs 1 --out {tmp_path / 'after'}")  # fmt: skip
    for number in (0, 1):
        full = [
            Run(one).fold(number).path / "predictions_full.csv" for one in (run, tmp_path / "after")
        ]
        assert full[0].read_bytes() == full[1].read_bytes()
        evidence = read_evidence(Run(tmp_path / "after").fold(number).evidence(tested[number][0]))
        assert {"accepted, LUAD", "accepted, LUSC"} <= set(evidence.prompts)
    compare = ("anchors", "from-review", run, tmp_path / "marks", "--after")
    found = answer(*compare, tmp_path / "after")
    n_reviewed = len({name for _, name in slides.values()})
    assert found["slides"] == sum(map(len, tested.values())) - n_reviewed
    assert {"both_share", "precision", "recall"} <= {row["metric"] for row in found["rows"]}
    same = answer(*compare, run)
    assert all(row["before"] == row["after"] for row in same["rows"])
    assert "without a mark" in succeeded(*compare, tmp_path / "after")


def test_what_gives_no_anchor_is_one_sentence(run, classification_runs, tmp_path):
    cohort = Cohort.load(classification_runs.cohort)
    name = read_fold(cohort, 0).slides("test")[0]
    evidence = read_evidence(Run(run).fold(0).evidence(name))
    path = tmp_path / f"{name}.geojson"
    size = int(cohort.slide_patch_size(name, evidence.coords))
    content = {
        "type": "FeatureCollection",
        "features": [square(*evidence.coords[0].tolist(), size, "reject")],
    }
    path.write_text(json.dumps(content))
    command = ("anchors", "from-review", run, path)
    assert "accept no patch" in refused(*command, "--out", tmp_path / "new", error=InputError)
    assert not (tmp_path / "new").exists()
    assert "is not empty" in refused(
        *command, "--out", classification_runs.cohort, error=InputError
    )
    assert "Give one of them" in refused(*command)
    assert "does not exist. Give a run folder" in refused(
        *command, "--after", tmp_path / "nothing", error=RunError
    )
