"""A new batch: its pages and instructions, and digests that reveal any later change.

A batch's digest covers the canonical text of its instructions, which are held as rows or as columns. A test checks that
both give the same text.
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

VALUES_PER_TEXT = 12
"""The number of values in an instruction's canonical text."""


def new_salts(count: int) -> list[bytes]:
    random_bytes = urandom(SALT_BYTES * count)
    return [random_bytes[start : start + SALT_BYTES] for start in range(0, len(random_bytes), SALT_BYTES)]


def new_salt() -> bytes:
    return urandom(SALT_BYTES)


def payee_texts(fields: str) -> list[str]:
    """Return the values that identify the payee, or none if `fields` is not JSON."""
    try:
        values = json.loads(fields)
    except ValueError:
        return []
    return [str(value) for name, value in values.items() if name.endswith(PAYEE_FIELD_SUFFIXES)]


class NewInstructions(Protocol):
    """A batch's new instructions, in the sheet's order."""

    def __len__(self) -> int:
        """Return the number of instructions."""

    def __iter__(self) -> Iterator[NewInstruction]:
        """Yield the instructions."""

    def canonical_texts(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        """Yield each instruction's canonical text: its values, joined by NUL. Instruction numbers start at `first`.

        `replaced` maps rows to the numbers of the instructions that they replace.
        """

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        """Return the totals by country and currency, with instruction numbers that start at 0."""

    def payee_words(self) -> Iterable[str | None]:
        """Return the texts that identify each instruction's payee, joined by non-word characters."""

    def have_ascii_ids(self) -> bool:
        """Return whether all order ids are ASCII."""

    def shortened_rows(self, mark: str) -> Iterable[tuple[Any, ...]]:
        """Return each instruction's values, with its fields removed from the end of its content.

        Shortened content begins with `mark`. Content that already begins with `mark` is replaced by None.
        """


class InstructionRows(tuple[NewInstruction, ...]):
    """New instructions as rows, for small batches."""

    __slots__ = ()

    def canonical_texts(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        for number, instruction in enumerate(self, start=first):
            row, client_orderid, country, currency, amount, minor, form, fields, payee, content = instruction
            yield (
                f"{number}\0{row}\0{client_orderid}\0{country}\0{currency}\0{minor}\0{replaced.get(row)}\0{amount}\0"
                f"{form}\0{fields}\0{payee}\0{content}"
            ).encode()

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        totals: dict[tuple[str, str], list[int]] = {}
        for index, instruction in enumerate(self):
            billions, rest = divmod(instruction.minor, BILLION)
            values = totals.setdefault((instruction.country, instruction.currency), [0, 0, 0, index, index])
            values[0] += 1
            values[1] += billions
            values[2] += rest
            values[4] = index
        return {key: InstructionTotals(*values) for key, values in totals.items()}

    def payee_words(self) -> Iterable[str | None]:
        return (" ".join(payee_texts(instruction.fields)) or None for instruction in self)

    def have_ascii_ids(self) -> bool:
        return all(instruction.client_orderid.isascii() for instruction in self)

    def shortened_rows(self, mark: str) -> Iterable[tuple[Any, ...]]:
        return ((*instruction[:-1], _shorten_content(instruction, mark)) for instruction in self)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some of a batch's pages and new instructions. The instructions need not be on these pages."""

    pages: Sequence[bytes] = ()
    instructions: NewInstructions = field(default_factory=InstructionRows)


def prefetch(parts: Iterable[_Part]) -> Generator[_Part]:
    """Yield each part while a thread computes the next one. Close the generator to stop the thread."""
    remaining = iter(parts)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(next, remaining, None)
        while (part := future.result()) is not None:
            future = executor.submit(next, remaining, None)
            yield part


def _shorten_content(instruction: NewInstruction, mark: str) -> str | None:
    content, fields = instruction.content, instruction.fields
    if content.startswith(mark):
        return None
    return f"{mark}{content.removesuffix(fields)}" if content.endswith(fields) else content


_CHUNK_SIZE = 1_000
_PAYEE_VALUE_COUNT = 3
"""The number of values at the end of a canonical text that identify the payee: fields, payee, content."""


def permanent_parts(texts: Iterable[bytes]) -> list[bytes]:
    """Return the part of each text that remains when its payee is forgotten. Raises `InternalError` for a NUL."""
    parts = [text.rsplit(b"\0", _PAYEE_VALUE_COUNT)[0] for text in texts]
    if {part.count(b"\0") for part in parts} - {VALUES_PER_TEXT - _PAYEE_VALUE_COUNT - 1}:
        raise InternalError("a validated value holds a NUL character")
    return parts


def payee_digests(texts: Iterable[bytes], parts: Iterable[bytes], salts: Iterable[bytes]) -> list[bytes]:
    """Return the SHA-256 of each text's salt and the values that identify its payee."""
    return [sha256(salt + text[len(part) :]).digest() for text, part, salt in zip(texts, parts, salts, strict=True)]


class OpeningDigests:
    """Computes a batch's digests (SHA-256) and totals while the batch is stored.

    The instructions' digest covers only a salted digest of the values that identify a payee, so forgetting the payee
    does not change it. The salt is forgotten too, so that nobody can find the payee by guessing.
    """

    def __init__(self, batch: NewBatch, first_instruction: int) -> None:
        self._batch = batch
        self.first_instruction = self.next_instruction = first_instruction
        self.pages = self._known = 0
        self._pages_sha256, self._instructions_sha256, self._known_sha256 = sha256(), sha256(), sha256()
        self.totals: dict[tuple[str, str], InstructionTotals] = {}

    def add_page(self, page: bytes) -> None:
        self.pages += 1
        self._pages_sha256.update(len(page).to_bytes(8, "big"))
        self._pages_sha256.update(page)

    def add_instructions(
        self, instructions: NewInstructions, replaced: Mapping[int, int], salts: Sequence[bytes]
    ) -> Sequence[bytes]:
        """Add new instructions with their salts. Returns their payees' digests."""
        texts = list(instructions.canonical_texts(self.next_instruction, replaced))
        parts = permanent_parts(texts)
        digests = payee_digests(texts, parts, salts)
        self._add(instructions, parts, digests)
        return digests

    def _add(self, instructions: NewInstructions, parts: Sequence[bytes], digests: Sequence[bytes]) -> None:
        first = self.next_instruction
        self._instructions_sha256.update(b"".join(chain.from_iterable(zip(parts, digests, strict=True))))
        self.next_instruction += len(parts)
        for key, total in instructions.totals().items():
            renumbered, total_so_far = total.renumber_from(first), self.totals.get(key)
            self.totals[key] = renumbered if total_so_far is None else total_so_far.combine(renumbered)

    def add_stored(self, lines: Iterable[tuple[Any, ...]]) -> None:
        """Add stored instructions: number, replaced instruction, the values of a `NewInstruction`, salt and digest.

        If a payee was forgotten, the salt and the values that identify the payee are None. Raises `InternalError` if a
        number is missing, a value contains NUL, or a payee's values do not match their digest.
        """
        remaining = iter(lines)
        while group := list(islice(remaining, _CHUNK_SIZE)):
            if [line[0] for line in group] != list(range(self.next_instruction, self.next_instruction + len(group))):
                raise InternalError("the instructions of a batch are not numbered consecutively")
            replaced = {line[2]: line[1] for line in group if line[1] is not None}
            rows = InstructionRows(NewInstruction._make(line[2:-2]) for line in group)
            texts, digests = list(rows.canonical_texts(self.next_instruction, replaced)), [line[-1] for line in group]
            parts = permanent_parts(texts)
            present = [index for index, line in enumerate(group) if any(value is not None for value in line[-5:-1])]
            present_texts = ([texts[index] for index in present], [parts[index] for index in present])
            salts = [group[index][-2] or b"" for index in present]
            if payee_digests(*present_texts, salts) != [digests[index] for index in present]:
                raise InternalError("the payee's data of an instruction does not match its digest")
            self._add(rows, parts, digests)

    def add_known(self, row: KnownRow) -> None:
        """Add a row that an earlier batch already contains."""
        self._known += 1
        self._known_sha256.update(f"{row.row}\0{row.instruction}\0".encode())

    def opening(self) -> BatchOpened:
        totals: dict[str, tuple[int, int]] = {}
        for (_, currency), total in self.totals.items():
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
