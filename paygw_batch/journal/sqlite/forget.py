"""Forgets people in a journal that is a file: nothing of them stays in its pages, its log or its index of payees.

All of it is one transaction, in which the batches are forgotten one after another, each by a fact of its own.
"""

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.errors import JournalCorrupt
from paygw_batch.files import create_once
from paygw_batch.journal.batch_part import InstructionRows
from paygw_batch.journal.facts.chain import Line
from paygw_batch.journal.facts.codec import BatchForgotten, decode, encode, without_people
from paygw_batch.journal.facts.digest import leaf_of
from paygw_batch.journal.facts.evidence_chain import order_rows
from paygw_batch.journal.facts.forgetting import NO_FIELDS, Remains, evidence_left, fingerprint
from paygw_batch.journal.facts.progress import message_of
from paygw_batch.journal.guards.location import check_file
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.tables import Tables
from paygw_batch.journal.values import NewInstruction

_AT_ONCE = 5_000
_KEY_BYTES = 32
_GUARDED = ("fact", "instruction", "page", "evidence", "reply")
_FORGET_INSTRUCTION = (
    "UPDATE instruction SET fields = ?, payee = ?, content = ?, salt = ?, forgotten = ? WHERE number = ?"
)
_FORGET_FACT = "UPDATE fact SET details = ? WHERE seq = ?"
_FORGET_MESSAGE = "UPDATE standing SET message = ? WHERE instruction = ?"
_FORGET_EVIDENCE = "UPDATE evidence SET salt = '', content = ?, forgotten = ? WHERE number = ?"
_INDEX_AGAIN = """
    INSERT INTO payment_words (payment_words) VALUES ('delete-all');
    INSERT INTO payment_words (rowid, words) SELECT number, words FROM payment_text ORDER BY number"""


class FingerprintKey:
    """The key of the fingerprints of forgotten payees: a file of its owner alone beside the journal.

    Without it a fingerprint says nothing about a payee, and a payee who is paid again is not known again.
    """

    def __init__(self, journal: Path) -> None:
        self._path = None if str(journal) == ":memory:" else journal.with_name(f"{journal.name}.fingerprint-key")
        self._key: bytes | None = None

    def read(self) -> bytes | None:
        """Return the key; None where there is none. Raises `JournalError` for a file that is not private."""
        if self._key is None and self._path is not None and check_file(self._path):
            self._key = bytes.fromhex(self._path.read_text(encoding="ascii").strip())
        return self._key

    def make(self) -> bytes:
        """Return the key, made where there is none. Raises `OSError`."""
        if self.read() is None:
            key = os.urandom(_KEY_BYTES)
            if self._path is not None:
                create_once(self._path, f"{key.hex()}\n".encode())
            self._key = key
        return self._key or b""


@contextmanager
def unguarded(connection: apsw.Connection) -> Iterator[None]:
    """Allow the block to change otherwise immutable rows, inside the open transaction.

    SQLite writes zeros over what is removed. Nobody ever sees the tables without their guards.
    """
    marks = ", ".join("?" * len(_GUARDED))
    query = f"SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ({marks})"  # noqa: S608 - places
    guards = [(name, sql) for name, sql in fetch(connection, query, _GUARDED) if "_is_never_" in name]
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    yield
    for _, sql in guards:
        connection.execute(sql)


class Forgetting:
    """Takes the people out of some instructions and batches, within the open transaction."""

    def __init__(self, connection: apsw.Connection, tables: Tables, key: bytes) -> None:
        self._connection, self._tables, self._key = connection, tables, key

    def instructions(self, numbers: Sequence[int], seq: int) -> None:
        """Forget the payees of instructions, and what facts and replies say of them. `seq`: the fact that says so."""
        remaining = iter(numbers)
        while group := list(islice(remaining, _AT_ONCE)):
            lines = [self._instruction_left(line, seq) for line in self._tables.run("to_forget", numbers=group)]
            self._connection.executemany(_FORGET_INSTRUCTION, lines)
            self._facts(group)
            self._tables.run("forget_replies", numbers=group)

    def evidence(self, numbers: Sequence[int], before: str, batches: Mapping[str, int], seq: int) -> int:
        """Forget evidence about instructions, and about none from `before` a time; return how much.

        So are the signed orders that name one of their rows. `batches` are the forgotten batches, by their ids.
        """
        found = self._tables.run("evidence_to_forget", numbers=list(numbers) or [0], before=before)
        left = [(number, evidence_left(source, content)) for number, source, content in found]
        left += [(number, "") for number in self._orders(numbers, batches)]
        self._connection.executemany(_FORGET_EVIDENCE, ((content, seq, number) for number, content in left))
        return len(left)

    def sheet(self, batch: int) -> None:
        """Forget the sheet of a batch as it was received."""
        self._tables.run("forget_sheet", batch=batch)

    def index(self) -> None:
        """Make the index of payees again, of those who are left."""
        self._connection.execute(_INDEX_AGAIN)

    def _instruction_left(self, line: Sequence[Any], seq: int) -> tuple[Any, ...]:
        number, replaces, *values, salt = line
        new = NewInstruction._make(values)
        replaced = {} if replaces is None else {new.row: replaces}
        (text,) = InstructionRows((new,)).canonical(number, replaced)
        payee, content = (fingerprint(self._key, kind, getattr(new, kind)) for kind in ("payee", "content"))
        return NO_FIELDS, payee, content, leaf_of(text, salt), seq, number

    def _facts(self, numbers: Sequence[int]) -> None:
        facts, messages = [], dict[int, str | None]()
        for seq, instruction, kind, contradicts, details in self._tables.run("facts_to_forget", numbers=list(numbers)):
            fact = without_people(decode(kind, details))
            _, left = encode(fact)
            if left != details:
                facts.append((left, seq))
            if contradicts is None:
                messages[instruction] = message_of(fact)
        self._connection.executemany(_FORGET_FACT, facts)
        self._connection.executemany(_FORGET_MESSAGE, ((message, number) for number, message in messages.items()))

    def _orders(self, numbers: Sequence[int], batches: Mapping[str, int]) -> Iterator[int]:
        """Yield the numbers of the kept orders that name a row of which somebody is forgotten."""
        for number, content in self._tables.run("orders_to_look_at"):
            batch, rows = order_rows(content)
            if batch not in batches or not numbers:
                continue
            found = self._tables.run("rows_of", batch=batches[batch], numbers=list(numbers))
            if not rows.isdisjoint(row for (row,) in found):
                yield number


def remains(tables: Tables, seq: int, batch: int) -> tuple[Remains, int, int]:
    """Digest all that is left of what fact `seq` forgot; return also how many instructions and how much evidence."""
    digest = Remains()
    instructions = digest.add(tables.stream("instructions_left", seq=seq))
    digest.add(tables.stream("facts_left", seq=seq))
    evidence = digest.add(tables.stream("evidence_left", seq=seq))
    digest.add(tables.stream("reference_left", batch=batch))
    return digest, instructions, evidence


def check_forgotten(tables: Tables, forgotten: Iterable[tuple[int, int, BatchForgotten]]) -> None:
    """Compare the remains of forgotten people with the facts that forgot them: each with its number and batch."""
    counted = [0, 0]
    for seq, batch, said in forgotten:
        digest, instructions, evidence = remains(tables, seq, batch)
        if (instructions, evidence, digest.hexdigest()) != (said.instructions, said.evidence, said.remains_sha256):
            raise JournalCorrupt(f"What fact {seq} left of batch number {batch} was changed.")
        counted[0] += instructions
        counted[1] += evidence
    if tables.run("count_forgotten") != [tuple(counted)]:
        raise JournalCorrupt("Somebody was forgotten, and no fact says so.")


def is_forgotten(tables: Tables, line: Line) -> bool:
    """Whether a fact is one of those that a later one forgot: its hash is that of what it was."""
    return line.instruction is not None and bool(tables.run("is_forgotten", instruction=line.instruction, seq=line.seq))


def scrub(connection: apsw.Connection, path: Path) -> bool:
    """Write the file again without what was removed from it, and empty its log.

    Removed bytes can be left in any page that SQLite divided before. Return False where another program reads the file
    meanwhile: then its log still holds the old pages.
    """
    connection.pragma("temp_store_directory", str(path.parent))  # what is left is as private as the journal
    connection.pragma("temp_store", 1)
    try:
        connection.execute("VACUUM")
    finally:
        connection.pragma("temp_store", 2)
    return is_log_empty(connection)


def is_log_empty(connection: apsw.Connection) -> bool:
    """Empty the log of a file; return False where another program reads the file meanwhile."""
    ((busy, *_),) = fetch(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    return not busy


def numbers_of(lines: Iterable[Sequence[Any]]) -> "array[int]":
    """Return the first columns of lines."""
    return array("q", (line[0] for line in lines))
