import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders.geojson_rules import violations
from builders.reports import toy_evidence
from builders.slides import write_slide
from builders.viewer import bits, opened, send_bits, visitor
from gcemil.bags import store
from gcemil.diagnostics.diagnose import Comparison, diagnose_run
from gcemil.errors import RunError, UsageError
from gcemil.exports.overlay import read_cohort_place
from gcemil.records import NOT_CERTIFIED, read_evidence
from gcemil.report.claim import SAME_NETWORK_MEANING
from gcemil.report.run_data import FoldData, find_predicted_class
from gcemil.runs.folder import RunFold
from gcemil.viewer import overview
from gcemil.viewer.session import ViewerSession


def class_probability(logits, index):
    return float(torch.softmax(logits.double(), dim=0)[index])


@pytest.fixture(scope="module")
def session(classification_runs):
    return opened(classification_runs.gce)


@pytest.fixture(scope="module")
def client(session):
    return visitor(session)


@pytest.fixture
def copied(classification_runs, tmp_path):
    """A session on a copy of the run, and somebody who looks at it."""
    shutil.copytree(classification_runs.gce, tmp_path / "run")
    session = opened(tmp_path / "run")
    return session, visitor(session)


@pytest.fixture(scope="module")
def slide(session):
    return session.slide(next(iter(session.specs)))


def judged(client, slide, selected, present):
    answer = send_bits(client, f"/api/slides/{slide.slide_id}/judge", bits(selected, present))
    assert answer.status_code == 200, answer.text
    return answer.json()


def some(slide, start, stop):
    mask = np.zeros(len(slide.bench), dtype=bool)
    mask[start:stop] = True
    return mask


def everything(slide):
    return np.ones(len(slide.bench), dtype=bool)


def probability(slide, logits):
    return class_probability(logits, int(slide.full.logits.argmax()))


def test_the_page_opens_on_a_slide_that_is_right_and_whose_evidence_holds(client, session):
    listed = client.get("/api/slides").json()
    found = {
        slide_id: read_evidence(session.folder / "evidence" / f"{slide_id}.h5")
        for slide_id in session.specs
    }
    rows = FoldData(RunFold(session.folder)).predictions("gce")
    right = [row["slide_id"] for row in rows if find_predicted_class(row) == row["target"]]
    faithful = [name for name in right if found[name].verdict == "sufficient and necessary"]
    assert listed["first"] in (faithful or right)
    most = max(min(4, overview.count_regions(found[name])) for name in (faithful or right))
    assert min(4, overview.count_regions(found[listed["first"]])) == most
    assert all(text.startswith(name) for name, text in listed["labels"].items())
    assert [row["slide"] for row in listed["rows"]] == listed["slides"]
    shown = {row["slide"]: row for row in listed["rows"]}
    for row in rows:
        one = shown[row["slide_id"]]
        assert (one["label"], one["prediction"]) == (row["target"], find_predicted_class(row))
        assert one["verdict"] == "not certified"
        assert one["patient"] == session.specs[row["slide_id"]].case_id


def test_a_slide_shows_host_and_evidence_head_apart_and_together(client, session, slide):
    lines = client.get(f"/api/slides/{slide.slide_id}").json()["predictions"]
    assert [line.split(":")[0] for line in lines[:3]] == [
        "host alone",
        "evidence head alone",
        "together",
    ]
    host = torch.softmax(slide.bench.explanation.output.full.logits, dim=0)
    name = session.fold.cohort.card.classes[int(host.argmax())]
    assert lines[0] == f"host alone: {name} {float(host.max()):.3f}"
    assert lines[3].startswith("The evidence head has")


def test_regions_of_evidence_touch_at_corners_too():
    apart = replace(toy_evidence(n_patches=12, selected=(0, 5, 11)), slide_id="x")
    assert overview.count_regions(apart) == 2
    assert overview.count_regions(None) == 0


def test_what_may_be_claimed_stands_on_the_page(classification_runs, copied):
    session, client = copied
    # Two epochs taught the model nothing, which is said before anything is claimed of its evidence.
    (warning,) = client.get("/api/slides").json()["claim"]
    assert "no better than chance" in warning
    comparison = Comparison(session.fold.run, classification_runs.host)
    diagnose_run(comparison, names=["snr"], jobs=1)
    claim = client.get("/api/slides").json()["claim"]
    assert claim[0] == warning
    assert "is sufficient and necessary in" in claim[1]
    assert any("Best rival at the same size" in text for text in claim)
    assert SAME_NETWORK_MEANING in claim


def test_anchors_that_count_for_the_prediction_come_first(client, slide):
    about = client.get(f"/api/slides/{slide.slide_id}").json()
    counts = [one["counts"] for one in about["anchors"]]
    assert counts == sorted(counts, reverse=True)
    assert sorted(one["index"] for one in about["anchors"]) == list(range(len(about["prompts"])))
    # Two epochs taught the model nothing: the viewer certifies no more than `explain` does.
    assert about["verdict"] == NOT_CERTIFIED


def test_removing_patches_gives_what_the_python_interface_gives(client, slide):
    chosen = some(slide, 0, 7)
    found = judged(client, slide, chosen, ~chosen)
    expected = slide.bench.view.interventions.removed(torch.from_numpy(chosen))
    assert found["live"]["output"] == pytest.approx(probability(slide, expected.logits), abs=1e-6)
    assert found["predictions"]["removed"] == found["live"]
    assert (found["n_selected"], found["n_present"]) == (7, len(slide.bench) - 7)


def test_the_first_answer_is_the_certificate_of_the_recovered_evidence(client, slide):
    found = judged(client, slide, slide.chosen.numpy(), everything(slide))
    assert found["live"] == found["predictions"]["full"]
    assert [one["name"] for one in found["verdicts"]] == ["sufficient", "necessary", "recoverable"]
    kept, full = (found["predictions"][name]["output"] for name in ("kept", "full"))
    assert f"from the patches alone {kept:.3f} ({kept - full:+.3f}, the class" in found["direction"]
    recovery = slide.bench.explanation.recovery
    assert found["coverage"] == pytest.approx(recovery.coverage.tolist(), abs=1e-5)
    assert found["predictions"]["gated"]["output"] == pytest.approx(
        probability(slide, slide.bench.explanation.output.logits), abs=1e-5
    )


def test_an_empty_set_has_no_certificate_and_an_empty_bag_no_prediction(client, slide):
    nothing = np.zeros(len(slide.bench), dtype=bool)
    found = judged(client, slide, nothing, nothing)
    assert found["live"] is None
    assert found["verdicts"] == []
    assert found["predictions"]["kept"] is None


def test_the_whole_bag_leaves_nothing_behind_and_is_never_necessary(client, slide):
    found = judged(client, slide, everything(slide), everything(slide))
    assert found["predictions"]["removed"] is None
    held = {one["name"]: one["held"] for one in found["verdicts"]}
    assert (held["sufficient"], held["necessary"]) == (True, False)


def test_layers_are_the_arrays_of_the_evidence_and_the_truth_file(
    client, slide, classification_runs
):
    about = client.get(f"/api/slides/{slide.slide_id}").json()
    assert about["mpp"] == read_cohort_place(slide.fold.cohort, slide.slide_id).mpp
    content = client.get(f"/api/slides/{slide.slide_id}/patches").content
    n = about["stop"] - about["start"]
    corners = np.frombuffer(content, "<i4", 2 * n).reshape(n, 2)
    values = np.frombuffer(content, "<f4", offset=8 * n).reshape(len(about["layers"]), n)
    by_key = dict(zip((layer["key"] for layer in about["layers"]), values, strict=True))
    frame = about["frame"]
    assert (corners + np.array([frame["left"], frame["top"]]) == slide.coords).all()
    assert by_key["gate"] == pytest.approx(slide.evidence.gates)
    assert np.flatnonzero(by_key["evidence"]).tolist() == slide.evidence.indices.tolist()
    assert by_key["anchor_1"] == pytest.approx(slide.evidence.responses[:, 1])
    truth = store.read(classification_runs.cohort / "truth" / f"{slide.slide_id}.h5", "evidence")
    assert (by_key["truth"] == truth).all()
    assert by_key["class_0"] == pytest.approx(slide.view.class_support[0].numpy(), rel=1e-5)
    ranked = {layer["key"] for layer in about["layers"] if layer["ranked"]}
    assert ranked == {"attention", "class_0", "class_1", "evidence_score", "marginal_gain"}


def test_disjoint_subsets_are_each_sufficient(client, slide):
    groups = np.frombuffer(client.get(f"/api/slides/{slide.slide_id}/subsets").content, np.uint8)
    assert len(groups) == len(slide.coords)
    full = probability(slide, slide.full.logits)
    for number in range(1, int(groups.max()) + 1):
        kept = slide.bench.view.interventions.kept(torch.from_numpy(groups == number))
        assert full - probability(slide, kept.logits) <= 0.05 + 1e-6


def test_tiles_are_pictures_and_a_missing_one_is_said(client, slide):
    path = f"/api/slides/{slide.slide_id}/tiles"
    assert client.get(f"{path}/0/0_0").headers["content-type"] == "image/png"
    assert client.get(f"{path}/0/7_0").status_code == 404
    assert client.get(f"{path}/99/0_0").status_code == 404


def test_exports_hold_the_edited_set_and_say_that_it_was_edited(client, slide):
    chosen = some(slide, 2, 6)
    path = f"/api/slides/{slide.slide_id}"
    text = send_bits(client, f"{path}/evidence.geojson", bits(chosen)).text
    assert violations(text) == []
    collection = json.loads(text)
    assert [
        feature["properties"]["metadata"]["patch"] for feature in collection["features"]
    ] == list("2345")
    evidence = send_bits(client, f"{path}/evidence.json", bits(chosen)).json()
    assert [patch["index"] for patch in evidence["patches"]] == [2, 3, 4, 5]
    assert evidence["rule"] == "recovered evidence, edited by hand"
    untouched = send_bits(client, f"{path}/evidence.json", bits(slide.chosen.numpy())).json()
    assert untouched["rule"] == "recovered evidence"


def test_a_review_is_saved_in_the_run_and_read_again(copied):
    session, client = copied
    name = next(iter(session.specs))
    slide = session.slide(name)
    inside = slide.evidence.indices[:2].tolist()
    outside = np.flatnonzero(~slide.evidence.selected)[:2].tolist()
    given = {"accepted": [*inside, outside[0]], "rejected": [outside[1]]}
    found = client.put(f"/api/slides/{name}/review", json=given).json()
    counts = [found[key] for key in ("accepted_evidence", "accepted_others", "rejected_others")]
    assert counts == [2, 1, 1]
    assert found["agreement"] == pytest.approx(0.75)
    saved = json.loads((session.folder / "reviews" / f"{name}.json").read_text())
    assert sorted(mark["patch"] for mark in saved["marks"]) == sorted([*inside, *outside])
    assert client.get(f"/api/slides/{name}").json()["marks"] == saved["marks"]
    assert client.get("/api/agreement").json()["slides"][name]["n_marks"] == 4


def patch_mark(slide, patch, name):
    """A mark over one patch, as QuPath exports it."""
    left, top = slide.coords[patch].tolist()
    right, bottom = left + slide.patch_size, top + slide.patch_size
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {"classification": {"name": name}},
    }


def test_marks_of_qupath_join_those_that_are_there(copied):
    session, client = copied
    name = next(iter(session.specs))
    slide = session.slide(name)
    client.put(f"/api/slides/{name}/review", json={"accepted": [0, 1], "rejected": []})
    classes = {1: "reject", 2: "Missed", 3: "Tumor"}
    objects = [patch_mark(slide, patch, kind) for patch, kind in classes.items()]
    found = client.put(f"/api/slides/{name}/review.geojson", json=objects).json()
    assert (found["accepted"], found["rejected"], found["n_imported"]) == ([0, 2], [1], 2)
    assert found["notes"] == ["1 objects of class 'Tumor' are not marks"]
    marks = client.get(f"/api/slides/{name}").json()["marks"]
    marked = {mark["patch"]: mark["mark"] for mark in marks}
    assert marked == {0: "accept", 1: "reject", 2: "accept"}


def test_a_run_without_the_wrapper_is_shown_with_its_attention(classification_runs):
    session = opened(classification_runs.host)
    client, name = visitor(session), next(iter(session.specs))
    about = client.get(f"/api/slides/{name}").json()
    assert about["rule"] == "attention top-k"
    keys = [layer["key"] for layer in about["layers"]]
    assert keys == ["attention", "class_0", "class_1", "evidence", "truth"]
    slide = session.slide(name)
    found = judged(client, slide, slide.chosen.numpy(), everything(slide))
    assert found["predictions"]["gated"] is None
    assert found["coverage"] is None
    assert {one["name"]: one["held"] for one in found["verdicts"]}["recoverable"] is None


def test_a_case_is_judged_as_one_bag_in_units_of_training_risks(survival_runs):
    session = opened(survival_runs.gce)
    slide = session.slide(next(iter(session.specs)))
    chosen = some(slide, 0, 5)
    found = judged(visitor(session), slide, chosen, ~chosen)
    risk = float(slide.bench.view.interventions.removed(torch.from_numpy(chosen)).logits[0])
    scale = session.fold.scale
    assert found["output_name"] == "risk in units of the training risks"
    assert found["live"]["output"] == pytest.approx((risk - scale.mean) / scale.deviation, abs=1e-5)


def test_only_a_few_bags_stay_in_memory(classification_runs):
    session = opened(classification_runs.gce)
    names = list(session.specs)[:4]
    for name in names:
        session.slide(name)
    assert list(session.opened) == names[1:]


def test_a_fold_or_slide_that_is_not_there_is_named(session, classification_runs):
    with pytest.raises(RunError, match="no trained fold 3, only: 0"):
        ViewerSession(classification_runs.gce, 3)
    with pytest.raises(UsageError, match="tests no slide 'nobody'"):
        session.slide("nobody")


def test_slides_lie_where_the_user_says(classification_runs, session, tmp_path):
    name = next(iter(session.specs))
    (tmp_path / "scans").mkdir()
    write_slide(tmp_path / "scans" / f"{name}.tif", np.full((600, 1000, 3), 240, np.uint8))
    found = ViewerSession(classification_runs.gce, slides=tmp_path)
    assert found.slide_file(name) == tmp_path / "scans" / f"{name}.tif"
    assert found.slide(name).tiles.shows_pixels
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "X.tif").write_bytes(b"a slide of another cohort")
    with pytest.raises(UsageError, match="holds none of the .* test slides"):
        ViewerSession(classification_runs.gce, slides=tmp_path / "others")
    with pytest.raises(UsageError, match="does not exist"):
        ViewerSession(classification_runs.gce, slides=tmp_path / "nowhere")


def test_the_command_prints_the_address_and_opens_no_browser_unless_asked(
    classification_runs, monkeypatch
):
    import webbrowser

    import typer
    from typer.testing import CliRunner

    from gcemil.cli.report import view

    def serve(session, listener, *, on_address):
        on_address("http://127.0.0.1/?code=x")
        on_address("http://127.0.0.1/?code=y")

    visited = []
    monkeypatch.setattr(webbrowser, "open", visited.append)
    monkeypatch.setattr("gcemil.viewer.server.serve", serve)
    app = typer.Typer()
    app.command()(view)
    run = str(classification_runs.gce)
    result = CliRunner().invoke(app, [run, "--no-browser"])
    assert result.exit_code == 0
    assert "fold 0" in result.output
    assert "http://127.0.0.1/?code=x" in result.output
    assert visited == []
    result = CliRunner().invoke(app, [run])
    # A later address is printed, and no second window opens by itself.
    assert visited == ["http://127.0.0.1/?code=x"]
    assert "http://127.0.0.1/?code=y" in result.output
