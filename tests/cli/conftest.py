"""A fresh machine for every test, set up for the sandbox."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paygw_batch.language import ENGLISH, use
from tests.support.approving import policy
from tests.support.clocks import SetClock, clock_of
from tests.support.clusters import ClusterProgram, Hosts, new_hosts
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, sandbox_toml


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    """Leave this process in English: a command chooses the language of its whole process."""
    yield
    use(ENGLISH)


def machine_at(home: Path) -> Program:
    home.chmod(0o700)
    config = home / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(home, config)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return machine_at(tmp_path)


Kept = Callable[[Callable[[Program], object]], Program]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Return a function that gives a machine as `begin` leaves it: played once a module, then put back for each test.

    It is put back at the same place: journals and what is known of them name their paths.
    """
    copies: dict[Callable[[Program], object], tuple[Path, Path]] = {}

    def give(begin: Callable[[Program], object]) -> Program:
        if begin not in copies:
            home = tmp_path_factory.mktemp("kept")
            begin(machine_at(home))
            copies[begin] = home, shutil.copytree(home, tmp_path_factory.mktemp("copy") / "home", symlinks=True)
        home, copy = copies[begin]
        shutil.rmtree(home)
        shutil.copytree(copy, home, symlinks=True)
        return Program(home, home / "paygw.toml")

    return give


@pytest.fixture
def hosts(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Hosts]:
    with new_hosts(tmp_path, postgres_server) as found:
        yield found


@pytest.fixture
def folder(program: Program) -> Path:
    """An empty drop folder."""
    path = program.home / "drop"
    path.mkdir()
    return path


@pytest.fixture
def careful(program: Program) -> Program:
    """A company where KES 1,000 and more need one approval; ada and ben may prepare, and cleo may only approve."""
    program.config.write_text(sandbox_toml() + policy(program.home))
    return program


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return clock_of(monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path, program: Program, postgres_server: PostgresServer) -> Iterator[ClusterProgram]:
    name = postgres_server.new_database()
    user = ClusterProgram(tmp_path, program.config)
    user.write_url(postgres_server.url(name))
    yield user
    postgres_server.drop_database(name)
