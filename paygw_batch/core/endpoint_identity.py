"""Identifies a gateway endpoint and its merchant, however its host is spelled.

Two journals for the same merchant could pay the same people twice, so endpoints are compared by identity.
"""

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

THIS_MACHINE = "localhost"
"""The canonical name of every loopback address."""
_MAX_PARTS = 4
_VALUES_PER_PART = 256
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


@dataclass(frozen=True, slots=True)
class EndpointIdentity:
    """An endpoint, identified by the gateway's canonical host and our endpoint id.

    `host` ends in `:PORT` unless the port is the scheme's default. Another port counts as another host, because it
    may be a test gateway's. `consumer_key_sha256` is empty if the consumer key is not known.
    """

    host: str
    endpoint_id: str
    consumer_key_sha256: str = ""

    @classmethod
    def create(
        cls, host: str, endpoint_id: str, consumer_key: str | None, *, port: int | None = None
    ) -> "EndpointIdentity":
        """Return the identity of a configured endpoint. `port` is None for the scheme's default."""
        key_sha256 = hashlib.sha256(consumer_key.encode()).hexdigest() if consumer_key else ""
        return cls(_append_port(canonical_host(host), port), endpoint_id, key_sha256)

    @classmethod
    def from_name(cls, name: str) -> "EndpointIdentity":
        """Parse the `name` of an endpoint, which does not include the consumer key."""
        host, _, endpoint_id = name.partition("/")
        host, port = _split_port(host)
        return cls(_append_port(canonical_host(host), port), endpoint_id)

    @property
    def name(self) -> str:
        """The name of the endpoint in journals: `HOST[:PORT]/ENDPOINT_ID`."""
        return f"{self.host}/{self.endpoint_id}"

    def has_same_merchant(self, other: "EndpointIdentity") -> bool:
        """Return whether at least two of host (without port), endpoint id and consumer key agree."""
        has_same_key = bool(self.consumer_key_sha256) and self.consumer_key_sha256 == other.consumer_key_sha256
        has_same_host = _split_port(self.host)[0] == _split_port(other.host)[0]
        return [self.endpoint_id == other.endpoint_id, has_same_host, has_same_key].count(True) > 1

    def matches_merchant(self, known_endpoints: Iterable["EndpointIdentity"]) -> bool:
        """Return whether any of `known_endpoints` has the same merchant."""
        return any(self.has_same_merchant(other) for other in known_endpoints)


def canonical_host(host: str) -> str:
    """Return the canonical form of a host name or address.

    It is in lower case, without a trailing dot. Names are in `xn--` form, and addresses in their shortest form.
    Loopback names and addresses become `THIS_MACHINE`.
    """
    text = host.strip().removeprefix("[").removesuffix("]").lower()
    text = text.partition("%")[0] if ":" in text else text
    text = _encode_idna(text).removesuffix(".")
    address = _parse_address(text)
    if address is None:
        return THIS_MACHINE if text in _LOOPBACK_NAMES or text.endswith(f".{THIS_MACHINE}") else text
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return THIS_MACHINE if address.is_loopback or address.is_unspecified else str(address)


def _append_port(host: str, port: int | None) -> str:
    if port is None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split_port(host_and_port: str) -> tuple[str, int | None]:
    """Split `host_and_port`. An IPv6 address with a port must be in brackets."""
    host, _, port = host_and_port.rpartition(":")
    has_host = host.endswith("]") or (host and ":" not in host)
    return (host.strip("[]"), int(port)) if has_host and port.isdigit() else (host_and_port, None)


def _encode_idna(text: str) -> str:
    try:
        return text.encode("idna").decode("ascii").lower()
    except UnicodeError:  # the name cannot be resolved, so it is compared as written
        return text


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return _parse_short_ipv4(text)


def _parse_short_ipv4(text: str) -> ipaddress.IPv4Address | None:
    """Parse an IPv4 address in a short form that resolvers accept, such as `127.1` or `2130706433`."""
    parts = text.split(".")
    try:
        numbers = [_parse_number(part) for part in parts]
    except ValueError:
        return None
    *leading, last = numbers
    if (
        len(parts) > _MAX_PARTS
        or any(number >= _VALUES_PER_PART for number in leading)
        or last >= _VALUES_PER_PART ** (_MAX_PARTS + 1 - len(parts))
    ):
        return None
    value = last
    for index, number in enumerate(leading):
        value += number << (8 * (_MAX_PARTS - 1 - index))
    return ipaddress.IPv4Address(value)


def _parse_number(text: str) -> int:
    if not text.isalnum() or not text.isascii():
        raise ValueError(text)
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if text.startswith("0") else 10)
