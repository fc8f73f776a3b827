"""Receives the gateway's notifications over HTTP, as an ASGI application.

A notification that can be read is answered with 200 once it is durable, even if its order is unknown, its status word
is not listed, or its hash is wrong. The journal decides its effect later, and the answer gives the sender no hint.
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
from paygw_batch.gateway.message import Received
from paygw_batch.gateway.notification import headers_that_matter
from paygw_batch.journal import Notification, encode_notification
from paygw_batch.language import say
from paygw_batch.web_server import LocalServer, bounded, listen_on_loopback

MAX_DISCARDED_BYTES = 32 * 1024 * 1024
"""The most bytes that are read of a body that is too long. They are thrown away, but its sender receives the reason."""
KEPT_UNREADABLE_BYTES = 4096
"""The most bytes that are kept of the query of an unreadable notification. The same limit applies to its body."""
MAX_UNREADABLE = 1000
"""The maximum number of unreadable notifications that one listener keeps. It only counts later ones."""
BURST_S = 10
"""The seconds for which the average rate may be used up at once: the largest burst is `rate_per_s * BURST_S`."""

_log = logging.getLogger(__name__)
_METHODS = frozenset({"GET", "POST"})
_HEADERS = {"content-type": "text/plain", "connection": "close"}
_ANSWERS = {
    answer.status_code: answer
    for answer in (
        Response("OK", 200, _HEADERS),
        Response("This cannot be read.", 400, _HEADERS),
        Response("There is nothing here.", 404, _HEADERS),
        Response("GET or POST.", 405, _HEADERS | {"allow": "GET, POST"}),
        Response("The body is too long.", 413, _HEADERS),
        Response("Too many at once.", 429, _HEADERS | {"retry-after": "1"}),
        Response("This cannot be kept now.", 503, _HEADERS | {"retry-after": "30"}),
    )
}


def _no_follow_up(_claim: Claim) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one listener. `rate_per_s` is an average; a burst may have `BURST_S` times as many requests."""

    max_body_bytes: int
    rate_per_s: float


class ListenerApp:
    """An ASGI application that receives notifications at `path`. It serves no other path.

    The path includes a secret token. `read` returns the claim of a notification, or why it cannot be read. `keep` makes
    an encoded notification durable; it raises `JournalError` if it cannot. `header` names the header that could prove a
    notification. `counts` has the number of answers by HTTP status, and of notifications by "kept" and "unreadable".
    `follow_up` is called with an unproven claim, after its notification was kept.
    """

    def __init__(
        self,
        path: str,
        *,
        read: Callable[[Received], Claim | str],
        keep: Callable[[str], Awaitable[None]],
        limits: Limits,
        now: Callable[[], str],
        monotonic_s: Callable[[], float],
        header: str | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.follow_up: Callable[[Claim], None] = _no_follow_up
        self._path = path.encode()
        self._read = read
        self._keep = keep
        self._limits = limits
        self._now = now
        self._header = header
        self._monotonic_s = monotonic_s
        self._allowance = limits.rate_per_s * BURST_S
        self._counted_at_s = monotonic_s()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. A request whose body does not arrive whole gets no answer."""
        try:
            status = await self._serve(Request(scope, receive))
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 (after any error the sender must hear that nothing was kept)
            # The log gets only the type of the error, because its text could quote the request.
            _log.error("The listener failed on a request: %s.", type(error).__name__)
            status = 503
        self.counts[str(status)] += 1
        await _ANSWERS[status](scope, receive, send)

    async def _serve(self, request: Request) -> int:
        if not hmac.compare_digest(request.scope["raw_path"], self._path):
            return 404
        if request.method not in _METHODS:
            return 405
        body = await _read_body(request, self._limits.max_body_bytes)
        if body is None:
            return 413
        if not self._is_allowed():
            return 429
        headers = tuple(request.headers.items())
        content_type = request.headers.get("content-type", "")
        query = request.scope["query_string"].decode("latin-1")
        return await self._kept(Received(request.method, content_type, query, body, headers))

    async def _kept(self, received: Received) -> int:
        """Make a notification durable. Return the HTTP status of the answer."""
        reading = self._read(received)
        if isinstance(reading, str):
            self.counts["unreadable"] += 1
            if self.counts["unreadable"] > MAX_UNREADABLE:
                return 400
        try:
            # The notification is made durable before the answer, because after a 200 the gateway need not repeat it.
            await self._keep(encode_notification(self._notice(received, reading)))
        except JournalError:
            return 503
        self.counts["kept"] += 1
        if isinstance(reading, Claim) and reading.proof is not Proof.PROVEN:
            self.follow_up(reading)
        return 400 if isinstance(reading, str) else 200

    def _notice(self, received: Received, reading: Claim | str) -> Notification:
        is_read = isinstance(reading, Claim)
        shown = self._limits.max_body_bytes if is_read else KEPT_UNREADABLE_BYTES
        return Notification(
            received_at=self._now(),
            method=received.method,
            content_type=received.content_type[:KEPT_UNREADABLE_BYTES],
            query=received.query[:shown],
            body=received.body[:shown],
            length=len(received.body),
            problem="" if isinstance(reading, Claim) else reading,
            claim=reading if isinstance(reading, Claim) else Claim(None),
            headers=headers_that_matter(received, self._header),
        )

    def _is_allowed(self) -> bool:
        """Return whether the rate allows one more notification, and if so, take it from the allowance."""
        now_s = self._monotonic_s()
        rate = self._limits.rate_per_s
        self._allowance = min(self._allowance + (now_s - self._counted_at_s) * rate, rate * BURST_S)
        self._counted_at_s = now_s
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True


async def _read_body(request: Request, limit: int) -> bytes | None:
    """Return the body of a request; None if it is longer than `limit`, and its rest was thrown away, up to a bound."""
    body, length = b"", 0
    async for piece in request.stream():
        length += len(piece)
        if length <= limit:
            body += piece
        if length > MAX_DISCARDED_BYTES:
            break
    return body if length <= limit else None


class InGroups:
    """Writes notifications with `keep_all`, in a separate thread. All notifications that wait share the next write."""

    def __init__(self, keep_all: Callable[[Sequence[str]], None]) -> None:
        self._keep_all = keep_all
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notifications")
        self._turn = asyncio.Lock()
        self._waiting: list[str] = []
        self._write: asyncio.Task[None] | None = None
        """The next write, which takes all waiting notifications; None while none waits."""

    async def keep(self, content: str) -> None:
        """Return once an encoded notification is durable. Raises `JournalError` if it cannot be written."""
        self._waiting.append(content)
        if self._write is None:
            self._write = asyncio.create_task(self._keep_waiting())
        await asyncio.shield(self._write)  # the write goes on for other requests if this request ends

    def close(self) -> None:
        """Wait for the write under way, and end the thread."""
        self._thread.shutdown()

    async def _keep_waiting(self) -> None:
        async with self._turn:
            group, self._waiting, self._write = self._waiting, [], None
            await asyncio.get_running_loop().run_in_executor(self._thread, self._keep_all, group)


MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 * 1024
_BACKLOG = 2048


async def serve(app: ListenerApp, port: int, *, client_timeout_s: float, ready: Callable[[int], None]) -> None:
    """Serve the listener until SIGINT or SIGTERM, which end it in order, even before the port is open.

    `port` 0 means any free port; `ready` is called with the actual port once the server listens. A connection carries
    one request, and ends within `client_timeout_s` seconds. Raises `ConfigurationError` if the port cannot be used.
    """
    server = LocalServer(
        app,
        http=bounded(client_timeout_s),
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        grace_s=int(client_timeout_s) + 1,
    )
    hint = say("Choose another [notifications] port.")
    with server.stopped_by_signals(), closing(listen_on_loopback(port, backlog=_BACKLOG, hint=hint)) as listener:
        ready(listener.getsockname()[1])
        await server.serve(sockets=[listener])
