"""A signal that another thread than the first one gets, as happens when a frozen process goes on."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from unittest.mock import Mock

import pytest

from paygw_batch.cli.signals import HEEDED, Interruption
from paygw_batch.cluster.job_worker import JobWorker
from tests.support.patience import PATIENCE_S, until

SOON_S = 0.1


@pytest.fixture
def to_another_thread() -> Iterator[Callable[[], None]]:
    """Send SIGTERM to a thread that waits, in a moment."""
    over = threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()
    handlers = [(each, signal.getsignal(each)) for each in HEEDED]

    def send() -> None:
        threading.Timer(SOON_S, signal.pthread_kill, (waiting.ident, signal.SIGTERM)).start()

    try:
        yield send
    finally:
        for each, handler in handlers:
            signal.signal(each, handler)
        over.set()
        waiting.join()


def test_run_ends_on_signal_while_awaiting_answers(to_another_thread: Callable[[], None]) -> None:
    interruption = Interruption()

    async def wait() -> None:
        heard = asyncio.Event()
        interruption.heed_within(asyncio.get_running_loop(), heard.set)
        to_another_thread()
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()

    asyncio.run(wait())
    assert not interruption.came, "it was heard: nothing is kept for later"


@pytest.mark.usefixtures("to_another_thread")
def test_signal_during_last_loop_turn_is_recorded() -> None:
    interruption, heard = Interruption(), Mock()

    async def end() -> None:
        interruption.heed_within(asyncio.get_running_loop(), heard)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))

    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(end())
    heard.assert_not_called()
    assert interruption.came


def test_worker_ends_on_signal_while_awaiting_jobs(to_another_thread: Callable[[], None]) -> None:
    class Heard(Exception):
        pass

    def hear(_number: int, _frame: FrameType | None) -> None:
        raise Heard

    signal.signal(signal.SIGTERM, hear)
    jobs = JobWorker("postgresql://127.0.0.1:1/none", 5.0, (), (), Mock())
    to_another_thread()
    with closing(jobs._loop), pytest.raises(Heard):
        until(lambda: jobs.next() is not None)
