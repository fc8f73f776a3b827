"""Turns facts into one call of the database, which itself moves the rows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from paygw_batch.journal.facts.chain import Line, SaidLine, chained
from paygw_batch.journal.postgres.leasing.leases import Lease
from paygw_batch.journal.salts import new_salt
from paygw_batch.journal.values import Entry, Link, Remark

E = TypeVar("E", bound=Entry | Remark)

CALL = "SELECT * FROM commit_facts(%s, %s::json, %s::json, %s::json, %s::json)"
"""Takes a worker, ends of chains, facts, what these say of people, and raw replies: each a list of objects with the
names of columns. Returns for each fact its place (segment and seq), its number, and whether it moved its row."""
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

FENCED, MOVED, HELD, RUN_OVER, STOPPED = "PW001", "PW002", "PW004", "PW005", "PW006"
"""The reasons to refuse the call: a lease was taken over; an intent does not fit its row; evidence holds a row; the run
of this worker is over; no worker may send."""
NOT_OVER = "PW013"
"""The reason not to forget people of a batch: it is not over, or it continued after it was read."""
DEADLOCK = "40P01"
"""Two processes waited for each other's rows, and the server undid this call."""


@dataclass(frozen=True, slots=True)
class StagedFacts:
    """Facts ready to be committed: the values of the call, and the chains as they are after it."""

    values: tuple[str, str, str, str]
    """The values of `CALL` after the worker."""
    places: Sequence[tuple[int, int]]
    """Segment and seq of each entry's fact, in order."""
    ends: Mapping[int, Link]
    """The new end of each chain, by segment."""
    before: Mapping[int, Link]
    """The end that each of them continues from."""


def stage_facts(entries: Sequence[E], lease_of: Callable[[E], Lease]) -> StagedFacts:
    """Return facts ready to be committed."""
    groups: dict[int, tuple[Lease, list[int]]] = {}
    for at, entry in enumerate(entries):
        lease = lease_of(entry)
        groups.setdefault(lease.segment, (lease, []))[1].append(at)
    placed: dict[int, tuple[int, Line]] = {}
    ends, before, said, replies = {}, {}, [], []
    for segment, (lease, places) in groups.items():
        lines, texts = chained([entries[at] for at in places], lease.end, new_salt)
        placed.update({at: (segment, line) for at, line in zip(places, lines, strict=True)})
        said += [_said(segment, text) for text in texts]
        before[segment] = lease.end
        ends[segment] = Link(lines[-1].seq, lines[-1].hash, lines[-1].at)
    for at, entry in enumerate(entries):
        if isinstance(entry, Entry) and entry.reply is not None:
            segment, line = placed[at]
            head, body = entry.reply.head.encode(), entry.reply.body
            replies.append({"segment": segment, "seq": line.seq, "head": _hex(head), "body": _hex(body)})
    facts = [_fact(*placed[at]) for at in range(len(entries))]
    values = _values(
        [_end(segment, before[segment], end) for segment, end in sorted(ends.items())], facts, said, replies
    )
    return StagedFacts(values, [(placed[at][0], placed[at][1].seq) for at in range(len(entries))], ends, before)


def _end(segment: int, before: Link, after: Link) -> Mapping[str, Any]:
    return {
        "number": segment,
        "seq": before.seq,
        "hash": _hex(before.hash),
        "new_seq": after.seq,
        "new_hash": _hex(after.hash),
        "new_at": after.at,
    }


def _fact(segment: int, line: Line) -> Mapping[str, Any]:
    """Return a line for the table, whose columns are named like the fields of `Line`."""
    fact = {name: value for name, value in zip(Line._fields, line, strict=True) if value is not None}
    fact |= {"segment": segment, "hash": _hex(line.hash)}
    if line.said_sha256 is not None:
        fact["said_sha256"] = _hex(line.said_sha256)
    return fact


def _said(segment: int, line: SaidLine) -> Mapping[str, Any]:
    return {**line._asdict(), "segment": segment, "salt": _hex(line.salt)}


def _values(*groups: Iterable[Mapping[str, Any]]) -> tuple[str, str, str, str]:
    ends, facts, said, replies = map(_json, groups)
    return ends, facts, said, replies


def _hex(content: bytes) -> str:
    """Return bytes in the database's text notation."""
    return f"\\x{content.hex()}"
