"""The real server under clients that leave, and files that were damaged."""

import json
import shutil
import threading

import pytest

from builders.viewer import bits, opened, read_answer, running, visitor
from gcemil.viewer import bench

BYTES = "application/octet-stream"


@pytest.fixture(scope="module")
def session(classification_runs):
    session = opened(classification_runs.gce)
    yield session
    session.close()


@pytest.fixture(scope="module")
def name(session):
    name = next(iter(session.specs))
    session.slide(name)
    return name


def judgement(started, slide):
    mask = slide.chosen.numpy()
    return started.ask(
        "POST", f"/api/slides/{slide.slide_id}/judge", bits(mask, ~mask), content_type=BYTES
    )


# --- large files ----------------------------------------------------------------------------------------------------


def ask_for_geojson(started, slide, connection):
    body = bits(slide.chosen.numpy())
    path = f"/api/slides/{slide.slide_id}/evidence.geojson"
    connection.sendall(
        started.head("POST", path, content_type=BYTES, content_length=str(len(body))) + body
    )


def test_a_file_in_the_making_keeps_nobody_from_the_network(session, name, monkeypatch):
    go_on = threading.Event()

    def blocks(slide, selected):
        yield "{"
        assert go_on.wait(60)
        yield "}" * 10_000_000

    monkeypatch.setattr(bench, "export_geojson", blocks)
    with running(session) as started, started.connect() as connection:
        ask_for_geojson(started, session.slide(name), connection)
        assert judgement(started, session.slide(name)).status == 200
        go_on.set()
        assert len(read_answer(connection).body) == 10_000_001


def test_pictures_and_pages_are_served_while_the_network_thinks(session, name):
    paths = [
        "/",
        "/favicon.ico",
        "/static/viewer.js",
        "/api/slides",
        "/api/agreement",
        f"/api/slides/{name}/tiles/0/0_0",
    ]
    go_on = threading.Event()
    with running(session) as started:
        session.network.submit(go_on.wait, 60)
        slide = session.slide(name)
        waiting = [threading.Thread(target=judgement, args=(started, slide)) for _ in range(60)]
        for thread in waiting:
            thread.start()
        assert [started.ask("GET", path).status for path in paths] == [200] * len(paths)
        go_on.set()
        for thread in waiting:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in waiting)


# --- clients that leave, and files that were spoilt --------------------------------------------------------------------


def spoiled_reviews(n_patches):
    mark = {"patch": 0, "mark": "accept", "in_evidence": True}
    return {
        "empty": b"",
        "cut": b'{"marks": [',
        "no object": b"[]",
        "no marks": b"{}",
        "other text": b"\xff\xfe\x00",
        "marks of another shape": json.dumps(
            {"marks": {"0": mark}, "n_patches": n_patches}
        ).encode(),
        "a mark that is no mark": json.dumps({"marks": [3], "n_patches": n_patches}).encode(),
        "an unknown mark": json.dumps(
            {"marks": [{**mark, "mark": "<b>"}], "n_patches": n_patches}
        ).encode(),
        "a patch beyond the slide": json.dumps(
            {"marks": [{**mark, "patch": n_patches}], "n_patches": n_patches}
        ).encode(),
        "a patch that is no number": json.dumps(
            {"marks": [{**mark, "patch": [0]}], "n_patches": n_patches}
        ).encode(),
        "another slide": json.dumps({"marks": [mark], "n_patches": n_patches + 1}).encode(),
    }


def test_a_review_that_was_damaged_is_one_sentence_and_the_viewer_goes_on(
    classification_runs, tmp_path
):
    shutil.copytree(classification_runs.gce, tmp_path / "run")
    session = opened(tmp_path / "run")
    client = visitor(session)
    first, second = list(session.specs)[:2]
    given = {"accepted": [0], "rejected": []}
    assert client.put(f"/api/slides/{second}/review", json=given).status_code == 200
    path = session.folder / "reviews" / f"{first}.json"
    for kind, content in spoiled_reviews(len(session.slide(first).coords)).items():
        path.write_bytes(content)
        about = client.get(f"/api/slides/{first}")
        assert about.status_code == 200, kind
        assert about.json()["marks"] == []
        problem = about.json()["marks_problem"]
        assert problem.startswith(f"{path} "), kind
        assert problem.endswith(
            " It is no review of this slide; move it away and review the slide again."
        ), kind
        assert "\n" not in problem
        agreement = client.get("/api/agreement")
        assert agreement.status_code == 200, kind
        assert agreement.json()["total"]["n_marks"] == (2 if kind == "another slide" else 1)
        # What cannot be read is never written over.
        refused = client.put(f"/api/slides/{first}/review", json=given)
        assert refused.status_code == 500
        assert refused.json()["error"] == problem
        assert path.read_bytes() == content
    path.unlink()
    assert client.put(f"/api/slides/{first}/review", json=given).json()["n_marks"] == 1
    session.close()
