"""The limits over all workers in the database. Times are injected, so that no test waits."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.cluster.shared_pacing import SharedPacing
from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.pacing import Breaker, Pace, RejectionBreaker
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.port import CountedKind, CountedOutcomes, GateReport, GateStop, GateStopKind, LimitChange
from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
from paygw_batch.journal.values import MoveResult
from tests.support.journal_rows import due_rows, intent, new_instruction, open_sheet, states
from tests.support.long_part import example_count
from tests.support.postgres_rows import execute_as_owner, open_postgres, read_postgres
from tests.support.scripted_scenario import APPROVED, LOST, ScriptedGateway, build_engine

Told = Sequence[tuple[str, str, int]]


@dataclass
class Workers:
    """Workers that ask the gate on request, with a clock that the test sets."""

    connection: psycopg.Connection[Any]

    def enrol(self) -> int:
        query = "SELECT number FROM enrol('h', 'b', 1, 'a test', 'run', 3600, 1, %s)"
        return int(self.fetch(query, [secrets.token_bytes(16)])[0]["number"])

    def ask(
        self, worker: int, *, in_doubt: int = 5, rejected: int = 10, rest_s: float = 0, stop: str = "", told: Told = ()
    ) -> dict[str, Any]:
        columns = [[one[column] for one in told] for column in range(3)]
        query = "SELECT * FROM ask_gate(%s, %s, %s, %s, %s, %s::text[], %s::text[], %s::integer[])"
        (line,) = self.fetch(query, [worker, in_doubt, rejected, rest_s, stop, *columns])
        return line

    def fetch(self, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        cursor = self.connection.cursor(row_factory=dict_row).execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []


@pytest.fixture
def workers(database: str) -> Iterator[Workers]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET search_path = paygw")
        connection.execute("SET synchronous_commit = off")
        yield Workers(connection)


def test_each_sending_process_gets_its_share(workers: Workers) -> None:
    first, second, third = workers.enrol(), workers.enrol(), workers.enrol()
    assert workers.ask(second) == {
        "senders": 1, "before": 0, "rate_per_s": None, "concurrency": None, "rest_s": 0,
        "stop_kind": None, "stop_count": 0, "stop_text": "",
    }  # fmt: skip
    assert (workers.ask(first)["senders"], workers.ask(second)["before"]) == (2, 1)
    shares = [workers.ask(one) for one in (third, second, first)]
    assert [(share["senders"], share["before"]) for share in shares] == [(3, 2), (3, 1), (3, 0)]
    workers.fetch("SELECT leave_gate(%s)", [first])
    workers.fetch("UPDATE process SET seen_at = seen_at - interval '2 h' WHERE number = %s", [second])
    assert (workers.ask(third)["senders"], workers.ask(third)["before"]) == (1, 0)


def test_pause_applies_to_every_worker_until_it_ends(workers: Workers) -> None:
    first, second = workers.enrol(), workers.enrol()
    assert workers.ask(first, rest_s=60)["rest_s"] == pytest.approx(60, abs=1)
    assert workers.ask(second, rest_s=1)["rest_s"] == pytest.approx(60, abs=2), "the longest counts"
    workers.fetch("UPDATE gate SET rest_until = now()")
    assert workers.ask(second)["rest_s"] == 0


def test_gateway_reason_may_be_any_text(at_database: DatabaseLocation) -> None:
    with closing(open_postgres(at_database)) as journal, closing(journal.gate()) as gate:
        told = [CountedOutcomes(CountedKind.REJECTED, "no funds \0 \ud800 é", 2)]
        share = gate.request_share(GateReport(5, 2, outcomes=told))
        assert share.stop == GateStop(GateStopKind.REJECTED, 2, "no funds ? ? é")


def test_workers_receive_limits_set_by_person(workers: Workers) -> None:
    worker = workers.enrol()
    for change, told in (("50, 3, false", (50, 3)), ("0, NULL, false", (0, 3)), ("NULL, NULL, true", (None, None))):
        workers.fetch(f"SELECT set_limits('amina', {change})")
        share = workers.ask(worker)
        assert (share["rate_per_s"], share["concurrency"]) == told


def test_consecutive_rows_in_doubt_are_counted_across_workers(workers: Workers) -> None:
    first, second = workers.enrol(), workers.enrol()
    workers.ask(first, in_doubt=3, told=[("unknown", "", 2)])
    workers.ask(second, in_doubt=3, told=[("answered", "", 1), ("unknown", "", 2)])
    stopped = workers.ask(first, in_doubt=3, told=[("unknown", "", 1)])
    assert (stopped["stop_kind"], stopped["stop_count"]) == ("in_doubt", 3)
    assert workers.ask(second, told=[("answered", "", 5)])["stop_kind"] == "in_doubt", "only a person lifts it"
    workers.fetch("SELECT open_gate(%s)", [second])
    assert workers.ask(second)["stop_kind"] is None


def test_same_rejections_are_counted_across_workers(workers: Workers) -> None:
    first, second = workers.enrol(), workers.enrol()
    workers.ask(first, rejected=4, told=[("rejected", "51", 3), ("rejected", "14", 1), ("rejected", "51", 1)])
    workers.ask(second, rejected=4, told=[("rejected", "51", 2)])
    stopped = workers.ask(first, rejected=4, told=[("rejected", "51", 1)])
    assert (stopped["stop_kind"], stopped["stop_count"], stopped["stop_text"]) == ("rejected", 4, "51")


def test_stop_request_stops_all_workers(workers: Workers) -> None:
    first, second = workers.enrol(), workers.enrol()
    workers.ask(first, told=[("unknown", "", 2)])
    workers.fetch("SELECT open_gate(%s)", [second])
    assert workers.fetch("SELECT in_doubt FROM gate") == [{"in_doubt": 2}]
    workers.fetch("SELECT leave_gate(%s)", [first])
    workers.fetch("SELECT open_gate(%s)", [second])
    assert workers.fetch("SELECT in_doubt FROM gate") == [{"in_doubt": 0}]
    workers.ask(first, stop="Credentials were refused.")
    assert workers.ask(second)["stop_text"] == "Credentials were refused."


@settings(max_examples=example_count(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["answered", "rejected", "unknown"]), st.sampled_from("ab")), max_size=12))
def test_gate_stops_worker_like_its_own_breakers(workers: Workers, outcomes: list[tuple[str, str]]) -> None:
    workers.fetch("UPDATE gate SET in_doubt = 0, rejected = 0, reason = '', stop_kind = NULL, stopped_at = NULL")
    kinds = {"answered": OutcomeKind.PAID, "rejected": OutcomeKind.REJECTED, "unknown": OutcomeKind.UNKNOWN}
    breaker, rejections, has_stopped = Breaker(3), RejectionBreaker(4), False
    for name, reason in outcomes:
        has_stopped |= breaker.observe(kinds[name])
        has_stopped |= rejections.observe(Outcome(kinds[name], error_code=reason))
    told = [(name, reason if name == "rejected" else "", 1) for name, reason in outcomes]
    share = workers.ask(workers.enrol(), in_doubt=3, rejected=4, told=told)
    assert (share["stop_kind"] is not None) == has_stopped


def test_stop_by_any_worker_holds_new_intents(at_database: DatabaseLocation, workers: Workers) -> None:
    with closing(open_postgres(at_database)) as journal:
        open_sheet(journal, new=2)
        first, second = due_rows(journal, 1)
        assert [*journal.append([intent(first)])] == [MoveResult.MOVED]
        workers.ask(workers.enrol(), in_doubt=1, told=[("unknown", "", 1)])
        assert [*journal.append([intent(second)])] == [MoveResult.HELD]
        assert states(journal) == [State.IN_FLIGHT, State.READY]
        with closing(journal.gate()) as gate:
            gate.open()
        assert [*journal.append([intent(second)])] == [MoveResult.MOVED]
        assert journal.verify()["facts"] == 3


async def send_by_worker(journal: PostgresJournal, batch: int, gateway: ScriptedGateway, pace: Pace) -> str | None:
    with journal.open_engine_journal() as given:
        engine = build_engine(journal, gateway, pace, given, pacing=SharedPacing(journal.gate(), pace))  # type: ignore[arg-type]  # of either store
        end = await engine.run(batch)
        assert end.failure is None
        return end.stop_reason


async def send_by_two_workers(at: DatabaseLocation, gateway: ScriptedGateway, pace: Pace) -> list[str | None]:
    """Send two batches by two concurrent workers; return the stop reason of each."""
    with closing(open_postgres(at)) as opener:
        for batch in (1, 2):
            open_sheet(opener, f"b{batch}", [new_instruction(row, f"{batch}-{row}") for row in range(2, 42)])
            assert opener.start_shared_run(batch, can_wait=True)
            opener.reacquire_lock()
    with closing(at.open_to_work("one")) as first, closing(at.open_to_work("two")) as second:
        one, two = first.runs()
        assert (first.join_run([one]), second.join_run([two])) == (one, two)
        # Each worker knows of the other before it sends.
        execute_as_owner(at, "UPDATE process SET is_sending = true WHERE ended_at IS NULL")
        return [*await asyncio.gather(*(send_by_worker(*one, gateway, pace) for one in ((first, 1), (second, 2))))]


@pytest.mark.parametrize("is_changed", [False, True])
def test_two_workers_keep_limits_and_send_once(at_database: DatabaseLocation, is_changed: bool) -> None:
    gateway, limit = ScriptedGateway(latency=0.001), 2 if is_changed else 3
    if is_changed:
        at_database.change_limits(LimitChange("amina", rate_per_s=500, concurrency=limit))
    pace = Pace(concurrency=8 if is_changed else limit)
    assert asyncio.run(send_by_two_workers(at_database, gateway, pace)) == [None, None]
    assert (len(gateway.arrived), len({*gateway.arrived}), gateway.most_in_flight <= limit) == (80, 80, True)


def test_rows_in_doubt_at_one_worker_stop_all(at_database: DatabaseLocation) -> None:
    gateway = ScriptedGateway(lambda *_: APPROVED if len(gateway.arrived) <= 10 else LOST, latency=0.001)
    ends = asyncio.run(send_by_two_workers(at_database, gateway, Pace(concurrency=4, stop_after_in_doubt=1)))
    # The count of rows in doubt varies, because simultaneous rows are reported together.
    assert all(end is not None and end.endswith(" ended in doubt.") for end in ends), ends
    assert len(gateway.arrived) <= 10 + 4
    assert at_database.limits().stop is not None
    with closing(read_postgres(at_database)) as journal:
        counted = Counter(row.state for batch in (1, 2) for row in journal.rows(batch))
    assert (counted[State.READY], counted[State.IN_FLIGHT]) == (80 - len(gateway.arrived), 0)


def test_verify_finds_tampered_limits(at_database: DatabaseLocation) -> None:
    assert at_database.limits().set_by == ""
    for change, limits in (
        (LimitChange("amina", rate_per_s=100, concurrency=64), (100, 64, "amina")),
        (LimitChange("chidi", concurrency=32), (100, 32, "chidi")),
        (LimitChange("chidi", clears_others=True), (None, None, "chidi")),
    ):
        state = at_database.change_limits(change)
        assert (state.rate_per_s, state.concurrency, state.set_by) == limits
    with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
        execute_as_owner(at_database, "UPDATE limit_change SET by = 'nobody'")
    with closing(read_postgres(at_database)) as journal:
        journal.verify()
    execute_as_owner(at_database, "UPDATE gate SET rate_per_s = 1000")
    with closing(read_postgres(at_database)) as journal, pytest.raises(JournalCorrupt, match="limits"):
        journal.verify()
