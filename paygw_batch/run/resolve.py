"""Resolving: a person settles rows that are in doubt, accepted and never answered, or held, with evidence."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from paygw_batch.core.lifecycle import TRANSITIONS, Resolution, Resolved, Standing, State, kind_of
from paygw_batch.errors import InternalError, UsageError
from paygw_batch.journal.port import BatchRecord, Entry, Journal, JournalReader, RowStanding
from paygw_batch.run.ports import Now, timestamp
from paygw_batch.run.reconcile import shown_state


@dataclass(frozen=True, slots=True)
class Settlement:
    """One row about to be settled: as what, and on what evidence."""

    row: int
    resolution: Resolution
    evidence: str


def may_settle(state: State, resolution: Resolution, *, is_held: bool) -> bool:
    """Whether a person may settle a row in `state` so; a row in flight counts as in doubt, a ready one must be held."""
    if state is State.READY and not is_held:
        return False
    state = State.IN_DOUBT if state is State.IN_FLIGHT else state
    return (state, kind_of(Resolved(resolution, "", ""))) in TRANSITIONS


def needs_second_person(state: State, resolution: Resolution) -> bool:
    """Whether a row in `state`, settled so, may be paid again: at once, or after a release.

    Where approvals are asked for, two people have to say so: one alone could have money leave twice.
    """
    state = State.IN_DOUBT if state is State.IN_FLIGHT else state
    after = TRANSITIONS.get((state, kind_of(Resolved(resolution, "", ""))))
    return after in {State.READY, State.REJECTED}


def open_from(standing: RowStanding, quarantine_h: float) -> datetime | None:
    """Return from when on a row may be called not received: so long after its latest attempt; None: nothing left."""
    if standing.intended_at is None:
        return None
    return datetime.fromisoformat(standing.intended_at) + timedelta(hours=quarantine_h)


def quarantine_sentence(standing: RowStanding, quarantine_h: float, now: datetime) -> str | None:
    """Return why a row may not be called not received yet and from when on it may, or None when it may."""
    opens = open_from(standing, quarantine_h)
    if opens is None or now >= opens:
        return None
    return (
        f"Row {standing.row} left at {standing.intended_at} and could still be paid: it may be called not received "
        f"from {timestamp(opens)} on (quarantine_h = {quarantine_h:g})."
    )


def check_settlements(
    journal: JournalReader,
    batch: BatchRecord,
    settlements: Sequence[Settlement],
    *,
    quarantine_h: float,
    now: Now,
) -> None:
    """Raise `UsageError`, with a sentence for each, when one of `settlements` may not be made."""
    standings = standings_of(journal, batch, {settlement.row for settlement in settlements})
    wrong, held = [], journal.holds(batch.number)
    for settlement in settlements:
        standing = standings.get(settlement.row)
        if standing is None:
            wrong.append(f"Row {settlement.row}: the batch has no such row.")
        elif not may_settle(standing.state, settlement.resolution, is_held=settlement.row in held):
            word = settlement.resolution.value.replace("-", " ")
            state = shown_state(standing.state).replace("_", " ")
            wrong.append(f"Row {settlement.row} is {state}, and cannot be resolved as {word}.")
        elif settlement.resolution is Resolution.NOT_RECEIVED and (
            sentence := quarantine_sentence(standing, quarantine_h, now())
        ):
            wrong.append(sentence)
    if wrong:
        raise UsageError(
            " ".join(wrong), hint="Nothing was changed. `paygw-batch status BATCH` shows where rows stand."
        )


def standings_of(journal: JournalReader, batch: BatchRecord, rows: Iterable[int]) -> Mapping[int, RowStanding]:
    """Return where the given rows of a batch stand."""
    wanted = set(rows)
    return {standing.row: standing for standing in journal.standings(batch.number) if standing.row in wanted}


def settle(journal: Journal, batch: BatchRecord, settlements: Sequence[Settlement], *, by: str, now: Now) -> None:
    """Make all settlements durable in one transaction, or none of them. They must have been checked."""
    at = timestamp(now())
    entries = []
    for settlement in settlements:
        number, standing = _instruction(journal, batch, settlement.row)
        fact = Resolved(settlement.resolution, settlement.evidence, by)
        entries.append(Entry(number, standing.attempt, fact, at))
    journal.settle(entries)


def _instruction(journal: Journal, batch: BatchRecord, row: int) -> tuple[int, Standing]:
    found = journal.row(batch.number, row)
    if found is None:
        raise InternalError(f"row {row} of batch {batch.batch} was checked, and is not there")
    return found
