"""Scripts of tooling/ and what tests stand on: the core alone, the tests of a line, and reserved ports."""

import socket
import subprocess
import sys
from contextlib import closing

import pytest

from tests.support.checkout import ROOT
from tests.support.ports import accepts_connections, free_port


@pytest.mark.parametrize("more", [(), pytest.param(("--tests",), marks=pytest.mark.long)])
def test_core_pays_without_extras(more: tuple[str, ...]) -> None:
    completed = subprocess.run([ROOT / "tooling/core-alone", *more], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "200 paid." in completed.stdout


def test_tool_lists_tests_for_line() -> None:
    source = (ROOT / "paygw_batch/core/money.py").read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(source, start=1) if text.startswith("def from_minor"))
    command = [str(ROOT / "tooling/tests-of"), f"paygw_batch/core/money.py:{line + 2}", "tests/core/test_core_money.py"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "tests/core/test_core_money.py::" in completed.stdout


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
