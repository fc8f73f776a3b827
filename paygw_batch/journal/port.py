"""Declares the journal as a run needs it to send a batch."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from paygw_batch.core.evidence import Finding
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal.values import Due, Entry, MoveResult

VerifyProgress = Callable[[int, int], None]
"""Takes the number of rows replayed so far, and the number of all."""


def unwatched(done: int, rows: int) -> None:
    """Show no progress."""


class EngineJournal(Protocol):
    """The journal as an engine uses it to send batches. No call blocks the event loop; calls are made one at a time."""

    async def due(self, batch: int, *, limit: int) -> Sequence[Due]:
        """Return the next READY instructions of a batch, `limit` at most, in the sheet's order; none at its end.

        Each is given once. One that evidence contradicts is held, and left out, until a person settles it: a row that
        was released, and that the gateway or a statement then says is paid.
        """
        ...

    async def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one transaction, and move their instructions; return the effect of each.

        On return, everything is on stable storage. Raises `JournalUnwritable`, and from then on for every further call.
        """
        ...

    def may_leave(self, age_s: float) -> bool:
        """Whether a request may leave now whose intent was handed in `age_s` seconds ago, sleep included.

        False once the journal could not be written, or another process can have taken the row over. Asked immediately
        before the first byte: it never waits, and asks no other machine.
        """
        ...

    async def drain_inbox(self, words: Mapping[str, OutcomeKind], *, at: str) -> Counter[Finding]:
        """Take in the notifications that wait, as `Journal.drain_inbox` does."""
        ...
