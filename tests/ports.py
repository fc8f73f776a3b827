"""Ports of loopback for servers that run as processes of their own: which one is free, and when a server is there.

A port that is found by binding to 0 is one that the system gives to every outgoing connection as well. A test that runs
beside others names its port first, and its server binds it seconds later, or again after a crash: now and then somebody
had it by then, and the server was silently not there. Ports from here are below those that the system gives away.
"""

import itertools
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

PATIENCE_S = 90.0
_PORTS = range(10_240, 32_768)
"""Linux gives away 32768 and above (ip_local_port_range)."""
_APART = 997
"""Processes that are started one after the other look far from each other."""


@cache
def _turns(process: int) -> Iterator[int]:
    return itertools.count(process * _APART)


def free_port() -> int:
    """Return a port of loopback that nobody listens on, and that this process did not name before."""
    for turn in itertools.islice(_turns(os.getpid()), len(_PORTS)):
        port = _PORTS[turn % len(_PORTS)]
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port of loopback is free")


def answers(port: int) -> bool:
    """Whether a server takes connections."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def wait_until_there(port: int, process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Wait until a process takes connections; fail as soon as it has ended."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not answers(port):
        assert process.poll() is None, f"ended with {process.returncode} before it listened: {process.args!r}"
        assert time.monotonic() < give_up_at_s, f"does not listen: {process.args!r}"
        time.sleep(0.02)
