"""The protocol of the journal holds in any order of events, and each planted bug breaks it."""

import pytest

from tests.promise.cluster.planted import BUGS
from tests.promise.cluster.protocol import Broken, PlayTally, play
from tests.support.long_part import long, share
from tests.support.postgres_server import PostgresServer

HUNTED = 40
"""The number of runs within which each planted bug must be found."""


@pytest.mark.parametrize("lives", [6, long(12)])
def test_no_order_of_events_repeats_or_loses_rows(postgres_server: PostgresServer, open_batch: str, lives: int) -> None:
    played = PlayTally()
    for seed in range(lives):
        played.add(play(postgres_server, open_batch, seed))
    assert min(played.deaths, played.lost_connections, played.freezes, played.late) > 0
    assert min(played.interrupted, played.releases) > 0


@pytest.mark.parametrize("name", [*map(long, [*BUGS][:3]), *share([*BUGS][3:], every=len(BUGS))])
def test_protocol_test_detects_planted_bug(postgres_server: PostgresServer, open_batch: str, name: str) -> None:
    for seed in range(HUNTED):
        try:
            play(postgres_server, open_batch, seed, BUGS[name])
        except Broken:
            return
    pytest.fail(f"not found in {HUNTED} lives")
