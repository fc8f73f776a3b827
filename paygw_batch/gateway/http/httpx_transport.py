"""Puts httpx's client over our transport: for status enquiries, and for the reachability check of `doctor`.

No payout goes this way, and no command that sends payouts imports it: httpx takes as long to import as polars.
"""

from types import TracebackType
from typing import Self

import httpx

from paygw_batch.gateway.http.transport import PayoutTransport
from paygw_batch.gateway.message import PreparedRequest, RawReply, TransportFault

_SET_HERE = frozenset(
    {"host", "user-agent", "accept-encoding", "content-length", "transfer-encoding", "connection", "cookie"}
)


class DeliveryFault(httpx.TransportError):
    """There is no complete reply; `fault` gives the reason, and whether bytes may have left."""

    def __init__(self, fault: TransportFault, request: httpx.Request) -> None:
        super().__init__(f"{fault.kind.value}: {fault.detail}", request=request)
        self.fault = fault


class HttpxTransport(httpx.AsyncBaseTransport):
    """Sends the requests of an httpx client through a transport of ours.

    A CONNECT makes a connection, proxy and TLS included, and closes it: nothing is sent.
    """

    def __init__(self, transport: PayoutTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a POST; raise `DeliveryFault` where there is no reply.

        Headers that are the transport's own business are set by it, and cookies are dropped. The settings' time-outs
        hold, not httpx's.
        """
        place = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        if request.method not in {"POST", "CONNECT"} or place != self._transport.origin:
            raise httpx.UnsupportedProtocol(f"Only POST to {self._transport.origin} can be sent here.", request=request)
        if request.method == "CONNECT":
            if (fault := await self._transport.probe()) is not None:
                raise DeliveryFault(fault, request)
            return httpx.Response(200, request=request)
        fields = [(name, value) for name, value in request.headers.items() if name not in _SET_HERE]
        result = await self._transport.post(request.url.raw_path.decode("ascii"), fields, await request.aread())
        if isinstance(result, TransportFault):
            raise DeliveryFault(result, request)
        return httpx.Response(
            result.http_status,
            headers=list(result.headers),
            stream=httpx.ByteStream(result.body),
            extensions={"http_version": b"HTTP/1.1", "raw_reply": result},
            request=request,
        )

    async def aclose(self) -> None:
        """Cut every connection."""
        await self._transport.aclose()


class GatewayClient:
    """Asks one gateway for the state of orders, and whether it can be reached. Use it with `async with`."""

    def __init__(self, transport: PayoutTransport) -> None:
        self._base_url = transport.origin
        self._client = httpx.AsyncClient(transport=HttpxTransport(transport), trust_env=False)

    async def ask(self, request: PreparedRequest) -> RawReply | TransportFault:
        """Send an enquiry and wait for its reply. Never raises for a reason of the network."""
        headers = {
            "Authorization": request.authorization,
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        try:
            response = await self._client.post(request.url, content=request.body, headers=headers)
        except DeliveryFault as error:
            return error.fault
        reply: RawReply = response.extensions["raw_reply"]
        return reply

    async def unreachable(self) -> TransportFault | None:
        """Return why no connection can be made, or None: the gateway is there. Nothing is sent."""
        try:
            await self._client.request("CONNECT", self._base_url)
        except DeliveryFault as error:
            return error.fault
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()
