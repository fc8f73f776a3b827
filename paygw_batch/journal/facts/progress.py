"""Computes the progress of an instruction from facts: its standing in the state machine, and its latest evidence.

Pure, and shared by every store: `advance` is `core.lifecycle.step` plus the columns a person reads in the
reconciliation. The evidence is always about the latest attempt: an intent removes the previous attempt's. A
replay does the same with all facts of an instruction; `verify` compares the result with the tables.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, assert_never

from paygw_batch.core.batch import attempt_order_id
from paygw_batch.core.lifecycle import (
    Basis,
    Concluded,
    Fact,
    FactKind,
    IllegalMove,
    Intended,
    Interrupted,
    Released,
    Replaced,
    Resolution,
    Resolved,
    Returned,
    Standing,
    State,
    kind_of,
    step,
)
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.core.recorded_words import kept, kept_text, with_duplicate
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal.facts.codec import decode
from paygw_batch.journal.values import RowState
from paygw_batch.language import say

PROVEN_STATEMENT = "proven_statement"
"""The error code of a row that a proven statement calls rejected. This lifts its quarantine; its mark stays."""
_FRESH = Standing()
_NOT_SENT, _UNKNOWN = OutcomeKind.NOT_SENT, OutcomeKind.UNKNOWN


class RowProgress(NamedTuple):
    """Everything about an instruction that facts change; a tuple, because every payout makes two.

    `order_id` is what the next attempt is sent under, `sent_orderid` what the latest was; `inherited_attempts` counts
    the attempts of the instruction this one replaced, whose numbering it continues. Times are UTC, ISO 8601 with `Z`.
    `first_sent_at` is the time of the first intent that may have left, None while all of them are known not to have.
    """

    order_id: str
    standing: Standing = _FRESH
    inherited_attempts: int = 0
    sent_orderid: str | None = None
    purpose: str | None = None
    gateway_status: str | None = None
    gateway_reference: str | None = None
    http_status: int | None = None
    error_code: str | None = None
    message: str | None = None
    intended_at: str | None = None
    first_sent_at: str | None = None
    updated_at: str | None = None

    @property
    def quarantined_since(self) -> str | None:
        """When the attempt of a row that only a person calls rejected left; None for all others."""
        return self.intended_at if waits_for_quarantine(self.standing, self.error_code) else None


class _States(dict[str, State]):
    """The states by their words; a CHECK in a table would do the same, at 3 us a write."""

    def __missing__(self, word: str) -> State:
        """Refuse a word that we never write."""
        raise JournalCorrupt(say("An instruction has an unknown state: {state!r}.", state=word[:20]))


STATES: Mapping[str, State] = _States({state.value: state for state in State})
COLUMNS = (
    *("order_id", "state", "attempt", "generation", "possible_duplicate_of", "inherited_attempts"),
    *RowProgress._fields[3:],
)
"""The columns of `standing`, and of the view `progress`, that hold a `RowProgress`."""
PROGRESS = ", ".join(f"p.{column}" for column in COLUMNS)
"""`COLUMNS` of a line `p` of the view, as `progress_of` reads them."""


def progress_of(columns: Sequence[Any]) -> RowProgress:
    """Return the progress that `COLUMNS` hold."""
    return RowProgress(columns[0], Standing(STATES[columns[1]], *columns[2:5]), *columns[5:])


def columns_of(progress: RowProgress) -> tuple[Any, ...]:
    """Return a progress as stored, in the order of `COLUMNS`."""
    order_id, standing, *further = progress
    return (
        *(order_id, standing.state, standing.attempt, standing.generation, standing.possible_duplicate_of),
        *further,
    )


def waits_for_quarantine(standing: Standing, error_code: str | None) -> bool:
    """Whether a row was rejected by a word that came neither from the gateway nor with proof: it may be paid."""
    return standing.is_rejected_by_word and error_code != PROVEN_STATEMENT


def advance(before: RowProgress, fact: Fact, attempt: int, at: str) -> RowProgress | IllegalMove:
    """Return the progress after `fact`, which is about attempt number `attempt` and was recorded at `at`.

    Beyond the rules of the state machine, an intent is illegal under any order id but the next one.
    """
    after = step(before.standing, fact, attempt)
    if isinstance(after, IllegalMove):
        return after
    match fact:
        case Intended():
            if fact.order_id != before.order_id:
                return IllegalMove(before.standing.state, before.standing.attempt, FactKind.INTENDED, attempt)
            return RowProgress(
                order_id=before.order_id,
                standing=after,
                inherited_attempts=before.inherited_attempts,
                sent_orderid=fact.order_id,
                purpose=fact.purpose,
                intended_at=at,
                first_sent_at=before.first_sent_at,
                updated_at=at,
            )
        case Concluded():
            return _concluded(before, after, fact.outcome, at)
        case Interrupted():
            return before._replace(
                standing=after,
                error_code="interrupted",
                message=message_of(fact),
                first_sent_at=before.first_sent_at or before.intended_at,
                updated_at=at,
            )
        case Resolved():
            is_proven = fact.resolution is Resolution.REJECTED and fact.basis is Basis.GATEWAY
            code = PROVEN_STATEMENT if is_proven else None
            return before._replace(standing=after, error_code=code, message=message_of(fact), updated_at=at)
        case Released():
            return before._replace(
                standing=after, order_id=fact.order_id, error_code=None, message=message_of(fact), updated_at=at
            )
        case Returned():
            return before._replace(standing=after, error_code=None, message=message_of(fact), updated_at=at)
        case Replaced():
            return before._replace(standing=after, message=message_of(fact), updated_at=at)
        case _:
            assert_never(fact)


def message_of(fact: Fact) -> str | None:
    """Return the message of a row that `fact` moved, or None."""
    match fact:
        case Intended():
            return None
        case Concluded():
            return _message(fact.outcome)
        case Interrupted():
            return kept(kind_of(fact))
        case Resolved():
            return storable(kept(kind_of(fact), fact.by, fact.evidence))
        case Released():
            return storable(kept(kind_of(fact), fact.by))
        case Returned():
            return storable(kept(kind_of(fact), fact.evidence))
        case Replaced():
            return kept(kind_of(fact), fact.row, fact.batch)
        case _:
            assert_never(fact)


def _concluded(before: RowProgress, after: Standing, outcome: Outcome, at: str) -> RowProgress:
    left = outcome.kind is not _NOT_SENT
    return RowProgress(
        order_id=before.order_id,
        standing=after,
        inherited_attempts=before.inherited_attempts,
        sent_orderid=before.sent_orderid,
        purpose=before.purpose,
        gateway_status=_storable(outcome.gateway_status) or before.gateway_status,
        gateway_reference=_storable(outcome.gateway_reference) or before.gateway_reference,
        http_status=before.http_status if outcome.http_status is None else outcome.http_status,
        error_code=_storable(outcome.cause or outcome.error_code),
        message=_message(outcome),
        intended_at=before.intended_at,
        first_sent_at=before.first_sent_at or before.intended_at if left else before.first_sent_at,
        updated_at=at,
    )


def _message(outcome: Outcome) -> str | None:
    """Return the gateway's message, else ours, else None."""
    if outcome.message:
        return _storable(kept_text(outcome.message))
    if outcome.kind is _UNKNOWN or outcome.kind is _NOT_SENT:
        return storable(kept(outcome.kind, outcome.cause or None))
    return None


def _storable(text: str | None) -> str | None:
    """Return `text` as a database can store it: a gateway may send half a surrogate pair, which is not text."""
    return text if text is None or text.isascii() else storable(text)


def storable(text: str) -> str:
    """Return `text` with `?` for each character that UTF-8 cannot encode (half a surrogate pair, odd file names)."""
    return text.encode("utf-8", "replace").decode()


def amendable(standing: Standing) -> bool:
    """Whether an amended row may replace the payment: it is rejected, or no attempt of it can have been paid.

    A row that a person called not received is neither: it may have been paid all the same. For a row that a person
    called rejected, the quarantine must be over as well: `is_in_quarantine`.
    """
    return standing.state is State.REJECTED or (
        standing.state is State.READY and standing.possible_duplicate_of is None
    )


def succeed(replaced: RowProgress) -> RowProgress:
    """Return the first progress of an amended row: numbering and order id of the payment it replaces, no evidence."""
    return RowProgress(
        order_id=replaced.order_id, standing=replaced.standing, inherited_attempts=replaced.standing.attempt
    )


def next_order_id(client_orderid: str, progress: RowProgress, *, suffix: bool, is_used: Callable[[str], bool]) -> str:
    """Return the order id of a released row's next attempt: the same again, or the next suffix that was never used."""
    if not suffix:
        return progress.order_id
    generation = progress.standing.generation + 1
    while is_used(attempt_order_id(client_orderid, generation)):
        generation += 1
    return attempt_order_id(client_orderid, generation)


def row_standing(
    row: int, instruction: int, client_orderid: str, country: str, currency: str, minor: int, progress: RowProgress
) -> RowState:
    """Return the standing of a row as people read it; the message of a possible duplicate is always marked."""
    standing = progress.standing
    in_flight = standing.state is State.IN_FLIGHT
    return RowState(
        row=row,
        instruction=instruction,
        attempt=standing.attempt,
        client_orderid=client_orderid,
        country=country,
        currency=currency,
        minor=minor,
        state=standing.state,
        attempts=standing.attempt - progress.inherited_attempts,
        sent_orderid=progress.sent_orderid,
        purpose=progress.purpose,
        gateway_status=progress.gateway_status,
        gateway_reference=progress.gateway_reference,
        http_status=progress.http_status,
        error_code=progress.error_code,
        message=with_duplicate(progress.message, standing.possible_duplicate_of),
        possible_duplicate_of=standing.possible_duplicate_of,
        first_sent_at=progress.first_sent_at or (progress.intended_at if in_flight else None),
        updated_at=progress.updated_at,
        intended_at=progress.intended_at,
        quarantined_since=progress.quarantined_since,
    )


StoredFact = tuple[int, str, str, int, str | None, str]
"""A stored fact about an instruction: number, time, kind, attempt, the state it contradicts, details."""


class NamedReply(NamedTuple):
    """A fact, by its position among those of its instruction (from 0), and the SHA-256 of the reply that it names."""

    place: int
    seq: int
    sha256: str


class Replayed(NamedTuple):
    """Holds the results of replaying an instruction: its progress, its order ids, the named replies."""

    progress: RowProgress
    order_ids: set[str]
    replies: Sequence[NamedReply]


@dataclass(slots=True)
class _Handover:
    """The progress and order ids that a replaced instruction left to its successor."""

    progress: RowProgress
    order_ids: set[str]
    batch: str
    row: int


class InstructionReplay:
    """Replays instructions one after another, in the order of their numbers, and counts facts that contradict."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._handovers: dict[int, _Handover] = {}

    def replay(
        self,
        number: int,
        row: int,
        batch: str,
        client_orderid: str,
        replaces: int | None,
        facts: Iterable[StoredFact],
    ) -> Replayed:
        """Replay `facts` in order. Raises `JournalCorrupt` for one that was never appended so."""
        progress, order_ids = self._start(client_orderid, replaces, batch, row)
        replies = []
        for place, (seq, at, kind, attempt, contradicts, details) in enumerate(facts):
            try:
                fact = decode(kind, details)
            except JournalCorrupt as error:
                raise JournalCorrupt(say("Fact {number}: {reason}", number=seq, reason=error.message)) from None
            if isinstance(fact, Concluded) and fact.outcome.reply_sha256 is not None:
                replies.append(NamedReply(place, seq, fact.outcome.reply_sha256))
            after = advance(progress, fact, attempt, at)
            if isinstance(after, IllegalMove):
                if contradicts != after.state.value:
                    raise JournalCorrupt(
                        say("Fact {fact} does not fit the state of instruction {number}.", fact=seq, number=number)
                    )
                self._counts["contradictions"] += 1
                continue
            if contradicts is not None:
                raise JournalCorrupt(
                    say(
                        "Fact {fact} fits the state of instruction {number}, but is marked as a contradiction.",
                        fact=seq,
                        number=number,
                    )
                )
            if isinstance(fact, Released):
                order_ids.add(fact.order_id)
            if isinstance(fact, Replaced):
                moved = {client_orderid, progress.order_id}
                order_ids -= moved
                self._handovers[number] = _Handover(progress, moved, fact.batch, fact.row)
            progress = after
        return Replayed(progress, order_ids, replies)

    def _start(self, client_orderid: str, replaces: int | None, batch: str, row: int) -> tuple[RowProgress, set[str]]:
        """Return an instruction's initial progress, and its own order ids."""
        if replaces is None:
            return RowProgress(client_orderid), {client_orderid}
        handover = self._handovers.pop(replaces, None)
        if handover is None or (handover.batch, handover.row) != (batch, row):
            raise JournalCorrupt(
                say(
                    "Row {row} of batch {batch} replaces instruction {number}, but no fact records that.",
                    row=row,
                    batch=batch,
                    number=replaces,
                )
            )
        return succeed(handover.progress), handover.order_ids


class LinesByInstruction:
    """Groups lines by their first column, an instruction's number; groups are requested in ascending order."""

    def __init__(self, lines: Iterator[tuple[Any, ...]], what: str) -> None:
        self._lines = lines
        self._next = next(lines, None)
        self._what = what

    def of(self, number: int) -> list[tuple[Any, ...]]:
        """Return the lines of instruction `number`, without that number.

        Raises `JournalCorrupt` if lines of another instruction were skipped.
        """
        group = []
        line = self._next
        while line is not None and line[0] == number:
            group.append(line[1:])
            line = next(self._lines, None)
        self._next = line
        if line is not None and line[0] < number:
            self.end()
        return group

    def end(self) -> None:
        """Raise `JournalCorrupt` if lines are left."""
        if self._next is not None:
            raise JournalCorrupt(
                say(
                    "{line} refers to instruction {number}, which the journal does not have.",
                    line=say(self._what),
                    number=self._next[0],
                )
            )
