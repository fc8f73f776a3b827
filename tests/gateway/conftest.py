"""Fixtures for the gateway's tests: the test key, and servers with certificates."""

import inspect
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from paygw_batch.gateway.http import transport
from paygw_batch.gateway.signing.key import PrivateKey
from tests.support.gateway_cases import private_test_key
from tests.support.gateway_server import run_test
from tests.support.tokens import HOW_TO_GET_IT, find_softhsm


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_softhsm() is None:
        terminalreporter.write_line(HOW_TO_GET_IT, red=True, bold=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run_test(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return private_test_key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_bundle(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trust") / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return path


@pytest.fixture(scope="session")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def blackhole() -> Iterator[int]:
    """Return the port of a listener with a full queue, which accepts no further connection."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.fixture(params=["plain", "tls"])
def channel(request: pytest.FixtureRequest, server_tls: ssl.SSLContext, ca_bundle: Path) -> dict[str, Any]:
    """Return the options of `deliver_once`, so that each test runs over plain TCP and over TLS."""
    return {"tls": server_tls, "ca_bundle": ca_bundle} if request.param == "tls" else {"tls": None}


@pytest.fixture
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait on each new connection until the gateway has sent its bytes, so that no test depends on speed."""
    monkeypatch.setattr(transport, "FIRST_SILENCE_S", 25)
