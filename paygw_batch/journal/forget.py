"""Forgets people in a journal, and checks the rest of their payments, for all stores.

All of it is in one transaction. The SQL is each store's own: `forget.sql` in its folder has the same names in both.
`mark` is the reference in a forgotten line to the fact that forgot it. The key of the fingerprints by which a payee is
recognised is in a private file, never in the journal.
"""

import json
import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from paygw_batch.errors import JournalCorrupt, JournalError
from paygw_batch.files import create_once
from paygw_batch.journal.batch_part import InstructionRows
from paygw_batch.journal.facts.codec import BatchForgotten
from paygw_batch.journal.facts.digest import leaf_of
from paygw_batch.journal.facts.forgetting import Remains, fingerprint
from paygw_batch.journal.guards.location import check_file, make_directory
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import Forgettable, NewInstruction
from paygw_batch.language import say

_BYTES = 32


def fingerprint_key_path(journal: Path) -> Path:
    """Return the path of a journal's key, which is beside the journal."""
    return journal.with_name(f"{journal.name}.fingerprint-key")


class FingerprintKey:
    """The key of the fingerprints, in the file at `path`; None: in memory, for a journal in memory.

    Without it a fingerprint reveals nothing about a payee, and a payee who is paid again is not recognised.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._key: bytes | None = None

    def read(self) -> bytes | None:
        """Return the key, or None. Raises `JournalError` for a file that is not private, or not a key."""
        if self._key is None and self.path is not None and check_file(self.path):
            try:
                key = bytes.fromhex(self.path.read_text(encoding="ascii").strip())
            except ValueError:
                key = b""
            if len(key) != _BYTES:
                raise JournalError(say("The file {path} is not a fingerprint key.", path=self.path))
            self._key = key
        return self._key

    def make(self) -> bytes:
        """Return the key; create it if there is none. Raises `OSError`."""
        if (found := self.read()) is not None:
            return found
        return self.keep(os.urandom(_BYTES))

    def keep(self, key: bytes) -> bytes:
        """Write a key and return it, or the key that another process wrote first. Raises `OSError`."""
        if self.path is None:
            self._key = key
            return key
        make_directory(self.path.parent)
        create_once(self.path, f"{key.hex()}\n".encode())
        return self.read() or key


_AT_ONCE = 5_000


class Forgetting:
    """Removes people from instructions and batches, inside the open transaction."""

    def __init__(self, tables: Tables, key: bytes) -> None:
        self._tables, self._key = tables, key

    def instructions(self, numbers: Sequence[int], mark: int) -> None:
        """Forget the payees of instructions, also in facts and replies."""
        remaining = iter(numbers)
        while group := list(islice(remaining, _AT_ONCE)):
            left = [self._instruction_left(line) for line in self._tables.run("to_forget", numbers=group)]
            self._write("forget_instruction", ("number", "payee", "content", "leaf"), left, mark=mark)
            for name in ("forget_said", "forget_texts"):
                self._tables.run(name, numbers=group)

    def heard(self, numbers: Sequence[int], before: str, batches: Collection[str]) -> None:
        """Forget evidence before a time that is about no instruction, and the signed orders that name a forgotten row.

        `batches` are the ids of the forgotten batches.
        """
        self._tables.run("forget_heard", before=before, orders=[*self._orders(numbers, batches), 0])

    def sheet(self, batch: int) -> None:
        """Forget the sheet of a batch as it was received."""
        self._tables.run("forget_sheet", batch=batch)

    def _instruction_left(self, line: Sequence[Any]) -> tuple[Any, ...]:
        number, replaces, *values, salt = line
        new = NewInstruction._make(values)
        replaced = {} if replaces is None else {new.row: replaces}
        (text,) = InstructionRows((new,)).canonical(number, replaced)
        payee, content = (fingerprint(self._key, kind, getattr(new, kind)) for kind in ("payee", "content"))
        return number, payee, content, leaf_of(text, salt)

    def _orders(self, numbers: Sequence[int], batches: Collection[str]) -> Iterator[int]:
        """Yield the numbers of the kept orders that name a row of a forgotten person."""
        for number, details, document in self._tables.run("orders_to_look_at"):
            batch = json.loads(details)
            if batch not in batches or not numbers:
                continue
            found = self._tables.run("rows_of", batch=batch, numbers=list(numbers))
            if not _rows_of(document).isdisjoint(row for (row,) in found):
                yield number

    def _write(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any) -> None:
        for _ in self._tables.each(name, columns, rows, **values):
            pass  # it returns no rows: it changes lines


def _rows_of(document: str) -> frozenset[int]:
    """Return the rows that a signed order names."""
    try:
        return frozenset(one["row"] for one in json.loads(document)["content"]["rows"])
    except (ValueError, TypeError, KeyError):
        return frozenset()


def remains(tables: Tables, mark: int, batch: int) -> tuple[Remains, int]:
    """Digest the rest of all lines that one fact forgot; also return the number of instructions."""
    digest = Remains()
    instructions = digest.add(tables.stream("instructions_left", mark=mark))
    digest.add(tables.stream("reference_left", batch=batch))
    return digest, instructions


def check_forgotten(tables: Tables, forgotten: Iterable[tuple[int, int, BatchForgotten]]) -> None:
    """Compare the remaining lines with the facts that forgot their people, each with its mark and batch."""
    counted = 0
    for mark, batch, said in forgotten:
        digest, instructions = remains(tables, mark, batch)
        if (instructions, digest.hexdigest()) != (said.instructions, said.remains_sha256):
            raise JournalCorrupt(
                say("The remains of forgotten people in batch number {batch} were changed.", batch=batch)
            )
        counted += instructions
    if tables.run("count_forgotten") != [(counted,)]:
        raise JournalCorrupt(say("People were forgotten, but no fact records it."))


def forgettable(
    tables: Tables, numbers: Sequence[int] | None, before: str, is_over: Callable[[int], bool]
) -> Forgettable:
    """Return the payments whose payees may be forgotten: all from before a date, or those of `numbers`.

    `is_over` says whether a batch is finished for ever. A row is kept if a batch that is not forgotten also covers it.
    """
    run = tables.run
    if numbers is None:
        old = _numbers_of(run("opened_before", before=before))
        wanted = {one: _numbers_of(run("not_forgotten", batch=one)) for one in old if _is_old(tables, one, before)}
    else:
        wanted = {}
        for number, batch in run("not_forgotten_of", numbers=list(numbers)) if numbers else ():
            wanted.setdefault(batch, array("q")).append(number)
    every = [number for some in wanted.values() for number in some]
    known = run("knowing", numbers=every) if every else []
    touched = wanted.keys() | {batch for batch, _ in known}
    over = {batch for batch in touched if is_over(batch)}
    over = over & wanted.keys() if numbers is None else over
    kept = {number for batch, number in known if batch not in over}
    chosen = {batch: array("q", (number for number in wanted.get(batch, ()) if number not in kept)) for batch in over}
    has_more = {batch for batch in over if chosen[batch] or run("has_sheet", batch=batch)}
    batches = {batch: chosen[batch] for batch in sorted(has_more)}
    return Forgettable(before, batches, sorted(touched - over))


def _is_old(tables: Tables, batch: int, before: str) -> bool:
    ((newest,),) = tables.run("newest_move", batch=batch)
    return newest is None or newest < before


def _numbers_of(lines: Iterable[Sequence[Any]]) -> "array[int]":
    """Return the first columns of lines."""
    return array("q", (line[0] for line in lines))
