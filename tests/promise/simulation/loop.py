"""The event loop of a simulated process: one callback at a time, on a shared clock, without threads or files."""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class Clock:
    """Seconds since the start of the scenario. It advances only when nothing else can run."""

    now_s: float = 0.0


class ProcessLoop(asyncio.AbstractEventLoop):
    """Runs nothing by itself: `step` runs the next callback, so that a process can die between any two."""

    def __init__(self, clock: Clock, on_unhandled: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_unhandled = on_unhandled
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._tasks: list[asyncio.Task[Any]] = []

    # The loop's interface for asyncio.

    def time(self) -> float:
        return self._clock.now_s

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._ready.append(asyncio.Handle(callback, args, self, context))
        return self._ready[-1]

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        waiting = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), waiting))
        return waiting

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now_s + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, **named)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_unhandled(f"{context['message']}: {context.get('exception')!r}")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: it is passed over when its time comes."""

    # The loop's interface for the simulation.

    def next_timer_s(self) -> float | None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def is_ready(self, now_s: float) -> bool:
        return bool(self._ready) or ((due_s := self.next_timer_s()) is not None and due_s <= now_s)

    def step(self) -> None:
        timers, now_s = self._timers, self._clock.now_s
        while timers and timers[0][0] <= now_s:
            self._ready.append(heapq.heappop(timers)[2])
        while self._ready:
            waiting = self._ready.popleft()
            if not waiting.cancelled():
                events._set_running_loop(self)
                waiting._run()
                events._set_running_loop(None)
                return

    def bury(self) -> None:
        """Cancel the remaining tasks of a process that has ended."""
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            while self._ready:
                self.step()
        self._tasks.clear()
        self._timers.clear()
