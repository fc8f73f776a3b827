"""Fixtures: a private directory, and empty journals in every store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.journal.location import JournalLocation
from tests.support.journal_rows import create_journal_at, file_location, memory_journal, open_journal_at
from tests.support.postgres_rows import make_postgres, open_postgres, postgres_place
from tests.support.postgres_server import PostgresServer
from tests.support.tested_journal import Journal
from tests.support.wire_proxy import WireProxy, wire_proxy


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a private directory, as a journal requires."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of a database with an empty journal, which is copied for each test."""
    place = tmp_path_factory.mktemp("template", numbered=True)
    place.chmod(0o700)
    name = postgres_server.new_database()
    make_postgres(postgres_place(postgres_server.url(name), place))
    return name


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """Yield the URL of a database with an empty journal, and drop it after the test."""
    name = postgres_server.new_database(postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def at_database(database: str, place: Path) -> DatabaseLocation:
    return postgres_place(database, place)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[WireProxy]:
    with wire_proxy(postgres_server.port) as relay:
        yield relay


@pytest.fixture(params=["file", "postgres"])
def journal_place(request: pytest.FixtureRequest, place: Path) -> JournalLocation:
    """Return the location of an empty journal, for each store."""
    if request.param == "postgres":
        return postgres_place(request.getfixturevalue("database"), place)
    create_journal_at(place)
    return file_location(place)


@pytest.fixture(params=["disk", "memory", "postgres"])
def journal(request: pytest.FixtureRequest, place: Path) -> Iterator[Journal]:
    """Yield an empty journal on disk, in memory and in PostgreSQL."""
    opened: Journal
    if request.param == "postgres":
        opened = open_postgres(postgres_place(request.getfixturevalue("database"), place))
    else:
        opened = open_journal_at(place) if request.param == "disk" else memory_journal()
    yield opened
    opened.close()
