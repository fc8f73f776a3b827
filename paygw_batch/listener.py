"""Receives the gateway's notifications over HTTP, as an ASGI application.

A readable notification is answered with 200 once it is durable, even if its order is unknown, its status word is not
listed or its hash is wrong. Its effect is decided later, so the reply does not reveal it.
"""

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.errors import JournalError
from paygw_batch.gateway.message import IncomingRequest
from paygw_batch.gateway.notification import relevant_headers
from paygw_batch.journal import Notification, encode_notification
from paygw_batch.language import say
from paygw_batch.web_server import LocalServer, bounded_protocol, listen_on_loopback

MAX_DISCARDED_BYTES = 32 * 1024 * 1024
"""How much of an oversized body is read and discarded, so that the sender can still receive the reply."""
MAX_UNREADABLE_BYTES = 4096
"""How many bytes of an unreadable notification's query and body are stored, each."""
MAX_STORED_UNREADABLE = 1000
"""The maximum number of unreadable notifications that a listener stores. Later ones are only counted."""
BURST_S = 10
"""A burst may contain as many requests as arrive in this many seconds at the average rate."""
MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 * 1024
_BACKLOG = 2048

_log = logging.getLogger(__name__)
_METHODS = frozenset({"GET", "POST"})
_HEADERS = {"content-type": "text/plain", "connection": "close"}
_RESPONSES = {
    response.status_code: response
    for response in (
        Response("OK", 200, _HEADERS),
        Response("The notification cannot be read.", 400, _HEADERS),
        Response("Not found.", 404, _HEADERS),
        Response("Use GET or POST.", 405, _HEADERS | {"allow": "GET, POST"}),
        Response("The body is too long.", 413, _HEADERS),
        Response("Too many requests.", 429, _HEADERS | {"retry-after": "1"}),
        Response("The notification cannot be stored now.", 503, _HEADERS | {"retry-after": "30"}),
    )
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a listener. `rate_per_s` is an average rate of requests. Bursts are limited by `BURST_S`."""

    max_body_bytes: int
    rate_per_s: float


class ListenerApp:
    """An ASGI application that receives notifications at `path`, which includes a secret token.

    `read_claim` returns the claim in a notification, or the reason if it cannot be read. `store` stores an encoded
    notification durably, or raises `JournalError`. `header` names the header with the signature or hash. `counts`
    counts replies by HTTP status, and "kept" and "unreadable" notifications. `follow_up` is called with each unproven
    claim that was stored.
    """

    def __init__(
        self,
        path: str,
        *,
        read_claim: Callable[[IncomingRequest], Claim | str],
        store: Callable[[str], Awaitable[None]],
        limits: Limits,
        now: Callable[[], str],
        monotonic_s: Callable[[], float],
        header: str | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.follow_up: Callable[[Claim], None] = lambda _claim: None
        self._path, self._header, self._limits = path.encode(), header, limits
        self._read_claim, self._store_durably = read_claim, store
        self._now, self._monotonic_s = now, monotonic_s
        self._allowed_requests = limits.rate_per_s * BURST_S
        self._refilled_s = monotonic_s()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. If the sender disconnects before its end, there is no reply."""
        try:
            status = await self._serve(Request(scope, receive))
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 (the sender must learn that nothing was stored)
            # Only the type of the error is logged, because its message could quote the request.
            _log.error("The listener failed on a request: %s.", type(error).__name__)
            status = 503
        self.counts[str(status)] += 1
        await _RESPONSES[status](scope, receive, send)

    async def _serve(self, request: Request) -> int:
        if not hmac.compare_digest(request.scope["raw_path"], self._path):
            return 404
        if request.method not in _METHODS:
            return 405
        body = await _read_body(request, self._limits.max_body_bytes)
        if body is None:
            return 413
        if not self._use_allowance():
            return 429
        headers = tuple(request.headers.items())
        content_type = request.headers.get("content-type", "")
        query = request.scope["query_string"].decode("latin-1")
        return await self._store(IncomingRequest(request.method, content_type, query, body, headers))

    async def _store(self, request: IncomingRequest) -> int:
        claim_or_reason = self._read_claim(request)
        if isinstance(claim_or_reason, str):
            self.counts["unreadable"] += 1
            if self.counts["unreadable"] > MAX_STORED_UNREADABLE:
                return 400
        try:
            # The notification must be durable before the reply, because the gateway does not repeat it after a 200.
            await self._store_durably(encode_notification(self._build_notification(request, claim_or_reason)))
        except JournalError:
            return 503
        self.counts["kept"] += 1
        if isinstance(claim_or_reason, Claim) and claim_or_reason.proof is not Proof.PROVEN:
            self.follow_up(claim_or_reason)
        return 400 if isinstance(claim_or_reason, str) else 200

    def _build_notification(self, request: IncomingRequest, claim_or_reason: Claim | str) -> Notification:
        max_bytes = self._limits.max_body_bytes if isinstance(claim_or_reason, Claim) else MAX_UNREADABLE_BYTES
        return Notification(
            received_at=self._now(),
            method=request.method,
            content_type=request.content_type[:MAX_UNREADABLE_BYTES],
            query=request.query[:max_bytes],
            body=request.body[:max_bytes],
            length=len(request.body),
            problem="" if isinstance(claim_or_reason, Claim) else claim_or_reason,
            claim=claim_or_reason if isinstance(claim_or_reason, Claim) else Claim(None),
            headers=relevant_headers(request, self._header),
        )

    def _use_allowance(self) -> bool:
        now_s = self._monotonic_s()
        rate = self._limits.rate_per_s
        self._allowed_requests = min(self._allowed_requests + (now_s - self._refilled_s) * rate, rate * BURST_S)
        self._refilled_s = now_s
        if self._allowed_requests < 1:
            return False
        self._allowed_requests -= 1
        return True


async def _read_body(request: Request, limit: int) -> bytes | None:
    """Return the body of a request, or None if it is longer than `limit` bytes."""
    body, length = b"", 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= limit:
            body += chunk
        if length > MAX_DISCARDED_BYTES:
            break
    return body if length <= limit else None


class GroupedWriter:
    """Writes notifications in a separate thread. Each call of `store_all` writes all that are waiting."""

    def __init__(self, store_all: Callable[[Sequence[str]], None]) -> None:
        self._store_all = store_all
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notifications")
        self._write_lock = asyncio.Lock()
        self._waiting: list[str] = []
        self._write_task: asyncio.Task[None] | None = None
        """The next write, which includes all waiting notifications, or None if none is waiting."""

    async def write(self, content: str) -> None:
        """Write an encoded notification durably. Raises `JournalError`."""
        self._waiting.append(content)
        if self._write_task is None:
            self._write_task = asyncio.create_task(self._store_waiting())
        await asyncio.shield(self._write_task)  # cancelling one request must not cancel the write for others

    def close(self) -> None:
        """Wait for the write in progress, and end the thread."""
        self._thread.shutdown()

    async def _store_waiting(self) -> None:
        async with self._write_lock:
            group, self._waiting, self._write_task = self._waiting, [], None
            await asyncio.get_running_loop().run_in_executor(self._thread, self._store_all, group)


async def serve(app: ListenerApp, port: int, *, client_timeout_s: float, on_ready: Callable[[int], None]) -> None:
    """Serve the listener until SIGINT or SIGTERM, then shut it down cleanly.

    Port 0 means any free port. `on_ready` is called with the actual port once the server listens. A connection carries
    one request, and ends within `client_timeout_s` seconds. Raises `ConfigurationError` if the port cannot be used.
    """
    server = LocalServer(
        app,
        http=bounded_protocol(client_timeout_s),
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        grace_s=int(client_timeout_s) + 1,
    )
    hint = say("Choose another [notifications] port.")
    with server.stop_on_signals(), closing(listen_on_loopback(port, backlog=_BACKLOG, hint=hint)) as listener:
        on_ready(listener.getsockname()[1])
        await server.serve(sockets=[listener])
