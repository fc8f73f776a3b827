"""A new batch: its pages and instructions, as rows or columns, and the digests that reveal any later change.

The digest of a batch covers the canonical text of its instructions. A test checks that the text made from columns is
the same as the text made of each row.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import chain, islice
from os import urandom
from typing import Any, Protocol, TypeVar

from paygw_batch.core.batch import BILLION, PAYEE_FIELD_SUFFIXES, InstructionTotals
from paygw_batch.errors import InternalError
from paygw_batch.journal.facts import SALT_BYTES
from paygw_batch.journal.values import BatchOpened, KnownRow, NewBatch, NewInstruction

_Part = TypeVar("_Part")

VALUES_OF_TEXT = 12
"""The number of values in the canonical text of an instruction."""


def new_salts(count: int) -> list[bytes]:
    random = urandom(SALT_BYTES * count)
    return [random[start : start + SALT_BYTES] for start in range(0, len(random), SALT_BYTES)]


def new_salt() -> bytes:
    return urandom(SALT_BYTES)


def payee_texts(fields: str) -> list[str]:
    """Return the values of the fields that name a payee, or none if the fields are not JSON."""
    try:
        values_by_name = json.loads(fields)
    except ValueError:
        return []
    return [str(value) for name, value in values_by_name.items() if name.endswith(PAYEE_FIELD_SUFFIXES)]


class NewInstructions(Protocol):
    """New instructions of a batch, in the sheet's order."""

    def __len__(self) -> int:
        """Return the number of instructions."""
        ...

    def __iter__(self) -> Iterator[NewInstruction]:
        """Yield the instructions."""
        ...

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield the canonical texts in order, with values joined by NUL. The first instruction has number `first`.

        `replaced` maps a row to the number of the instruction that it replaces.
        """
        ...

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        """Return the totals by country and currency, with indexes into these instructions as numbers."""
        ...

    def payee_words(self) -> Iterable[str | None]:
        """Return the texts that name each instruction's payee, joined by non-word characters."""
        ...

    def have_ascii_ids(self) -> bool:
        """Return whether all order ids are ASCII."""
        ...

    def shortened_rows(self, mark: str) -> Iterable[tuple[Any, ...]]:
        """Return each instruction's values, without the fields at the end of its content.

        Shortened content begins with `mark`. Content that already begins with `mark` becomes None.
        """
        ...


class InstructionRows(tuple[NewInstruction, ...]):
    """New instructions row by row, for small batches."""

    __slots__ = ()

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        for number, new in enumerate(self, start=first):
            row, client_orderid, country, currency, amount, minor, form, fields, payee, content = new
            yield (
                f"{number}\0{row}\0{client_orderid}\0{country}\0{currency}\0{minor}\0{replaced.get(row)}\0{amount}\0"
                f"{form}\0{fields}\0{payee}\0{content}"
            ).encode()

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        totals: dict[tuple[str, str], list[int]] = {}
        for index, new in enumerate(self):
            billions, rest = divmod(new.minor, BILLION)
            total = totals.setdefault((new.country, new.currency), [0, 0, 0, index, index])
            total[0] += 1
            total[1] += billions
            total[2] += rest
            total[4] = index
        return {kind: InstructionTotals(*total) for kind, total in totals.items()}

    def payee_words(self) -> Iterable[str | None]:
        return (" ".join(payee_texts(new.fields)) or None for new in self)

    def have_ascii_ids(self) -> bool:
        return all(new.client_orderid.isascii() for new in self)

    def shortened_rows(self, mark: str) -> Iterable[tuple[Any, ...]]:
        return ((*new[:-1], _shorten_content(new, mark)) for new in self)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The next pages and new instructions of a batch, which need not match. Either may be empty."""

    pages: Sequence[bytes] = ()
    instructions: NewInstructions = field(default_factory=InstructionRows)


def prefetch(parts: Iterable[_Part]) -> Generator[_Part]:
    """Yield the parts while another thread prepares the next one. Close the generator to end the thread."""
    remaining = iter(parts)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(next, remaining, None)
        while (part := future.result()) is not None:
            future = executor.submit(next, remaining, None)
            yield part


def _shorten_content(new: NewInstruction, mark: str) -> str | None:
    if new.content.startswith(mark):
        return None
    return f"{mark}{new.content.removesuffix(new.fields)}" if new.content.endswith(new.fields) else new.content


_CHUNK_SIZE = 1_000
_PAYEE_VALUES = 3
"""The number of values at the end of a canonical text that identify the payee: fields, payee, content."""


def permanent_parts(texts: Iterable[bytes]) -> list[bytes]:
    """Return the parts of texts that remain after payees are forgotten. Raises `InternalError` for NUL in a value."""
    parts = [text.rsplit(b"\0", _PAYEE_VALUES)[0] for text in texts]
    if {text.count(b"\0") for text in parts} - {VALUES_OF_TEXT - _PAYEE_VALUES - 1}:
        raise InternalError("a validated value holds a NUL character")
    return parts


def payee_digests(texts: Iterable[bytes], parts: Iterable[bytes], salts: Iterable[bytes]) -> list[bytes]:
    """Return the SHA-256 of the salt and the values that identify the payee, for each canonical text."""
    return [sha256(salt + text[len(part) :]).digest() for text, part, salt in zip(texts, parts, salts, strict=True)]


class OpeningDigests:
    """Accumulates a batch's digests (SHA-256) and totals while it is stored.

    Forgetting payees does not change the digest of the instructions, because it covers only a salted digest of the
    values that identify a payee. Forgetting also removes the salt, so that nobody can guess a payee from the digest.
    """

    def __init__(self, batch: NewBatch, first_instruction: int) -> None:
        self._batch = batch
        self.first_instruction = self.next_instruction = first_instruction
        self.pages = self._known = 0
        """The number of pages and of known rows so far."""
        self._pages_sha256, self._instructions_sha256, self._known_sha256 = sha256(), sha256(), sha256()
        self.totals_by_kind: dict[tuple[str, str], InstructionTotals] = {}
        """The totals of new instructions, by country and currency."""

    def add_page(self, page: bytes) -> None:
        """Add the next page, prefixed with its length."""
        self.pages += 1
        self._pages_sha256.update(len(page).to_bytes(8, "big"))
        self._pages_sha256.update(page)

    def add_instructions(
        self, new: NewInstructions, replaced: Mapping[int, int], salts: Sequence[bytes]
    ) -> Sequence[bytes]:
        """Add the next new instructions with their salts and return the digests of their personal data."""
        texts = list(new.canonical(self.next_instruction, replaced))
        parts = permanent_parts(texts)
        people = payee_digests(texts, parts, salts)
        self._add(new, parts, people)
        return people

    def _add(self, new: NewInstructions, parts: Sequence[bytes], people: Sequence[bytes]) -> None:
        first = self.next_instruction
        self._instructions_sha256.update(b"".join(chain.from_iterable(zip(parts, people, strict=True))))
        self.next_instruction += len(parts)
        for kind, total in new.totals().items():
            later, total_so_far = total.renumber_from(first), self.totals_by_kind.get(kind)
            self.totals_by_kind[kind] = later if total_so_far is None else total_so_far.combine(later)

    def add_stored(self, lines: Iterable[tuple[Any, ...]]) -> None:
        """Add stored instructions: number, replaced instruction, the values of a `NewInstruction`, salt and digest.

        An instruction with a forgotten payee has neither personal values nor a salt. Raises `InternalError` if a number
        is missing, a value contains NUL, or the personal values do not match their digest.
        """
        remaining = iter(lines)
        while group := list(islice(remaining, _CHUNK_SIZE)):
            if [line[0] for line in group] != list(range(self.next_instruction, self.next_instruction + len(group))):
                raise InternalError("the instructions of a batch are not numbered consecutively")
            replaced = {line[2]: line[1] for line in group if line[1] is not None}
            rows = InstructionRows(NewInstruction._make(line[2:-2]) for line in group)
            texts, people = list(rows.canonical(self.next_instruction, replaced)), [line[-1] for line in group]
            parts = permanent_parts(texts)
            indices = [index for index, line in enumerate(group) if any(value is not None for value in line[-5:-1])]
            new_texts = ([texts[index] for index in indices], [parts[index] for index in indices])
            salts = [group[index][-2] or b"" for index in indices]
            if payee_digests(*new_texts, salts) != [people[index] for index in indices]:
                raise InternalError("the payee's data of an instruction does not match its digest")
            self._add(rows, parts, people)

    def add_known(self, row: KnownRow) -> None:
        """Add the next row that another batch already has."""
        self._known += 1
        self._known_sha256.update(f"{row.row}\0{row.instruction}\0".encode())

    def opening(self) -> BatchOpened:
        """Return the batch's opening, with the digests and totals of all added pages and rows."""
        totals: dict[str, tuple[int, int]] = {}
        for (_, currency), total in self.totals_by_kind.items():
            rows, minor = totals.get(currency, (0, 0))
            totals[currency] = (rows + total.rows, minor + total.minor)
        return BatchOpened(
            **asdict(self._batch),
            first_instruction=self.first_instruction,
            instructions=self.next_instruction - self.first_instruction,
            instructions_sha256=self._instructions_sha256.hexdigest(),
            known=self._known,
            known_sha256=self._known_sha256.hexdigest(),
            pages=self.pages,
            pages_sha256=self._pages_sha256.hexdigest(),
            totals=totals,
        )
