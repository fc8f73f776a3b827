"""Fixtures: a private directory, and empty journals in every store."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.journal.location import JournalLocation
from paygw_batch.journal.postgres.session import Server
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
def as_role(at_database: DatabaseLocation, postgres_server: PostgresServer) -> Callable[[str], DatabaseLocation]:
    """Return a function that gives the journal's location for a login with one role."""
    name = at_database.server.url.rpartition("/")[2]
    at_database.grant_rights()
    at_database.grant_rights()  # repeating it changes nothing

    def place_for_role(role: str) -> DatabaseLocation:
        login = f"{name}_{role}_login"
        postgres_server.execute(f"CREATE ROLE {login} LOGIN IN ROLE {name}_{role}")
        return replace(at_database, server=Server(postgres_server.url(name, user=login)))

    return place_for_role


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
