"""Declares the messages from the thread of the jobs to the thread that sends. It imports no library."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why the jobs cannot be read. `is_lasting`: this has been so for a minute."""

    reason: str
    is_lasting: bool


@dataclass(frozen=True, slots=True)
class AskedShare:
    """A share that a job asks for. The job waits until `ended` is called."""

    run: int
    loop: asyncio.AbstractEventLoop
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def ended(self) -> None:
        """Let the job end. Called from any thread."""
        with suppress(RuntimeError):  # the job's loop has ended already
            self.loop.call_soon_threadsafe(self.over.set)
