"""A small number of simulated worlds on every commit, and every planted bug found in them."""

import pytest

from .planted import BUGS
from .seeds import first_failure, hunt
from .story import play

SEEDS = 10_000
PIECES = 20
SEEDS_FOR_A_BUG = 2_000


@pytest.mark.parametrize("piece", range(PIECES))
def test_no_row_is_paid_twice_and_none_is_lost_whatever_befalls_a_run(piece: int) -> None:
    size = SEEDS // PIECES
    _, failure = first_failure(range(piece * size, (piece + 1) * size))
    assert failure is None


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds(name: str) -> None:
    found = hunt(name, range(SEEDS_FOR_A_BUG))
    assert found.failure is not None
    assert found.failure.invariant in BUGS[name].found_by


def test_a_seed_plays_the_same_world_again() -> None:
    first, again = play(11), play(11)
    assert first.disk.journal.head() == again.disk.journal.head()
    assert first.judge.payments == again.judge.payments
    assert first.clock.now_s == again.clock.now_s


def test_the_worlds_have_all_that_may_befall_a_run_in_them() -> None:
    worlds = [play(seed) for seed in range(200)]
    journals = [world.disk.journal for world in worlds]
    assert sum(sum(world.judge.first_bytes.values()) for world in worlds) > 500
    assert any(journal.contradictions() for journal in journals)
    assert any(len(journal.batches()) > 1 for journal in journals)
    assert {record.operation for journal in journals for record in journal.batches()} == {"payout", "payin"}
    findings = {line.finding for journal in journals for line in journal._evidence}
    assert findings == {"contradicting", "resolved"}
    kinds = {line.kind for journal in journals for line in journal._lines}
    assert {"interrupted", "released", "not_sent", "unknown", "paid", "accepted", "rejected"} <= kinds
