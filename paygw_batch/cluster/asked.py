"""Declares the messages from the jobs' thread to the sending thread. It loads no library."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Trouble:
    """The jobs cannot be read, and why. `is_lasting`: it has been so for a minute."""

    reason: str
    is_lasting: bool


@dataclass(frozen=True, slots=True)
class AskedShare:
    """A share that a job asks for. The job is over once it is `ended`."""

    run: int
    loop: asyncio.AbstractEventLoop
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def ended(self) -> None:
        """Let the job end. Called from any thread."""
        with suppress(RuntimeError):  # its loop has ended before
            self.loop.call_soon_threadsafe(self.over.set)
