"""What stands between the viewer and everything that is not its own page.

token    random, in the address that the terminal prints; the first visit trades it for a cookie (HttpOnly, Strict)
Host     must name loopback and our port, so that a foreign name resolved to 127.0.0.1 is refused
Origin   must be our own wherever it is sent, and must be sent with everything that changes something
body     at most MAX_BODY bytes, counted while they arrive
answer   a content security policy under which the page can load from here alone
"""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gcemil.errors import RunError

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
MAX_BODY = 1_000_000
"""Bytes: two bits per patch, or a list of marks, for bags far beyond any slide."""
TOO_LARGE = f"A request holds at most {MAX_BODY} bytes."
READING = ("GET", "HEAD")
METHODS = (*READING, "POST", "PUT")
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Of nothing: the page carries an empty style element, at whose sight OpenSeadragon does not write one of its own."""
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


def new_token() -> str:
    return secrets.token_urlsafe(32)


class Guard:
    """Every request passes here first; what does not belong is answered without reaching the application."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self.app = app
        self._token = token
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
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        await self.app(scope, _limited(receive), guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is not let through."""
        headers, method = Headers(scope=scope), str(scope["method"])
        if headers.getlist("host") != [host := headers.get("host", "")] or host not in self._hosts:
            return _denied("The viewer answers only to the address it printed.")
        if method not in METHODS:
            return PlainTextResponse(f"The viewer knows no {method}.", 405)
        origin = headers.get("origin")
        if origin not in self._origins and (origin is not None or method not in READING):
            return _denied("The request comes from another page.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            return _too_large()
        return self._unauthorised(scope, headers)

    def _unauthorised(self, scope: Scope, headers: Headers) -> Response | None:
        if self._is_token(_cookie(headers, self._cookie)):
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and scope["method"] == "GET" and self._is_token(given):
            # The token leaves the address bar, and with it the history and what is copied from there.
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        return _denied("Open the address that 'gcemil view' printed; it carries the token.")

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def inside(folder: Path, name: str) -> Path:
    """A file of this folder; neither its name nor a link may lead out of it."""
    path = folder / name
    if (
        Path(name).name != name
        or name in {"", ".", ".."}
        or not path.resolve().is_relative_to(folder.resolve())
    ):
        raise RunError(f"'{name}' does not lie in {folder}. The viewer touches the run's own files alone.")
    return path


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _limited(receive: Receive) -> Receive:
    """The same body, cut off with an error once it is too long; a length that was promised proves nothing."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY:
            raise HTTPException(413, TOO_LARGE)
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sending


def _denied(why: str) -> Response:
    return PlainTextResponse(why, 403)


def _too_large() -> Response:
    return PlainTextResponse(TOO_LARGE, 413)
