"""What the rest of the program asks of a journal about what was paid before in another spelling, or under other ids.

A part of `port.JournalReader`.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from paygw_batch.journal.values import RepeatedBatch, UsedReference, UsedSpelling


class SpellingReader(Protocol):
    """What a journal knows of order ids, references and payments that are another's in another form."""

    def used_spellings(self, operation: str, rows: Iterable[tuple[int, str, str]]) -> Sequence[UsedSpelling]:
        """Find (row, client_orderid, the id in one spelling) whose id was used in another spelling, and never as it is.

        The third is `core.spelling.spelled_alike` of the second. The newest such id is named.
        """
        ...

    def references(self, operation: str) -> Sequence[UsedReference]:
        """Return every reference that a batch's order ids were derived from, with each batch, oldest first."""
        ...

    def repeated_batches(
        self, operation: str, rows: Iterable[tuple[str, str, str, int]], *, since: str
    ) -> Sequence[RepeatedBatch]:
        """Count (client_orderid, payee, currency, minor) paid under other ids, by batch opened after `since`.

        A row is counted once for each batch that pays the same payee the same amount. Newest batch first.
        """
        ...
