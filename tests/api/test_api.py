"""The Python API for programs that embed it: its guarantees about runs, and everything without a run."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from paygw_batch import api
from paygw_batch.api import Conclusion, Finished, Payouts, Refused, UsageError
from paygw_batch.engine import engine
from paygw_batch.errors import JournalUnwritable
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.submit import background_run
from tests.support.approving import policy
from tests.support.checkout import ROOT, copy_versioned
from tests.support.clusters import Hosts, new_hosts
from tests.support.journal_disk import failing_stage
from tests.support.postgres_server import PostgresServer
from tests.support.program import HEADING, Program, kenyan_rows, kill, sandbox_toml

NAME = "payroll-2026-11"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    tmp_path.chmod(0o700)
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(tmp_path, config)


@pytest.fixture
def payouts(program: Program) -> Payouts:
    return Payouts(program.config, environ=program.environ)


def people(count: int, *, amount: str = "1500.50") -> pl.DataFrame:
    lines = [line.split(",") for line in kenyan_rows(count, amount=amount)]
    return pl.DataFrame(lines, schema=HEADING.split(","), orient="row")


def finished(result: Refused | Finished) -> Finished:
    assert isinstance(result, Finished)
    return result


def finish(run: api.Run) -> Finished:
    """Wait for the end of a run, and return its result."""
    with run:
        return finished(run.wait())


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
    before, outcomes = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)], []
    with payouts.submit(people(30), name=NAME) as run:
        for outcome in run:
            outcomes.append(outcome)
            assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    result = finished(run.result)
    assert sorted(item.row for item in outcomes) == list(range(2, 32))
    assert {item.kind for item in outcomes} == {api.OutcomeKind.PAID}
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


def test_frame_with_defects_needs_skip_invalid(payouts: Payouts, program: Program) -> None:
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
    finish(payouts.submit(people(3), name=NAME))
    again = people(3).with_columns(client_orderid=pl.concat_str(pl.lit("NEW-"), "client_orderid"))
    with payouts.submit(again, name=NAME) as run:
        refused = run.wait()
    assert isinstance(refused, Refused)
    assert refused.warnings.select("row", "code").rows() == [(0, "sheet.repeats_a_batch")]
    assert len(program.record()) == 3
    assert finish(payouts.submit(again, name=NAME, repeats_meant=True)).sent == 3
    assert len(program.record()) == 6


@pytest.mark.parametrize("name", [None, "", "a/b", "two\nlines"])
def test_frame_name_must_be_file_name(payouts: Payouts, name: str | None) -> None:
    with pytest.raises(UsageError):
        payouts.submit(people(1), name=name)


def test_journal_failure_reports_unwritten_facts(
    payouts: Payouts, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteJournal, "stage", failing_stage(20))
    run = payouts.submit(people(50), name=NAME)
    with pytest.raises(UsageError, match="not ended"):
        _ = run.result
    with pytest.raises(JournalUnwritable) as failure, run:
        list(run)
    assert any(note.startswith("Not in the journal: ") and "PAY-" in note for note in failure.value.__notes__)
    monkeypatch.undo()
    result = finish(payouts.resume(payouts.batches()[0].batch))
    assert result.conclusion is Conclusion.PERSON_NEEDED
    assert max(Counter(line["client_orderid"] for line in program.record()).values()) == 1
    assert result.states["in_doubt"] + result.states["paid"] == 50


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
    assert finish(payouts.resume(stopped.batch)).states == {"paid": 400}
    assert is_each_sent_once(program, 400)


def test_stop_can_be_called_from_another_thread(payouts: Payouts) -> None:
    with payouts.submit(people(400), name=NAME) as run:
        threading.Timer(0, run.stop).start()
        taken = len(list(run))
    result = finished(run.result)
    assert result.states.get("paid", 0) == taken == result.sent


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
    def pay() -> int:
        with pytest.raises(UsageError, match="main thread"):
            payouts.submit(people(1), name=NAME, stop_on=[signal.SIGTERM]).__enter__()
        with payouts.submit(people(10), name=NAME) as run:
            return len(list(run))

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(pay).result() == 10


@pytest.mark.parametrize("read", [list, api.Run.wait, lambda run: asyncio.run(anext(aiter(run)))])
def test_run_outside_its_context_is_refused(payouts: Payouts, read: Callable[[api.Run], object]) -> None:
    with pytest.raises(UsageError, match="has not started"):
        read(payouts.submit(people(1), name=NAME))


def test_api_does_not_block_event_loop(payouts: Payouts, program: Program) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def pay() -> None:
        turning = asyncio.create_task(turn())
        async with payouts.submit(people(200), name=NAME) as run:
            before = turns
            assert len([item async for item in run]) == 200
            assert turns - before > 10
        turning.cancel()
        assert finished(run.result).conclusion is Conclusion.DONE

    asyncio.run(pay())
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
    assert finish(payouts.resume(batch)).states == {"paid": 400}
    assert is_each_sent_once(program, 400)


def test_plan_option_without_approval_policy_is_refused(payouts: Payouts, program: Program) -> None:
    with pytest.raises(api.ApprovalError), payouts.submit(people(2), name=NAME, plan="nope.json"):
        pass
    assert program.record() == []
    with payouts.submit(people(2), name=NAME) as run:
        assert len(list(run)) == 2
    assert finished(run.result).conclusion is Conclusion.DONE
    with pytest.raises(api.ApprovalError), payouts.submit(people(2), name=NAME, plan="nope.json"):
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
    with pytest.raises(api.SheetError), payouts.submit(program.home / name):
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
    assert finish(payouts.resume(result.batch)).to_dict()["states"] == {"paid": ROWS}
    assert set(hosts.record().values()) == {1}


def test_frame_with_wrong_control_totals_is_refused(payouts: Payouts, program: Program) -> None:
    wrong = api.ControlTotals(3, {"KES": Decimal(1)})
    with (
        pytest.raises(api.SheetError, match="You expected KES 1,"),
        payouts.submit(people(3), name=NAME, expected=wrong),
    ):
        pytest.fail("entered")
    assert program.record() == []
    with pytest.raises(TypeError, match="must be a Decimal"):
        api.ControlTotals(3, {"KES": "1.00"})  # type: ignore[dict-item]


# Without a run: validate, plan, approve, find, settle, release; other frames; the page about the API.


class OtherFrame:
    """A frame of an unknown library, which has only Arrow's interface."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


class Stream(OtherFrame):
    """A stream that can be read only once, although `submit` computes the findings of its plan again."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        rows, self._frame = self._frame, self._frame.clear()
        return rows.__arrow_c_stream__(requested_schema)


def test_validate_reports_defects_and_creates_no_journal(payouts: Payouts, program: Program) -> None:
    bad = people(3).with_columns(amount=pl.Series(["1", "1e3", "2"]))
    found = payouts.validate(bad, name=NAME)
    assert (found.rows, found.payable, found.totals) == (3, 2, {"KES": "3.00"})
    assert found.defects.select("row", "code").rows() == [(3, "amount.exponent")]
    assert found.headings["amount"] == "amount"
    assert not program.journal.exists()
    assert found.batch == payouts.validate(bad, name="another.csv").batch


def test_ambiguous_sheet_raises_until_arguments_decide(payouts: Payouts, program: Program) -> None:
    heading = HEADING.replace("client_orderid,", "")
    rows = [",".join([row.split(",")[0], *row.split(",")[2:]]).replace("Jane", "Aïcha") for row in kenyan_rows(2)]
    path = program.home / "paie.csv"
    path.write_bytes("\n".join([heading, *rows]).encode("cp1252"))
    with pytest.raises(api.SheetError, match="Aïcha"):
        payouts.validate(path)
    with pytest.raises(api.SheetError, match="no order ids"):
        payouts.validate(path, encoding="cp1252")
    assert payouts.validate(path, encoding="cp1252", reference=NAME).payable == 2


def test_frame_from_other_library_is_paid(payouts: Payouts) -> None:
    result = finish(payouts.submit(OtherFrame(people(4)), name=NAME))
    assert result.states == {"paid": 4}
    exact = people(4).with_columns(pl.col("amount").cast(pl.Decimal(20, 4)))
    for same in (people(4), people(4).lazy(), exact):
        with payouts.submit(same, name=NAME) as again:
            assert list(again) == []
        assert finished(again.result).batch == result.batch


@pytest.mark.parametrize("sheet", [None, b"country", [1], 7])
def test_missing_file_and_frame_is_usage_error(payouts: Payouts, sheet: object) -> None:
    with pytest.raises(UsageError, match="a file path or a data frame"):
        payouts.validate(sheet, name=NAME)  # type: ignore[arg-type]


def test_run_reports_batch_and_progress(payouts: Payouts, program: Program) -> None:
    with payouts.submit(people(5), name=NAME) as run:
        assert (run.batch, run.total) == (payouts.batches()[0].batch, 5)
        outcomes = list(run)
        assert run.counts == {api.OutcomeKind.PAID: 5}
    first = min(outcomes, key=lambda one: one.row)
    shown = (first.client_orderid, first.payee, first.account, first.amount, first.currency)
    assert shown == ("PAY-1", "Jane Wanjiku", "254712345001", "1500.50", "KES")
    assert first.outcome.gateway_status == "approved"
    assert not [text for text in ("Jane", "approved") if text in repr(first)]
    assert json.loads(json.dumps(first.to_dict()))["payee"] == "Jane Wanjiku"
    state = payouts.status(run.batch[:8])
    assert (state.conclusion, state.states, state.rows, state.needs_person) == (Conclusion.DONE, {"paid": 5}, 5, ())
    assert state.totals == program.json("status", run.batch)["totals"]
    assert [one.row for one in payouts.find("wanjiku")] == [6, 5, 4, 3, 2]
    assert [one.row for one in payouts.find("0712345002", limit=1)] == [3]
    with pytest.raises(UsageError):
        payouts.find(" ")


def test_retry_releases_rejected_rows(payouts: Payouts) -> None:
    first = finish(payouts.submit(people(1, amount="9001"), name=NAME))
    assert first.conclusion is Conclusion.SOME_REJECTED
    waiting = payouts.status(first.batch).needs_person
    assert [(one.row, one.state, one.amount, one.currency) for one in waiting] == [(2, "rejected", "9001.00", "KES")]
    with pytest.raises(UsageError), payouts.retry(first.batch, rows=[7]):
        pass
    assert finish(payouts.retry(first.batch, rows=[])).sent == 0
    again = finish(payouts.retry(first.batch, by="Ms Njeri"))
    assert (again.sent, again.reconciliation["sent_orderid"].to_list()) == (1, ["PAY-1-r2"])


def test_held_row_names_orders_to_ask_about(payouts: Payouts, program: Program) -> None:
    first = finish(payouts.submit(people(1, amount="9001"), name=NAME))
    statement = program.home / "statement.csv"
    statement.write_text("order_id,amount,currency,status\nPAY-1,9001.00,KES,approved\n")
    assert program.json("resolve", "statement", first.batch, statement, "--yes")["held"] == 1
    (row,) = payouts.status(first.batch).needs_person
    assert (row.state, row.held, row.to_dict()["held_orders"]) == ("rejected", True, ["PAY-1"])


def test_person_settles_row_in_doubt(payouts: Payouts, program: Program) -> None:
    first = finish(payouts.submit(people(1, amount="9007"), name=NAME))
    assert first.conclusion is Conclusion.PERSON_NEEDED
    with payouts.resume(first.batch) as run:
        assert list(run) == []
    assert finished(run.result).conclusion is Conclusion.PERSON_NEEDED
    state = payouts.status(first.batch)
    (row,) = state.needs_person
    assert (row.state, row.order_id, row.since is not None) == ("in_doubt", "PAY-1", True)
    shown = (row.payee, row.account, row.amount, row.currency)
    assert shown == ("Jane Wanjiku", "254712345001", "9007.00", "KES")
    assert row.to_dict()["payee"] == "Jane Wanjiku"
    for one in (first, state, row, payouts.validate(people(1, amount="x"), name=NAME), *payouts.find("Jane")):
        assert not [text for text in ("Jane", "254712345", "shape") if text in repr(one)], repr(one)
    for sums in (repr(first), repr(state)):
        assert "'KES': {'in_doubt': '9007.00'}" in sums
    with pytest.raises(UsageError):
        payouts.resolve(first.batch, [row.row], api.Resolution.NOT_RECEIVED, "ticket 4711")
    state = payouts.resolve(first.batch, [row.row], api.Resolution.PAID, "ticket 4711", by="Ms Njeri")
    assert (state.conclusion, state.states) == (Conclusion.DONE, {"paid": 1})
    history = program.json("status", first.batch, "--history")["history"]
    assert any("Ms Njeri" in deed["by"] for deed in history)


def test_approved_plan_is_paid_through_api(program: Program) -> None:
    program.config.write_text(sandbox_toml() + policy(program.home))
    payouts, plan = Payouts(program.config, environ=program.environ), program.home / "plan.json"
    keys = {name: program.home / f"{name}.pem" for name in ("ada", "cleo", "stranger")}
    paid_before = program.json("submit", program.sheet(kenyan_rows(1, amount="5", prefix="OLD"), "old.csv"))
    assert paid_before["exit_code"] == 0
    created = payouts.plan(Stream(people(3)), plan, keys["ada"], name=NAME)
    assert isinstance(created, api.Planned)
    assert (created.rows, created.approvals, created.needed, created.totals) == (3, 0, 1, {"KES": "4501.50"})
    for name in ("ada", "stranger"):
        with pytest.raises(api.ApprovalError):
            payouts.approve(plan, keys[name])
    with pytest.raises(api.ApprovalError), payouts.submit(people(3), name=NAME, plan=plan):
        pass
    assert payouts.approve(plan, keys["cleo"]).approvals == 1
    assert finish(payouts.submit(Stream(people(3)), name=NAME, plan=plan)).states == {"paid": 3}
    assert isinstance(payouts.plan(people(1, amount="1e3"), plan, keys["ada"], name=NAME), Refused)


def test_run_with_wait_waits_for_journal(payouts: Payouts) -> None:
    with payouts.submit(people(2), name=NAME) as first, payouts.submit(people(2), name=NAME, wait=True) as second:
        assert finished(second.wait()).known == 2
        assert finished(first.wait()).states == {"paid": 2}


def test_every_result_converts_to_json(payouts: Payouts) -> None:
    def exported(result: Any) -> Any:
        return json.loads(json.dumps(result.to_dict()))

    completed = finish(payouts.submit(people(2), name=NAME))
    assert exported(completed)["reconciliation"][0]["state"] == "paid"
    results = [completed, payouts.status(completed.batch), *payouts.find("Jane"), *payouts.batches()]
    assert {exported(one)["batch"] for one in results} == {completed.batch}
    assert exported(payouts.validate(people(1, amount="x"), name=NAME))["defects"][0]["code"] == "amount.format"


PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.share(2)
@pytest.mark.parametrize(("number", "shown"), [(0, "batch 9031919f17b351a1: {'EGP'"), (1, "PAY-0000001 paid")])
def test_example_programs_on_api_page_run(number: int, shown: str, tmp_path: Path) -> None:
    copy_versioned(tmp_path, "config", "samples")
    (tmp_path / "program.py").write_text(PROGRAMS[number])
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "program.py"]
    completed = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert (shown in completed.stdout, len(PROGRAMS)) == (True, 2)


@pytest.mark.long
def test_example_programs_on_api_page_are_typed(tmp_path: Path) -> None:
    for number, text in enumerate(PROGRAMS):
        (tmp_path / f"program_{number}.py").write_text(text)
    config = ROOT / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    command += map(str, tmp_path.glob("*.py"))
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout


def test_api_page_lists_every_conclusion() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", PAGE, flags=re.MULTILINE) == [item.name for item in Conclusion]
    assert all(hasattr(api, name) for name in api.__all__)
