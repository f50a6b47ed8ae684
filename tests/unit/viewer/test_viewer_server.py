"""The real server under clients that stall, leave, or come all at once."""

import asyncio
import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gcemil.exports import geojson
from gcemil.viewer import bench, security, server
from viewer_builders import bits, opened, read_answer, running, visitor

BYTES = "application/octet-stream"
PATIENCE = 1.5
"""Seconds in place of the server's own; everything else here may take as long as a busy machine needs."""


@pytest.fixture(scope="module")
def session(classification_runs):
    session = opened(classification_runs.gce)
    yield session
    session.close()


@pytest.fixture
def impatient(session, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", PATIENCE)
    monkeypatch.setattr(server, "READ_SECONDS", PATIENCE)
    monkeypatch.setattr(security, "BODY_SECONDS", PATIENCE)
    with running(session) as started:
        yield started


@pytest.fixture(scope="module")
def name(session):
    name = next(iter(session.specs))
    session.slide(name)
    return name


def is_dropped(connection):
    """Whether the other side ends the connection before this one loses patience."""
    connection.settimeout(30)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def drip(connection, byte):
    """A byte now and then, until the other side has enough."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        connection.sendall(byte)
        time.sleep(PATIENCE / 10)


def judgement(started, slide):
    mask = slide.chosen.numpy()
    return started.ask("POST", f"/api/slides/{slide.slide_id}/judge", bits(mask, ~mask), content_type=BYTES)


# --- stalled clients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"])
def test_a_client_that_never_ends_its_head_is_dropped(impatient, sent):
    with impatient.connect() as connection:
        connection.sendall(sent)
        assert is_dropped(connection)


def test_a_byte_now_and_then_gains_no_time(impatient):
    with impatient.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            drip(connection, b"a")


def test_a_second_request_on_a_kept_connection_is_timed_too(impatient):
    with impatient.connect() as connection:
        connection.sendall(impatient.head("GET", "/api/slides"))
        assert read_answer(connection).status == 200
        connection.sendall(b"GET /")
        assert is_dropped(connection)


def test_a_body_that_does_not_come_is_answered_and_dropped(impatient, name):
    head = impatient.head("POST", f"/api/slides/{name}/judge", content_type=BYTES, content_length="100")
    with impatient.connect() as connection:
        connection.sendall(head + b"x")
        answer = read_answer(connection)
        assert answer.status == 408
        assert b"did not arrive" in answer.body
        assert is_dropped(connection)


def test_a_body_in_drops_is_answered_all_the_same(impatient, name):
    head = impatient.head("POST", f"/api/slides/{name}/judge", content_type=BYTES, content_length="100000")
    with impatient.connect() as connection:
        connection.sendall(head)
        with pytest.raises(ConnectionError):
            drip(connection, b"x")


def test_a_body_behind_a_refusal_does_not_hold_the_connection(impatient):
    """The refusal is sent at once, and uvicorn alone would then listen to the rest for ever."""
    head = impatient.head("POST", "/api/slides", cookie=None, content_length="100000")
    with impatient.connect() as connection:
        connection.sendall(head)
        with pytest.raises(ConnectionError):
            drip(connection, b"x")


def test_stalled_clients_keep_nobody_else_out(impatient, session, name):
    head = impatient.head("POST", f"/api/slides/{name}/judge", content_type=BYTES, content_length="100")
    stalled = [impatient.connect() for _ in range(100)]
    try:
        for number, connection in enumerate(stalled):
            connection.sendall(head if number % 2 else b"GET / HTTP/1.1\r\n")
        assert judgement(impatient, session.slide(name)).status == 200
    finally:
        for connection in stalled:
            connection.close()


# --- large files ----------------------------------------------------------------------------------------------------


def large_collection(slide, selected, *, n_patches=24_000):
    """As a slide of many patches would give it."""
    values = np.linspace(0, 1, n_patches, dtype=np.float32)
    place = np.arange(n_patches, dtype=np.int64)
    return geojson.collect_patches(
        slide.slide_id,
        np.stack([place % 300, place // 300], axis=1) * 256,
        np.ones(n_patches, dtype=bool),
        patch_size=256,
        ranked_by=values,
        measurements={f"anchor: {number}": values for number in range(12)},
        model="m",
    )


def ask_for_geojson(started, slide, connection):
    body = bits(slide.chosen.numpy())
    path = f"/api/slides/{slide.slide_id}/evidence.geojson"
    connection.sendall(started.head("POST", path, content_type=BYTES, content_length=str(len(body))) + body)


@pytest.fixture
def counted_blocks(monkeypatch):
    """How many blocks of the large file were made."""
    made = []
    whole = geojson.PatchCollection.blocks

    def blocks(self):
        for block in whole(self):
            made.append(len(block))
            yield block

    monkeypatch.setattr(bench, "export_geojson", large_collection)
    monkeypatch.setattr(geojson.PatchCollection, "blocks", blocks)
    return made


def test_a_large_file_arrives_whole(impatient, session, name, counted_blocks):
    with impatient.connect() as connection:
        ask_for_geojson(impatient, session.slide(name), connection)
        answer = read_answer(connection)
    assert answer.status == 200
    assert len(json.loads(answer.body)["features"]) == 24_000
    assert sum(counted_blocks) == len(answer.body)


def test_a_file_is_made_no_faster_than_it_is_taken(session, name, counted_blocks):
    """And its maker stops when the client leaves; the whole of it is never in memory."""
    with running(session) as started:
        connection = started.connect()
        ask_for_geojson(started, session.slide(name), connection)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        time.sleep(2)
        waiting = len(counted_blocks)
        assert judgement(started, session.slide(name)).status == 200
        connection.close()
        assert judgement(started, session.slide(name)).status == 200
    n_blocks = len(list(large_collection(session.slide(name), None).blocks()))
    assert waiting < n_blocks - 3
    # What ran on after the client had left is the block that was being made.
    assert len(counted_blocks) - n_blocks <= waiting + 3


def test_a_client_that_does_not_read_its_answer_is_dropped(impatient, session, name, counted_blocks):
    with impatient.connect() as connection:
        ask_for_geojson(impatient, session.slide(name), connection)
        connection.recv(1000)
        time.sleep(2 * PATIENCE + 1)
        # What lies in the sockets' own buffers still comes, the end of the file does not.
        received = b""
        connection.settimeout(30)
        try:
            while chunk := connection.recv(1 << 20):
                received += chunk
        except ConnectionError:
            pass
        assert not received.endswith(b"]}\n\r\n0\r\n\r\n")


def test_a_file_in_the_making_keeps_nobody_from_the_network(session, name, monkeypatch):
    go_on = threading.Event()

    def blocks(self):
        yield "{"
        go_on.wait(60)
        yield "}"

    monkeypatch.setattr(geojson.PatchCollection, "blocks", blocks)
    with running(session) as started, started.connect() as connection:
        ask_for_geojson(started, session.slide(name), connection)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        assert judgement(started, session.slide(name)).status == 200
        took = time.monotonic() - began
        go_on.set()
    assert took < 55


def test_pictures_and_pages_are_served_while_the_network_thinks(session, name):
    paths = [
        "/",
        "/favicon.ico",
        "/static/viewer.js",
        "/api/slides",
        "/api/agreement",
        f"/api/slides/{name}/tiles/0/0_0",
    ]
    with running(session) as started:
        with session.lock:
            waiting = [
                threading.Thread(target=judgement, args=(started, session.slide(name))) for _ in range(60)
            ]
            for thread in waiting:
                thread.start()
            assert [started.ask("GET", path).status for path in paths] == [200] * len(paths)
        for thread in waiting:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in waiting)


# --- all at once ------------------------------------------------------------------------------------------------------


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_hundred_requests_at_once_are_all_answered(session, name):
    slide = session.slide(name)
    mask = slide.chosen.numpy()
    kinds = [
        ("GET", "/", b""),
        ("GET", "/static/openseadragon/openseadragon.min.js", b""),
        ("GET", f"/api/slides/{name}", b""),
        ("GET", f"/api/slides/{name}/patches", b""),
        ("GET", f"/api/slides/{name}/tiles/0/0_0", b""),
        ("POST", f"/api/slides/{name}/judge", bits(mask, ~mask)),
        ("POST", f"/api/slides/{name}/evidence.geojson", bits(mask)),
        ("POST", f"/api/slides/{name}/evidence.json", bits(mask)),
        ("GET", f"/api/slides/{list(session.specs)[1]}/patches", b""),
        ("GET", "/api/agreement", b""),
    ]

    async def ask(started, kind):
        method, path, body = kind
        reader, writer = await asyncio.open_connection("127.0.0.1", started.port)
        writer.write(
            started.head(method, path, content_type=BYTES, content_length=str(len(body)), connection="close")
            + body
        )
        content = await reader.read(-1)
        writer.close()
        return int(content.split()[1]), len(content)

    async def all_at_once(started):
        return await asyncio.wait_for(asyncio.gather(*(ask(started, kinds[k % 10]) for k in range(200))), 120)

    with running(session) as started:
        asyncio.run(all_at_once(started))
        before = resident_bytes()
        answers = asyncio.run(all_at_once(started))
        grown = resident_bytes() - before
        assert started.ask("GET", "/api/slides").status == 200
    assert [status for status, _ in answers] == [200] * 200
    # One kind of question has one kind of answer, whoever else asks.
    assert all(answers[k][1] == answers[k % 10][1] for k in range(200) if k % 10 != 5)
    assert grown < 100e6


def test_beyond_the_limit_a_client_is_told_so_and_the_others_are_served(session, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 20)
    with running(session) as started:
        idle = [started.connect() for _ in range(25)]
        try:
            statuses = set()
            for connection in idle:
                connection.sendall(started.head("GET", "/api/slides"))
                statuses.add(read_answer(connection).status)
            assert 503 in statuses
        finally:
            for connection in idle:
                connection.close()
        end = time.monotonic() + 30
        while started.ask("GET", "/api/slides").status != 200:
            assert time.monotonic() < end


# --- clients that leave, and files that were spoilt --------------------------------------------------------------------


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(session, name, capfd):
    slide = session.slide(name)
    mask = slide.chosen.numpy()
    body = bits(mask, ~mask)
    with running(session) as started:
        head = started.head(
            "POST", f"/api/slides/{name}/judge", content_type=BYTES, content_length=str(len(body))
        )
        for sent in (
            b"GET",
            head,
            head + body[:1],
            head + body,
            started.head("GET", f"/api/slides/{name}/patches"),
        ):
            connection = started.connect()
            connection.sendall(sent)
            connection.close()
        assert judgement(started, slide).status == 200
    assert "Traceback" not in capfd.readouterr().err


def spoiled_reviews(n_patches):
    mark = {"patch": 0, "mark": "accept", "in_evidence": True}
    return {
        "empty": b"",
        "cut": b'{"marks": [',
        "no object": b"[]",
        "no marks": b"{}",
        "deep": b"[" * 100_000,
        "other text": b"\xff\xfe\x00",
        "binary": bytes(range(256)),
        "a number": b"1" * 5000,
        "marks of another shape": json.dumps({"marks": {"0": mark}, "n_patches": n_patches}).encode(),
        "a mark that is no mark": json.dumps({"marks": [3], "n_patches": n_patches}).encode(),
        "an unknown mark": json.dumps({"marks": [{**mark, "mark": "<b>"}], "n_patches": n_patches}).encode(),
        "a patch beyond the slide": json.dumps(
            {"marks": [{**mark, "patch": n_patches}], "n_patches": n_patches}
        ).encode(),
        "a patch that is no number": json.dumps(
            {"marks": [{**mark, "patch": [0]}], "n_patches": n_patches}
        ).encode(),
        "another slide": json.dumps({"marks": [mark], "n_patches": n_patches + 1}).encode(),
    }


def test_a_review_that_was_damaged_is_one_sentence_and_the_viewer_goes_on(classification_runs, tmp_path):
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
        assert problem.endswith(" It is no review of this slide; move it away and review the slide again."), (
            kind
        )
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


def test_reviews_that_are_no_files_or_lie_elsewhere_are_said(classification_runs, tmp_path):
    shutil.copytree(classification_runs.gce, tmp_path / "run")
    session = opened(tmp_path / "run")
    client, name = visitor(session), next(iter(session.specs))
    path = session.folder / "reviews" / f"{name}.json"
    path.parent.mkdir()
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text("{}")
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(elsewhere)):
        make()
        about = client.get(f"/api/slides/{name}")
        assert about.status_code == 200
        assert about.json()["marks_problem"]
        assert (
            client.put(f"/api/slides/{name}/review", json={"accepted": [0], "rejected": []}).status_code
            == 500
        )
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert elsewhere.read_text() == "{}"
    session.close()
