"""The protocol of the journal holds in any order of events, and each planted bug breaks it."""

import pytest

from tests.cluster.planted import BUGS
from tests.cluster.protocol import Broken, Played, play
from tests.journal.postgres_server import PostgresServer
from tests.long_part import long, share

LIVES = 12
HUNTED = 40
"""Within so many lives each planted bug must show."""


def test_in_any_order_of_events_no_row_is_sent_twice_or_lost(postgres_server: PostgresServer, open_batch: str) -> None:
    played = Played()
    for seed in range(LIVES):
        played.add(play(postgres_server, open_batch, seed))
    assert min(played.deaths, played.lost_connections, played.freezes, played.late) > 0
    assert min(played.interrupted, played.releases) > 0


@pytest.mark.parametrize("name", [*map(long, [*BUGS][:3]), *share([*BUGS][3:], every=3)])
def test_a_planted_bug_of_the_protocol_is_found(postgres_server: PostgresServer, open_batch: str, name: str) -> None:
    for seed in range(HUNTED):
        try:
            play(postgres_server, open_batch, seed, BUGS[name])
        except Broken:
            return
    pytest.fail(f"not found in {HUNTED} lives")
