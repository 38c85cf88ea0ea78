"""Who may ask: the right host, the token of this run, a small body. Must not know what is asked."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1 << 16
"""Of a request's body; an action takes less than 200."""
OPEN = "/static/"
"""What needs no token: files that everyone has."""
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """An application that is asked only by whom it trusts."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self.app = app
        self.token = token
        self.hosts = tuple(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 400, 403 or 413, or asks the application."""
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        if refused is None:
            await self.app(scope, _Limited(receive).receive, _with_headers(send))
        else:
            await refused(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope) -> PlainTextResponse | None:
        headers = {k: v.decode("latin-1") for k, v in scope["headers"]}
        if headers.get(b"host", "") not in self.hosts:
            return PlainTextResponse("another host was asked for", 400)
        origin = headers.get(b"origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            return PlainTextResponse("another page asks", 403)
        if not scope["path"].startswith(OPEN) and not self._knows(scope, headers):
            return PlainTextResponse("the token is missing or wrong", 403)
        length = headers.get(b"content-length", "0")
        if not length.isdecimal():
            return PlainTextResponse("the length is no number", 400)
        return PlainTextResponse("the body is too large", 413) if int(length) > MOST_BYTES else None

    def _knows(self, scope: Scope, headers: dict[bytes, str]) -> bool:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        given = headers.get(b"x-onetrip-token") or query.get("token", [""])[0]
        return secrets.compare_digest(given.encode(), self.token.encode())


class _Limited:
    """A body without a stated length ends where it becomes too large."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = MOST_BYTES

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                return {"type": "http.disconnect"}
        return message


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return sent
