"""Who may talk to the viewer: the browser that opened the printed address, and no other page or account.

code     random, in the printed address; works once, because other accounts can read the command line of a browser
session  random, a cookie (HttpOnly, SameSite=Strict) that the first visit gets in exchange for its code
Host     must name loopback and our port, so that a foreign name resolved to 127.0.0.1 is refused
Origin   must be our own when it is sent, and must be sent with every request that changes something
answer   carries a content security policy under which the page loads only from here
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Hash of the page's empty style element, which keeps OpenSeadragon from adding one of its own."""
WELCOME = (
    '<!doctype html><html lang="en"><title>gcemil view</title>'
    '<meta http-equiv="refresh" content="0;url=/"><p><a href="/">Open the viewer</a></p></html>'
)
"""Removes the code from the address bar. A redirect would not do: after a link on another page a browser withholds a
strict cookie until a page of ours sends the request."""
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {EMPTY_STYLE}; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Slides are patients' data: nothing of them stays in the browser's cache.
    "cache-control": "no-store",
}


class Entry:
    """One session, and the code that lets the next browser into it."""

    def __init__(self) -> None:
        self._session = secrets.token_urlsafe(32)
        self._code: str | None = None

    def new_code(self) -> str:
        """A fresh code for the address; it replaces one that was not used."""
        self._code = secrets.token_urlsafe(16)
        return self._code

    def has_code(self) -> bool:
        """Whether a code waits to be used."""
        return self._code is not None

    def exchange(self, code: str) -> str | None:
        """The session for the current code, which is then used up; None for any other."""
        if self._code is None or not hmac.compare_digest(code.encode(), self._code.encode()):
            return None
        self._code = None
        return self._session

    def is_session(self, cookie: str) -> bool:
        """Whether a cookie is that of this session."""
        return hmac.compare_digest(cookie.encode(), self._session.encode())


class Guard:
    """The application, reached only by requests of its own page; `on_refused` is called when an address is refused."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        entry: Entry,
        port: int,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.app = app
        self._entry = entry
        self._on_refused = on_refused
        # Cookies do not know ports: two viewers of one person must not overwrite each other's.
        self._cookie = f"gcemil_{port}"
        self._hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
        self._origins = {f"http://{host}" for host in self._hosts}

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
        """The answer to a request that does not reach the application; None for one that does."""
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _deny("The viewer answers only to the address it printed.")
        if not self._origins.issuperset(origins) or (
            not origins and request.method not in ("GET", "HEAD")
        ):
            return _deny("The request comes from another page.")
        is_known = self._entry.is_session(request.cookies.get(self._cookie, ""))
        if request.scope["path"] != "/" or request.method != "GET":
            return None if is_known else _deny("Open the address that 'gcemil view' printed.")
        code = request.query_params.get("code", "")
        session = self._entry.exchange(code)
        if session is not None:
            answer = HTMLResponse(WELCOME)
            answer.set_cookie(self._cookie, session, httponly=True, samesite="strict")
            return answer
        if is_known:
            return HTMLResponse(WELCOME) if code else None
        self._on_refused()
        return _deny("An address of 'gcemil view' works once. Its terminal shows a new one.")


def _deny(why: str) -> Response:
    return PlainTextResponse(why, 403)
