"""Reserves loopback ports for servers in separate processes, and waits for servers.

A test names its port first, and its server binds it seconds later, or again after a crash. A port that was merely free
was sometimes taken by another process in the meantime, and the server then failed silently. So a port is bound before
it is named, and stays bound. Linux lets a server with SO_REUSEADDR share it, which all of ours set, but a process that
looks for a free port does not find it. These ports are below those of outgoing connections.
"""

import atexit
import itertools
import os
import socket
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.support.patience import wait_until

_PORTS = range(10_240, 32_768)  # Linux assigns 32768 and above to outgoing connections (ip_local_port_range)
_kept: deque[socket.socket] = deque()


@atexit.register
def _release_ports() -> None:
    for kept in _kept:
        kept.close()


@cache
def _port_sequence(process: int) -> Iterator[int]:
    # The distance between the first ports of processes that start one after the other.
    return itertools.count(process * 997)


def _reserve_port(port: int) -> socket.socket | None:
    """Return a socket that reserves a port, or None if the port is in use."""
    kept = socket.socket()
    try:
        kept.bind(("127.0.0.1", port))
    except OSError:
        kept.close()
        return None
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after the bind, so that it is exclusive
    return kept


def free_port() -> int:
    """Return a free loopback port, reserved for the servers of this process's tests."""
    for turn in itertools.islice(_port_sequence(os.getpid()), len(_PORTS)):
        port = _PORTS[turn % len(_PORTS)]
        if (kept := _reserve_port(port)) is not None:
            _kept.append(kept)
            # The maximum number of reserved ports. In a run of hours, the oldest ones are no longer used.
            if len(_kept) > 200:
                _kept.popleft().close()
            return port
    raise AssertionError("no port of loopback is free")


def accepts_connections(address: int | Path) -> bool:
    """Return whether a server accepts at a port or a Unix socket, whose file exists before the server listens."""
    is_path = isinstance(address, Path)
    family, place = (socket.AF_UNIX, str(address)) if is_path else (socket.AF_INET, ("127.0.0.1", address))
    with suppress(OSError), socket.socket(family) as client:
        client.settimeout(1)
        client.connect(place)
        return True
    return False


def wait_for_server(address: int | Path, process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Wait until a process accepts connections. Fails as soon as it has ended."""

    def is_listening() -> bool:
        assert process.poll() is None, f"ended with {process.returncode} before it listened: {process.args!r}"
        return accepts_connections(address)

    wait_until(is_listening, f"does not listen: {process.args!r}")
