"""Asks the kernel whether a connection has unread bytes, and whether the peer has acknowledged all written ones.

The event loop hands out what has arrived a moment later. Whether a reply began before its request had left can only be
seen by asking the kernel at the right moments (`docs/decisions/0100-a-reply-comes-after-its-request.md`).
"""

import fcntl
import os
import select
import socket
import struct
import sys
import termios

_COUNT = struct.Struct("i")
_ROUND_TRIP_US = struct.Struct("68xI")
"""The estimate of the round trip in `struct tcp_info` of linux/tcp.h, a fixed part of the kernel's interface."""


class Arrivals:
    """Asks the kernel about one connected socket. Reads nothing from it, and never waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def has_unread(self) -> bool:
        """Return whether bytes, an end of stream or an error wait to be read."""
        return bool(self._poll.poll(0))

    def has_unacknowledged(self) -> bool:
        """Return whether the peer's system has not yet acknowledged all bytes that were written.

        Every packet acknowledges what its sender had received before (RFC 9293 section 3.10.7.4). So a reply that is
        read while a part of the request is still unacknowledged was sent without that part. Linux alone can say.
        """
        count = bytearray(_COUNT.size)
        try:
            fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, count)
        except OSError:
            return False
        return bool(_COUNT.unpack(count)[0] > 0)

    def round_trip_s(self) -> float:
        """Return how long a packet and its acknowledgement took, and 0 where the system does not say."""
        if sys.platform != "linux":
            return 0.0
        # A second descriptor of the same socket: to close this one closes nothing.
        with socket.socket(fileno=os.dup(self._descriptor)) as same:
            found = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP_US.size)
        return float(_ROUND_TRIP_US.unpack(found)[0]) / 1_000_000
