"""The server: a loopback socket, and a guard that lets in the browser that opened the address.

code     random, in the printed address; works once, because other accounts can read the command
         line of a browser
session  random, a cookie (HttpOnly, SameSite=Strict) that the first visit gets for its code
Host     must name loopback and our port, so that a foreign name resolved to 127.0.0.1 is refused
Origin   must be our own when it is sent, and must be sent with every request that changes something
answer   carries a content security policy under which the page loads only from here
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gcemil.errors import UsageError
from gcemil.viewer.app import create_app
from gcemil.viewer.session import ViewerSession

LOOPBACK = "127.0.0.1"
CLOSING_SECONDS = 2
"""How long open requests may run after Ctrl-C."""
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Hash of the page's empty style element, which keeps OpenSeadragon from adding one of its own."""
WELCOME = (
    '<!doctype html><html lang="en"><title>gcemil view</title>'
    '<meta http-equiv="refresh" content="0;url=/"><p><a href="/">Open the viewer</a></p></html>'
)
"""Removes the code from the address bar. A redirect would not do: after a link on another page a
browser withholds a strict cookie until a page of ours sends the request."""
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {EMPTY_STYLE}; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # Slides are patients' data: nothing of them stays in the browser's cache.
    "cache-control": "no-store",
}


def serve(
    session: ViewerSession,
    listener: socket.socket,
    *,
    on_address: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until interrupted.

    `on_address` gets the address to open, and a new one when a used one is refused.
    """
    guard = Guard(create_app(session), int(listener.getsockname()[1]), on_address)
    guard.show_address()
    # This is how a viewer ends.
    with suppress(KeyboardInterrupt):
        create_server(guard).run(sockets=[listener])


def listen(port: int) -> socket.socket:
    """A loopback socket; a browser that is faster than the server waits in its queue."""
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
            f"Port {port} cannot be used, because {why}: give --port a number from 1024 to 65535, "
            "or leave it out for any free port."
        ) from error
    return listener


def create_server(guard: Guard) -> uvicorn.Server:
    """The application under uvicorn, without proxy headers and web sockets."""
    config = uvicorn.Config(
        guard,
        http="h11",
        log_level="warning",
        # It would hold the codes.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return uvicorn.Server(config)


class Guard:
    """The application, reached only by requests of its own page."""

    def __init__(
        self, app: ASGIApp, port: int, on_address: Callable[[str], None] = lambda _: None
    ) -> None:
        self.app = app
        self._address = f"http://{LOOPBACK}:{port}/"
        self._on_address = on_address
        self._session = secrets.token_urlsafe(32)
        self._code: str | None = None
        # Cookies are shared by all ports: two viewers must not overwrite each other's.
        self._cookie = f"gcemil_{port}"
        self._hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
        self._origins = {f"http://{host}" for host in self._hosts}

    def show_address(self) -> None:
        """Show an address with a fresh code, unless one waits to be used."""
        if self._code is None:
            self._code = secrets.token_urlsafe(16)
            self._on_address(f"{self._address}?code={self._code}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # Neither web sockets nor start-up events.

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refuse(Request(scope)) or self.app
        await answer(scope, receive, send_with_headers)

    def _refuse(self, request: Request) -> Response | None:
        """The response to a request that does not reach the application; None for one that does."""
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _deny("The viewer answers only to the address it printed.")
        changes = request.method not in ("GET", "HEAD")
        if not self._origins.issuperset(origins) or (changes and not origins):
            return _deny("The request comes from another page.")
        is_known = _is_equal(request.cookies.get(self._cookie, ""), self._session)
        if request.scope["path"] != "/" or changes:
            return None if is_known else _deny("Open the address that 'gcemil view' printed.")
        code = request.query_params.get("code", "")
        if self._code is not None and _is_equal(code, self._code):
            self._code = None
            answer = HTMLResponse(WELCOME)
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
            return answer
        if is_known:
            return HTMLResponse(WELCOME) if code else None
        self.show_address()
        return _deny("An address of 'gcemil view' works once. Its terminal shows a new one.")


def _is_equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def _deny(why: str) -> Response:
    return PlainTextResponse(why, 403)
