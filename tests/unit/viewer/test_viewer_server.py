"""Who may talk to the viewer, and what it does with requests and files that make no sense."""

import json
import shutil
import threading

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from builders.viewer import Door, bits, opened, running, send_bits, visitor
from gcemil.errors import UsageError
from gcemil.viewer import server as viewer_server
from gcemil.viewer.app import STATIC, create_app
from gcemil.viewer.server import listen, serve

TRAVERSALS = [
    "../../../../etc/passwd",
    "..%2F..%2Fconfig.yaml",
    "%252e%252e%252fconfig.yaml",
    "..%00/config.yaml",
    "//etc/passwd",
    "viewer.js/../../app.py",
]


@pytest.fixture(scope="module")
def session(classification_runs, tmp_path_factory):
    """A copy, so that anything written into it is seen."""
    run = tmp_path_factory.mktemp("attacked") / "run"
    shutil.copytree(classification_runs.gce, run)
    return opened(run)


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


def routes(session, slide, *, methods=("GET", "POST", "PUT")):
    """Every path of the application with its method, of one slide."""
    found = [
        (method, route.path)
        for route in create_app(session).routes
        if isinstance(route, Route)
        for method in sorted(route.methods & set(methods))
    ]
    for method, path in [*found, ("GET", "/static/viewer.js")]:
        for parameter in ("level", "column", "row"):
            path = path.replace(f"{{{parameter}:int}}", "0")
        yield method, path.replace("{slide}", slide)


def test_an_address_opens_the_door_once(session):
    door = Door(session)
    client, address = door.client(), door.new_address()
    answer = client.get(address)
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 200
    assert address.partition("=")[2].lower() not in cookie
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/api/slides").status_code == 200
    replayed = door.client()
    assert replayed.get(address).status_code == 403
    assert replayed.get("/api/slides").status_code == 403


def test_what_the_browser_is_started_with_does_not_open_the_session_again(session, monkeypatch):
    """A command line can be read by everybody on the machine."""
    shown, apps = [], []

    class Server:
        def __init__(self, config):
            apps.append(config.app)

        def run(self, sockets):
            base = shown[0].partition("?")[0].rstrip("/")

            def visit(*addresses):
                client = TestClient(apps[0], base_url=base)
                return [client.get(one).status_code for one in addresses]

            assert visit(shown[0], "/api/slides") == [200, 200]
            # Somebody who read the command line comes too late.
            assert visit(shown[0], "/api/slides", "/", shown[0]) == [403, 403, 403, 403]
            assert len(set(shown)) == len(shown) == 2
            assert visit(shown[1], "/api/slides") == [200, 200]

    monkeypatch.setattr(viewer_server.uvicorn, "Server", Server)
    with listen(0) as listener:
        serve(session, listener, on_address=shown.append)


@pytest.mark.parametrize(
    "cookie", ["gcemil_{port}=wrong", "gcemil_1={session}", "=; ;;", "gcemil_{port}=\xff\xfe"]
)
def test_a_wrong_cookie_opens_nothing(server, cookie):
    value = cookie.format(port=server.port, session=server.cookie.partition("=")[2])
    assert server.ask("GET", "/api/slides", cookie=value).status == 403


@pytest.mark.parametrize(
    "host",
    [None, "evil.example:{port}", "127.0.0.1", "127.0.0.1:{port}.evil.example", "0.0.0.0:{port}"],
)
def test_a_foreign_host_name_is_refused(server, host):
    """A name of the attacker that was bound anew to 127.0.0.1 carries the attacker's name."""
    given = None if host is None else host.format(port=server.port)
    assert server.ask("GET", "/api/slides", host=given).status in (400, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"cookie": None},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:{port}"},
        {"origin": "http://127.0.0.1:{port}.evil.example"},
    ],
)
def test_no_route_answers_a_stranger_or_another_page(
    server, session, name, headers, nothing_written
):
    headers = {key: value and value.format(port=server.port) for key, value in headers.items()}
    for method, path in routes(session, name):
        assert server.ask(method, path, **headers).status == 403, path


def test_what_changes_something_must_say_where_it_comes_from(
    server, session, name, nothing_written
):
    assert server.ask("GET", "/api/slides", origin=None).status == 200
    changing = [one for one in routes(session, name, methods=("POST", "PUT")) if one[0] != "GET"]
    assert len(changing) == 5
    for method, path in changing:
        assert server.ask(method, path, b"{}", origin=None).status == 403, path


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out_of_the_viewer(server, session, path, nothing_written):
    for method, target in routes(session, path):
        if path in target:
            answer = server.ask(method, target, b"" if method == "GET" else b"{}")
            assert answer.status in (400, 404, 405), target
            assert b"root:" not in answer.body
            assert b"settings_hash" not in answer.body
    assert server.ask("GET", f"/static/{path}").status in (400, 404)


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
        b'{"accepted": [NaN], "rejected": []}',
        b'{"accepted": [true], "rejected": []}',
        b'{"accepted": {"0": 1}, "rejected": []}',
        b'{"accepted": [1], "rejected": [1]}',
    ],
)
def test_a_review_of_no_sense_is_refused_and_writes_nothing(server, name, given, nothing_written):
    answer = server.ask("PUT", f"/api/slides/{name}/review", given)
    assert answer.status == 400
    assert "error" in json.loads(answer.body)


def test_sets_of_another_length_are_refused(session, name):
    client = visitor(session)
    whole = bits(session.slide(name).chosen.numpy())
    for path in ("judge", "evidence.json", "evidence.geojson"):
        for body in (b"", whole[:-1], whole * 3):
            answer = send_bits(client, f"/api/slides/{name}/{path}", body)
            assert answer.status_code == 400, path
            assert "bytes of bits" in answer.json()["error"]


def test_every_answer_carries_the_policy(server, session, name):
    answers = {
        200: server.ask("GET", "/"),
        403: server.ask("GET", "/", cookie=None),
        404: server.ask("GET", "/nothing"),
        405: server.ask("DELETE", "/api/slides"),
        400: server.ask("PUT", f"/api/slides/{name}/review", b"x"),
    }
    for status, answer in answers.items():
        assert answer.status == status
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["server"] is None
        assert answer.headers["access-control-allow-origin"] is None


def test_the_page_names_no_other_machine():
    files = [file for file in STATIC.iterdir() if file.suffix in (".html", ".js", ".css")]
    for text in (file.read_text() for file in files):
        assert "http:" not in text
        assert "https:" not in text
        assert "//cdn" not in text


def test_the_socket_is_on_loopback_and_a_taken_port_is_said():
    with listen(0) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(
            UsageError,
            match=f"^Port {port} cannot be used, because another program uses it: give --port",
        ):
            listen(port)


def test_pictures_and_pages_are_served_while_the_network_computes(server, session, name):
    chosen, go_on = session.slide(name).chosen.numpy(), threading.Event()
    session.network.submit(go_on.wait, 60)
    judge = ("POST", f"/api/slides/{name}/judge", bits(chosen, ~chosen))
    waiting = threading.Thread(target=server.ask, args=judge)
    waiting.start()
    paths = ("/", "/static/viewer.js", "/api/slides", f"/api/slides/{name}/tiles/0/0_0")
    assert [server.ask("GET", path).status for path in paths] == [200] * len(paths)
    assert waiting.is_alive()
    go_on.set()
    waiting.join(timeout=60)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    "content",
    [
        b'{"marks": [',
        b"{}",
        b"\xff\xfe\x00",
        b'{"marks": [3], "n_patches": N}',
        b'{"marks": [{"patch": 0, "mark": "<b>", "in_evidence": true}], "n_patches": N}',
        b'{"marks": [{"patch": 99999, "mark": "accept", "in_evidence": true}], "n_patches": N}',
    ],
)
def test_a_review_that_was_damaged_is_one_sentence_and_never_written_over(session, name, content):
    client, other = visitor(session), list(session.specs)[1]
    given = {"accepted": [0], "rejected": []}
    assert client.put(f"/api/slides/{other}/review", json=given).status_code == 200
    path = session.folder / "reviews" / f"{name}.json"
    n_patches = len(session.slide(name).coords)
    path.write_bytes(content.replace(b"N", str(n_patches).encode()))
    before = path.read_bytes()
    about = client.get(f"/api/slides/{name}").json()
    assert about["marks"] == []
    problem = about["marks_problem"]
    assert problem.startswith(f"{path} ")
    assert problem.endswith(
        " It is not a review of this slide; move it away and review the slide again."
    )
    assert "\n" not in problem
    assert client.get("/api/agreement").json()["total"]["n_marks"] == 1
    refused = client.put(f"/api/slides/{name}/review", json=given)
    assert (refused.status_code, refused.json()["error"]) == (500, problem)
    assert path.read_bytes() == before
    path.unlink()
    assert client.put(f"/api/slides/{name}/review", json=given).json()["n_marks"] == 1
    path.unlink()
