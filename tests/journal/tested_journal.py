"""A journal as tests use it: with what an engine does to it as plain calls, one at a time."""

from collections.abc import Sequence
from typing import Protocol

from paygw_batch.journal import port
from paygw_batch.journal.values import Due, Entry, MoveResult


class Journal(port.Journal, Protocol):
    """The port of people and commands, and the engine's calls without its event loop."""

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return the rows of a batch after row `after_row` that may be sent."""
        ...

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable, as the engine does."""
        ...
