"""Fixtures: a fresh machine for every test, set up for the sandbox."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paygw_batch.language import ENGLISH, set_language
from tests.support.approving import policy
from tests.support.clocks import SetClock, shifted_clock
from tests.support.clusters import ClusterProgram, Hosts, new_hosts
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, sandbox_toml


@pytest.fixture(autouse=True)
def reset_language() -> Iterator[None]:
    """Reset the language after each test, because a command sets it for the whole process."""
    yield
    set_language(ENGLISH)


def create_machine(home: Path) -> Program:
    home.chmod(0o700)
    config = home / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(home, config)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return create_machine(tmp_path)


MachineCache = Callable[[Callable[[Program], object]], Program]


@pytest.fixture(scope="module")
def machine_cache(tmp_path_factory: pytest.TempPathFactory) -> MachineCache:
    """Return a function that provides a machine in a prepared state, built once per module and restored for each test.

    It is restored at the same path, because journals and the registry of journals contain their paths.
    """
    copies: dict[Callable[[Program], object], tuple[Path, Path]] = {}

    def give(begin: Callable[[Program], object]) -> Program:
        if begin not in copies:
            home = tmp_path_factory.mktemp("kept")
            begin(create_machine(home))
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
    path = program.home / "drop"
    path.mkdir()
    return path


@pytest.fixture
def approving_company(program: Program) -> Program:
    """Configure a company that needs one approval from KES 1,000; Ada and Ben may prepare, Cleo may only approve."""
    program.config.write_text(sandbox_toml() + policy(program.home))
    return program


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return shifted_clock(monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path, program: Program, postgres_server: PostgresServer) -> Iterator[ClusterProgram]:
    name = postgres_server.new_database()
    user = ClusterProgram(tmp_path, program.config)
    user.write_url(postgres_server.url(name))
    yield user
    postgres_server.drop_database(name)
