"""The viewer behind its guard, as a browser on the same machine uses it."""

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
from gcemil.viewer.server import Guard, create_server, listen
from gcemil.viewer.session import ViewerSession

PORT = 8123
HERE = f"http://127.0.0.1:{PORT}"


class Door(Guard):
    """The guarded application and the addresses that it printed."""

    def __init__(self, session: ViewerSession, port: int = PORT) -> None:
        self.addresses: list[str] = []
        super().__init__(create_app(session), port, self.addresses.append)

    def new_address(self) -> str:
        self.show_address()
        return self.addresses[-1]

    def client(self) -> TestClient:
        """Somebody without a code."""
        return TestClient(self, base_url=HERE, headers={"origin": HERE})


def visitor(session: ViewerSession) -> TestClient:
    """Somebody who opened the printed address."""
    door = Door(session)
    client = door.client()
    assert client.get(door.new_address()).status_code == 200
    return client


def opened(run: Path) -> ViewerSession:
    return ViewerSession(run)


def bits(*masks: np.ndarray) -> bytes:
    return b"".join(np.packbits(mask, bitorder="little").tobytes() for mask in masks)


def send_bits(client: TestClient, path: str, content: Any) -> Any:
    """As the page sends sets of patches."""
    return client.post(path, content=content)


@dataclass(frozen=True)
class Answer:
    """What the real server answered, and under which headers."""

    status: int
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Running:
    """The real server; requests go to it byte by byte."""

    door: Door
    port: int
    cookie: str

    def new_address(self) -> str:
        """As the terminal prints it."""
        return self.door.new_address()

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
            response = HTTPResponse(connection, method=method)
            response.begin()
            return Answer(response.status, response.headers, response.read())


@contextmanager
def running(session: ViewerSession) -> Iterator[Running]:
    """The real server on a free port, in a thread of this process, and somebody let in."""
    with listen(0) as listener:
        port = int(listener.getsockname()[1])
        door = Door(session, port)
        server = create_server(door)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            target = "/?" + door.new_address().partition("?")[2]
            welcome = Running(door, port, "").ask("GET", target, cookie=None)
            yield Running(door, port, welcome.headers["set-cookie"].partition(";")[0])
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()
