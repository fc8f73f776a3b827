"""Turns facts into one call of the database: the lines of their chains, and the rows as they are after them. Pure."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from paygw_batch.core.lifecycle import State
from paygw_batch.journal.facts.chain import Line, Link, fold
from paygw_batch.journal.facts.progress import RowProgress
from paygw_batch.journal.postgres.leasing.leases import Lease
from paygw_batch.journal.postgres.standing_lines import COLUMNS, Loaded, arrays, columns_of, text_of
from paygw_batch.journal.values import Entry

_ENDS = "bigint bigint bytea bigint bytea text"
_FACTS = "bigint bigint text text bigint bigint integer bigint text text bytea"
_ROWS = f"bigint boolean integer integer text {'bigint ' * 4}{'text ' * 5}bigint {'text ' * 5}".rstrip()
_REPLIES = "bigint integer bytea bytea"
_TALLIES = "bigint bigint text text text bigint numeric"
_WIDTHS = tuple(len(types.split()) for types in (_ENDS, _FACTS, _ROWS, _REPLIES, _TALLIES))
_TYPES = f"{_ENDS} {_FACTS} {_ROWS} {_REPLIES} {_TALLIES}".split()
CALL = f"SELECT commit_facts(%s, {', '.join(f'%s::{one}[]' for one in _TYPES)})"

FENCED, MOVED, HELD, RUN_OVER, STOPPED = "PW001", "PW002", "PW004", "PW005", "PW006"
"""Why the call can be refused: a lease was taken over; a row moved since it was read; evidence holds a row; the run
that this worker is at is over; no worker may send."""
DEADLOCK = "40P01"
"""Two processes waited for each other's rows, and the server undid this call."""


@dataclass(frozen=True, slots=True)
class StagedFacts:
    """Facts ready to be committed: the values of the call, and chains and rows as they are after it."""

    values: Sequence[Any]
    """The values of `CALL` after the worker."""
    lines: Sequence[Line]
    """One for each entry, in order. Its `seq` counts the facts of its chain."""
    nths: Sequence[int]
    """Of each entry: which fact of its instruction it is."""
    ends: Mapping[int, Link]
    """The new end of each chain, by segment."""
    before: Mapping[int, Link]
    """The end that each of them goes on from."""
    loaded: Mapping[int, Loaded]
    """The instructions as they are after it."""


def stage_facts(
    entries: Sequence[Entry],
    lease_of: Callable[[Entry], Lease],
    loaded: Mapping[int, Loaded],
    extra: AbstractSet[int] = frozenset(),
) -> StagedFacts:
    """Return facts ready to be committed; `extra` are instructions whose progress is saved though no fact moves them.

    `loaded` has every instruction that the entries name. A fact that does not fit moves nothing.
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
        lines = fold([entries[at] for at in places], lease.end, progress, batches)
        placed.update({at: (segment, line) for at, line in zip(places, lines, strict=True)})
        before[segment] = lease.end
        ends[segment] = Link(lines[-1].seq, lines[-1].hash, lines[-1].at)
    facts, fact_lines, nths, kept = _counted(entries, loaded, placed)
    touched = {entry.instruction for entry in entries} | extra
    rows = [
        (number, loaded[number].is_new, loaded[number].facts, facts[number], *columns_of(progress[number]))
        for number in sorted(touched)
    ]
    end_lines = [
        (segment, before[segment].seq, before[segment].hash, end.seq, end.hash, end.at)
        for segment, end in sorted(ends.items())
    ]
    desk = next(iter(groups.values()))[0].chain
    chains = dict.fromkeys(extra, desk) | {entry.instruction: lease_of(entry).chain for entry in entries}
    tallied = _tallied(loaded, progress, chains)
    groups_of_lines: tuple[list[Any], ...] = (end_lines, fact_lines, rows, kept, tallied)
    values = [array for lines, width in zip(groups_of_lines, _WIDTHS, strict=True) for array in arrays(lines, width)]
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
            one.is_new and number not in touched,
            progress[number],
        )
        for number, one in loaded.items()
    }
    return StagedFacts(values, [placed[at][1] for at in range(len(entries))], nths, ends, before, after)


def _tallied(
    loaded: Mapping[int, Loaded], progress: Mapping[int, RowProgress], chains: Mapping[int, int]
) -> list[tuple[Any, ...]]:
    """Return how the facts of each chain change the tallies: a row that moves counts in another state."""
    changes: dict[tuple[int, int, str, str, str], tuple[int, int]] = {}
    for number, chain in chains.items():
        one, after = loaded[number], progress[number].standing.state
        before = State.READY if one.is_new else one.progress.standing.state
        if before is after:
            continue
        for state, sign in ((before, -1), (after, 1)):
            key = (one.chunk, chain, one.country, one.currency, state.value)
            rows, minor = changes.get(key, (0, 0))
            changes[key] = rows + sign, minor + sign * one.minor
    return [(*key, *change) for key, change in sorted(changes.items()) if change != (0, 0)]


def _counted(
    entries: Sequence[Entry], loaded: Mapping[int, Loaded], placed: Mapping[int, tuple[int, Line]]
) -> tuple[dict[int, int], list[Any], list[int], list[Any]]:
    """Return how many facts each instruction then has, the facts' lines, their places, and the replies to keep."""
    facts = {number: one.facts for number, one in loaded.items()}
    fact_lines, nths, kept = [], [], []
    for at, entry in enumerate(entries):
        segment, line = placed[at]
        nth = facts[entry.instruction] = facts[entry.instruction] + 1
        nths.append(nth)
        fact_lines.append(
            (
                segment,
                line.seq,
                line.at,
                line.kind,
                line.batch,
                line.instruction,
                nth,
                line.attempt,
                line.contradicts,
                line.details,
                line.hash,
            )
        )
        if entry.reply is not None:
            kept.append((entry.instruction, nth, entry.reply.head.encode(), entry.reply.body))
    return facts, fact_lines, nths, kept


def opening_values(segment: int, before: Link, line: Line) -> Sequence[Any]:
    """Return the values of `CALL` for the one fact that opens a batch."""
    end = [(segment, before.seq, before.hash, line.seq, line.hash, line.at)]
    fact = [
        (segment, line.seq, line.at, line.kind, line.batch, None, None, None, None, text_of(line.details), line.hash)
    ]
    opening: tuple[list[Any], ...] = (end, fact, [], [], [])
    return [array for lines, width in zip(opening, _WIDTHS, strict=True) for array in arrays(lines, width)]


assert len(COLUMNS) == _WIDTHS[2] - 4  # noqa: S101 - the call has a place for every column
