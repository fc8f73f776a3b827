"""Where journal calls go, which must not hold up the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class Away(Protocol):
    """Takes journal calls off the event loop."""

    async def journal(self, call: Callable[[], T]) -> T:
        """Make one journal call; never two at once, and in the order asked."""
        ...


class JournalThread:
    """A thread of the journal's own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def journal(self, call: Callable[[], T]) -> T:
        """Make one journal call in the journal's own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()


class Inline:
    """No thread at all: for tests and simulation."""

    async def journal(self, call: Callable[[], T]) -> T:
        """Make the call here and now."""
        return call()
