"""What tests of several folders share: a PostgreSQL server."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.journal.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator["PostgresServer"]:
    """The server that all tests of a session share, over all workers of xdist."""
    from tests.journal.postgres_server import shared_server  # noqa: PLC0415 - few tests need it

    base = tmp_path_factory.getbasetemp()
    with shared_server(base if worker_id == "master" else base.parent) as server:
        yield server
