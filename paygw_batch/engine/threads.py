"""Runs journal calls in a thread, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

from paygw_batch.journal import EngineJournal, Entry

T = TypeVar("T")


class Away(Protocol):
    """Takes journal calls off the event loop; never two at once, and in the order asked."""

    async def journal(self, call: Callable[[], T]) -> T:
        """Make one journal call."""
        ...

    async def append(self, journal: EngineJournal, entries: Sequence[Entry]) -> Sequence[bool]:
        """Make facts durable, as `journal.append` does."""
        ...


class JournalThread:
    """A thread of the journal's own, for what waits for the disk.

    The rest of an append is made in the event loop: two threads that both compute hand the interpreter to and fro, at
    every statement here and every reply there, and that costs more than it spares.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._turn = asyncio.Lock()

    async def journal(self, call: Callable[[], T]) -> T:
        """Make one journal call in the journal's own thread."""
        async with self._turn:
            return await self._made(call)

    async def append(self, journal: EngineJournal, entries: Sequence[Entry]) -> Sequence[bool]:
        """Stage facts here and now, and have them committed in the journal's own thread."""
        async with self._turn:
            return await self._made(journal.stage(entries))

    async def _made(self, call: Callable[[], T]) -> T:
        """Make the call in the thread. A turn is over when its call is, also where nobody waits for it any more."""
        calling = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait([calling])
            calling.exception()  # the next call to the journal raises it
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()


class Inline:
    """No thread at all: for tests and simulation."""

    async def journal(self, call: Callable[[], T]) -> T:
        """Make the call here and now."""
        return call()

    async def append(self, journal: EngineJournal, entries: Sequence[Entry]) -> Sequence[bool]:
        """Append here and now."""
        return journal.append(entries)
