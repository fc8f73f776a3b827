"""Adds facts to this process's chain and finds out whether an unanswered commit succeeded.

A run adds each group of facts with one call. People's decisions and evidence need the decision lock, and are
written in transactions of several statements.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from paygw_batch.core.lifecycle import Intended, Interrupted
from paygw_batch.errors import HolderKind, InternalError, JournalError, JournalTooOld, StaleRows
from paygw_batch.journal.facts import Line, chain_facts
from paygw_batch.journal.new_batch import new_salt
from paygw_batch.journal.postgres.guarded_session import GuardedSession
from paygw_batch.journal.postgres.session import PostgresTables, Row, error_reason, evidence_log, fetch, time_limit
from paygw_batch.journal.postgres.workers import (
    OwnProcess,
    SignsOfLife,
    dead_processes,
    decision_lock_error,
    end_life,
    enrol,
)
from paygw_batch.journal.sent_log import attempts_to_log
from paygw_batch.journal.values import ConcurrentNote, Entry, Identity, Link, MoveResult, Remark
from paygw_batch.language import say

T = TypeVar("T")

CALL = "SELECT * FROM commit_facts(%s, %s, %s, %s::json, %s::json, %s::json)"
"""Commits facts. The values are a process, the end of its chain (seq and hash), facts, their personal data, and raw
replies; the last three are lists of objects with the names of columns. Returns for each fact its seq, its number, its
time, and whether it moved its row."""
_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

FENCED, MOVED, HELD, RUN_OVER, STOPPED = "PW001", "PW002", "PW004", "PW005", "PW006"
"""The error codes with which the call is refused. In order: the chain has another end, or another process has the
decision lock; a fact does not fit its row; evidence holds a row; this process's run is over; no worker may send."""
_FORGED = "PW010"
NOT_OVER = "PW013"
"""The error code if people of a batch may not be forgotten: it is not over, or a row has moved since it was read."""
DEADLOCK = "40P01"
"""The error code if two processes waited for each other's rows and the server rolled this call back."""
_MAX_TRIES = 5
_MAX_DEADLOCKS = 10
_AFTER_DEADLOCK_S = 0.02
"""The pause after a deadlock; it grows with each. The server takes a second to detect a deadlock."""
_CHUNK_SIZE = 1_000
_NOTES_COMMAND = "beside a run"


@dataclass(frozen=True, slots=True)
class StagedFacts:
    """Facts ready to be committed: the values of `CALL` after the process, and the chain's ends before and after."""

    values: tuple[int, bytes, str, str, str]
    before: Link
    end: Link


def stage_facts(entries: Sequence[Entry | Remark], end: Link) -> StagedFacts:
    lines, texts = chain_facts(entries, end, new_salt)
    text_objects = [{**text._asdict(), "salt": _hex(text.salt)} for text in texts]
    replies = [
        {"seq": line.seq, "head": _hex(entry.reply.head.encode()), "body": _hex(entry.reply.body)}
        for entry, line in zip(entries, lines, strict=True)
        if isinstance(entry, Entry) and entry.reply is not None
    ]
    last = lines[-1]
    facts = [_fact_object(line) for line in lines]
    values = (end.seq, end.hash, _encode_json(facts), _encode_json(text_objects), _encode_json(replies))
    return StagedFacts(values, end, Link(last.seq, last.hash, last.at))


def _fact_object(line: Line) -> Mapping[str, Any]:
    """Return a line as an object for the table, whose columns are named like the fields of `Line`."""
    columns = zip(Line._fields, line, strict=True)
    return {name: _hex(value) if isinstance(value, bytes) else value for name, value in columns if value is not None}


def _hex(content: bytes) -> str:
    """Return bytes in the database's hex format."""
    return f"\\x{content.hex()}"


class FactWriter:
    """Writes the facts of one process. Called from one thread at a time."""

    def __init__(
        self, guarded: GuardedSession, own: OwnProcess, signs: SignsOfLife, identity: Identity, intent_lives_s: float
    ) -> None:
        self._guarded, self._own_process, self._signs_of_life = guarded, own, signs
        self._tables = PostgresTables(lambda: guarded.connection, identity)
        self._send_within_s = intent_lives_s / 2
        self._newest = 0
        """The number of the newest fact of the open decision transaction."""
        self.has_decision_lock = False
        """Whether this process has the decision lock, as far as it knows."""
        self.is_stopped = False
        """Whether the run of this process is over, so that none of its rows may be sent any more."""

    @property
    def process(self) -> int:
        return self._own_process.number

    def shorten_waits(self) -> None:
        """Wait only briefly for an unresponsive server from now on."""
        self._guarded.shorten_waits()

    def ask(self, call: Callable[[Connection[Row]], T], *, is_long: bool = False) -> T:
        """Make a repeatable call, on a new connection if the old one is lost."""
        with self._guarded.barring_on_failure():
            return self._guarded.retry(lambda: call(self._guarded.connection), is_long=is_long)

    def mark_interrupted(self, at: str) -> int:
        """Put in-flight rows that no live process is sending in doubt, and return their number.

        Do not call it while this process is sending. Other live processes' rows do not change.
        """
        self._guarded.require_writable()
        in_flight = self.ask(
            lambda connection: self._tables.run("left_in_flight", dead=[self.process, *dead_processes(connection)]),
            is_long=True,
        )
        entries = [Entry(number, attempt, Interrupted(), max(at, sent_at)) for number, attempt, sent_at in in_flight]
        results = [
            result
            for start in range(0, len(entries), _CHUNK_SIZE)
            for result in self.append(entries[start : start + _CHUNK_SIZE])
        ]
        return results.count(MoveResult.MOVED)

    def close(self) -> None:
        """Sign off. The next process puts rows in flight in doubt."""
        try:
            self._signs_of_life.close()
            # Without a connection to sign off, this process would count as alive for a while.
            if self._guarded.connection.closed:
                self._guarded.session.reconnect()
            with time_limit(self._guarded.connection, self._guarded.session.server.commit_limit_s):
                end_life(self._guarded.connection, self._own_process.number)
        except (psycopg.Error, JournalError):
            return  # without signs of life, this process counts as dead after a while
        finally:
            self._guarded.close()

    def acquire_decision_lock(self) -> None:
        """Acquire the decision lock. Raises `JournalHeld` if another process has it."""
        guarded = self._guarded
        with guarded.barring_on_failure():
            self.has_decision_lock = guarded.retry(
                lambda: acquire_decision_lock(guarded.connection, self._own_process.number)
            )
        if not self.has_decision_lock:
            raise decision_lock_error(guarded.connection)

    def release_decision_lock(self) -> None:
        """Release the decision lock, which must be reacquired before further decisions."""
        self.has_decision_lock = False
        self.ask(lambda connection: fetch(connection, "SELECT leave_desk(%s)", (self._own_process.number,)))

    @contextmanager
    def decision_transaction(self) -> Iterator[Connection[Row]]:
        """Run one transaction under the decision lock: durable and in the sent log at the end, or rolled back."""
        self._guarded.require_writable()
        connection = self._guarded.connection
        before, self._newest = self._own_process.end, 0
        try:
            fetch(connection, "BEGIN")
            if fetch(connection, "SELECT hold_desk(%s)", (self._own_process.number,)) != [(True,)]:
                raise _takeover_error()  # noqa: TRY301 - the handler below rolls the transaction back
            yield connection
            self._commit_decisions(before)
        except BaseException as error:
            self._roll_back()
            self._own_process.end = before
            if isinstance(error, psycopg.Error):
                raise self._decision_error(error) from None
            raise
        # The log line follows the commit, because a line without its commit would make this database look like a copy.
        if self._own_process.end.seq != before.seq:
            self._guarded.log_commit(self._newest, self._own_process.end)

    def advance_time(self, at: str) -> None:
        """Date all later facts at or after `at`."""
        self._own_process.end = self._own_process.end._replace(at=max(self._own_process.end.at, at))

    def record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        """Add facts to the open transaction. Returns each one's number, time, and whether it moved its row."""
        if not entries:
            return []
        staged = stage_facts(entries, self._own_process.end)
        added = self._call(staged)
        self._own_process.end = staged.end
        self._newest = added[-1][1]
        return [(number, at, has_moved) for _, number, at, has_moved in added]

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Store facts durably in one call and move their instructions. Returns each fact's effect.

        An intent is also HELD if this process may no longer send: the run is over, or a worker stopped all workers.
        """
        if not entries:
            return []
        self._guarded.require_writable()
        results = dict.fromkeys(_repeated_intents(entries), MoveResult.NOT_MOVED)
        for _ in range(_MAX_TRIES):
            if self.is_stopped:
                results |= {i: MoveResult.HELD for i, entry in enumerate(entries) if isinstance(entry.fact, Intended)}
            remaining = [i for i in range(len(entries)) if i not in results]
            if not remaining:
                break
            try:
                with self._guarded.barring_on_failure():
                    result = self._try_commit([entries[i] for i in remaining])
            except JournalError:
                self._log_unsent(entries)
                raise
            if not isinstance(result, _Refusal):
                effects = (MoveResult.MOVED if has_moved else MoveResult.NOT_MOVED for has_moved in result)
                results |= dict(zip(remaining, effects, strict=True))
                break
            results |= {
                i: result.result
                for i in remaining
                if entries[i].instruction in result.numbers and isinstance(entries[i].fact, Intended | Interrupted)
            }
        else:
            raise self._guarded.give_up(say("another process keeps changing the rows"))
        return [results[i] for i in range(len(entries))]

    def may_send(self, age_s: float) -> bool:
        """Return whether a row whose intent was passed to `append` `age_s` seconds ago cannot be in doubt yet.

        Another process puts it in doubt only after this one gave no sign of life for twice the time checked here, and
        the commit of the intent was such a sign.
        """
        return not self._guarded.has_failed and age_s < self._send_within_s

    def _try_commit(self, entries: Sequence[Entry]) -> "Sequence[bool] | _Refusal":
        """Commit facts. Returns whether each moved its row, or a refusal with the rows whose facts were not stored."""
        staged = stage_facts(entries, self._own_process.end)
        deadlocks = 0
        while True:
            try:
                added = self._commit(staged)
            except psycopg.errors.Error as error:
                if error.sqlstate == DEADLOCK and deadlocks < _MAX_DEADLOCKS:  # the server rolled the whole call back
                    deadlocks += 1
                    time.sleep(_AFTER_DEADLOCK_S * deadlocks)
                    continue
                return self._refusal(error, entries)
            if added is not None:
                self._finish_commit(staged, entries, added)
                return [has_moved for *_, has_moved in added]

    def _refusal(self, error: psycopg.Error, entries: Sequence[Entry]) -> "_Refusal":
        """Return why a call was refused and record whether the run is over. Re-raises any other error."""
        if error.sqlstate in {HELD, MOVED}:
            numbers = frozenset(map(int, (error.diag.message_detail or "").split()))
            return _Refusal(numbers, MoveResult.HELD if error.sqlstate == HELD else MoveResult.NOT_MOVED)
        if error.sqlstate == _FORGED:
            raise InternalError(error_reason(error)) from None
        if error.sqlstate not in {RUN_OVER, STOPPED}:
            raise error
        self.is_stopped |= error.sqlstate == RUN_OVER
        intents = (entry.instruction for entry in entries if isinstance(entry.fact, Intended))
        return _Refusal(frozenset(intents), MoveResult.HELD)

    def _commit(self, staged: StagedFacts) -> list[Row] | None:
        """Make the committing call. Returns the added facts, or None if it failed and can be repeated."""
        guarded = self._guarded
        with guarded.confirming_commit():
            try:
                with time_limit(guarded.connection, guarded.session.server.commit_limit_s):
                    return self._call(staged)
            except psycopg.Error as error:
                if error.sqlstate != FENCED:
                    if not guarded.is_lost(error):
                        raise
                    # The commit may have succeeded although its answer was lost, or may still succeed. Repeating it
                    # could write intents twice, and assuming that it failed would leave rows in flight. The end of
                    # the chain shows whether it succeeded, and lets only one of two equal calls succeed.
                    guarded.reconnect()
                if self._is_committed(staged.before, staged.end):
                    return self._find_added_facts(staged)
                if error.sqlstate == FENCED:
                    raise InternalError("a commit was refused although its chain has not changed") from None
                return None

    def _commit_decisions(self, before: Link) -> None:
        """Commit the decision transaction. If the server does not answer, find out whether it was committed."""
        guarded, end = self._guarded, self._own_process.end
        with guarded.confirming_commit():
            try:
                fetch(guarded.connection, "COMMIT")
            except psycopg.Error as error:
                if not guarded.is_lost(error):
                    raise
                guarded.reconnect()
                # A transaction without a fact leaves no trace in the chain, so nobody knows whether it was committed.
                if end.seq == before.seq or not self._is_committed(before, end):
                    raise

    def _call(self, staged: StagedFacts) -> list[Row]:
        """Send facts. Returns each one's seq, number, time, and whether it moved its row."""
        return fetch(self._guarded.connection, CALL, (self._own_process.number, *staged.values))

    def _find_added_facts(self, staged: StagedFacts) -> list[Row]:
        """Return the result of `_call` for facts with an unanswered commit."""
        query = """SELECT f.seq, f.number, f.at, c.fact IS NULL FROM fact f
            LEFT JOIN contradiction c ON c.fact = f.number
            WHERE f.process = %s AND f.seq > %s AND f.seq <= %s ORDER BY 1"""
        return fetch(self._guarded.connection, query, (self._own_process.number, staged.before.seq, staged.end.seq))

    def _is_committed(self, before: Link, after: Link) -> bool:
        """Return whether a commit succeeded, by the end of the chain. Raises `JournalTooOld` for any other end."""
        query = "SELECT head_seq, head_hash FROM process WHERE number = %s"
        head = fetch(self._guarded.connection, query, (self._own_process.number,))
        # Only this server may have the end that was read. A standby that takes over now could lack the commit, and its
        # rows would be sent again. So the end is trusted only once a later write is durable.
        self._guarded.flush()
        if head == [(after.seq, after.hash)]:
            return True
        if head == [(before.seq, before.hash)]:
            return False
        self._guarded.give_up(say("the database is an older copy"))
        raise JournalTooOld(
            say("The database is an older copy: it lacks commits of this process."),
            hint=say("Nothing more was sent. Restore the newest data of the database first."),
        )

    def _finish_commit(self, staged: StagedFacts, entries: Sequence[Entry], lines: Sequence[Row]) -> None:
        self._own_process.end = staged.end
        # They are logged before any of them is sent, so after a failover only logged attempts can have been sent.
        moved_entries = [entry for entry, (*_, has_moved) in zip(entries, lines, strict=True) if has_moved]
        self._guarded.log_commit(lines[-1][1], staged.end, attempts_to_log(moved_entries))

    def _log_unsent(self, entries: Sequence[Entry]) -> None:
        """Log unsent attempts, because the database may never receive these facts."""
        unsent = [attempt for attempt in attempts_to_log(entries) if attempt.order_id is None]
        if unsent:
            with suppress(JournalError):  # without a log line, these attempts are in doubt
                self._guarded.log_unsent(unsent)

    def _decision_error(self, error: psycopg.Error) -> JournalError | InternalError:
        if error.sqlstate in {MOVED, DEADLOCK, NOT_OVER}:
            return StaleRows()
        if error.sqlstate == FENCED:
            return _takeover_error()
        return self._guarded.give_up(error_reason(error))

    def _roll_back(self) -> None:
        """Roll back the open transaction. If the connection is lost, the server does it."""
        connection = self._guarded.connection
        if connection.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}:
            try:
                connection.rollback()
            except psycopg.Error as error:
                self._guarded.give_up(error_reason(error))


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A refused commit: the rows whose facts were not stored, and the result for them."""

    numbers: frozenset[int]
    result: MoveResult


def acquire_decision_lock(connection: Connection[Row], process: int) -> bool:
    """Acquire the decision lock unless another live process has it. Returns whether this process has it."""
    query = "SELECT take_desk(%s, %s)"
    return fetch(connection, query, (process, dead_processes(connection))) == [(True,)]


class ConcurrentNoteWriter:
    """Writes notes on a separate chain, because a run may hold the decision lock for hours. Unusable after an error."""

    def __init__(self, connection: Connection[Row], identity: Identity, intent_lives_s: float) -> None:
        self._connection, self._evidence = connection, evidence_log(connection, identity)
        own = enrol(connection, command=_NOTES_COMMAND, kind=HolderKind.LISTENER, intent_lives_s=intent_lives_s)
        self._process, self._number, self.end = own.number, 0, own.end

    def record_notes(self, notes: Sequence[ConcurrentNote]) -> tuple[int, str, str]:
        """Record notes in one transaction. Returns the number, hash and time of the last one."""
        with self._connection.transaction():
            self._evidence.record_notes(self._record, *notes)
        return self._number, *self.end.log_fields[1:]

    def close(self) -> None:
        with suppress(psycopg.Error):  # after a time without a sign, this process counts as dead
            end_life(self._connection, self._process)

    def _record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        staged = stage_facts(entries, self.end)
        added = [line[1:] for line in fetch(self._connection, CALL, (self._process, *staged.values))]
        self._number, self.end = added[-1][0], staged.end
        return added


def _repeated_intents(entries: Iterable[Entry]) -> Iterator[int]:
    """Yield the indexes of intents that repeat an attempt in the same call."""
    attempts = set[tuple[int, int]]()
    for index, entry in enumerate(entries):
        if isinstance(entry.fact, Intended):
            if (entry.instruction, entry.attempt) in attempts:
                yield index
            attempts.add((entry.instruction, entry.attempt))


def _takeover_error() -> JournalError:
    return JournalError(
        say("Another process has taken over the journal, because this one was silent for too long."),
        hint=say("Run the same command again. Everything that was committed is kept."),
    )
