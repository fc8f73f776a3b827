"""The limits over all workers, as the database keeps them. Times are injected: no test waits."""

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.pacing import Breaker, GrantedStarts, Pace, RejectionBreaker, Window
from paygw_batch.engine.shared_pacing import SharedPacing
from paygw_batch.errors import JournalCorrupt
from paygw_batch.gateway.message import MayLeave
from paygw_batch.journal.opening.database_place import DatabasePlace
from paygw_batch.journal.port import (
    CountedKind,
    CountedOutcomes,
    GateReport,
    GateStop,
    GateStopKind,
    LimitChange,
)
from paygw_batch.journal.values import MoveResult
from tests.engine.scripted_world import APPROVED, LOST, Answer, ScriptedGateway, an_engine
from tests.journal.journal_rows import all_due, intent, new_instruction, open_sheet
from tests.journal.postgres_rows import LeasingPostgres, open_postgres, postgres_place, read_postgres
from tests.long_part import share_of
from tests.patience import PATIENCE_S

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
GRANTED = ("places", "is_growing", "starts", "first_s", "every_s", "rest_s", "stop_kind", "stop_count", "stop_text")
Told = Sequence[tuple[str, str, int]]


@pytest.fixture
def at_database(database: str, place: Path) -> DatabasePlace:
    return postgres_place(database, place)


@dataclass
class Workers:
    """Workers that ask the gate when a test says so, by a clock that the test sets."""

    connection: psycopg.Connection[Any]

    def enrol(self) -> int:
        query = """INSERT INTO worker (host, boot, pid, command, kind, lease_s)
            VALUES ('h', 'b', 1, 'a test', 'run', 3600) RETURNING number"""
        return int(self.fetch(query)[0][0])

    def ask(
        self,
        worker: int,
        *,
        wanted: int = 16,
        in_use: int = 0,
        starts: int = 0,
        rate: float = 0,
        concurrency: int = 16,
        in_doubt: int = 5,
        rejected: int = 10,
        rest_s: float = 0,
        stop: str = "",
        told: Told = (),
        now_s: float = 0,
    ) -> dict[str, Any]:
        values = [worker, wanted, in_use, starts, rate, concurrency, in_doubt, rejected, rest_s, stop]
        columns = [[one[column] for one in told] for column in range(3)]
        places = ", ".join(["%s"] * 10)
        query = f"SELECT * FROM ask_gate_at({places}, %s::text[], %s::text[], %s::integer[], %s)"  # noqa: S608 - places alone
        (line,) = self.fetch(query, [*values, *columns, NOON + timedelta(seconds=now_s)])
        return dict(zip(GRANTED, line, strict=True))

    def fetch(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        cursor = self.connection.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def open_wide(self, places: int = 1000) -> None:
        """Let the slow start be over."""
        self.fetch("UPDATE gate SET places = %s", [places])


@pytest.fixture
def workers(database: str) -> Iterator[Workers]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        connection.execute("SET synchronous_commit = off")
        yield Workers(connection)


def by_hand(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        connection.execute(statement.encode())


# The rate.


@pytest.mark.parametrize("rate", [3.0, 400.0])
def test_four_workers_keep_the_rate_within_five_percent_over_any_second(workers: Workers, rate: float) -> None:
    """Each asks for a tenth of a second ahead, is answered late, and uses what it has when its turn comes."""
    workers.open_wide()
    numbers = [workers.enrol() for _ in range(4)]
    granted = {number: GrantedStarts() for number in numbers}
    ahead, started, seconds = -(-rate // 10), [], 4
    for tick in range(seconds * 200):
        now_s = tick / 200
        number = numbers[tick % 4]
        if granted[number].unused(now_s) * 2 <= ahead:
            late_s = (tick % 3) * 0.01
            grant = workers.ask(number, starts=int(ahead), rate=rate, concurrency=1000, wanted=1000, now_s=now_s)
            granted[number].add(
                now_s, now_s + late_s, first_s=grant["first_s"], every_s=grant["every_s"], starts=grant["starts"]
            )
        for one in numbers:
            while granted[one].wait_s(now_s) == 0:
                granted[one].start()
                started.append(now_s)
    started.sort()
    most = max(sum(start <= other < start + 1 for other in started) for start in started)
    assert most <= rate * 1.05 + 1
    assert len(started) >= rate * seconds * 0.9


def test_starts_are_after_a_rest_and_after_all_that_were_granted(workers: Workers) -> None:
    workers.open_wide()
    first, second = workers.enrol(), workers.enrol()
    assert workers.ask(first, starts=5, rate=10, concurrency=1000)["first_s"] == 0
    grant = workers.ask(second, starts=5, rate=10, concurrency=1000)
    assert (grant["first_s"], grant["every_s"], grant["starts"]) == (0.5, 0.1, 5)
    assert workers.ask(first, starts=1, rate=10, rest_s=60, now_s=0.2, concurrency=1000)["first_s"] == 60
    assert workers.ask(second, starts=1, rate=10, now_s=0.2, concurrency=1000)["rest_s"] == 60
    assert workers.ask(second, starts=1, rate=10, now_s=90, concurrency=1000)["first_s"] == 0, (
        "idle time is not saved up"
    )


def test_a_reason_of_the_gateway_may_be_any_text(at_database: DatabasePlace) -> None:
    with closing(open_postgres(at_database)) as journal, closing(journal.gate()) as gate:
        told = [CountedOutcomes(CountedKind.REJECTED, "no funds \0 \ud800 é", 2)]
        grant = gate.ask(GateReport(4, 0, 0, 0.0, 4, 5, 2, outcomes=told))
        assert grant.stop == GateStop(GateStopKind.REJECTED, 2, "no funds ? ? é")


def test_the_rate_that_a_person_sets_comes_before_the_configuration(workers: Workers) -> None:
    workers.open_wide()
    worker = workers.enrol()
    assert workers.ask(worker, starts=4)["every_s"] == 0
    workers.fetch("SELECT set_limits('amina', 50, NULL, false)")
    assert workers.ask(worker, starts=4, rate=10)["every_s"] == 0.02
    workers.fetch("SELECT set_limits('amina', 0, NULL, false)")
    assert workers.ask(worker, starts=4, rate=10)["every_s"] == 0
    workers.fetch("SELECT set_limits('amina', NULL, NULL, true)")
    assert workers.ask(worker, starts=4, rate=10)["every_s"] == 0.1


ASKING = """
import sys, psycopg
url, worker = sys.argv[1:]
query = '''SELECT extract(epoch FROM n.now)::double precision + a.first_s, a.starts, a.places
    FROM (SELECT clock_timestamp() AS now OFFSET 0) n,
    ask_gate_at(%s, 8, 0, 3, 10000, 8, 5, 10, 0, '', '{}', '{}', '{}', n.now) a'''
with psycopg.connect(url, autocommit=True) as connection:
    connection.execute("SET search_path = paygw")
    sys.stdin.readline()
    for _ in range(100):
        print(*connection.execute(query.encode(), (worker,)).fetchone())
"""
"""Takes starts and places a hundred times, in a process of its own; begins when it is told."""


def test_two_processes_at_the_same_moment_never_get_the_same_start_nor_too_many_places(
    workers: Workers, database: str
) -> None:
    workers.open_wide(8)
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASKING, database, str(workers.enrol())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in asking:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=PATIENCE_S)[0] for process in asking]
    granted = sorted(tuple(map(float, line.split())) for lines in told for line in lines.splitlines())
    assert len(granted) == 200
    with_starts = [(first_s, starts) for first_s, starts, _ in granted if starts]
    assert len(with_starts) >= 100
    for (before_s, starts), (first_s, _) in itertools.pairwise(with_starts):
        assert first_s - before_s >= starts / 10_000 - 1e-5, "two were granted the same time"
    assert workers.fetch("SELECT sum(places) <= 8 FROM gate_place") == [(True,)]


# Places.


def test_one_worker_begins_with_one_row_and_every_answer_doubles_what_all_may_have(workers: Workers) -> None:
    first, second = workers.enrol(), workers.enrol()
    assert workers.ask(first)["places"] == 1
    assert workers.ask(second)["places"] == 0
    assert workers.ask(first, told=[("answered", "", 2)], in_use=1)["places"] == 2, "half of four"
    assert workers.ask(second)["places"] == 2
    assert workers.ask(second, in_use=2, told=[("answered", "", 1)])["places"] == 4
    assert workers.ask(first, in_use=2, told=[("unknown", "", 1)])["places"] == 0, "the other has more than is left"
    assert workers.ask(second, in_use=1)["places"] == 0
    assert workers.ask(first, in_use=0)["places"] == 0
    assert workers.ask(second, in_use=0)["places"] == 1


def test_all_workers_together_never_have_more_places_than_are_set(workers: Workers) -> None:
    workers.open_wide(20)
    numbers = [workers.enrol() for _ in range(4)]
    in_use = dict.fromkeys(numbers, 0)
    for turn in range(60):
        number = numbers[turn * 7 % 4]
        in_use[number] = workers.ask(number, in_use=in_use[number], concurrency=20)["places"]
        assert sum(in_use.values()) <= 20
    assert set(in_use.values()) == {5}


def test_places_that_one_does_not_want_go_to_the_others_and_a_dead_worker_has_none(workers: Workers) -> None:
    workers.open_wide(16)
    first, second = workers.enrol(), workers.enrol()
    assert workers.ask(first)["places"] == 16
    assert workers.ask(second)["places"] == 0
    assert workers.ask(first, in_use=16)["places"] == 8
    assert workers.ask(second)["places"] == 0, "the rows of the first are still in flight"
    assert workers.ask(first, in_use=8)["places"] == 8
    assert workers.ask(second, in_use=0)["places"] == 8
    assert workers.ask(first, in_use=0, wanted=0)["places"] == 0
    assert workers.ask(second, in_use=8)["places"] == 16
    assert workers.ask(first)["places"] == 0
    workers.fetch("UPDATE worker SET seen_at = seen_at - interval '2 h' WHERE number = %s", [second])
    assert workers.ask(first)["places"] == 16
    workers.fetch("SELECT leave_gate(%s)", [first])
    third = workers.enrol()
    assert workers.ask(third)["places"] == 16


def test_a_limit_that_is_lowered_holds_at_once(workers: Workers) -> None:
    workers.open_wide(16)
    worker = workers.enrol()
    assert workers.ask(worker)["places"] == 16
    workers.fetch("SELECT set_limits('amina', NULL, 3, false)")
    assert workers.ask(worker, in_use=16)["places"] == 3
    workers.fetch("SELECT set_limits('amina', NULL, 8, false)")
    assert workers.ask(worker, told=[("answered", "", 1)])["places"] == 6
    assert workers.ask(worker, told=[("answered", "", 1)])["places"] == 8


# The breaker.


def test_doubts_in_a_row_are_counted_over_all_workers(workers: Workers) -> None:
    first, second = workers.enrol(), workers.enrol()
    workers.ask(first, in_doubt=3, told=[("unknown", "", 2)])
    workers.ask(second, in_doubt=3, told=[("answered", "", 1), ("unknown", "", 2)])
    stopped = workers.ask(first, in_doubt=3, told=[("unknown", "", 1)])
    assert (stopped["stop_kind"], stopped["stop_count"], stopped["places"]) == ("in_doubt", 3, 0)
    assert workers.ask(second, told=[("answered", "", 5)])["stop_kind"] == "in_doubt", "only a person lifts it"
    workers.fetch("SELECT open_gate(%s)", [second])
    again = workers.ask(second)
    assert (again["stop_kind"], again["places"]) == (None, 1)


def test_rejections_for_one_reason_are_counted_over_all_workers(workers: Workers) -> None:
    first, second = workers.enrol(), workers.enrol()
    workers.ask(first, rejected=4, told=[("rejected", "51", 3), ("rejected", "14", 1), ("rejected", "51", 1)])
    workers.ask(second, rejected=4, told=[("rejected", "51", 2)])
    stopped = workers.ask(first, rejected=4, told=[("rejected", "51", 1)])
    assert (stopped["stop_kind"], stopped["stop_count"], stopped["stop_text"]) == ("rejected", 4, "51")


def test_a_worker_that_stops_stops_all_and_a_run_beside_others_does_not_begin_anew(workers: Workers) -> None:
    workers.open_wide(16)
    first, second = workers.enrol(), workers.enrol()
    workers.ask(first)
    workers.fetch("SELECT open_gate(%s)", [second])
    assert workers.fetch("SELECT places FROM gate") == [(16,)]
    workers.ask(first, stop="Credentials were refused.")
    assert workers.ask(second)["stop_text"] == "Credentials were refused."


@settings(max_examples=share_of(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([OutcomeKind.PAID, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN]), st.sampled_from("ab")
        ),
        max_size=12,
    )
)
def test_one_worker_is_limited_by_the_gate_as_it_limits_itself(
    workers: Workers, outcomes: list[tuple[OutcomeKind, str]]
) -> None:
    workers.fetch("TRUNCATE gate_place")
    workers.fetch(
        "UPDATE gate SET places = 1, in_doubt = 0, rejected = 0, reason = '', stop_kind = NULL, stopped_at = NULL"
    )
    worker = workers.enrol()
    window, breaker, rejections = Window(10), Breaker(3), RejectionBreaker(4)
    told, has_stopped = [], False
    for kind, reason in outcomes:
        window.learn(kind)
        has_stopped |= breaker.learn(kind)
        has_stopped |= rejections.learn(Outcome(kind, error_code=reason))
        name = {OutcomeKind.PAID: "answered", OutcomeKind.UNKNOWN: "unknown"}.get(kind, "rejected")
        told.append((name, reason if name == "rejected" else "", 1))
    found = workers.ask(worker, concurrency=10, in_doubt=3, rejected=4, told=told)
    assert (found["stop_kind"] is not None) == has_stopped
    assert workers.fetch("SELECT places FROM gate") == [(window.size,)]


# Runs.


def desk_is_free(url: str) -> None:
    """Let another process have the desk, as if the one that lives had chunks alone."""
    new_worker = """INSERT INTO worker (host, boot, pid, command, kind, lease_s, ended_at)
        VALUES ('h', 'b', 1, 'c', 'run', 1, now())"""
    by_hand(url, new_worker)
    by_hand(url, "UPDATE segment SET worker = (SELECT max(number) FROM worker) WHERE chain = 0 AND sealed_at IS NULL")


def test_an_intent_is_refused_as_soon_as_any_worker_has_stopped(at_database: DatabasePlace, workers: Workers) -> None:
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=2)
        first, second = all_due(journal, 1)
        assert [*journal.append([intent(first)])] == [MoveResult.MOVED]
        workers.ask(workers.enrol(), in_doubt=1, told=[("unknown", "", 1)])
        assert [*journal.append([intent(second)])] == [MoveResult.HELD]
        assert [row.state for row in journal.rows(1)] == [State.IN_FLIGHT, State.READY]
        with closing(journal.gate()) as gate:
            gate.open()
        assert [*journal.append([intent(second)])] == [MoveResult.MOVED]
        assert journal.verify()["facts"] == 3


class Counting:
    """What the gateway sees of all workers at once."""

    def __init__(self, *, lose_after: int | None = None) -> None:
        self.in_flight = self.most = 0
        self.heard: Counter[str] = Counter()
        self.lose_after = lose_after

    def gateway(self) -> ScriptedGateway:
        counting = self

        class Heard(ScriptedGateway):
            async def deliver(self, request: Any, may_leave: MayLeave) -> Answer:
                counting.in_flight += 1
                counting.most = max(counting.most, counting.in_flight)
                try:
                    return await super().deliver(request, may_leave)
                finally:
                    counting.in_flight -= 1

        return Heard(script=self._answer, latency=0.001)

    def _answer(self, order_id: str, _times: int) -> Answer:
        self.heard[order_id] += 1
        return LOST if self.lose_after is not None and self.heard.total() > self.lose_after else APPROVED


async def sent(journal: LeasingPostgres, batch: int, counting: Counting, pace: Pace) -> str | None:
    with journal.for_engine() as given:
        engine = an_engine(journal, counting.gateway(), pace, given, SharedPacing(journal.gate(), pace))  # type: ignore[arg-type]  # of either store
        end = await engine.run(batch)
        assert end.failure is None
        return end.stop_reason


async def by_two(at: DatabasePlace, counting: Counting, pace: Pace) -> list[str | None]:
    """Send two batches by two workers that live at the same time; return why each of them stopped."""
    with closing(open_postgres(at)) as first:
        open_sheet(first, new=40)
        open_sheet(first, "b2", [new_instruction(row, f"MORE-{row}") for row in range(2, 42)])
        desk_is_free(at.server.url)
        with closing(open_postgres(at)) as second:
            return list(await asyncio.gather(sent(first, 1, counting, pace), sent(second, 2, counting, pace)))


def test_two_workers_together_keep_to_the_concurrency_and_send_every_row_once(at_database: DatabasePlace) -> None:
    counting = Counting()
    assert asyncio.run(by_two(at_database, counting, Pace(concurrency=3))) == [None, None]
    assert (len(counting.heard), set(counting.heard.values())) == (80, {1})
    assert counting.most <= 3


def test_two_workers_together_send_all_by_the_rate_that_is_set(at_database: DatabasePlace) -> None:
    counting = Counting()
    at_database.change_limits(LimitChange("amina", rate_per_s=500, concurrency=2))
    assert asyncio.run(by_two(at_database, counting, Pace(concurrency=8))) == [None, None]
    assert (len(counting.heard), set(counting.heard.values()), counting.most <= 2) == (80, {1}, True)


def test_where_one_worker_meets_a_doubt_no_worker_goes_on(at_database: DatabasePlace) -> None:
    counting = Counting(lose_after=10)
    ends = asyncio.run(by_two(at_database, counting, Pace(concurrency=4, stop_after_in_doubt=1)))
    # How many had come into doubt when it was reported differs: the rows of one moment are told together.
    assert all(end is not None and end.endswith(" ended in doubt.") for end in ends), ends
    assert counting.heard.total() <= 10 + 4
    assert at_database.limits().stop is not None
    with closing(read_postgres(at_database)) as journal:
        counted = Counter(row.state for batch in (1, 2) for row in journal.rows(batch))
        assert counted[State.READY] == 80 - counting.heard.total()
        assert counted[State.IN_FLIGHT] == 0


# What people see and set.


def test_who_set_which_limits_is_kept_and_cannot_be_changed(at_database: DatabasePlace) -> None:
    assert at_database.limits().set_by == ""
    state = at_database.change_limits(LimitChange("amina", rate_per_s=100, concurrency=64))
    assert (state.rate_per_s, state.concurrency, state.set_by) == (100, 64, "amina")
    state = at_database.change_limits(LimitChange("chidi", concurrency=32))
    assert (state.rate_per_s, state.concurrency, state.set_by) == (100, 32, "chidi")
    state = at_database.change_limits(LimitChange("chidi", is_as_configured=True))
    assert (state.rate_per_s, state.concurrency) == (None, None)
    with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
        by_hand(at_database.server.url, "UPDATE limit_change SET by = 'nobody'")
    with closing(read_postgres(at_database)) as journal:
        journal.verify()
    by_hand(at_database.server.url, "UPDATE gate SET rate_per_s = 1000")
    with closing(read_postgres(at_database)) as journal, pytest.raises(JournalCorrupt, match="limits"):
        journal.verify()
