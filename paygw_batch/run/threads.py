"""Where work goes that must not hold up the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class Away(Protocol):
    """Takes work off the event loop: journal calls one at a time, signatures side by side."""

    async def journal(self, call: Callable[[], T]) -> T:
        """Make one journal call; never two at once, and in the order asked."""
        ...

    async def sign(self, call: Callable[[], T]) -> T:
        """Make one call that mostly signs."""
        ...


class Threads:
    """One thread for the journal; two for signatures, which release the interpreter while they compute."""

    SIGNING_THREADS = 2

    def __init__(self) -> None:
        self._journal = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._signing = ThreadPoolExecutor(self.SIGNING_THREADS, thread_name_prefix="sign")

    async def journal(self, call: Callable[[], T]) -> T:
        """Make one journal call in the journal's own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._journal, call)

    async def sign(self, call: Callable[[], T]) -> T:
        """Make one call in a signing thread."""
        return await asyncio.get_running_loop().run_in_executor(self._signing, call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signing.shutdown(cancel_futures=True)
        self._journal.shutdown()


class Inline:
    """No threads at all: for tests and simulation."""

    async def journal(self, call: Callable[[], T]) -> T:
        """Make the call here and now."""
        return call()

    async def sign(self, call: Callable[[], T]) -> T:
        """Make the call here and now."""
        return call()
