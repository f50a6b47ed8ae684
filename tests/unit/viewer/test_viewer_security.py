import pytest

from gcemil.errors import RunError, UsageError
from gcemil.viewer.app import STATIC, listening
from gcemil.viewer.security import MAX_BODY, inside
from viewer_builders import HERE, PORT, TOKEN, opened, stranger, visitor


@pytest.fixture(scope="module")
def session(classification_runs):
    session = opened(classification_runs.gce)
    yield session
    session.close()


def test_without_the_token_nothing_is_served(session):
    for path in (
        "/",
        "/api/slides",
        "/static/viewer.js",
        "/?token=wrong",
        "/?token=",
        f"/api/slides?token={TOKEN}",
    ):
        assert stranger(session).get(path).status_code == 403, path


def test_the_token_becomes_a_strict_cookie_and_leaves_the_address(session):
    answer = stranger(session).get(f"/?token={TOKEN}", follow_redirects=False)
    cookie = answer.headers["set-cookie"].lower()
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert visitor(session).get("/api/slides").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", "127.0.0.1", ""])
def test_a_foreign_host_name_is_refused(session, host):
    assert visitor(session).get("/api/slides", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", f"{HERE}.evil.example"]
)
def test_a_foreign_origin_is_refused(session, origin):
    client = visitor(session)
    assert client.get("/api/slides", headers={"origin": origin}).status_code == 403
    name = next(iter(session.specs))
    assert (
        client.post(f"/api/slides/{name}/judge", content=b"", headers={"origin": origin}).status_code == 403
    )


def test_what_changes_something_must_say_where_it_comes_from(session):
    client = visitor(session)
    del client.headers["origin"]
    assert client.get("/api/slides").status_code == 200
    assert client.put(f"/api/slides/{next(iter(session.specs))}/review", content=b"{}").status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/openseadragon/../../session.py",
        "/static/index.html",
        "/api/slides/..%2f..%2fconfig.yaml",
        "/api/slides/%2e%2e",
        "/api/slides/nobody/tiles/0/0_0",
        "/config.yaml",
    ],
)
def test_no_path_leads_out_of_the_viewer(session, path):
    assert visitor(session).get(path).status_code == 404


def test_a_body_has_a_limit_whatever_its_length_claims(session):
    client, name = visitor(session), next(iter(session.specs))
    long = b"0" * (MAX_BODY + 1)
    assert client.post(f"/api/slides/{name}/judge", content=long).status_code == 413

    def chunks():
        for _ in range(MAX_BODY // 100_000 + 2):
            yield b"0" * 100_000

    assert client.post(f"/api/slides/{name}/judge", content=chunks()).status_code == 413


def test_other_methods_are_not_known(session):
    assert visitor(session).delete("/api/slides").status_code == 405
    assert visitor(session).post("/api/slides").status_code == 405


def test_every_answer_carries_the_policy(session):
    for answer in (visitor(session).get("/"), visitor(session).get("/nothing"), stranger(session).get("/")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_page_names_no_other_machine(session):
    client = visitor(session)
    for path in ("/", *(f"/static/{name}" for name in STATIC if "/" not in name and "svg" not in name)):
        text = client.get(path).text
        assert "http:" not in text
        assert "https:" not in text
        assert "//cdn" not in text


@pytest.mark.parametrize("name", ["../x.json", "a/b.json", "", ".", ".."])
def test_a_file_outside_its_folder_is_refused(tmp_path, name):
    with pytest.raises(RunError, match="the run's own files alone"):
        inside(tmp_path, name)


def test_a_link_that_leads_out_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "reviews").symlink_to(tmp_path)
    with pytest.raises(RunError, match="the run's own files alone"):
        inside(tmp_path / "run", "reviews")


def test_the_socket_is_on_loopback_and_a_taken_port_is_said():
    with listening(0) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(UsageError, match=f"Port {port} cannot be used"):
            listening(port)
