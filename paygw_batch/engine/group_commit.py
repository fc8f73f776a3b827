"""Commits all waiting facts in one journal transaction; all of them wait for it together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from paygw_batch.journal import Entry, MoveResult

Append = Callable[[Sequence[Entry]], Awaitable[Sequence[MoveResult]]]
"""`EngineJournal.append`."""


LONGEST_REST_S = 0.002
"""Without pressure, each commit is followed by a pause of the same length, up to this."""


class GroupCommit:
    """Collects facts while a commit is under way and makes them durable in the next one.

    Without pressure, a commit takes everything that waits: it costs nearly the same for one fact and for many. The next
    one lets more come together. Under pressure, while requests wait for a place in flight, a commit takes at most
    `most_facts_under_pressure()`, and the next one follows at once. Facts are committed in the order they were
    submitted. After the first failure every further one fails with it: a process whose journal failed once never
    writes to it again.
    """

    def __init__(
        self,
        append: Append,
        on_failure: Callable[[Exception], None],
        is_pressed: Callable[[], bool] = lambda: False,
        most_facts_under_pressure: Callable[[], int] = lambda: 16,
    ) -> None:
        self._append = append
        self._on_failure = on_failure
        self._is_pressed = is_pressed
        self._most_facts_under_pressure = most_facts_under_pressure
        self._waiting: list[tuple[Entry, asyncio.Future[MoveResult]]] = []
        self._commit: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def submit(self, entry: Entry) -> asyncio.Future[MoveResult]:
        """Add one fact to the next commit; the future holds its effect once it is durable."""
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[MoveResult] = loop.create_future()
        if self._failure is not None:
            durable.set_exception(self._failure)
            return durable
        self._waiting.append((entry, durable))
        if self._commit is None:
            self._commit = loop.create_task(self._commit_all())
        return durable

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                most = self._most_facts_under_pressure() if self._is_pressed() else len(self._waiting)
                group, self._waiting = self._waiting[:most], self._waiting[most:]
                started_s = loop.time()
                await self._commit_group(group)
                # Yield to the rows whose intent is durable now, so that they leave before the next commit begins. A
                # commit that finished without waiting would otherwise start the next one first.
                await asyncio.sleep(0 if self._is_pressed() else min(loop.time() - started_s, LONGEST_REST_S))
        finally:
            self._commit = None

    async def _commit_group(self, group: list[tuple[Entry, asyncio.Future[MoveResult]]]) -> None:
        if self._failure is None:
            try:
                results = await self._append([entry for entry, _ in group])
            except Exception as error:  # noqa: BLE001 (everyone who waits must hear of any error)
                # The failure is permanent. A failed commit may still be on the disk: the journal's content is unknown
                # until it is reopened, and a later commit could build on facts that do not exist.
                self._failure = error
                self._on_failure(error)
        if self._failure is not None:
            for _, durable in group:
                if not durable.done():
                    durable.set_exception(self._failure)
            return
        for (_, durable), result in zip(group, results, strict=True):
            if not durable.done():
                durable.set_result(result)
