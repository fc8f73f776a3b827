"""A small number of simulated worlds on every commit, and every planted bug found in them."""

from contextlib import closing

import pytest

from tests.simulation.disk import reader_of
from tests.simulation.planted import BUGS
from tests.simulation.seeds import first_failure, hunt
from tests.simulation.story import play

SEEDS = 2_000  # more by command, `python -m tests.simulation`
PIECES = 20
SEEDS_FOR_A_BUG = 2_000


@pytest.mark.parametrize("piece", range(PIECES))
def test_no_row_is_paid_twice_and_none_is_lost_whatever_befalls_a_run(piece: int) -> None:
    size = SEEDS // PIECES
    _, failure = first_failure(range(piece * size, (piece + 1) * size))
    assert failure is None


@pytest.mark.parametrize("name", BUGS)
def test_the_simulation_finds(name: str) -> None:
    bug = BUGS[name]
    found = hunt(name, range(bug.from_seed, bug.from_seed + SEEDS_FOR_A_BUG))
    assert found.failure is not None
    assert found.failure.invariant in bug.found_by


def test_a_seed_plays_the_same_world_again() -> None:
    first, again = play(11), play(11)
    assert first.disk.image == again.disk.image
    assert first.judge.rows.keys() == again.judge.rows.keys()
    assert first.clock.now_s == again.clock.now_s


def test_the_worlds_have_all_that_may_befall_a_run_in_them() -> None:
    worlds = [play(seed) for seed in range(200)]
    assert sum(row.left for world in worlds for row in world.judge.rows.values()) > 500
    kinds, findings, sources, operations = set[str](), set[str](), set[str](), set[str]()
    two_batches = adoptions = 0
    for world in worlds:
        with closing(reader_of(world.disk.image)) as reader:
            two_batches += len(reader.batches()) > 1
            adoptions += len(reader._fetch("SELECT number FROM adoption"))
            operations |= {record.operation for record in reader.batches()}
            kinds |= {word for (word,) in reader._fetch("SELECT kind FROM fact")}
            for finding, source in reader._fetch("SELECT finding, source FROM evidence"):
                findings.add(finding)
                sources.add(source)
    assert two_batches
    assert adoptions
    assert operations == {"payout", "payin"}
    assert sources == {"notification", "statement", "person", "reply", "enquiry"}
    assert {"moved", "repeated", "contradicting", "resolved", "order"} <= findings
    assert {"interrupted", "released", "replaced", "not_sent", "unknown", "paid", "accepted", "rejected"} <= kinds
    assert {"resolved_paid", "resolved_rejected", "resolved_not_received"} <= kinds
    assert any(any(world.judge.approved.values()) for world in worlds)
