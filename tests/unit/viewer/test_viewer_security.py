import pytest

from builders.viewer import opened, visitor
from gcemil.errors import UsageError
from gcemil.viewer.app import STATIC
from gcemil.viewer.security import Entry
from gcemil.viewer.server import listen


def test_a_code_gives_the_session_once():
    entry = Entry()
    code = entry.new_code()
    assert entry.has_code()
    assert entry.exchange("another") is None
    session = entry.exchange(code)
    assert entry.is_session(session)
    assert entry.exchange(code) is None
    assert not entry.has_code()
    assert not entry.is_session(code)


def test_the_page_names_no_other_machine(classification_runs):
    session = opened(classification_runs.gce)
    client = visitor(session)
    for path in ("/", *(f"/static/{name}" for name in STATIC if "/" not in name and "svg" not in name)):
        text = client.get(path).text
        assert "http:" not in text
        assert "https:" not in text
        assert "//cdn" not in text
    session.close()


def test_the_socket_is_on_loopback_and_a_taken_port_is_said():
    with listen(0) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(
            UsageError, match=f"^Port {port} cannot be used, because another program uses it: give --port"
        ):
            listen(port)


@pytest.mark.parametrize("port", [1, 80, 443, 1023, 65536, -1])
def test_a_port_of_the_system_is_refused_whoever_asks(port):
    """An administrator could have it, and a browser leaves the number 80 out of Host."""
    with pytest.raises(
        UsageError, match=f"^Port {port} cannot be used, .* give --port a number from 1024 to 65535"
    ):
        listen(port)


@pytest.mark.parametrize("port", ["80", "taken"])
def test_the_command_says_a_bad_port_before_it_reads_the_run(tmp_path, port):
    import typer
    from typer.testing import CliRunner

    from gcemil.cli.report import view

    app = typer.Typer()
    app.command()(view)
    with listen(0) as listener:
        given = str(listener.getsockname()[1]) if port == "taken" else port
        result = CliRunner().invoke(app, [str(tmp_path / "no run"), "--port", given])
    assert isinstance(result.exception, UsageError)
    assert f"Port {given} " in str(result.exception)
