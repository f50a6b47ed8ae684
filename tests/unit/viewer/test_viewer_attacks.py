"""Requests that a page, a program or a person with bad intentions would send; to the real server wherever bytes matter."""

import shutil

import pytest
from starlette.routing import Route

from builders.viewer import PORT, bits, opened, running, send_bits, stranger, visitor
from gcemil.viewer.app import create_app
from gcemil.viewer.security import Entry

BYTES = "application/octet-stream"
TRAVERSALS = [
    "../../../../etc/passwd",
    "..%2F..%2Fconfig.yaml",
    "%252e%252e%252fconfig.yaml",
    "..%00/config.yaml",
    "//etc/passwd",
    "%ff%fe",
    "viewer.js/../../app.py",
]


@pytest.fixture(scope="module")
def session(classification_runs, tmp_path_factory):
    """A copy, so that anything written into it is seen."""
    run = tmp_path_factory.mktemp("attacked") / "run"
    shutil.copytree(classification_runs.gce, run)
    session = opened(run)
    yield session
    session.close()


@pytest.fixture(scope="module")
def server(session):
    with running(session) as server:
        yield server


@pytest.fixture(scope="module")
def name(session):
    return next(iter(session.specs))


@pytest.fixture
def nothing_written(session):
    def files():
        return {path: path.stat().st_mtime_ns for path in session.fold.run.rglob("*")}

    before = files()
    yield
    assert files() == before


def routes(session, *, changing):
    """Every path of the application with its method; those that change something, or those that only read."""
    app = create_app(session, entry=Entry(), port=PORT).app
    found = [
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted(route.methods - {"HEAD"})
        if (method != "GET") == changing
    ]
    found += [] if changing else [("GET", "/static/viewer.js")]
    assert len(found) == (5 if changing else 9)
    return found


def filled(path, slide, *, tile="0"):
    for parameter in ("level", "column", "row"):
        path = path.replace(f"{{{parameter}:int}}", tile)
    return path.replace("{slide}", slide)


# --- the code and the session ------------------------------------------------------------------------------------------


def test_a_code_opens_the_door_once(session):
    entry = Entry()
    code = entry.new_code()
    client = stranger(session, entry)
    answer = client.get(f"/?code={code}")
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 200
    assert code not in cookie
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert client.get("/api/slides").status_code == 200
    replayed = stranger(session, entry)
    assert replayed.get(f"/?code={code}").status_code == 403
    assert replayed.get("/api/slides").status_code == 403


def test_what_the_browser_is_started_with_does_not_open_the_session_again(session, monkeypatch):
    """A command line can be read by everybody on the machine."""
    from gcemil.viewer import server as viewer_server

    shown, apps = [], []

    class Server:
        def __init__(self, config):
            apps.append(config.app)

        def run(self, sockets):
            from starlette.testclient import TestClient

            address = shown[0].partition("?")[0].rstrip("/")

            def visit(*addresses):
                client = TestClient(apps[0], base_url=address)
                return [client.get(one).status_code for one in addresses]

            assert visit(shown[0], "/api/slides") == [200, 200]
            # Somebody who read the command line comes too late, and learns nothing from asking for more.
            assert visit(shown[0], "/api/slides", "/", shown[0]) == [403, 403, 403, 403]
            assert len(shown) == 2
            assert shown[1] != shown[0]
            assert visit(shown[1], "/api/slides") == [200, 200]

    monkeypatch.setattr(viewer_server.uvicorn, "Server", Server)
    with viewer_server.listen(0) as listener:
        viewer_server.serve(session, listener, on_address=shown.append)


@pytest.mark.parametrize(
    "cookie",
    [
        "gcemil_{port}=wrong",
        "gcemil_{port}=",
        "gcemil_1={session}",
        "=; ;;",
        "gcemil_{port}=\xff\xfe",
        "a" * 9000,
    ],
)
def test_a_wrong_cookie_opens_nothing(server, cookie):
    value = cookie.format(port=server.port, session=server.cookie.partition("=")[2])
    assert server.ask("GET", "/api/slides", cookie=value).status == 403


def test_every_route_asks_for_the_session(server, session, name):
    for method, path in [*routes(session, changing=False), *routes(session, changing=True)]:
        assert server.ask(method, filled(path, name), cookie=None).status == 403, path


# --- other pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        None,
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:{port}.evil.example",
        "evil.example@127.0.0.1:{port}",
        "0.0.0.0:{port}",
    ],
)
def test_a_foreign_host_name_is_refused(server, host):
    """A name of the attacker that was bound anew to 127.0.0.1 carries the attacker's name in Host."""
    given = None if host is None else host.format(port=server.port)
    assert server.ask("GET", "/api/slides", host=given).status in (400, 403)


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1",
        "http://127.0.0.1:{port}.evil.example",
    ],
)
def test_a_foreign_origin_is_refused_on_every_route(server, session, name, origin, nothing_written):
    given = origin.format(port=server.port)
    for method, path in [*routes(session, changing=False), *routes(session, changing=True)]:
        assert server.ask(method, filled(path, name), origin=given).status == 403, path


def test_what_changes_something_must_say_where_it_comes_from(
    server, session, name, nothing_written
):
    assert server.ask("GET", "/api/slides", origin=None).status == 200
    for method, path in routes(session, changing=True):
        assert server.ask(method, filled(path, name), b"{}", origin=None).status == 403, path


@pytest.mark.parametrize(
    "kind",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/html", "image/svg+xml", ";;"],
)  # fmt: skip
def test_a_body_that_a_form_of_another_page_could_send_is_refused(
    server, session, name, kind, nothing_written
):
    for method, path in routes(session, changing=True):
        body = b'{"accepted": [], "rejected": []}'
        assert server.ask(method, filled(path, name), body, content_type=kind).status == 415, path


# --- paths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out_of_the_viewer(server, session, path, nothing_written):
    for method, route in [*routes(session, changing=False), *routes(session, changing=True)]:
        if "{" not in route:
            continue
        target = filled(route.replace("{name:path}", "{slide}"), path)
        kind = "application/json" if method == "PUT" else BYTES
        answer = server.ask(method, target, b"" if method == "GET" else b"{}", content_type=kind)
        assert answer.status in (400, 404, 405), target
        assert b"root:" not in answer.body
        assert b"settings_hash" not in answer.body


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"no json",
        b"[]",
        b"[" * 100_000,
        b"\xff\xfe{\x00}\x00",
        b'{"accepted": [0]}',
        b'{"accepted": [-1], "rejected": []}',
        b'{"accepted": [1.0], "rejected": []}',
        b'{"accepted": [NaN], "rejected": []}',
        b'{"accepted": [true], "rejected": []}',
        b'{"accepted": ["0"], "rejected": []}',
        b'{"accepted": {"0": 1}, "rejected": []}',
        b'{"accepted": [99999999999999999999999], "rejected": []}',
        b'{"accepted": [1], "rejected": [1]}',
    ],
)
def test_a_review_of_no_sense_is_refused_and_writes_nothing(server, name, given, nothing_written):
    answer = server.ask("PUT", f"/api/slides/{name}/review", given, content_type="application/json")
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"


def test_sets_of_another_length_are_refused(session, name):
    client = visitor(session)
    whole = bits(session.slide(name).chosen.numpy())
    for path in ("judge", "evidence.json", "evidence.geojson"):
        for body in (b"", whole[:-1], whole + b"\0", whole * 3, b"\xff" * 100_000):
            answer = send_bits(client, f"/api/slides/{name}/{path}", body)
            assert answer.status_code == 400, path
            assert "bytes of bits" in answer.json()["error"]


# --- answers -----------------------------------------------------------------------------------------------------------


def test_every_answer_carries_the_policy(server, session, name):
    review = f"/api/slides/{name}/review"
    answers = [
        server.ask("GET", "/"),
        server.ask("GET", f"/?code={server.entry.new_code()}", cookie=None),
        server.ask("GET", "/", cookie=None),
        server.ask("GET", "/nothing"),
        server.ask("DELETE", "/api/slides"),
        server.ask("PUT", review, b"x", content_type="text/plain"),
        server.ask("PUT", review, b"x", content_type="application/json"),
        server.ask("GET", f"/api/slides/{name}/patches"),
        server.ask("GET", f"/api/slides/{name}/tiles/0/0_0"),
        server.ask(
            "POST", f"/api/slides/{name}/evidence.geojson", bits(session.slide(name).chosen.numpy()), content_type=BYTES
        ),
    ]  # fmt: skip
    assert [answer.status for answer in answers] == [
        200,
        200,
        403,
        404,
        405,
        415,
        400,
        200,
        200,
        200,
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "base-uri 'none'" in policy
        assert "form-action 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["server"] is None
        assert answer.headers["access-control-allow-origin"] is None
