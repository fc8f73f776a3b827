"""What tests of several folders share: an environment without the user's settings, a key, and a PostgreSQL server."""

import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import settings

from tests import long_part

if TYPE_CHECKING:
    from tests.journal.postgres_server import PostgresServer

OF_THE_TESTS = {"PAYGW_CHROMIUM", "PAYGW_TEST_POSTGRES"}
for _name in [*os.environ]:
    # Whoever followed the README has exported PAYGW_CONFIG, perhaps PAYGW_LANG: the program under test must not see it.
    if _name.startswith(("PAYGW_", "XDG_")) and _name not in OF_THE_TESTS:
        del os.environ[_name]


def pytest_configure(config: pytest.Config) -> None:
    """Give each property its share of examples. No time is asserted: the machine may have much else to do."""
    long_part.choose(config.getoption("markexpr"))
    settings.register_profile("busy", deadline=None, max_examples=long_part.share_of(100))
    settings.load_profile("busy")


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator["PostgresServer"]:
    """The server that all tests of a session share, over all workers of xdist."""
    from tests.journal.postgres_server import shared_server  # noqa: PLC0415 - few tests need it

    base = tmp_path_factory.getbasetemp()
    with shared_server(base if worker_id == "master" else base.parent) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def one_sandbox_key() -> Iterator[None]:
    """The sandbox's throw-away key is made once for all homes, and read once: its prime numbers are not tested."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("paygw_batch.sandbox.throw_away_key.generate_private_key", lambda **_: key)
        # The library proves at each reading that the numbers are prime: a tenth of what the tests of commands took.
        patching.setattr("paygw_batch.gateway.signing.key.load_pem_private_key", cache(load_pem_private_key))
        yield
