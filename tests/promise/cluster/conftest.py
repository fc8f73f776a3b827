"""A database with one open batch, which is copied for every run of the protocol."""

import shutil

import pytest

from tests.journal.conftest import postgres_template
from tests.promise.cluster.protocol import make_batch
from tests.support.postgres_server import PostgresServer

__all__ = ["postgres_template"]

NO_SPIN = "NO SPIN: the model of the protocol was not checked. `apt-get install spin gcc` installs what it needs."


def has_spin() -> bool:
    return all(map(shutil.which, ("spin", "gcc")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not has_spin():
        terminalreporter.write_line(NO_SPIN, red=True, bold=True)


@pytest.fixture(scope="session")
def open_batch(
    postgres_server: PostgresServer, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    home = tmp_path_factory.mktemp("open_batch")
    home.chmod(0o700)
    return make_batch(postgres_server, postgres_template, home)
