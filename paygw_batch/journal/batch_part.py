"""A part of a new batch: pages of its sheet, and some of its instructions, row by row or as columns.

A batch is digested over the canonical text of its instructions: what columns give is held to the text of each row by a
test.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paygw_batch.core.instruction import NAMES_A_PAYEE
from paygw_batch.journal.values import NewInstruction

VALUES_OF_TEXT = 12
"""How many values the canonical text of an instruction has."""


def payee_texts(fields: str) -> list[str]:
    """Return the values of fields that name a payee; none where the fields are no JSON."""
    try:
        named = json.loads(fields)
    except ValueError:
        return []
    return [str(value) for name, value in named.items() if name.endswith(NAMES_A_PAYEE)]


class NewInstructions(Protocol):
    """Some new instructions of a batch, in the sheet's order."""

    def __len__(self) -> int:
        """Return how many they are."""
        ...

    def __iter__(self) -> Iterator[NewInstruction]:
        """Yield them."""
        ...

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield their canonical texts, some at a time, each value closed by NUL; they are numbered from `first`.

        `replaced` maps a row to the number of the instruction that it replaces.
        """
        ...

    def totals(self) -> Mapping[str, tuple[int, int]]:
        """Return count and sum in minor units of each currency."""
        ...

    def payee_words(self) -> Iterable[str | None]:
        """Return for each the texts that name its payee, with anything but letters and digits between them."""
        ...


class InstructionRows(tuple[NewInstruction, ...]):
    """New instructions row by row: a few of them."""

    __slots__ = ()

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield their canonical texts (see the protocol)."""
        numbered = enumerate(self, start=first)
        texts = [f"{_canonical_text(number, new, replaced.get(new.row))}\0" for number, new in numbered]
        yield "".join(texts).encode()

    def totals(self) -> Mapping[str, tuple[int, int]]:
        """Return count and sum in minor units of each currency."""
        found: dict[str, tuple[int, int]] = {}
        for new in self:
            count, total = found.get(new.currency, (0, 0))
            found[new.currency] = (count + 1, total + new.minor)
        return found

    def payee_words(self) -> Iterable[str | None]:
        """Return the texts that name payees (see the protocol)."""
        return (" ".join(payee_texts(new.fields)) or None for new in self)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The next pages and the next new instructions of a batch: either may be ahead of the other, or be missing."""

    pages: Sequence[bytes] = ()
    instructions: NewInstructions = field(default_factory=InstructionRows)


def _canonical_text(number: int, new: NewInstruction, replaces: int | None) -> str:
    """Return the text of an instruction that its batch is digested over: its values, NUL between them."""
    row, client_orderid, country, currency, amount, minor, form, fields, payee, content = new
    return (
        f"{number}\0{row}\0{client_orderid}\0{country}\0{currency}\0{minor}\0{replaces}\0{amount}\0{form}\0{fields}\0"
        f"{payee}\0{content}"
    )
