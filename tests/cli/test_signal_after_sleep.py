"""Signals that arrive in another thread than the main one, as when a frozen process resumes."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from unittest.mock import Mock

import pytest

from paygw_batch.cli.signals import HANDLED_SIGNALS, Interruption
from paygw_batch.cluster.job_worker import JobWorker
from tests.support.patience import PATIENCE_S, wait_until

SOON_S = 0.1


@pytest.fixture
def signal_other_thread() -> Iterator[Callable[[], None]]:
    """Send SIGTERM to a waiting thread after a moment."""
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


def test_run_ends_on_signal_while_awaiting_answers(signal_other_thread: Callable[[], None]) -> None:
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
def test_signal_during_last_loop_turn_is_recorded() -> None:
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


def test_worker_ends_on_signal_while_awaiting_jobs(signal_other_thread: Callable[[], None]) -> None:
    class Heard(Exception):
        pass

    def hear(_number: int, _frame: FrameType | None) -> None:
        raise Heard

    signal.signal(signal.SIGTERM, hear)
    jobs = JobWorker("postgresql://127.0.0.1:1/none", 5.0, (), (), Mock())
    signal_other_thread()
    with closing(jobs._loop), pytest.raises(Heard):
        wait_until(lambda: jobs.next() is not None)
