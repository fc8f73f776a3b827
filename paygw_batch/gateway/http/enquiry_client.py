"""Sends enquiries to the gateway with httpx, and parses their replies as strictly as those to payouts.

Commands that send payouts do not import this module, because httpx takes as long to import as polars.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Self

import httpx

from paygw_batch.errors import InternalError
from paygw_batch.gateway.address import TransportSettings, parse_gateway_url, parse_proxy_url
from paygw_batch.gateway.http.http1 import MAX_BODY_BYTES, BrokenReply, decompress_body, framing_fault
from paygw_batch.gateway.http.tls import client_context
from paygw_batch.gateway.message import FaultKind, PreparedRequest, RawReply, TransportFault

_FAULTS: tuple[tuple[type[BaseException], FaultKind, bool], ...] = (
    (httpx.ProxyError, FaultKind.PROXY_FAILED, False),
    (httpx.ConnectTimeout, FaultKind.CONNECT_TIMEOUT, False),
    (httpx.WriteTimeout, FaultKind.WRITE_TIMEOUT, True),
    (httpx.ReadTimeout, FaultKind.READ_TIMEOUT, True),
    (httpx.WriteError, FaultKind.WRITE_FAILED, True),
    (httpx.ReadError, FaultKind.CONNECTION_LOST, True),
    (httpx.RemoteProtocolError, FaultKind.PROTOCOL_ERROR, True),
)
_CONNECT_FAULTS: tuple[tuple[type[BaseException], FaultKind], ...] = (
    (ssl.SSLCertVerificationError, FaultKind.TLS_UNTRUSTED),
    (ssl.SSLError, FaultKind.TLS_FAILED),
    (socket.gaierror, FaultKind.NAME_NOT_RESOLVED),
    (ConnectionRefusedError, FaultKind.CONNECT_REFUSED),
    (BaseException, FaultKind.CONNECT_FAILED),
)
"""The kind of fault for each cause of a failed connection. The first match applies."""


class EnquiryClient:
    """Sends enquiries to one gateway, each over a new connection. Use with `async with`.

    It ignores redirects, cookies and environment variables. Raises `ConfigurationError` for invalid or unsafe settings.
    """

    def __init__(self, settings: TransportSettings) -> None:
        origin, _ = parse_gateway_url(settings.base_url)
        proxy = parse_proxy_url(settings.proxy, gateway=origin) if settings.proxy is not None else None
        self._origin = str(origin)
        self._has_proxy = proxy is not None
        self._total_timeout_s = settings.total_timeout_s
        self._client = httpx.AsyncClient(
            verify=client_context(settings.ca_bundle),
            proxy=str(proxy) if proxy is not None else None,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
            timeout=httpx.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s, pool=None),
            headers={"User-Agent": "paygw-batch", "Accept-Encoding": "identity", "Connection": "close"},
        )

    async def send(self, request: PreparedRequest) -> RawReply | TransportFault:
        """Send an enquiry and wait for its reply. Network errors are returned as a fault, never raised.

        Raises `InternalError` if the request is for another gateway, or if httpx would change the signed URL.
        """
        url = httpx.URL(request.url)
        if f"{url.scheme}://{url.netloc.decode('ascii')}" != self._origin or str(url) != request.url:
            raise InternalError("an enquiry was signed for another place than the one it would be sent to")
        media_type = "application/json"
        headers = {"Authorization": request.authorization, "Content-Type": media_type, "Accept": media_type}
        stream = self._client.stream("POST", url, content=request.body, headers=headers)
        try:
            async with asyncio.timeout(self._total_timeout_s), stream as response:
                return await _read_response(response)
        except TimeoutError:
            return TransportFault(FaultKind.TOTAL_TIMEOUT, first_byte_sent=True, detail="the enquiry took too long")
        except httpx.HTTPError as error:
            return _fault_from_error(error, has_proxy=self._has_proxy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()


async def _read_response(response: httpx.Response) -> RawReply | TransportFault:
    headers = tuple((name.lower(), value.strip(" \t")) for name, value in response.headers.multi_items())
    fault = framing_fault(response.http_version.removeprefix("HTTP/"), headers)
    raw_body = b""
    if fault is None:
        async for chunk in response.aiter_raw():
            raw_body += chunk
            if len(raw_body) > MAX_BODY_BYTES:
                fault = BrokenReply(FaultKind.REPLY_TOO_LARGE, f"a body of more than {MAX_BODY_BYTES} bytes")
                break
    body = fault or decompress_body(headers, raw_body)
    if isinstance(body, BrokenReply):
        return TransportFault(body.kind, first_byte_sent=True, detail=body.detail)
    # httpx does not show whether a reply began before its request was sent, or was followed by another. So a reply
    # counts only if it names the order, as on a reused connection.
    return RawReply(response.status_code, headers, body, reused_connection=True)


def _fault_from_error(error: httpx.HTTPError, *, has_proxy: bool) -> TransportFault:
    causes = list(_exception_chain(error))
    detail = type(causes[-1]).__name__
    if isinstance(error, httpx.ConnectError):
        kind = next(kind for cls, kind in _CONNECT_FAULTS if any(isinstance(cause, cls) for cause in causes))
        if has_proxy and kind not in {FaultKind.TLS_UNTRUSTED, FaultKind.TLS_FAILED}:
            kind = FaultKind.PROXY_FAILED
        return TransportFault(kind, first_byte_sent=False, detail=detail)
    for cls, kind, first_byte_sent in _FAULTS:
        if isinstance(error, cls):
            return TransportFault(kind, first_byte_sent, detail=detail)
    return TransportFault(FaultKind.CONNECTION_LOST, first_byte_sent=True, detail=detail)


def _exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from error.exceptions
        error = error.__cause__ or error.__context__
