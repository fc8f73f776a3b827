"""Makes calls to a journal in a thread, so that an event loop is not held up."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class JournalThread:
    """Makes an engine's calls to a journal, one after the other, in the same thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def call(self, call: Callable[[], T]) -> T:
        """Make a call. Its turn ends with the call, even if nobody waits for it any more."""
        calling = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait([calling])
            calling.exception()  # the next call to the journal raises it
            raise

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
