"""Fixtures of the gateway's tests: the throw-away key, and servers with certificates."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from gateway_cases import throw_away_key

from paygw_batch.gateway.sign import PrivateKey


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> PrivateKey:
    return throw_away_key(tmp_path_factory.mktemp("keys"))


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


@pytest.fixture(params=["plain", "tls"])
def channel(request: pytest.FixtureRequest, server_tls: ssl.SSLContext, ca_bundle: Path) -> dict[str, Any]:
    """Return how `deliver_once` reaches its server: the same test over plain TCP and over TLS."""
    return {"tls": server_tls, "ca_bundle": ca_bundle} if request.param == "tls" else {"tls": None}
