"""Writes all waiting notifications to the inbox with one write and one fsync."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from paygw_batch.journal import Inbox


class Keeper:
    """Appends to the inbox off the event loop. Every notification that waits shares the next write."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inbox")
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def keep(self, content: str) -> None:
        """Return once `content` is durable. Raises `InboxUnwritable`."""
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[None] = loop.create_future()
        self._waiting.append((content, durable))
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())
        await durable

    def close(self) -> None:
        """Wait for the write that is under way."""
        self._thread.shutdown()

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._write(group)
        finally:
            self._writing = None

    async def _write(self, group: Sequence[tuple[str, "asyncio.Future[None]"]]) -> None:
        contents = [content for content, _ in group]
        failure: Exception | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._inbox.append, contents)
        except Exception as error:  # noqa: BLE001 (everyone who waits must hear of any error)
            failure = error
        for _, durable in group:
            if durable.done():
                continue
            if failure is None:
                durable.set_result(None)
            else:
                durable.set_exception(failure)
