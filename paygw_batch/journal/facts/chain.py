"""Chains facts: defines the columns of a line, and computes its hash. Pure, and shared by every store."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from paygw_batch.core.lifecycle import kind_of
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.codec import (
    NewSalt,
    columns_of,
    columns_of_remark,
    said_digest,
    with_evidence,
)
from paygw_batch.journal.values import Entry, Link, Remark
from paygw_batch.language import say


class Line(NamedTuple):
    """One line of the chain, as it is stored: `seq` is its place in the chain."""

    seq: int
    at: str
    kind: str
    batch: int | None
    instruction: int | None
    attempt: int | None
    order_id: str | None
    nonce: str | None
    timestamp_s: int | None
    purpose: str | None
    endpoint_id: str | None
    gateway_status: str | None
    gateway_reference: str | None
    http_status: int | None
    error_code: str | None
    cause: str | None
    conflict: int | None
    source: str | None
    finding: str | None
    means: str | None
    by: str | None
    basis: str | None
    agreement: str | None
    details: str | None
    said_sha256: bytes | None
    hash: bytes


class SaidLine(NamedTuple):
    """The personal data of the line at `seq`, as it is stored."""

    seq: int
    salt: bytes
    text: str | None
    customer_url: str | None
    reply_sha256: str | None


def text_of_line(columns: Iterable[Any]) -> str:
    """Return the text of a line that is hashed: all its columns but the last two.

    Each column is on its own line, and none contains a line break or reads None: two different facts never have the
    same text.
    """
    return "\n".join(map(str, columns))


def text_in_sql(fact: str, seq: str, newline: str, as_text: str = "") -> str:
    """Return SQL for the text of a line that is stored as `fact`; `as_text` makes a text of a number."""
    columns = (f"coalesce({fact}.{name}{as_text}, 'None')" for name in Line._fields[1:-2])
    return f"concat_ws({newline}, {seq}, {', '.join(columns)})"


def link_hash(before: bytes, text: str, said_sha256: bytes | None) -> bytes:
    """Return SHA-256 over the hash of the line before, the text of a line, and the digest of what it says."""
    return hashlib.sha256(before + text.encode() + (said_sha256 or b"")).digest()


def followed(end: Link, lines: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield stored lines: seq, text, digest of personal data, hash, and any further columns that the caller has read.

    Raises `JournalCorrupt` at one that does not follow.
    """
    seq, before = end.seq, end.hash
    for line in lines:
        seq += 1
        if line[0] != seq:
            raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=seq))
        if link_hash(before, line[1], line[2]) != line[3]:
            raise JournalCorrupt(say("Fact {number} or the one before it was changed: its hash is wrong.", number=seq))
        before = line[3]
        yield line


def chained(entries: Iterable[Entry | Remark], end: Link, new_salt: NewSalt) -> tuple[list[Line], list[SaidLine]]:
    """Return the lines for `entries` after `end`, and what they say of people.

    Times in a chain never decrease: after a clock was set back, a fact gets the time of the fact before it.
    """
    lines, texts = [], []
    seq, before, at = end
    for entry in entries:
        seq, at = seq + 1, max(entry.at, at)
        batch = None
        if isinstance(entry, Remark):
            batch, (kind, told, said) = entry.batch, columns_of_remark(entry.fact)
        else:
            kind, (told, said) = kind_of(entry.fact), columns_of(entry.fact)
            if entry.heard is not None:
                told, said = with_evidence(told, said, entry.heard)
        digest = None
        if any(said):
            salt = new_salt()
            digest = said_digest(salt, said)
            texts.append(SaidLine(seq, salt, *said))
        columns = (seq, at, kind, batch, entry.instruction, entry.attempt, *told)
        before = link_hash(before, text_of_line(columns), digest)
        lines.append(Line(*columns, digest, before))
    return lines, texts
