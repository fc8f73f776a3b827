"""Turns facts into one call of the database, which itself moves the rows and counts them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paygw_batch.journal.facts.chain import Line, fold
from paygw_batch.journal.facts.progress import RowProgress
from paygw_batch.journal.postgres.leasing.leases import Lease
from paygw_batch.journal.postgres.standing_lines import Loaded
from paygw_batch.journal.salts import new_salt
from paygw_batch.journal.values import Entry, Link

CALL = "SELECT commit_facts(%s, %s::json, %s::json, %s::json)"
"""Takes a worker, ends of chains, facts and raw replies: each a list of objects with the names of columns."""
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

FENCED, MOVED, HELD, RUN_OVER, STOPPED = "PW001", "PW002", "PW004", "PW005", "PW006"
"""The reasons to refuse the call: a lease was taken over; a row moved since it was read; evidence holds a row; the run
of this worker is over; no worker may send."""
NOT_OVER = "PW013"
"""The reason not to forget people of a batch: it is not over, or it continued after it was read."""
DEADLOCK = "40P01"
"""Two processes waited for each other's rows, and the server undid this call."""


@dataclass(frozen=True, slots=True)
class StagedFacts:
    """Facts ready to be committed: the values of the call, and chains and rows as they are after it."""

    values: tuple[str, str, str]
    """The values of `CALL` after the worker."""
    lines: Sequence[Line]
    """One for each entry, in order. Its `seq` counts the facts of its chain."""
    ends: Mapping[int, Link]
    """The new end of each chain, by segment."""
    before: Mapping[int, Link]
    """The end that each of them continues from."""
    loaded: Mapping[int, Loaded]
    """The instructions as they are after it."""


def stage_facts(
    entries: Sequence[Entry],
    lease_of: Callable[[Entry], Lease],
    loaded: Mapping[int, Loaded],
) -> StagedFacts:
    """Return facts ready to be committed. `loaded` has every instruction that the entries name.

    A fact that does not fit changes no state.
    """
    progress: dict[int, RowProgress] = {number: one.progress for number, one in loaded.items()}
    batches = {number: one.batch for number, one in loaded.items()}
    groups: dict[int, tuple[Lease, list[int]]] = {}
    for at, entry in enumerate(entries):
        lease = lease_of(entry)
        groups.setdefault(lease.segment, (lease, []))[1].append(at)
    placed: dict[int, tuple[int, Line]] = {}
    ends, before = {}, {}
    for segment, (lease, places) in groups.items():
        lines = fold([entries[at] for at in places], lease.end, progress, batches, new_salt)
        placed.update({at: (segment, line) for at, line in zip(places, lines, strict=True)})
        before[segment] = lease.end
        ends[segment] = Link(lines[-1].seq, lines[-1].hash, lines[-1].at)
    facts = {number: one.facts for number, one in loaded.items()}
    given, replies = [], []
    for at, entry in enumerate(entries):
        segment, line = placed[at]
        nth = facts[entry.instruction] = facts[entry.instruction] + 1
        given.append(_fact(segment, nth, line))
        if entry.reply is not None:
            head, body = entry.reply.head.encode(), entry.reply.body
            replies.append({"instruction": entry.instruction, "nth": nth, "head": _hex(head), "body": _hex(body)})
    values = _values([_end(segment, before[segment], end) for segment, end in sorted(ends.items())], given, replies)
    after = {
        number: Loaded(
            number,
            one.client_orderid,
            one.batch,
            one.chunk,
            one.country,
            one.currency,
            one.minor,
            facts[number],
            False,
            progress[number],
        )
        for number, one in loaded.items()
    }
    return StagedFacts(values, [placed[at][1] for at in range(len(entries))], ends, before, after)


def stage_of_batch(lease: Lease, line: Line) -> StagedFacts:
    """Return one fact about a whole batch, ready to be committed."""
    end = Link(line.seq, line.hash, line.at)
    values = _values([_end(lease.segment, lease.end, end)], [_fact(lease.segment, None, line)], [])
    return StagedFacts(values, [line], {lease.segment: end}, {lease.segment: lease.end}, {})


def _end(segment: int, before: Link, after: Link) -> Mapping[str, Any]:
    return {
        "number": segment,
        "seq": before.seq,
        "hash": _hex(before.hash),
        "new_seq": after.seq,
        "new_hash": _hex(after.hash),
        "new_at": after.at,
    }


def _fact(segment: int, nth: int | None, line: Line) -> Mapping[str, Any]:
    """Return a line for the table, whose columns are named like the fields of `Line`."""
    return {"segment": segment, "nth": nth, **line._asdict(), "hash": _hex(line.hash)}


def _values(*groups: Iterable[Mapping[str, Any]]) -> tuple[str, str, str]:
    ends, facts, replies = map(_json, groups)
    return ends, facts, replies


def _hex(content: bytes) -> str:
    """Return bytes in the database's text notation."""
    return f"\\x{content.hex()}"
