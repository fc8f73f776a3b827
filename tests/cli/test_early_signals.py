"""Signals at chosen moments: before a run has its own handlers, and in another thread than the main one.

A moment is an import, or the start or end of a function call, at which a real process signals itself.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from types import FrameType
from unittest.mock import Mock

import pytest

from paygw_batch.cli.signals import HANDLED_SIGNALS, Interruption
from paygw_batch.cluster.job_worker import JobWorker
from paygw_batch.journal.lock import RunLock, lock_path
from tests.cli.stopped import IMPORTS, run_with_signal
from tests.support.long_part import share
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.program import ROOT, Program, kenyan_rows

CALLS = ["call:cli", "call:load_settings", "call:SheetSource.validated", "call:open_gateway"]
CALLS += ["call:open_journal_for_run", "call:open_planned_batch", "call:send", "call:start_signers"]
signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@pytest.mark.share(14)
@pytest.mark.parametrize("strike", share([*product([*IMPORTS, *CALLS], [signal.SIGTERM, signal.SIGINT])], every=3))
def test_signal_before_first_row_sends_nothing(program: Program, strike: tuple[str, signal.Signals]) -> None:
    moment, number = strike
    sheet = program.sheet(kenyan_rows(3))
    process = run_with_signal(program, moment, number, "--json", "submit", sheet)
    summary = json.loads(process.stdout)
    assert (process.returncode, summary["exit_code"], program.record()) == (130, 130, []), process.stderr
    assert ("nothing was sent" in summary["message"].lower(), "Traceback" in process.stderr) == (True, False)
    again = program.json("submit", sheet)
    assert (again["exit_code"], again["states"]) == (0, {"paid": 3})


@pytest.mark.share(2)
@signals
def test_interrupted_run_without_json_prints_nothing(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    process = run_with_signal(program, "polars", number, "submit", sheet)
    assert (process.returncode, process.stdout) == (130, "")
    assert "Interrupted" in process.stderr


@pytest.mark.share(4)
@signals
@pytest.mark.parametrize(
    ("moment", "code"), [("Interruption.raise_on_second_signal", 130), ("write_results", 130), ("Summary.as_json", 0)]
)
def test_signal_after_last_row_changes_only_exit_code(
    program: Program, moment: str, code: int, number: signal.Signals
) -> None:
    sheet = program.sheet(kenyan_rows(3))
    process = run_with_signal(program, f"call:{moment}", number, "--json", "submit", sheet)
    assert (process.returncode, len(program.record())) == (code, 3), process.stderr
    summary = json.loads(process.stdout)
    assert "nothing was sent" not in summary["message"].lower()
    assert code == 130 or summary["states"] == {"paid": 3}


@signals
def test_waiting_run_ends_after_lost_signal(program: Program, number: signal.Signals) -> None:
    sheet = program.sheet(kenyan_rows(3))
    program.json("submit", sheet)
    now = "2026-11-22T00:00:00.000Z"
    with closing(RunLock(lock_path(program.journal), now=now, command="submit")):
        process = run_with_signal(program, "lost:polars", number, "--json", "submit", sheet, "--wait")
    assert (process.returncode, json.loads(process.stdout)["exit_code"]) == (130, 130), process.stderr


def test_console_script_calls_main_in_start() -> None:
    assert 'paygw-batch = "paygw_batch.cli.start:main"' in Path(ROOT / "pyproject.toml").read_text()


SOON_S = 0.1


@pytest.fixture
def signal_other_thread() -> Iterator[Callable[[], None]]:
    over = threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()
    handlers = [(number, signal.getsignal(number)) for number in HANDLED_SIGNALS]

    def send() -> None:
        threading.Timer(SOON_S, signal.pthread_kill, (waiting.ident, signal.SIGTERM)).start()

    try:
        yield send
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
        over.set()
        waiting.join()


def test_run_waiting_for_replies_ends_on_signal(signal_other_thread: Callable[[], None]) -> None:
    interruption = Interruption()

    async def wait() -> None:
        heard = asyncio.Event()
        interruption.handle_in_loop(asyncio.get_running_loop(), heard.set)
        signal_other_thread()
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()

    asyncio.run(wait())
    assert not interruption.is_signalled, "it was heard: nothing is kept for later"


@pytest.mark.usefixtures("signal_other_thread")
def test_signal_in_last_loop_iteration_is_recorded() -> None:
    interruption, heard = Interruption(), Mock()

    async def end() -> None:
        interruption.handle_in_loop(asyncio.get_running_loop(), heard)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))

    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(end())
    heard.assert_not_called()
    assert interruption.is_signalled


def test_worker_waiting_for_jobs_ends_on_signal(signal_other_thread: Callable[[], None]) -> None:
    class Heard(Exception):
        pass

    def hear(_number: int, _frame: FrameType | None) -> None:
        raise Heard

    signal.signal(signal.SIGTERM, hear)
    jobs = JobWorker("postgresql://127.0.0.1:1/none", 5.0, (), (), Mock())
    signal_other_thread()
    with closing(jobs._loop), pytest.raises(Heard):
        wait_until(lambda: jobs.next() is not None)
