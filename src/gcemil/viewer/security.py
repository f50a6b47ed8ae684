"""What stands between the viewer and everything that is not its own page.

code     random, in the address that the terminal prints and the browser is started with; good once and for some minutes
session  random, a cookie (HttpOnly, Strict) that the first visit gets for its code; never in an address or a command line
Host     must name loopback and our port, so that a foreign name resolved to 127.0.0.1 is refused
Origin   must be our own wherever it is sent, and must be sent with everything that changes something
body     at most MAX_BODY bytes, counted while they arrive
answer   a content security policy under which the page can load from here alone
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gcemil.errors import RunError

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
MAX_BODY = 4_000_000
"""Bytes: two bits per patch, or a mark on every one of half a million patches."""
TOO_LARGE = f"A request holds at most {MAX_BODY} bytes."
CODE_SECONDS = 300.0
"""Between printing an address and opening it."""
READING = ("GET", "HEAD")
METHODS = (*READING, "POST", "PUT")
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Of nothing: the page carries an empty style element, at whose sight OpenSeadragon does not write one of its own."""
WELCOME = (
    '<!doctype html><html lang="en"><title>gcemil view</title>'
    '<meta http-equiv="refresh" content="0;url=/"><p><a href="/">Open the viewer</a></p></html>'
)
"""Takes the code out of the address bar. A redirect would not do: after a link on another page a browser keeps a strict
cookie back until a page of ours asks."""
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
    """One session, and the codes that let a browser into it: each once, and only for CODE_SECONDS."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._session = secrets.token_urlsafe(32)
        self._now = now
        self._codes: dict[str, float] = {}

    def new_code(self) -> str:
        """A fresh code for the address, good for CODE_SECONDS."""
        code = secrets.token_urlsafe(16)
        self._codes[code] = self._now() + CODE_SECONDS
        return code

    def has_code(self) -> bool:
        """Whether a code waits to be used."""
        return any(self._now() < end for end in self._codes.values())

    def exchange(self, given: str) -> str | None:
        """The session for a code, which is used up; None for one that was used, has expired or never was."""
        self._codes = {code: end for code, end in self._codes.items() if self._now() < end}
        for code in self._codes:
            if hmac.compare_digest(given.encode(), code.encode()):
                del self._codes[code]
                return self._session
        return None

    def is_session(self, given: str) -> bool:
        """Whether a cookie is that of this session."""
        return hmac.compare_digest(given.encode(), self._session.encode())


class Guard:
    """Every request passes here first; what does not belong is answered without reaching the application."""

    def __init__(
        self, app: ASGIApp, *, entry: Entry, port: int, on_refused: Callable[[], None] = lambda: None
    ) -> None:
        self.app = app
        self._entry = entry
        self._on_refused = on_refused
        # Cookies do not know ports: two viewers of one person must not overwrite each other's.
        self._cookie = f"gcemil_{port}"
        self._hosts = {f"{name}:{port}" for name in NAMES}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # No web sockets here.
        guarded = _with_headers(send)
        refusal = self._find_refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        await self.app(scope, _limit_body(receive), guarded)

    def _find_refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is not let through."""
        headers, method = Headers(scope=scope), str(scope["method"])
        if headers.getlist("host") != [host := headers.get("host", "")] or host not in self._hosts:
            return _deny("The viewer answers only to the address it printed.")
        if method not in METHODS:
            return PlainTextResponse(f"The viewer knows no {method}.", 405)
        origins = headers.getlist("origin")
        if not self._origins.issuperset(origins) or (not origins and method not in READING):
            return _deny("The request comes from another page.")
        length = headers.get("content-length", "0")
        # Python does not read numbers of thousands of digits.
        if not length.isdecimal() or len(length) > 20 or int(length) > MAX_BODY:
            return PlainTextResponse(TOO_LARGE, 413)
        return self._unauthorised(scope, headers)

    def _unauthorised(self, scope: Scope, headers: Headers) -> Response | None:
        is_known = self._entry.is_session(_cookie(headers, self._cookie))
        if scope["path"] != "/" or scope["method"] != "GET":
            return None if is_known else _deny("Open the address that 'gcemil view' printed.")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])[0]
        session = self._entry.exchange(given)
        if session is not None:
            answer = HTMLResponse(WELCOME)
            answer.set_cookie(self._cookie, session, httponly=True, samesite="strict")
            return answer
        if is_known:
            return HTMLResponse(WELCOME) if given else None
        self._on_refused()
        return _deny(
            "An address of 'gcemil view' is good once and for a few minutes. Its terminal shows a new one."
        )


def inside(folder: Path, name: str) -> Path:
    """A file of this folder; neither its name nor a link may lead out of it."""
    path = folder / name
    if (
        Path(name).name != name
        or name in {"", ".", ".."}
        # Unlike Path.resolve, this leaves a link to itself to whoever opens it.
        or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    ):
        raise RunError(f"'{name}' does not lie in {folder}. The viewer touches the run's own files alone.")
    return path


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _limit_body(receive: Receive) -> Receive:
    """The same body, ended with an error once it is too long; a stated length proves nothing."""
    received = 0

    async def receive_counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY:
            raise HTTPException(413, TOO_LARGE)
        return message

    return receive_counted


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sending


def _deny(why: str) -> Response:
    return PlainTextResponse(why, 403)
