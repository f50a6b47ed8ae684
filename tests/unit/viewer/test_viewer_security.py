import pytest

from builders.viewer import opened, visitor
from gcemil.errors import UsageError
from gcemil.viewer.app import STATIC
from gcemil.viewer.server import listen


def test_the_page_names_no_other_machine(classification_runs):
    session = opened(classification_runs.gce)
    client = visitor(session)
    for path in (
        "/",
        *(f"/static/{file.name}" for file in STATIC.iterdir() if file.suffix in (".js", ".css")),
    ):
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
            UsageError,
            match=f"^Port {port} cannot be used, because another program uses it: give --port",
        ):
            listen(port)
