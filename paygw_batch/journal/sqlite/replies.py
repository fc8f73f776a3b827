"""Keeps raw replies of the gateway beside the facts that they led to, for the gateway's support."""

from collections.abc import Sequence

import apsw

from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.chain import Line
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.values import Entry, reply_sha256

_INSERT = "INSERT INTO reply VALUES (?, ?, ?, ?)"


def keep(connection: apsw.Connection, entries: Sequence[Entry], lines: Sequence[Line]) -> None:
    """Write the replies of `entries`, which became the facts `lines`, inside the open transaction."""
    kept = [
        (line.seq, entry.instruction, entry.reply.head, entry.reply.body)
        for entry, line in zip(entries, lines, strict=True)
        if entry.reply is not None
    ]
    if kept:
        connection.executemany(_INSERT, kept)


def check(connection: apsw.Connection, seq: int, number: int, wanted: str) -> None:
    """Raise `JournalCorrupt` unless the reply kept for fact `seq` of instruction `number` has this SHA-256, in hex."""
    found = fetch(connection, "SELECT instruction, head, body FROM reply WHERE fact = ?", (seq,))
    if [(instruction, reply_sha256(head, body)) for instruction, head, body in found] != [(number, wanted)]:
        raise JournalCorrupt(f"The reply that is kept for fact {seq} is not the one that came.")
