"""Looks up the addresses of a host, and keeps them for a short time."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from functools import lru_cache

from paygw_batch.gateway.http.connection import CannotOpen
from paygw_batch.gateway.message import FaultKind

KEPT_S = 5.0
"""After so long a name is looked up again: a gateway may move to another address during a run."""


class KeptAddresses:
    """Spares a run with a connection for each payout a question to the name service for each of them."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Sequence[str], float]] = {}
        """By host: its addresses, and the time of the loop's clock until which they are kept."""

    async def of(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> Sequence[str]:
        """Return the addresses of `host`, in the order the system prefers. Raises `CannotOpen` where it has none."""
        if _is_address(host):
            return [host]
        addresses, kept_until_s = self._found.get(host, ((), 0.0))
        if not addresses or loop.time() >= kept_until_s:
            addresses = await _looked_up(loop, host, port)
            self._found[host] = (addresses, loop.time() + KEPT_S)
        return addresses

    def forget(self, host: str) -> None:
        """Look `host` up again the next time: none of its addresses answered."""
        self._found.pop(host, None)


async def _looked_up(loop: asyncio.AbstractEventLoop, host: str, port: int) -> Sequence[str]:
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else None
        raise CannotOpen(FaultKind.NAME_NOT_RESOLVED, detail or type(error).__name__) from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@lru_cache(maxsize=16)
def _is_address(host: str) -> bool:
    """Whether `host` is an IP address already, so that nothing needs to be looked up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
