"""Follows a run that workers send: counts the outcomes, and stops it for all of them when asked to."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from paygw_batch.core.lifecycle import State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.engine.engine import RunEnd
from paygw_batch.journal import BatchRecord, JournalReader, RunOfWorkers
from paygw_batch.language import say

LOOK_EVERY_S = 0.5
"""How often the run is looked at, at the most."""
_LOOK_SHARE = 0.05
"""Counting takes no more than this part of the time: a large batch is counted less often."""
_OUTCOMES = {
    State.PAID: OutcomeKind.PAID,
    State.ACCEPTED: OutcomeKind.ACCEPTED,
    State.REJECTED: OutcomeKind.REJECTED,
    State.IN_DOUBT: OutcomeKind.UNKNOWN,
}

Counted = Callable[[Mapping[OutcomeKind, int]], None]
"""Takes the number of rows of a run with each outcome so far."""


class Drained(Protocol):
    """A run that can be asked to start no new row."""

    def drain(self) -> None:
        """Start no new row; the run waits for the rows in flight."""
        ...


def follow_run(
    run: RunOfWorkers,
    journal: JournalReader,
    batch: BatchRecord,
    watch: Callable[[Drained], None],
    counted: Counted,
) -> RunEnd:
    """Follow a run until it is over, or until no worker lives any more, and return how that ended."""
    return asyncio.run(_Following(run, journal, batch, counted).follow(watch))


class _Following:
    def __init__(self, run: RunOfWorkers, journal: JournalReader, batch: BatchRecord, counted: Counted) -> None:
        self._run, self._journal, self._batch, self._counted = run, journal, batch, counted
        self._before = self._states()
        self._drained = asyncio.Event()

    def drain(self) -> None:
        """Stop the run for all workers, at the next look."""
        self._drained.set()

    async def follow(self, watch: Callable[[Drained], None]) -> RunEnd:
        watch(self)
        is_stopped = False
        while True:
            if self._drained.is_set() and not is_stopped:
                self._run.stop(say("An operator stopped it."))
                is_stopped = True
            now, started_s = self._run.look(), time.monotonic()
            sent = self._count()
            if now.is_over:
                return RunEnd(sent, None if is_stopped else now.stop_reason, interrupted=is_stopped)
            if not self._run.has_workers():
                return RunEnd(sent, say("No worker is alive any more."), interrupted=is_stopped)
            await self._wait(max(LOOK_EVERY_S, (time.monotonic() - started_s) / _LOOK_SHARE), is_stopped=is_stopped)

    async def _wait(self, wait_s: float, *, is_stopped: bool) -> None:
        if is_stopped:
            await asyncio.sleep(LOOK_EVERY_S)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), wait_s)

    def _count(self) -> int:
        """Count the rows with each outcome since the start, for `counted`; return how many were sent."""
        now = self._states()
        counts = {kind: max(0, now[state] - self._before[state]) for state, kind in _OUTCOMES.items()}
        self._counted(counts)
        return max(0, self._before[State.READY] - now[State.READY])

    def _states(self) -> Counter[State]:
        counts: Counter[State] = Counter()
        for tally in self._journal.tallies(self._batch.number):
            counts[tally.state] += tally.count
        return counts
