"""The guarantees of the Python API for programs that embed it."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from paygw_batch.api import (
    ApprovalError,
    Conclusion,
    ControlTotals,
    Finished,
    OutcomeKind,
    PaygwError,
    Payouts,
    Refused,
    SheetError,
    UsageError,
)
from paygw_batch.engine import engine
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Entry, MoveResult
from paygw_batch.submit import background_run
from tests.api.frames import NAME, finished, people
from tests.support.clusters import Hosts, new_hosts
from tests.support.postgres_server import PostgresServer
from tests.support.program import Program, kenyan_rows, kill


@pytest.fixture
def limited_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the queue of outcomes, so that a run cannot end before its outcomes are read."""
    monkeypatch.setattr(background_run, "MAX_WAITING_OUTCOMES", 1)
    monkeypatch.setattr(engine, "MAX_SIGNED_AHEAD", 64)


def is_each_sent_once(program: Program, count: int) -> bool:
    """Return whether the gateway accepted this number of orders, each once."""
    orders = Counter(line["client_orderid"] for line in program.record())
    return len(orders) == count and set(orders.values()) == {1}


def test_paid_frame_has_outcome_of_every_row(payouts: Payouts, program: Program) -> None:
    with payouts.submit(people(30), name=NAME) as run:
        outcomes = list(run)
    result = finished(run.result)
    assert sorted(item.row for item in outcomes) == list(range(2, 32))
    assert {item.kind for item in outcomes} == {OutcomeKind.PAID}
    assert (result.conclusion, result.states, result.sent) == (Conclusion.DONE, {"paid": 30}, 30)
    assert result.totals == {"KES": {"paid": "45015.00"}}
    assert result.reconciliation["state"].to_list() == ["paid"] * 30
    assert is_each_sent_once(program, 30)


def test_resubmitted_frame_sends_nothing(payouts: Payouts, program: Program) -> None:
    for known in (0, 5):
        with payouts.submit(people(5), name=NAME) as run:
            assert len(list(run)) == 5 - known
        result = finished(run.result)
        assert (result.known, result.sent, result.conclusion) == (known, 5 - known, Conclusion.DONE)
    assert is_each_sent_once(program, 5)


def test_api_and_command_share_batch_and_states(payouts: Payouts, program: Program) -> None:
    first = program.json("submit", program.sheet(kenyan_rows(4)))
    for sheet, name in ((people(4), "payroll.csv"), (program.home / "payroll.csv", None)):
        with payouts.submit(sheet, name=name) as run:
            assert list(run) == []
        result = finished(run.result)
        assert (result.batch, result.states, result.totals) == (first["batch"], first["states"], first["totals"])
    later = payouts.reconcile(result.batch[:6])
    assert later.reconciliation.equals(result.reconciliation)
    assert [(item.batch, item.sheet_name) for item in payouts.batches()] == [(result.batch, "payroll.csv")]
    assert program.json("verify")["exit_code"] == 0


def test_frame_with_defects_is_not_paid_as_whole(payouts: Payouts, program: Program) -> None:
    with payouts.submit(people(3, amount="twelve"), name=NAME) as run:
        assert list(run) == []
    assert isinstance(run.result, Refused)
    assert run.result.defects["row"].to_list() == [2, 3, 4]
    assert program.record() == []
    assert payouts.batches() == []
    frame = pl.concat([people(2), people(3)[2:].with_columns(currency=pl.lit("USD"))])
    with payouts.submit(frame, name=NAME, skip_invalid=True) as run:
        assert len(list(run)) == 2
    result = finished(run.result)
    assert (result.conclusion, result.states) == (Conclusion.SOME_REJECTED, {"invalid": 1, "paid": 2})


def test_frame_repeating_paid_batch_needs_confirmation(payouts: Payouts, program: Program) -> None:
    with payouts.submit(people(3), name=NAME) as run:
        finished(run.wait())
    again = people(3).with_columns(client_orderid=pl.concat_str(pl.lit("NEW-"), "client_orderid"))
    with payouts.submit(again, name=NAME) as run:
        refused = run.wait()
    assert isinstance(refused, Refused)
    assert refused.warnings.select("row", "code").rows() == [(0, "sheet.repeats_a_batch")]
    assert len(program.record()) == 3
    with payouts.submit(again, name=NAME, repeats_meant=True) as run:
        assert finished(run.wait()).sent == 3
    assert len(program.record()) == 6


@pytest.mark.parametrize("name", [None, "", "a/b", "two\nlines"])
def test_frame_name_must_be_file_name(payouts: Payouts, name: str | None) -> None:
    with pytest.raises(UsageError):
        payouts.submit(people(1), name=name)


def test_journal_failure_reports_unwritten_facts(
    payouts: Payouts, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, facts = SqliteJournal.stage, 0

    def fail_later(self: SqliteJournal, entries: Sequence[Entry]) -> Callable[[], Sequence[MoveResult]]:
        nonlocal facts
        facts += len(entries)
        if facts > 20:
            raise JournalUnwritable
        return stage(self, entries)

    monkeypatch.setattr(SqliteJournal, "stage", fail_later)
    run = payouts.submit(people(50), name=NAME)
    with pytest.raises(UsageError, match="not ended"):
        _ = run.result
    with pytest.raises(JournalUnwritable) as failure, run:
        list(run)
    assert any(note.startswith("Not in the journal: ") and "PAY-" in note for note in failure.value.__notes__)
    monkeypatch.undo()
    result = resume_batch(payouts, payouts.batches()[0].batch)
    assert result.conclusion is Conclusion.PERSON_NEEDED
    assert max(Counter(line["client_orderid"] for line in program.record()).values()) == 1
    assert result.states["in_doubt"] + result.states["paid"] == 50


def resume_batch(payouts: Payouts, batch: str) -> Finished:
    with payouts.resume(batch) as run:
        return finished(run.wait())


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.usefixtures("limited_queue")
@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (None, None),  # the program leaves the loop
        (fail, ZeroDivisionError),
        (lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), None),
    ],
    ids=["leaves", "error", "SIGINT", "SIGTERM"],
)
def test_stopped_run_is_resumed_and_pays_once(
    payouts: Payouts, program: Program, stop: Callable[[], object] | None, error: type[BaseException] | None
) -> None:
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT
    before = signal.getsignal(signal.SIGTERM)
    run = payouts.submit(people(400), name=NAME, stop_on=[signal.SIGTERM])

    def take_outcomes() -> None:
        with run:
            for number, _ in enumerate(run):
                if stop is None:
                    return
                if number == 0:
                    stop()

    try:
        with nullcontext() if error is None else pytest.raises(error):
            take_outcomes()
    finally:
        signal.signal(signal.SIGINT, former)
    assert signal.getsignal(signal.SIGTERM) == before
    stopped = finished(run.result)
    assert stopped.conclusion is Conclusion.INTERRUPTED
    assert stopped.states["ready"] + stopped.states["paid"] == 400
    assert resume_batch(payouts, stopped.batch).states == {"paid": 400}
    assert is_each_sent_once(program, 400)


def test_stop_can_be_called_from_another_thread(payouts: Payouts) -> None:
    with payouts.submit(people(400), name=NAME) as run:
        threading.Timer(0, run.stop).start()
        taken = len(list(run))
    result = finished(run.result)
    assert result.states.get("paid", 0) == taken == result.sent


def test_api_installs_no_signal_handlers(payouts: Payouts) -> None:
    before = [signal.getsignal(element) for element in (signal.SIGINT, signal.SIGTERM)]
    with payouts.submit(people(20), name=NAME) as run:
        for _ in run:
            assert [signal.getsignal(element) for element in (signal.SIGINT, signal.SIGTERM)] == before


def test_unread_outcomes_pause_run(payouts: Payouts, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_run, "MAX_WAITING_OUTCOMES", 10)
    with payouts.submit(people(999), name=NAME) as run:
        outcomes = iter(run)
        taken = [next(outcomes)]
        seen = -1
        while seen < (seen := len(program.record())):
            time.sleep(0.3)
        assert seen < 999
        taken.extend(outcomes)
    assert len(taken) == 999
    assert is_each_sent_once(program, 999)


def test_plain_thread_pays_without_handling_signals(payouts: Payouts) -> None:
    errors: list[PaygwError] = []

    def pay() -> None:
        with pytest.raises(UsageError) as refused, payouts.submit(people(1), name=NAME, stop_on=[signal.SIGTERM]):
            pass
        errors.append(refused.value)
        with payouts.submit(people(10), name=NAME) as run:
            assert len(list(run)) == 10

    thread = threading.Thread(target=pay)
    thread.start()
    thread.join()
    assert "main thread" in errors[0].message


def test_api_does_not_block_event_loop(payouts: Payouts, program: Program) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def pay() -> tuple[int, int]:
        turning = asyncio.create_task(turn())
        async with payouts.submit(people(200), name=NAME) as run:
            before = turns
            taken = [item async for item in run]
            most = turns - before
        turning.cancel()
        assert finished(run.result).conclusion is Conclusion.DONE
        return len(taken), most

    taken, most = asyncio.run(pay())
    assert (taken, most > 10) == (200, True)
    assert is_each_sent_once(program, 200)


def test_cancelling_task_stops_run(payouts: Payouts, program: Program) -> None:
    async def pay() -> str:
        run = payouts.submit(people(400), name=NAME)
        begun = asyncio.Event()

        async def take_outcomes() -> None:
            async with run:
                async for _ in run:
                    begun.set()
                    await asyncio.sleep(0)

        task = asyncio.create_task(take_outcomes())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return finished(run.result).batch

    batch = asyncio.run(pay())
    assert resume_batch(payouts, batch).states == {"paid": 400}
    assert is_each_sent_once(program, 400)


def test_plan_option_without_approval_policy_is_refused(payouts: Payouts, program: Program) -> None:
    with pytest.raises(ApprovalError), payouts.submit(people(2), name=NAME, plan="nope.json"):
        pass
    assert program.record() == []
    with payouts.submit(people(2), name=NAME) as run:
        assert len(list(run)) == 2
    assert finished(run.result).conclusion is Conclusion.DONE
    with pytest.raises(ApprovalError), payouts.submit(people(2), name=NAME, plan="nope.json"):
        pass


def test_empty_path_is_refused(payouts: Payouts, program: Program) -> None:
    refused: list[Callable[[], object]] = [lambda: Payouts(""), lambda: Payouts(program.config, journal="")]
    for empty in ("", " ", "\0"):
        refused.append(partial(payouts.submit, empty))
        refused.append(partial(payouts.submit, people(1), name=NAME, plan=empty))
    for call in refused:
        with pytest.raises(UsageError):
            call()


@pytest.mark.parametrize("name", [".", "/", "/dev/zero", "pipe.csv", "folder.csv", f"{'x' * 300}.csv"])
def test_path_of_other_file_raises_sheet_error(payouts: Payouts, program: Program, name: str) -> None:
    os.mkfifo(program.home / "pipe.csv")
    (program.home / "folder.csv").mkdir()
    with pytest.raises(SheetError), payouts.submit(program.home / name):
        pass
    assert program.record() == []


ROWS = 60


@pytest.fixture
def workers(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[tuple[Hosts, Payouts]]:
    """Yield hosts of which one has a worker, and the API of another one."""
    with new_hosts(tmp_path, postgres_server) as hosts:
        worker = hosts.host("one").start("work")
        hosts.wait_for_workers(worker)
        yield hosts, Payouts(hosts.office.config, environ=hosts.office.environ)
        kill(worker)


def test_run_on_workers_returns_every_outcome(workers: tuple[Hosts, Payouts], monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, payouts = workers
    monkeypatch.setattr(background_run, "MAX_WAITING_OUTCOMES", 10)
    with payouts.submit(people(ROWS), name="staff") as run:
        outcomes = list(run)
    result = finished(run.result)
    assert (result.conclusion, result.states) == (Conclusion.DONE, {"paid": ROWS})
    assert set(run.counts) == {"paid"}  # the first rows may be paid before the count
    assert Counter(item.client_orderid for item in outcomes) == Counter({f"PAY-{n}": 1 for n in range(1, ROWS + 1)})
    assert {(item.kind, item.payee, item.amount) for item in outcomes} == {("paid", "Jane Wanjiku", "1500.50")}
    assert hosts.ask("SELECT DISTINCT p.kind FROM paygw.process p JOIN paygw.fact f ON f.process = p.number "
                     "WHERE f.instruction IS NOT NULL") == [("worker",)]  # fmt: skip


def test_leaving_run_context_stops_workers(workers: tuple[Hosts, Payouts]) -> None:
    hosts, payouts = workers
    with payouts.submit(people(ROWS), name="staff") as run:
        pass
    result = finished(run.result)
    assert result.conclusion in {Conclusion.INTERRUPTED, Conclusion.DONE}
    assert hosts.ask("SELECT count(*) FROM paygw.run WHERE ended_at IS NULL") == [(0,)]
    assert resume_batch(payouts, result.batch).to_dict()["states"] == {"paid": ROWS}
    assert set(hosts.record().values()) == {1}


def test_frame_with_wrong_control_totals_is_refused(payouts: Payouts, program: Program) -> None:
    wrong = ControlTotals(3, {"KES": Decimal(1)})
    with pytest.raises(SheetError, match="You expected KES 1,"), payouts.submit(people(3), name=NAME, expected=wrong):
        pytest.fail("entered")
    assert program.record() == []
