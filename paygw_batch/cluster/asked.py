"""Defines the messages from the jobs thread to the sending thread. Imports no library."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class JobsFailure:
    """Why jobs cannot be read. `is_lasting` means that this has lasted for more than a minute."""

    reason: str
    is_lasting: bool


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A job's request to send a share of a run. The job waits for a call of `finish`."""

    run: int
    loop: asyncio.AbstractEventLoop
    is_finished: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self) -> None:
        """Let the job finish. May be called from any thread."""
        with suppress(RuntimeError):  # the job's loop is already closed
            self.loop.call_soon_threadsafe(self.is_finished.set)
