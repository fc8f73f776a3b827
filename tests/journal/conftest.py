"""Fixtures: a private directory, and empty journals in every store."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.journal.location import JournalLocation
from paygw_batch.journal.postgres.session import Server
from tests.support.journal_rows import create_journal_at, file_location, memory_journal, open_journal_at
from tests.support.postgres_rows import make_postgres, open_postgres, postgres_location
from tests.support.postgres_server import PostgresServer
from tests.support.tested_journal import Journal
from tests.support.wire_proxy import WireProxy, wire_proxy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a private directory, as a journal requires."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of a database with an empty journal, which is copied for each test."""
    folder = tmp_path_factory.mktemp("template", numbered=True)
    folder.chmod(0o700)
    name = postgres_server.new_database()
    make_postgres(postgres_location(postgres_server.url(name), folder))
    return name


@pytest.fixture
def database(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """Yield the URL of a database with an empty journal, and drop it after the test."""
    name = postgres_server.new_database(postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def at_database(database: str, folder: Path) -> DatabaseLocation:
    return postgres_location(database, folder)


@pytest.fixture
def as_role(at_database: DatabaseLocation, postgres_server: PostgresServer) -> Callable[[str], DatabaseLocation]:
    """Return a function that gives the journal's location for a login with one role."""
    name = at_database.server.url.rpartition("/")[2]
    at_database.grant_rights()
    at_database.grant_rights()  # repeating it changes nothing

    def location_for_role(role: str) -> DatabaseLocation:
        login = f"{name}_{role}_login"
        postgres_server.execute(f"CREATE ROLE {login} LOGIN IN ROLE {name}_{role}")
        return replace(at_database, server=Server(postgres_server.url(name, user=login)))

    return location_for_role


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[WireProxy]:
    with wire_proxy(postgres_server.port) as relay:
        yield relay


@pytest.fixture(params=["file", "postgres"])
def store_location(request: pytest.FixtureRequest, folder: Path) -> JournalLocation:
    """Return the location of an empty journal, for each store."""
    if request.param == "postgres":
        return postgres_location(request.getfixturevalue("database"), folder)
    create_journal_at(folder)
    return file_location(folder)


@pytest.fixture(params=["disk", "memory", "postgres"])
def journal(request: pytest.FixtureRequest, folder: Path) -> Iterator[Journal]:
    """Yield an empty journal on disk, in memory and in PostgreSQL."""
    opened: Journal
    if request.param == "postgres":
        opened = open_postgres(postgres_location(request.getfixturevalue("database"), folder))
    else:
        opened = open_journal_at(folder) if request.param == "disk" else memory_journal()
    yield opened
    opened.close()
