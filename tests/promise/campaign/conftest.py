"""One gateway and one spawner for all campaign tests of a worker."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.promise.campaign.companions import NOTIFYING, proof_configuration
from tests.promise.campaign.kills import SLOW
from tests.promise.campaign.machine import GatewayProcess, Machine, Spawner, gateway

_machines = count(1)


@pytest.fixture(scope="session")
def spawner() -> Iterator[Spawner]:
    with Spawner() as started:
        yield started


@pytest.fixture(scope="session")
def slow_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that takes 30 ms, drops orders that end in 7, and declines those that end in 3."""
    with gateway(tmp_path_factory.mktemp("gateway") / "gateway", SLOW) as started:
        yield started


@pytest.fixture(scope="session")
def notifying_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that accepts, and notifies late, twice, out of order and sometimes with a forgery."""
    directory = tmp_path_factory.mktemp("notifying") / "gateway"
    directory.mkdir(mode=0o700)
    with gateway(directory, NOTIFYING, proof_configuration(directory / "secret.txt")) as started:
        yield started


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, spawner: Spawner, slow_gateway: GatewayProcess) -> Machine:
    number = next(_machines)
    return Machine.create(tmp_path_factory.mktemp("machine") / "home", spawner, slow_gateway, prefix=f"M{number}")
