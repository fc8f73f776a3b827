"""Two hosts pay one batch through kills, freezes, lost answers, crashes and failovers. The gateway's record judges."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.campaign.machine import GatewayProcess, Spawner, gateway
from tests.cluster.trouble import SLOWLY, Size, endure, fail_over
from tests.journal.postgres_server import own_server

ROWS = 60
EVERYTHING = 3
"""A seed that kills, freezes, crashes and cuts."""
LAGGING, WHOLE = 2, 1
"""Seeds in which the standby lags, and in which it has everything."""


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    with Spawner() as started:
        yield started


@pytest.fixture(scope="module")
def slow_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway(tmp_path_factory.mktemp("gateway") / "gateway", SLOWLY) as started:
        yield started


def test_two_hosts_pay_a_batch_once_through_all_that_can_happen(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess
) -> None:
    with own_server() as server:
        endured = endure(tmp_path, spawner, slow_gateway, server, seed=EVERYTHING, size=Size(ROWS), stop=Event())
    assert endured.hurt > 0


@pytest.mark.parametrize(("seed", "is_lagging"), [(LAGGING, True), (WHOLE, False)])
def test_after_a_failover_every_row_is_known_or_nobody_sends(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess, seed: int, is_lagging: bool
) -> None:
    endured = fail_over(tmp_path, spawner, slow_gateway, seed=seed, rows=ROWS)
    if is_lagging:
        assert endured.lost_rows > 0
