"""Checks the host and limits the body of each request, and sets the security headers of each response."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

from paygw_batch.language import say

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": CONTENT_POLICY,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
        "cache-control": "no-store",
    }
)
"""The headers of every response. With `no-referrer`, browsers would omit the origin that forms need."""
_HSTS_VALUE = "max-age=31536000"
MAX_FORM_BYTES = 256 * 1024
BODY_LIMIT_S = 300.0
"""Time limit for receiving a body. A sheet of 64 MiB needs 2 Mbit/s to arrive in time."""


class WebGuard:
    """Wraps and protects the ASGI application `app`.

    `hosts` are the accepted host names. Any other name could belong to a foreign site but resolve to this server.
    `max_body_bytes` returns the maximum length of a body for a path. `uses_tls` says whether browsers use TLS.
    """

    def __init__(
        self, app: AsgiApp, *, hosts: Collection[str], max_body_bytes: Callable[[str], int], uses_tls: bool
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._max_body_bytes = max_body_bytes
        headers = {**HEADERS, "strict-transport-security": _HSTS_VALUE} if uses_tls else HEADERS
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            await _send_refusal(send_with_headers, 421, say("The console is not available at this address."))
            return
        max_bytes = self._max_body_bytes(scope["path"])
        content_length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not content_length.isdigit() or int(content_length) > max_bytes:
            await _send_refusal(send_with_headers, 413, say("The file is too large."))
            return
        body = _Body(receive, max_bytes)
        try:
            await self._app(scope, body.receive, send_with_headers)
        except BodyRefused:
            await _send_refusal(send_with_headers, 413, say("The file is too large or took too long to upload."))


class BodyRefused(Exception):
    """The body of a request is too long or did not arrive in time."""


class _Body:
    """A request body. `receive` raises `BodyRefused` if the body is too long or arrives too slowly."""

    def __init__(self, receive: AsgiReceive, max_bytes: int) -> None:
        self._receive = receive
        self._remaining_bytes = max_bytes
        self._deadline: float | None = None
        self._is_complete = False

    async def receive(self) -> AsgiMessage:
        if self._is_complete:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + BODY_LIMIT_S
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise BodyRefused from None
        self._remaining_bytes -= len(message.get("body", b""))
        if self._remaining_bytes < 0:
            raise BodyRefused
        self._is_complete = not message.get("more_body", False)
        return message


async def _send_refusal(send: AsgiSend, status: int, message: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": message.encode()})
