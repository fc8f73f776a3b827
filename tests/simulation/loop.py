"""An event loop of one simulated process: taken one callback at a time, on a clock that all of them share."""

import asyncio
import heapq
from asyncio import events
from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Clock:
    """Seconds since the world began. It only moves when nothing else can."""

    now_s: float = 0.0


class ProcessLoop(asyncio.BaseEventLoop):
    """Runs nothing by itself: `step` takes the next callback, so that a process can end between any two of them."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]

    def __init__(self, clock: Clock) -> None:
        self._sim_clock = clock
        super().__init__()

    def time(self) -> float:
        """Return the simulated monotonic time."""
        return self._sim_clock.now_s

    def next_timer_s(self) -> float | None:
        """Return when the next timer is due, None when there is none."""
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        return self._scheduled[0]._when if self._scheduled else None

    def is_ready(self) -> bool:
        """Whether a step would do anything now."""
        if self._ready:
            return True
        due_s = self.next_timer_s()
        return due_s is not None and due_s <= self._sim_clock.now_s

    def step(self) -> None:
        """Take the next callback."""
        now_s = self._sim_clock.now_s
        while self._scheduled and self._scheduled[0]._when <= now_s:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            self._ready.append(timer)
        while self._ready:
            handle = self._ready.popleft()
            if not handle._cancelled:
                events._set_running_loop(self)
                try:
                    handle._run()
                finally:
                    events._set_running_loop(None)
                return

    def bury(self) -> None:
        """Clear away what is left of a process that has ended: its tasks learn nothing but that they are cancelled."""
        while left := asyncio.all_tasks(self):
            for task in left:
                task.cancel()
            while self._ready:
                self.step()
        self.close()
