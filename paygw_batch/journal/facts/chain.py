"""Chains facts: defines the columns of a line, computes its hash, and moves instructions by facts.

Pure, and shared by every store.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

from paygw_batch.core.lifecycle import IllegalMove
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.codec import (
    BATCH_FORGOTTEN,
    BATCH_OPENED,
    BatchForgotten,
    BatchOpened,
    NewSalt,
    encode_batch,
    encode_forgotten,
    encode_salted,
)
from paygw_batch.journal.facts.progress import RowProgress, advance
from paygw_batch.journal.values import Entry, Link
from paygw_batch.language import say


class Line(NamedTuple):
    """One line of the chain, as it is stored. `contradicts` is the state that the fact did not fit, None if it did."""

    seq: int
    at: str
    kind: str
    batch: int
    instruction: int | None
    attempt: int | None
    contradicts: str | None
    details: str
    hash: bytes


def linked(
    end: Link,
    at: str,
    kind: str,
    batch: int,
    instruction: int | None,
    attempt: int | None,
    contradicts: str | None,
    details: str,
) -> Line:
    """Return the line after `end`: its hash is SHA-256 over the previous hash and all its other columns.

    Each column is on its own line, details last. Only details can contain a line break, so two different facts never
    have the same bytes.
    """
    columns = (end.seq + 1, at, kind, batch, instruction, attempt, contradicts, details)
    return Line(*columns, link_hash(end.hash, *columns))


def link_hash(
    before: bytes,
    seq: int,
    at: str,
    kind: str,
    batch: int,
    instruction: int | None,
    attempt: int | None,
    contradicts: str | None,
    details: str,
) -> bytes:
    """Return SHA-256 over the previous hash and all other columns of a line, as `linked` defines it."""
    text = f"{seq}\n{at}\n{kind}\n{batch}\n{instruction}\n{attempt}\n{contradicts}\n{details}"
    return hashlib.sha256(before + text.encode()).digest()


def opening_line(end: Link, at: str, batch: int, opened: BatchOpened) -> Line:
    """Return the line that opens batch number `batch`."""
    return linked(end, max(at, end.at), BATCH_OPENED, batch, None, None, None, encode_batch(opened))


def forgetting_line(end: Link, at: str, batch: int, forgotten: BatchForgotten) -> Line:
    """Return the line that forgets people of batch number `batch`."""
    return linked(end, max(at, end.at), BATCH_FORGOTTEN, batch, None, None, None, encode_forgotten(forgotten))


def follow(end: Link, line: Line, is_forgotten: Callable[[Line], bool] = lambda _: False) -> Link:
    """Return the end of the chain after `line`. Raises `JournalCorrupt` unless number and hash follow from `end`."""
    if line.seq != end.seq + 1:
        raise JournalCorrupt(say("Fact {number} is missing from the journal.", number=end.seq + 1))
    if link_hash(end.hash, *line[:-1]) != line.hash and not is_forgotten(line):
        raise JournalCorrupt(say("Fact {number} or the one before it was changed: its hash is wrong.", number=line.seq))
    return Link(line.seq, line.hash, line.at)


def followed(
    end: Link, lines: Iterable[tuple[Any, ...]], is_forgotten: Callable[[Line], bool]
) -> Iterator[tuple[Any, ...]]:
    """Yield stored lines, each checked as by `follow`, without making an object for each.

    A line whose people were forgotten keeps its hash: the next line vouches for the hash, and the fact that forgot them
    vouches for the rest of the line.
    """
    seq, before = end.seq, end.hash
    for line in lines:
        seq += 1
        if line[0] != seq or link_hash(before, *line[:-1]) != line[-1]:
            follow(Link(seq - 1, before), Line(*line), is_forgotten)
        before = line[-1]
        yield line


def fold(
    entries: Iterable[Entry],
    end: Link,
    progress: MutableMapping[int, RowProgress],
    batches: Mapping[int, int],
    new_salt: NewSalt,
) -> list[Line]:
    """Return the lines for `entries`, and advance the instructions in `progress` (by number) by them.

    `batches` maps an instruction to its batch number. A fact that does not fit changes no state. Times in a chain never
    decrease: after a clock was set back, a fact gets the time of the fact before it.
    """
    lines = []
    seq, before, at = end
    for entry in entries:
        number, attempt, at = entry.instruction, entry.attempt, max(entry.at, at)
        after = advance(progress[number], entry.fact, attempt, at)
        contradicts = None
        if isinstance(after, IllegalMove):
            contradicts = after.state
        else:
            progress[number] = after
        kind, details = encode_salted(entry.fact, new_salt)
        batch, seq = batches[number], seq + 1
        before = link_hash(before, seq, at, kind, batch, number, attempt, contradicts, details)
        lines.append(Line(seq, at, kind, batch, number, attempt, contradicts, details, before))
    return lines
