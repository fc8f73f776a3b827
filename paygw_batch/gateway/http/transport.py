"""Sends a request to the gateway at most once, and returns its reply or fault.

The transport ignores redirects, cookies and environment variables, and never retries. Whether a payout may be retried
depends only on the first-byte witness in the returned fault, never on the type of an exception.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Self

from paygw_batch.errors import InternalError
from paygw_batch.gateway.address import Connections, Origin, TransportSettings, parse_gateway_url, parse_proxy_url
from paygw_batch.gateway.http.connection import ConnectFailed, Connection
from paygw_batch.gateway.http.http1 import build_payout_request
from paygw_batch.gateway.http.tls import TlsChannel, client_context
from paygw_batch.gateway.message import FaultKind, PreparedRequest, RawReply, SendGuard, TransportFault

if TYPE_CHECKING:
    from ssl import SSLSession

ADDRESS_LIFETIME_S = 5.0
"""How long to cache resolved addresses. This is short, because a gateway's address may change during a run."""


class AddressCache:
    """Caches resolved addresses, so that a run does not query DNS for each connection."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Sequence[str], float]] = {}
        """Maps each host to its addresses, and to the time, by the loop's clock, when they expire."""

    async def resolve(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> Sequence[str]:
        """Return the addresses of `host` in the system's preferred order. Raises `ConnectFailed` if it has none."""
        if _is_ip_address(host):
            return [host]
        addresses, expires_s = self._entries.get(host, ((), 0.0))
        if not addresses or loop.time() >= expires_s:
            try:
                results = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                detail = error.strerror if isinstance(error, OSError) else None
                raise ConnectFailed(FaultKind.NAME_NOT_RESOLVED, detail or type(error).__name__) from None
            addresses = list(dict.fromkeys(str(address[0]) for *_, address in results))
            self._entries[host] = (addresses, loop.time() + ADDRESS_LIFETIME_S)
        return addresses

    def forget(self, host: str) -> None:
        """Forget the addresses of `host`, none of which answered."""
        self._entries.pop(host, None)


@lru_cache(maxsize=16)
def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


CLOSE_TIMEOUT_S = 2.0
"""How long `aclose` waits for connections to close. uvloop never reports this after a timeout while opening."""
MAX_IDLE_S = 1.0
"""A connection that has been idle for longer is not reused, because the server might close it as we send."""

FIRST_SILENCE_S = 0.05
"""How long the first connection must be silent before we send, in addition to one round trip."""
MIN_SILENCE_S = 0.001
"""A shorter silence is skipped: only bytes that have already arrived are checked."""


class PayoutTransport:
    """Sends requests to one gateway over HTTP/1.1, from a single event loop.

    Without reuse, a connection carries one request and is closed. With reuse, it is kept open while it is silent and
    has been idle for less than `MAX_IDLE_S`. The most recently used connection is reused first. A new one is opened
    only if none is idle, so there are never more connections than requests in flight.

    TLS sessions are resumed, which saves the gateway a signature for each connection, and a round trip under TLS 1.2.
    Only the first handshake verifies the certificate. Raises `ConfigurationError` for invalid or unsafe settings.
    """

    def __init__(self, settings: TransportSettings) -> None:
        self._settings = settings
        self._origin, _ = parse_gateway_url(settings.base_url)
        self._proxy = parse_proxy_url(settings.proxy, gateway=self._origin) if settings.proxy is not None else None
        self._context = client_context(settings.ca_bundle) if self._origin.is_tls else None
        self._session: SSLSession | None = None
        self._addresses = AddressCache()
        self._is_reusing = settings.connections is Connections.REUSE
        self._idle: list[Connection] = []
        self._open_connections: set[Connection] = set()
        self._latest_response_s: float | None = None
        """How long the gateway's latest reply took, or None before the first reply."""
        self._is_closed = False

    async def deliver(self, request: PreparedRequest, may_send: SendGuard) -> RawReply | TransportFault:
        """Send one payout and wait for its reply. Network errors are returned as a fault, never raised.

        `may_send` is called immediately before the first byte. If it returns False, nothing is sent. Cancelling closes
        the connection, perhaps after the first byte. Raises `InternalError` if the request is for another gateway.
        """
        content = build_payout_request(request, self._origin, close=not self._is_reusing)
        if self._is_closed:
            raise InternalError("a request was sent through a transport that is closed")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings.total_timeout_s
        connection = self._take_idle(loop.time()) or await self._open(loop, deadline_s)
        if isinstance(connection, TransportFault):
            return connection
        started_s, has_reply = loop.time(), False
        try:
            result = await connection.exchange(
                content, may_send, read_timeout_s=self._settings.read_timeout_s, deadline_s=deadline_s
            )
            has_reply = isinstance(result, RawReply)
            self._latest_response_s = loop.time() - started_s if has_reply else self._latest_response_s
        finally:
            self._release_connection(connection, has_reply=has_reply)
        return result

    async def probe(self) -> TransportFault | None:
        """Check that the gateway is reachable, by opening a connection (proxy, TLS) and closing it unused."""
        loop = asyncio.get_running_loop()
        connection = await self._open(loop, loop.time() + self._settings.total_timeout_s)
        if isinstance(connection, TransportFault):
            return connection
        connection.close()
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection immediately. Exchanges in progress return a CANCELLED fault."""
        self._is_closed = True
        self._idle.clear()
        for connection in list(self._open_connections):
            connection.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for connection in list(self._open_connections):
                    await connection.closed.wait()

    def _take_idle(self, now_s: float) -> Connection | None:
        """Return the most recently used connection that is still usable, closing any that are not."""
        while self._idle:
            connection = self._idle.pop()
            if now_s - connection.idle_since_s < MAX_IDLE_S and connection.is_ready():
                return connection
            connection.close()
        return None

    def _release_connection(self, connection: Connection, *, has_reply: bool) -> None:
        if not has_reply:
            connection.abort()
            return
        if self._session is None:
            self._session = connection.session()
        # `_take_idle` checks whether the connection is still usable.
        if self._is_reusing and connection.is_quiet and not self._is_closed:
            self._idle.append(connection)
            # The connection that has been idle longest comes first.
            while self._idle and connection.idle_since_s - self._idle[0].idle_since_s >= MAX_IDLE_S:
                self._idle.pop(0).close()
        else:
            connection.close()

    # Opening a connection (name, TCP, proxy, TLS), without the request:

    async def _open(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> Connection | TransportFault:
        connection = Connection(loop, self._open_connections)
        timeout_s = self._settings.connect_timeout_s
        connect_deadline_s = min(loop.time() + timeout_s, deadline_s)
        try:
            async with asyncio.timeout_at(connect_deadline_s):
                await self._establish(loop, connection)
            await connection.wait_for_silence(self._required_silence_s(connection), loop.time() + timeout_s)
        except TimeoutError:
            connection.abort()
            kind = FaultKind.TOTAL_TIMEOUT if connect_deadline_s == deadline_s else connection.open_fault
            return _not_sent_fault(kind, "the connection took too long to open")
        except ConnectFailed as error:
            connection.abort()
            # The TLS session may have caused the failure, so do not resume it again.
            self._session = None
            return _not_sent_fault(error.kind, error.detail)
        except BaseException:
            connection.abort()
            raise
        if self._is_closed:
            connection.abort()
            return _not_sent_fault(FaultKind.CANCELLED, "cancelled")
        return connection

    def _required_silence_s(self, connection: Connection) -> float:
        """Return how long a new connection must be silent before a request is sent.

        The first connection must be silent for longer, because a run begins with only one. Later ones must be silent
        for a round trip, or for a tenth of the gateway's latest response time if that is less.
        """
        if self._latest_response_s is None:
            return connection.round_trip_s() + FIRST_SILENCE_S
        max_s = self._latest_response_s / 10
        silence_s = min(connection.round_trip_s(), max_s) if max_s >= MIN_SILENCE_S else 0.0
        return silence_s if silence_s >= MIN_SILENCE_S else 0.0

    async def _establish(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        if self._proxy is None:
            await self._connect(loop, connection, self._origin)
        else:
            try:
                await self._connect(loop, connection, self._proxy)
            except ConnectFailed as error:
                raise ConnectFailed(FaultKind.PROXY_FAILED, error.detail) from None
            await connection.open_tunnel(self._origin.host_and_port)
        if self._context is not None:
            channel = TlsChannel(self._context, self._origin.host, self._session)
            await connection.open_tls(channel)
            if not channel.is_resumed:
                # There was no session, or the gateway refused it. A new one is read after this exchange.
                self._session = None

    async def _connect(self, loop: asyncio.AbstractEventLoop, connection: Connection, server: Origin) -> None:
        """Connect to the first address that answers. Raises `ConnectFailed` if none does."""
        failure = ConnectFailed(FaultKind.NAME_NOT_RESOLVED, "the name has no address")
        for address in await self._addresses.resolve(loop, server.host, server.port):
            try:
                await loop.create_connection(lambda: connection, address, server.port)
            except OSError as error:
                failure = ConnectFailed(_connect_fault_kind(error), error.strerror or type(error).__name__)
            else:
                return
        self._addresses.forget(server.host)
        raise failure


def _not_sent_fault(kind: FaultKind, detail: str) -> TransportFault:
    return TransportFault(kind, first_byte_sent=False, detail=detail)


def _connect_fault_kind(error: OSError) -> FaultKind:
    match error:
        case ConnectionRefusedError():
            return FaultKind.CONNECT_REFUSED
        case TimeoutError():
            return FaultKind.CONNECT_TIMEOUT
        case _:
            return FaultKind.CONNECT_FAILED
