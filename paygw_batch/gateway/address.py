"""Parses the URLs of the gateway and its proxy, and defines the connection settings."""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from paygw_batch.countries.rules import Operation
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say

_HOST_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_URL = re.compile(
    rf"(?P<scheme>[A-Za-z]+)://(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>{_HOST_LABEL}(?:\.{_HOST_LABEL})*))(?::(?P<port>[0-9]{{1,5}}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*)"
)
_DEFAULT_PORTS = {"https": 443, "http": 80}
_MAX_HOST_CHARACTERS = 253
_MAX_PORT = 65535


class Connections(StrEnum):
    """Whether connections are reused."""

    FRESH = "fresh"
    """Each connection carries one payout, so that a late reply cannot be mistaken for the reply to another payout."""
    REUSE = "reuse"
    """A connection carries as many payouts as the gateway allows, as long as it is silent between them."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Settings for connections to the gateway. The environment never overrides them.

    `connect_timeout_s` covers name resolution, TCP, the proxy and TLS. `read_timeout_s` limits silence before a reply,
    and stalls while writing. `total_timeout_s` limits the whole request. `ca_bundle` replaces the default certificate
    authorities. `proxy` is `http://host:port`.
    """

    base_url: str
    connect_timeout_s: float = 30.0
    read_timeout_s: float = 60.0
    total_timeout_s: float = 120.0
    connections: Connections = Connections.FRESH
    ca_bundle: Path | None = None
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The scheme, host and port of a server, in lower case."""

    scheme: str
    host: str
    port: int

    @classmethod
    def split_url(cls, url: str, *, setting: str) -> tuple[Self, str]:
        """Split `url` into origin and path. Raises `ConfigurationError`, naming `setting`, if `url` is invalid.

        The error never quotes `url`, which may contain a password.
        """
        match = _URL.fullmatch(url)
        host = match and (match["host"] or _parse_ipv6(match["ipv6"]))
        scheme = match and match["scheme"].lower()
        has_dot_segment = match is not None and not {".", ".."}.isdisjoint(unquote(match["path"]).split("/"))
        if not match or not host or scheme not in _DEFAULT_PORTS or len(host) > _MAX_HOST_CHARACTERS or has_dot_segment:
            raise ConfigurationError(
                say("{setting} is not a valid address.", setting=setting),
                hint=say(
                    "Write https://host, with a port and a path if needed, but without a user name, query or "
                    "fragment. Write names with non-ASCII characters in their xn-- form."
                ),
            )
        port = int(match["port"]) if match["port"] else _DEFAULT_PORTS[scheme]
        if not 0 < port <= _MAX_PORT:
            raise ConfigurationError(say("{setting} has an invalid port.", setting=setting))
        return cls(scheme, host.lower(), port), match["path"].rstrip("/")

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def is_loopback(self) -> bool:
        """Whether the host is `localhost` or a loopback address, so that no byte leaves this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def host_and_port(self) -> str:
        """The `host:port` for a CONNECT request."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """The `host:port` for a Host header or a URL. A default port is omitted."""
        is_default = self.port == _DEFAULT_PORTS[self.scheme]
        return self.host_and_port.removesuffix(f":{self.port}") if is_default else self.host_and_port

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def _parse_ipv6(text: str | None) -> str | None:
    try:
        return str(ipaddress.IPv6Address(text)) if text else None
    except ValueError:
        return None


def parse_gateway_url(base_url: str) -> tuple[Origin, str]:
    """Split the gateway's URL. Raises `ConfigurationError` if it is invalid, or unencrypted and not on loopback."""
    origin, path = Origin.split_url(base_url, setting="gateway.base_url")
    if not origin.is_tls and not origin.is_loopback:
        raise ConfigurationError(
            say("gateway.base_url would send payouts to {host} unencrypted.", host=origin.host),
            hint=say("Write https:// instead."),
        )
    return origin, path


def parse_proxy_url(proxy: str, *, gateway: Origin) -> Origin:
    """Return the proxy's origin. Raises `ConfigurationError` unless the proxy uses HTTP and the gateway HTTPS."""
    if not gateway.is_tls:
        raise ConfigurationError(
            say("gateway.proxy is set, but gateway.base_url does not use https://."),
            hint=say("A proxy can be used only with https://."),
        )
    origin, path = Origin.split_url(proxy, setting="gateway.proxy")
    if origin.is_tls or path:
        raise ConfigurationError(say("gateway.proxy is not a valid address."), hint=say("Write http://host:port."))
    return origin


def operation_url(base_url: str, operation: Operation, endpoint_id: str) -> str:
    """Return the URL of an operation, exactly as sent and signed (section 4 of the gateway's interface).

    Scheme and host are in lower case, and a default port is omitted, as RFC 5849 section 3.4.1.2 requires for signing.
    Raises `ConfigurationError` if `base_url` already contains part of the operation's path.
    """
    origin, path = parse_gateway_url(base_url)
    if (prefix := _path_before_operation(path, operation.path)) is not None:
        raise ConfigurationError(
            say(
                "gateway.base_url contains {path}, which is part of an operation's path.",
                path=path.removeprefix(prefix),
            ),
            hint=say("Nothing was sent. Write the address as {origin}{before}", origin=origin, before=prefix),
        )
    if endpoint_id in {"", ".", ".."}:
        raise ConfigurationError(say("gateway.endpoint_id is not a valid id."))
    return f"{origin}{path}{operation.path.replace('{endpoint_id}', quote(endpoint_id, safe=''))}"


def _path_before_operation(path: str, operation_path: str) -> str | None:
    """Return the start of `path`, up to any part of `operation_path`. Returns None if `path` contains no such part.

    A part is the operation's first segment, two successive segments, or its last segment at the end of `path`.
    """
    segments = path.split("/")[1:]
    operation_segments = [segment for segment in operation_path.split("/")[1:] if not segment.startswith("{")]
    names = [unquote(segment).casefold() for segment in segments]
    pairs = list(pairwise(operation_segments))
    for index, (name, next_name) in enumerate(zip(names, [*names[1:], None], strict=False)):
        is_last = next_name is None and name == operation_segments[-1]
        if name == operation_segments[0] or (name, next_name) in pairs or is_last:
            return "".join(f"/{segment}" for segment in segments[:index])
    return None
