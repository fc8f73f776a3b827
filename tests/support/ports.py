"""Ports of loopback for servers that run as processes of their own: one that is reserved, and when a server is there.

A test names its port first, and its server binds it seconds later, or again after a crash. A port that was only looked
for was now and then somebody else's by then, and the server was silently not there. So a port is bound before it is
named, and stays bound: Linux lets a server share it that asks for SO_REUSEADDR, as all of ours do, and a process that
looks for a free one does not find it. Ports from here are below those that the system gives to outgoing connections.
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

from tests.support.patience import until

_PORTS = range(10_240, 32_768)
"""Linux gives away 32768 and above (ip_local_port_range)."""
_APART = 997
"""Processes that are started one after the other look far from each other."""
_MAX_KEPT = 200
"""A process may run campaigns for hours: what it reserved long ago has no server any more."""
_kept: deque[socket.socket] = deque()


@atexit.register
def _let_go() -> None:
    for kept in _kept:
        kept.close()


@cache
def _turns(process: int) -> Iterator[int]:
    return itertools.count(process * _APART)


def _reserved(port: int) -> socket.socket | None:
    """Return a socket that keeps a port; None if somebody has it."""
    kept = socket.socket()
    try:
        kept.bind(("127.0.0.1", port))
    except OSError:
        kept.close()
        return None
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: the bind itself shares with nobody
    return kept


def free_port() -> int:
    """Return a port of loopback that nobody has, kept for the servers of this process's tests."""
    for turn in itertools.islice(_turns(os.getpid()), len(_PORTS)):
        port = _PORTS[turn % len(_PORTS)]
        if (kept := _reserved(port)) is not None:
            _kept.append(kept)
            if len(_kept) > _MAX_KEPT:
                _kept.popleft().close()
            return port
    raise AssertionError("no port of loopback is free")


def answers(port: int) -> bool:
    """Whether a server takes connections."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait_until_there(port: int, process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Wait until a process takes connections; fail as soon as it has ended."""

    def listens() -> bool:
        assert process.poll() is None, f"ended with {process.returncode} before it listened: {process.args!r}"
        return answers(port)

    until(listens, f"does not listen: {process.args!r}")
