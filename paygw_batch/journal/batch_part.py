"""A new batch: its record, and its parts: pages of its sheet and instructions, row by row or as columns.

A batch's digest is over the canonical text of its instructions: a test compares the text made from columns with that of
each row.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from paygw_batch.core.batch import BILLION, NAMES_A_PAYEE, InstructionTotals
from paygw_batch.journal.values import BatchRecord, NewBatch, NewInstruction

_Part = TypeVar("_Part")

VALUES_OF_TEXT = 12
"""The number of values in the canonical text of an instruction."""


def record_of(batch: NewBatch, number: int, opened_at: str) -> BatchRecord:
    """Return the record of a new batch."""
    sheet = (batch.sheet_name, batch.sheet_sha256, batch.rows, batch.defects, opened_at, batch.sheet_path)
    return BatchRecord(number, batch.batch, batch.operation, *sheet)


def payee_texts(fields: str) -> list[str]:
    """Return the values of fields that name a payee; none if the fields are not JSON."""
    try:
        named = json.loads(fields)
    except ValueError:
        return []
    return [str(value) for name, value in named.items() if name.endswith(NAMES_A_PAYEE)]


class NewInstructions(Protocol):
    """Some new instructions of a batch, in the sheet's order."""

    def __len__(self) -> int:
        """Return their number."""
        ...

    def __iter__(self) -> Iterator[NewInstruction]:
        """Yield them."""
        ...

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield their canonical texts in order, with NUL between the values. Their numbers begin with `first`.

        `replaced` maps a row to the number of the instruction that it replaces.
        """
        ...

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        """Return the totals of each country and currency, with indexes of these instructions."""
        ...

    def payee_words(self) -> Iterable[str | None]:
        """Return for each the texts that name its payee, with separators that are neither letters nor digits."""
        ...

    def have_ascii_ids(self) -> bool:
        """Whether no order id holds anything but ASCII."""
        ...

    def shortened(self, mark: str) -> Iterable[tuple[Any, ...]]:
        """Return the values of each. A content that ends with the fields is cut before them, with `mark` in front.

        A content that itself begins with the mark is replaced by None.
        """
        ...


class InstructionRows(tuple[NewInstruction, ...]):
    """New instructions row by row, for small numbers."""

    __slots__ = ()

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield their canonical texts (see the protocol)."""
        for number, new in enumerate(self, start=first):
            yield _canonical_text(number, new, replaced.get(new.row)).encode()

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        """Return the totals of each country and currency (see the protocol)."""
        found: dict[tuple[str, str], list[int]] = {}
        for place, new in enumerate(self):
            billions, rest = divmod(new.minor, BILLION)
            total = found.setdefault((new.country, new.currency), [0, 0, 0, place, place])
            total[0] += 1
            total[1] += billions
            total[2] += rest
            total[4] = place
        return {kind: InstructionTotals(*total) for kind, total in found.items()}

    def payee_words(self) -> Iterable[str | None]:
        """Return the texts that name payees (see the protocol)."""
        return (" ".join(payee_texts(new.fields)) or None for new in self)

    def have_ascii_ids(self) -> bool:
        """Whether no order id holds anything but ASCII."""
        return all(new.client_orderid.isascii() for new in self)

    def shortened(self, mark: str) -> Iterable[tuple[Any, ...]]:
        """Return their values, with shortened contents (see the protocol)."""
        return ((*new[:-1], _shortened(new, mark)) for new in self)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The next pages and the next new instructions of a batch; they need not match, and either may be empty."""

    pages: Sequence[bytes] = ()
    instructions: NewInstructions = field(default_factory=InstructionRows)


@contextmanager
def one_ahead(parts: Iterable[_Part]) -> Iterator[Iterator[_Part]]:
    """Yield the parts; while one is stored, another thread makes the next one."""
    with ThreadPoolExecutor(1) as beside:
        yield _one_ahead(iter(parts), beside)


def _one_ahead(parts: Iterator[_Part], beside: Executor) -> Iterator[_Part]:
    coming = beside.submit(next, parts, None)
    while (part := coming.result()) is not None:
        coming = beside.submit(next, parts, None)
        yield part


def _shortened(new: NewInstruction, mark: str) -> str | None:
    if new.content.startswith(mark):
        return None
    return f"{mark}{new.content.removesuffix(new.fields)}" if new.content.endswith(new.fields) else new.content


def _canonical_text(number: int, new: NewInstruction, replaces: int | None) -> str:
    """Return an instruction's text for the digest of its batch: its values, with NUL between them."""
    row, client_orderid, country, currency, amount, minor, form, fields, payee, content = new
    return (
        f"{number}\0{row}\0{client_orderid}\0{country}\0{currency}\0{minor}\0{replaces}\0{amount}\0{form}\0{fields}\0"
        f"{payee}\0{content}"
    )
