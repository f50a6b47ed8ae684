"""The server: a loopback socket, a browser let in by a code, and an end to every wait.

head     a request's first lines must arrive within HEAD_SECONDS of its connection, or of its first byte on one kept open
body     counted and timed by the guard (security.py)
answer   a client that takes nothing of it for READ_SECONDS is dropped
number   at most CONNECTIONS at once; further ones are told so
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gcemil.errors import UsageError
from gcemil.viewer.app import create_app
from gcemil.viewer.security import LOOPBACK, Entry
from gcemil.viewer.session import ViewerSession

HEAD_SECONDS = 10.0
READ_SECONDS = 30.0
CLOSING_SECONDS = 2
"""What a client that is being answered gets after Ctrl-C."""
CONNECTIONS = 512
FIRST_PORT, LAST_PORT = 1024, 65535
"""Below lie the ports of system services, which need an administrator and which browsers treat apart."""


def serve(
    session: ViewerSession, listener: socket.socket, *, on_address: Callable[[str], None] = lambda _: None
) -> None:
    """Answer until interrupted; `on_address` is told the address to open, and a new one when that was used in vain."""
    entry, port = Entry(), int(listener.getsockname()[1])

    def show_address() -> None:
        # One that waits to be used was shown already, and no stranger can make us show more of them.
        if not entry.has_code():
            on_address(f"http://{LOOPBACK}:{port}/?code={entry.new_code()}")

    show_address()
    try:
        create_server(session, entry=entry, port=port, on_refused=show_address).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # This is how a viewer ends.
    finally:
        session.close()


def listen(port: int) -> socket.socket:
    """A loopback socket; a browser that is faster than the server waits in its queue instead of being refused."""
    remedy = f"give --port a number from {FIRST_PORT} to {LAST_PORT}, or leave it out for any free port."
    if port != 0 and not FIRST_PORT <= port <= LAST_PORT:
        raise UsageError(
            f"Port {port} cannot be used, because those below {FIRST_PORT} belong to the system: {remedy}"
        )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        why = "another program uses it" if is_taken else f"the system says '{error.strerror}'"
        raise UsageError(f"Port {port} cannot be used, because {why}: {remedy}") from error
    return listener


def create_server(
    session: ViewerSession, *, entry: Entry, port: int, on_refused: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """The application under uvicorn, which by itself waits for ever and believes a proxy's headers."""
    # No access log: it would hold the codes.
    config = uvicorn.Config(
        create_app(session, entry=entry, port=port, on_refused=on_refused),
        http=_ImpatientProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return uvicorn.Server(config)


class _ImpatientProtocol(H11Protocol):
    """HTTP with an end to waiting for a request's head, and for a client to take its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the head of the first request."""
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._start("head", HEAD_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """A complete head stops the clock; the next request starts it once."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop("head")
        elif "head" not in self._timers:
            # Once per request: a byte now and then gains no time.
            self._start("head", HEAD_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """The client reads too slowly; watch it."""
        super().pause_writing()
        self._start("reader", READ_SECONDS, self._drop_idle_reader, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._stop("reader")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        super().connection_lost(exc)
        self._stop("head")
        self._stop("reader")

    def _drop_idle_reader(self, unread: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= unread:
            self.transport.abort()
        else:
            self._start("reader", READ_SECONDS, self._drop_idle_reader, left)

    def _start(self, name: str, seconds: float, then: Callable[..., None], *given: int) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, then, *given)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
