"""The server: a loopback socket, and a browser that enters with a code."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import uvicorn

from gcemil.errors import UsageError
from gcemil.viewer.app import create_app
from gcemil.viewer.security import LOOPBACK, Entry
from gcemil.viewer.session import ViewerSession

CLOSING_SECONDS = 2
"""How long open requests may run after Ctrl-C."""


def serve(
    session: ViewerSession,
    listener: socket.socket,
    *,
    on_address: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer until interrupted; `on_address` gets the address to open, and a new one when a used one is refused."""
    entry, port = Entry(), int(listener.getsockname()[1])

    def show_address() -> None:
        # A code that waits to be used was shown already.
        if not entry.has_code():
            on_address(f"http://{LOOPBACK}:{port}/?code={entry.new_code()}")

    show_address()
    try:
        create_server(session, entry=entry, port=port, on_refused=show_address).run(
            sockets=[listener]
        )
    except KeyboardInterrupt:
        pass  # This is how a viewer ends.
    finally:
        session.close()


def listen(port: int) -> socket.socket:
    """A loopback socket; a browser that is faster than the server waits in its queue instead of being refused."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        why = "another program uses it" if is_taken else f"the system says '{error.strerror}'"
        raise UsageError(
            f"Port {port} cannot be used, because {why}: give --port a number from 1024 to 65535, or leave it out for any "
            "free port."
        ) from error
    return listener


def create_server(
    session: ViewerSession,
    *,
    entry: Entry,
    port: int,
    on_refused: Callable[[], None] = lambda: None,
) -> uvicorn.Server:
    """The application under uvicorn, without proxy headers and web sockets."""
    # No access log: it would hold the codes.
    config = uvicorn.Config(
        create_app(session, entry=entry, port=port, on_refused=on_refused),
        http="h11",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return uvicorn.Server(config)
