"""The viewer behind its guard, as a browser on the same machine meets it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from gcemil.viewer.app import create_app
from gcemil.viewer.security import Entry
from gcemil.viewer.server import create_server, listen
from gcemil.viewer.session import ViewerSession

PORT = 8123
HERE = f"http://127.0.0.1:{PORT}"


def stranger(session: ViewerSession, entry: Entry | None = None) -> TestClient:
    """Somebody without a code."""
    app = create_app(session, entry=entry or Entry(), port=PORT)
    return TestClient(app, base_url=HERE, headers={"origin": HERE})


def visitor(session: ViewerSession) -> TestClient:
    """Somebody who opened the printed address."""
    entry = Entry()
    client = stranger(session, entry)
    assert client.get(f"/?code={entry.new_code()}").status_code == 200
    return client


def opened(run: Path) -> ViewerSession:
    return ViewerSession.open(run)


def bits(*masks: np.ndarray) -> bytes:
    return b"".join(np.packbits(mask, bitorder="little").tobytes() for mask in masks)


def send_bits(client: TestClient, path: str, content: Any) -> Any:
    """As the page sends sets of patches."""
    return client.post(path, content=content, headers={"content-type": "application/octet-stream"})


def send_review(client: TestClient, slide_id: str, content: Any) -> Any:
    """As the page sends marks."""
    return client.put(
        f"/api/slides/{slide_id}/review",
        content=content,
        headers={"content-type": "application/json"},
    )


@dataclass(frozen=True)
class Answer:
    """What the real server said, and under which headers."""

    status: int
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Running:
    """The real server; requests go to it byte by byte, as no well-behaved client would send them."""

    entry: Entry
    port: int
    cookie: str

    def new_address(self) -> str:
        """As the terminal prints it."""
        return f"http://127.0.0.1:{self.port}/?code={self.entry.new_code()}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def head(self, method: str, target: str, **headers: str | None) -> bytes:
        """The first lines of a visitor's request; a header that is None is left out."""
        given = {
            "host": f"127.0.0.1:{self.port}",
            "origin": f"http://127.0.0.1:{self.port}",
            "cookie": self.cookie,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
        return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    def ask(self, method: str, target: str, body: bytes = b"", **headers: str | None) -> Answer:
        if body:
            headers = {"content_length": str(len(body)), **headers}
        with self.connect() as connection:
            connection.sendall(self.head(method, target, **headers) + body)
            return read_answer(connection, method)


def read_answer(connection: socket.socket, method: str = "GET") -> Answer:
    response = HTTPResponse(connection, method=method)
    try:
        response.begin()
        return Answer(response.status, response.headers, response.read())
    finally:
        response.close()


@contextmanager
def running(session: ViewerSession, entry: Entry | None = None) -> Iterator[Running]:
    """The real server on a free port, in a thread of this process, and somebody who was let in."""
    entry = entry or Entry()
    with listen(0) as listener:
        port = int(listener.getsockname()[1])
        server = create_server(session, entry=entry, port=port)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            stranger = Running(entry, port, "")
            welcome = stranger.ask("GET", f"/?code={entry.new_code()}", cookie=None)
            yield Running(entry, port, welcome.headers["set-cookie"].partition(";")[0])
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()
