"""The messages from the jobs thread to the sending thread. Imports no library."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JobsFailure:
    """The reason why the jobs cannot be read. `is_lasting` is set after a minute."""

    reason: str
    is_lasting: bool


@dataclass(frozen=True, slots=True)
class RequestedShare:
    """A share that a job requests. The job waits until `finish` is called."""

    run: int
    loop: asyncio.AbstractEventLoop
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self) -> None:
        """Let the job end. May be called from any thread."""
        with suppress(RuntimeError):  # the job's loop has ended already
            self.loop.call_soon_threadsafe(self.is_over.set)
