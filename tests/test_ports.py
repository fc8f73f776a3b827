"""A named port stays reserved for the servers of the test that asked for it."""

import socket
import subprocess
import sys
from contextlib import closing

import pytest

from tests.support.ports import accepts_connections, free_port

SERVES_ONCE = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("listens", flush=True)
    server.accept()[0].close()
"""


def test_free_port_stays_reserved_before_and_between_servers() -> None:
    port = free_port()
    for _ in range(2):
        assert not accepts_connections(port)
        with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with subprocess.Popen([sys.executable, "-c", SERVES_ONCE, str(port)], stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"listens\n"
            assert accepts_connections(port)
        assert server.returncode == 0
