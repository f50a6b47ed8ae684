"""A review there and back: evidence to QuPath, marks from QuPath, figures in the run, its report and its tables."""

import json
import shutil

import numpy as np
import pytest

from builders.commands import gcemil
from gcemil.bags.cohort import Cohort
from gcemil.errors import InputError, RunError, UsageError
from gcemil.findings import read_finding
from gcemil.records import read_evidence
from gcemil.runs.folder import Run


@pytest.fixture
def run(classification_runs, tmp_path):
    shutil.copytree(classification_runs.gce, tmp_path / "run")
    return tmp_path / "run"


def recovered(run, count):
    """Evidence of the first test slides."""
    files = sorted((Run(run).fold(0).path / "evidence").glob("*.h5"))[:count]
    return {path.stem: read_evidence(path) for path in files}


def tile(cohort, coords, name):
    left, top = (int(value) for value in coords)
    size = int(cohort.patch_size)
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
        "properties": {"objectType": "annotation", "classification": {"name": name}},
    }


def write_marks(cohort, folder, slide_id, coords, **marks):
    objects = [
        tile(cohort, coords[patch], name) for name, patches in marks.items() for patch in patches
    ]
    folder.mkdir(exist_ok=True)
    (folder / f"{slide_id}.geojson").write_text(
        json.dumps({"type": "FeatureCollection", "features": objects})
    )


def row_of(finding, rule, network="wrapped"):
    return next(
        row for row in finding.rows if row.labels == {"rule": rule, "network": network}
    ).values


def test_evidence_that_comes_back_accepted_is_right_everywhere(run, tmp_path):
    slide_id, evidence = next(iter(recovered(run, 1).items()))
    assert gcemil("explain", run, "--slide", slide_id, "--out", tmp_path / "out").exit_code == 0
    content = json.loads((tmp_path / "out" / "evidence.geojson").read_text())
    for one in content["features"]:
        one["properties"]["classification"]["name"] = "accept"
    (tmp_path / f"{slide_id}.geojson").write_text(json.dumps(content))
    result = gcemil("review", run, tmp_path / f"{slide_id}.geojson")
    assert result.exit_code == 0, result.output
    found = row_of(read_finding(run / "diagnostics" / "review.json"), "evidence")
    assert (found["review_precision"], found["review_recall"], found["judged_share"]) == (1, 1, 1)
    assert found["judged_patches"] == evidence.selected.sum()


def test_figures_are_those_counted_by_hand_and_reach_report_and_tables(
    run, classification_runs, tmp_path
):
    cohort, records = Cohort.load(classification_runs.cohort), recovered(run, 2)
    expected = {"evidence": np.zeros(4), "attention": np.zeros(4)}
    for slide_id, evidence in records.items():
        inside, outside = evidence.indices, np.flatnonzero(~evidence.selected)
        marks = {
            "accept": inside[::2],
            "reject": np.append(inside[1::2], outside[:3]),
            "missed": outside[3:8],
        }
        write_marks(cohort, tmp_path / "marks", slide_id, evidence.coords, **marks)
        positive = np.append(marks["accept"], marks["missed"])
        attended = np.argsort(-evidence.scores, kind="stable")[: len(inside)]
        for rule, chosen in (("evidence", inside), ("attention", attended)):
            good, bad = np.isin(positive, chosen).sum(), np.isin(marks["reject"], chosen).sum()
            expected[rule] += (good, bad, len(positive) - good, len(marks["reject"]) - bad)
    result = gcemil("review", run, tmp_path / "marks", "--json")
    assert result.exit_code == 0, result.output
    finding = read_finding(run / "diagnostics" / "review.json")
    assert json.loads(result.output)["rows"] == json.loads(json.dumps(finding.to_json()["rows"]))
    for rule, (both, chosen_only, positive_only, neither) in expected.items():
        total = both + chosen_only + positive_only + neither
        chance = (both + positive_only) * (both + chosen_only) + (chosen_only + neither) * (
            positive_only + neither
        )
        kappa = ((both + neither) / total - chance / total**2) / (1 - chance / total**2)
        found = row_of(finding, rule)
        assert found["review_precision"] == pytest.approx(both / (both + chosen_only))
        assert found["review_recall"] == pytest.approx(both / (both + positive_only))
        assert found["review_kappa"] == pytest.approx(kappa)
        assert found["judged_patches"] == total
    assert any("attention is that of the plain host" in note for note in finding.notes)
    assert gcemil("report", run, "--out", tmp_path / "page").exit_code == 0
    assert "A reviewer&#39;s marks" in (tmp_path / "page" / "report.html").read_text()
    printed = gcemil("tables", run)
    assert "## review: A reviewer's marks against what each rule chose" in printed.output, (
        printed.output
    )
    assert "## review_slides" in printed.output


def test_reviews_of_the_viewer_are_taken_by_default(run):
    (slide_id, evidence), *_ = recovered(run, 1).items()
    chosen = evidence.indices.tolist()
    marks = [{"patch": patch, "mark": "accept", "in_evidence": True} for patch in chosen]
    folder = Run(run).fold(0).path / "reviews"
    folder.mkdir()
    review = {"slide_id": slide_id, "n_patches": len(evidence.gates), "marks": marks}
    (folder / f"{slide_id}.json").write_text(json.dumps(review))
    assert gcemil("review", run).exit_code == 0
    found = row_of(read_finding(run / "diagnostics" / "review.json"), "evidence")
    assert (found["review_precision"], found["judged_patches"]) == (1, len(chosen))


def test_slides_that_no_fold_tests_are_listed_and_the_command_exits_with_1(
    run, classification_runs, tmp_path
):
    cohort, records = Cohort.load(classification_runs.cohort), recovered(run, 1)
    for slide_id, evidence in records.items():
        write_marks(cohort, tmp_path / "marks", slide_id, evidence.coords, accept=[0])
    shutil.copy(next((tmp_path / "marks").iterdir()), tmp_path / "marks" / "stranger.geojson")
    result = gcemil("review", run, tmp_path / "marks")
    assert result.exit_code == 1
    assert "Left out: stranger, no slide of the cohort." in result.output


def test_marks_that_cannot_be_used_are_one_sentence_and_nothing_is_written(run, tmp_path):
    (slide_id, _), *_ = recovered(run, 1).items()
    path = tmp_path / f"{slide_id}.geojson"
    cases = [
        ("{", InputError, "not valid JSON"),
        ('{"n_patches": 3, "marks": []}', RunError, "is of 3 patches, and the slide has"),
        (
            '{"n_patches": 3, "marks": [{"patch": "x"}]}',
            RunError,
            "It is not a review of this slide",
        ),
        ('{"type": "FeatureCollection", "features": []}', InputError, "holds no mark"),
    ]
    for text, kind, message in cases:
        path.write_text(text)
        refused = gcemil("review", run, path)
        assert isinstance(refused.exception, kind), (text, refused.exception)
        assert message in str(refused.exception)
    (tmp_path / "empty").mkdir()
    path.rename(tmp_path / "stranger.geojson")
    more = [
        ((run,), UsageError, "has no saved reviews"),
        ((run, tmp_path / "empty"), InputError, "holds no marks"),
        ((run, tmp_path / "none.geojson"), InputError, "none.geojson"),
        ((run, tmp_path / "stranger.geojson"), InputError, "No marked slide can be judged"),
        ((), UsageError, "Name the run that was reviewed"),
    ]
    for arguments, kind, message in more:
        refused = gcemil("review", *arguments)
        assert isinstance(refused.exception, kind), (arguments, refused.exception)
        assert message in str(refused.exception)
    assert not (run / "diagnostics" / "review.json").exists()
    assert isinstance(gcemil("tables", run, "--table", "review").exception, RunError)
