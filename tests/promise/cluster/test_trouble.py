"""Hosts pay one batch through kills, freezes, lost answers, crashes and failovers. The gateway's record judges."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.promise.campaign.judge import Broken
from tests.promise.campaign.machine import GatewayProcess, Spawner, gateway
from tests.promise.cluster.company import PRELOADED
from tests.promise.cluster.shifts import play_shift
from tests.promise.cluster.trouble import SLOWLY, OrdealTally, Size, play_failover, play_ordeal
from tests.support.long_part import long
from tests.support.postgres_server import new_server

ROWS = 60
ONE_AFTER_THE_OTHER, SEVERAL_AT_ONCE = 3, 1
"""Seeds that kill, freeze and disconnect; the second one also crashes the server."""
PUT_BACK = "plants:rows_in_flight_are_put_back"
LAGGING, WHOLE = 2, 1  # seeds in which the standby lags, and in which it has everything


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    with Spawner(*PRELOADED) as started:
        yield started


@pytest.fixture(scope="module")
def slow_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway(tmp_path_factory.mktemp("gateway") / "gateway", SLOWLY) as started:
        yield started


@pytest.mark.parametrize(("part", "seed"), [long(play_ordeal, ONE_AFTER_THE_OTHER), (play_shift, SEVERAL_AT_ONCE)])
def test_batch_is_paid_once_despite_failures(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess, part: Callable[..., OrdealTally], seed: int
) -> None:
    """By two hosts in turn, and by concurrent workers."""
    with new_server() as server:
        size = Size(ROWS, workers=2)
        endured = part(tmp_path, spawner, slow_gateway, server, seed=seed, size=size)
    assert endured.hurt > 0


@pytest.mark.long
def test_worker_resending_sent_rows_is_detected(tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess) -> None:
    """A planted bug: the gateway's record has a row twice."""
    size = Size(ROWS, kills=1.0, workers=2)
    with new_server() as server, pytest.raises(Broken, match="sent twice"):
        play_shift(*(tmp_path, spawner, slow_gateway, server), seed=0, size=size, planted=PUT_BACK)


@pytest.mark.share(2)
@pytest.mark.parametrize(("seed", "is_lagging"), [(LAGGING, True), long(WHOLE, False)])
def test_failover_loses_no_row(
    tmp_path: Path, spawner: Spawner, slow_gateway: GatewayProcess, seed: int, is_lagging: bool
) -> None:
    endured = play_failover(tmp_path, spawner, slow_gateway, seed=seed, rows=ROWS)
    assert endured["never_left"] == 0
    if is_lagging:
        assert (endured["lost_rows"] > 0, endured["accepted"]) == (True, 1)
