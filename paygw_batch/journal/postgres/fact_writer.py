"""Adds facts to this process's chain and finds out whether an unacknowledged commit succeeded.

A run adds each group of facts in one call. People's decisions and evidence require the decision lock, and are written
in transactions of several statements.
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
    Heartbeat,
    OwnProcess,
    dead_processes,
    decision_lock_error,
    deregister,
    enrol,
)
from paygw_batch.journal.sent_log import attempts_to_log
from paygw_batch.journal.values import ConcurrentNote, Entry, Identity, Link, MoveResult, Remark
from paygw_batch.language import say

T = TypeVar("T")

COMMIT_FACTS = "SELECT * FROM commit_facts(%s, %s, %s, %s::json, %s::json, %s::json)"
"""Parameters: a process, the end of its chain (seq and hash), and the facts, their personal data and raw replies as
lists of objects keyed by column. Returns each fact's seq, number and time, and whether it moved its row."""
_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

FENCED, MOVED, HELD, RUN_FINISHED, STOPPED = "PW001", "PW002", "PW004", "PW005", "PW006"
"""The error codes of a refused call. In order: the chain ends elsewhere, or another process has the decision lock; a
fact does not fit its row; evidence holds a row; this process's run has ended; no worker may send."""
_FORGED = "PW010"
NOT_FINISHED = "PW013"
"""The error code if people in a batch may not be forgotten, because it is unfinished or a row has just moved."""
DEADLOCK = "40P01"
_MAX_TRIES = 5
_MAX_DEADLOCKS = 10
_DEADLOCK_PAUSE_S = 0.02
"""The pause after the first deadlock, which grows with each one. The server takes a second to detect a deadlock."""
_CHUNK_SIZE = 1_000
_NOTES_COMMAND = "beside a run"


@dataclass(frozen=True, slots=True)
class StagedFacts:
    """Facts ready to commit: all values for `COMMIT_FACTS` except the process, and the chain's end before and after."""

    values: tuple[int, bytes, str, str, str]
    before: Link
    end: Link


def stage_facts(entries: Sequence[Entry | Remark], end: Link) -> StagedFacts:
    lines, personal_lines = chain_facts(entries, end, new_salt)
    personal_data = [{**line._asdict(), "salt": _hex(line.salt)} for line in personal_lines]
    replies = [
        {"seq": line.seq, "head": _hex(entry.reply.head.encode()), "body": _hex(entry.reply.body)}
        for entry, line in zip(entries, lines, strict=True)
        if isinstance(entry, Entry) and entry.reply is not None
    ]
    facts, last = [_fact_object(line) for line in lines], lines[-1]
    values = (end.seq, end.hash, _encode_json(facts), _encode_json(personal_data), _encode_json(replies))
    return StagedFacts(values, end, Link(last.seq, last.hash, last.at))


def _fact_object(line: Line) -> Mapping[str, Any]:
    columns = zip(Line._fields, line, strict=True)
    return {name: _hex(value) if isinstance(value, bytes) else value for name, value in columns if value is not None}


def _hex(content: bytes) -> str:
    return f"\\x{content.hex()}"


class FactWriter:
    """Writes one process's facts. Not thread-safe."""

    def __init__(
        self, guarded: GuardedSession, own: OwnProcess, heartbeat: Heartbeat, identity: Identity, intent_lives_s: float
    ) -> None:
        self._guarded, self._own, self._heartbeat = guarded, own, heartbeat
        self._tables = PostgresTables(lambda: guarded.connection, identity)
        self._send_within_s = intent_lives_s / 2
        self._newest_fact = 0
        """The number of the newest fact in the open decision transaction."""
        self.has_decision_lock = False
        self.is_stopped = False
        """Whether this process's run has ended, so that it may send no more rows."""

    @property
    def process(self) -> int:
        return self._own.number

    def shorten_waits(self) -> None:
        self._guarded.shorten_waits()

    def retry(self, call: Callable[[Connection[Row]], T], *, is_long: bool = False) -> T:
        with self._guarded.disabling_writes_on_failure():
            return self._guarded.retry(lambda: call(self._guarded.connection), is_long=is_long)

    def mark_interrupted(self, at: str) -> int:
        """Mark rows in flight as in doubt if no live process is sending them. Returns their number.

        Must not be called while this process is sending.
        """
        self._guarded.require_writable()
        in_flight = self.retry(
            lambda connection: self._tables.run("left_in_flight", dead=[self.process, *dead_processes(connection)]),
            is_long=True,
        )
        entries = [Entry(number, attempt, Interrupted(), max(at, sent_at)) for number, attempt, sent_at in in_flight]
        starts = range(0, len(entries), _CHUNK_SIZE)
        results = [result for start in starts for result in self.append(entries[start : start + _CHUNK_SIZE])]
        return results.count(MoveResult.MOVED)

    def close(self) -> None:
        """Deregister this process. The next process marks any rows still in flight as in doubt."""
        try:
            self._heartbeat.close()
            # Without this, the process would count as alive for a while.
            if self._guarded.connection.closed:
                self._guarded.session.reconnect()
            with time_limit(self._guarded.connection, self._guarded.session.server.commit_limit_s):
                deregister(self._guarded.connection, self.process)
        except (psycopg.Error, JournalError):
            return  # without a heartbeat, this process counts as dead after a while
        finally:
            self._guarded.close()

    def acquire_decision_lock(self) -> None:
        """Acquire the decision lock. Raises `JournalHeld` if another process has it."""
        guarded = self._guarded
        with guarded.disabling_writes_on_failure():
            self.has_decision_lock = guarded.retry(lambda: acquire_decision_lock(guarded.connection, self.process))
        if not self.has_decision_lock:
            raise decision_lock_error(guarded.connection)

    def release_decision_lock(self) -> None:
        """Release the decision lock, which must be reacquired before more decisions are recorded."""
        self.has_decision_lock = False
        self.retry(lambda connection: fetch(connection, "SELECT leave_desk(%s)", (self.process,)))

    @contextmanager
    def decision_transaction(self) -> Iterator[Connection[Row]]:
        """Run the block in a transaction under the decision lock, commit it durably, and log the commit."""
        self._guarded.require_writable()
        connection = self._guarded.connection
        original_end, self._newest_fact = self._own.end, 0
        try:
            fetch(connection, "BEGIN")
            if fetch(connection, "SELECT hold_desk(%s)", (self.process,)) != [(True,)]:
                raise _takeover_error()  # noqa: TRY301 - the handler below rolls the transaction back
            yield connection
            self._commit_decisions(original_end)
        except BaseException as error:
            self._roll_back()
            self._own.end = original_end
            if isinstance(error, psycopg.Error):
                raise self._decision_error(error) from None
            raise
        # Logged after the commit, because a line without its commit would make this database look like an older copy.
        if self._own.end.seq != original_end.seq:
            self._guarded.log_commit(self._newest_fact, self._own.end)

    def advance_time(self, at: str) -> None:
        """Ensure that later facts are not dated before `at`."""
        self._own.end = self._own.end._replace(at=max(self._own.end.at, at))

    def record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        """Add facts in the open transaction. Returns each fact's number and time, and whether it moved its row."""
        if not entries:
            return []
        staged = stage_facts(entries, self._own.end)
        added = self._add_facts(staged)
        self._own.end = staged.end
        self._newest_fact = added[-1][1]
        return [(number, at, has_moved) for _, number, at, has_moved in added]

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Store facts durably in one call and move their instructions. Returns each fact's effect.

        An intent's effect is HELD if its instruction is held or this process may no longer send, because its run has
        ended or all workers were stopped.
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
                with self._guarded.disabling_writes_on_failure():
                    committed = self._try_commit([entries[i] for i in remaining])
            except JournalError:
                self._log_unsent(entries)
                raise
            if not isinstance(committed, _Refusal):
                moves = (MoveResult.MOVED if has_moved else MoveResult.NOT_MOVED for has_moved in committed)
                results |= dict(zip(remaining, moves, strict=True))
                break
            results |= {
                i: committed.result
                for i in remaining
                if entries[i].instruction in committed.numbers and isinstance(entries[i].fact, Intended | Interrupted)
            }
        else:
            raise self._guarded.disable_writes(say("another process keeps changing the rows"))
        return [results[i] for i in range(len(entries))]

    def may_send(self, age_s: float) -> bool:
        """Return whether a row may still be sent, given that its intent was passed to `append` `age_s` seconds ago.

        Other processes mark the row as in doubt only if this one had no heartbeat for twice the time allowed here. The
        intent's commit counted as a heartbeat.
        """
        return not self._guarded.has_failed and age_s < self._send_within_s

    def _try_commit(self, entries: Sequence[Entry]) -> "Sequence[bool] | _Refusal":
        """Try to commit facts. Returns whether each moved its row, or why the database refused the commit."""
        staged = stage_facts(entries, self._own.end)
        deadlocks = 0
        while True:
            try:
                added = self._commit(staged)
            except psycopg.errors.Error as error:
                if error.sqlstate == DEADLOCK and deadlocks < _MAX_DEADLOCKS:  # the server rolled the whole call back
                    deadlocks += 1
                    time.sleep(_DEADLOCK_PAUSE_S * deadlocks)
                    continue
                return self._parse_refusal(error, entries)
            if added is not None:
                self._own.end = staged.end
                # Attempts are logged before any is sent, so only logged ones can have been sent before a failover.
                moved = [entry for entry, (*_, has_moved) in zip(entries, added, strict=True) if has_moved]
                self._guarded.log_commit(added[-1][1], staged.end, attempts_to_log(moved))
                return [has_moved for *_, has_moved in added]

    def _parse_refusal(self, error: psycopg.Error, entries: Sequence[Entry]) -> "_Refusal":
        """Convert an error to a refusal, or re-raise it if it is not one. Sets `is_stopped` if the run has ended."""
        if error.sqlstate in {HELD, MOVED}:
            numbers = frozenset(map(int, (error.diag.message_detail or "").split()))
            return _Refusal(numbers, MoveResult.HELD if error.sqlstate == HELD else MoveResult.NOT_MOVED)
        if error.sqlstate == _FORGED:
            raise InternalError(error_reason(error)) from None
        if error.sqlstate not in {RUN_FINISHED, STOPPED}:
            raise error
        self.is_stopped |= error.sqlstate == RUN_FINISHED
        intents = (entry.instruction for entry in entries if isinstance(entry.fact, Intended))
        return _Refusal(frozenset(intents), MoveResult.HELD)

    def _commit(self, staged: StagedFacts) -> list[Row] | None:
        """Commit facts and return them, or None if the commit certainly failed and can be repeated."""
        guarded = self._guarded
        with guarded.confirming_commit():
            try:
                with time_limit(guarded.connection, guarded.session.server.commit_limit_s):
                    return self._add_facts(staged)
            except psycopg.Error as error:
                if error.sqlstate != FENCED:
                    if not guarded.is_disconnect(error):
                        raise
                    # Although its response was lost, the commit may have succeeded, or may still do so. Repeating it
                    # could write intents twice, and assuming failure would leave rows in flight. The end of the chain
                    # shows whether it succeeded, and lets only one of two identical calls succeed.
                    guarded.reconnect()
                if self._is_committed(staged.before, staged.end):
                    return self._find_added_facts(staged)
                if error.sqlstate == FENCED:
                    raise InternalError("a commit was refused although its chain has not changed") from None
                return None

    def _commit_decisions(self, before: Link) -> None:
        """Commit the decision transaction. If the response is lost, find out whether the commit succeeded."""
        guarded, end = self._guarded, self._own.end
        with guarded.confirming_commit():
            try:
                fetch(guarded.connection, "COMMIT")
            except psycopg.Error as error:
                if not guarded.is_disconnect(error):
                    raise
                guarded.reconnect()
                # A transaction without facts does not change the chain, so its commit cannot be confirmed.
                if end.seq == before.seq or not self._is_committed(before, end):
                    raise

    def _add_facts(self, staged: StagedFacts) -> list[Row]:
        return fetch(self._guarded.connection, COMMIT_FACTS, (self.process, *staged.values))

    def _find_added_facts(self, staged: StagedFacts) -> list[Row]:
        """Return the result of `_add_facts` for facts that were committed without a response."""
        query = """SELECT f.seq, f.number, f.at, c.fact IS NULL FROM fact f
            LEFT JOIN contradiction c ON c.fact = f.number
            WHERE f.process = %s AND f.seq > %s AND f.seq <= %s ORDER BY 1"""
        return fetch(self._guarded.connection, query, (self.process, staged.before.seq, staged.end.seq))

    def _is_committed(self, before: Link, after: Link) -> bool:
        """Return whether the chain ends at `after` and not at `before`. Raises `JournalTooOld` for any other end."""
        query = "SELECT head_seq, head_hash FROM process WHERE number = %s"
        end = fetch(self._guarded.connection, query, (self.process,))
        # The end that was read may exist only on this server. If a standby without the commit took over, its rows would
        # be sent again. So a later write is made durable before the result is used.
        self._guarded.flush()
        if end == [(after.seq, after.hash)]:
            return True
        if end == [(before.seq, before.hash)]:
            return False
        self._guarded.disable_writes(say("the database is an older copy"))
        raise JournalTooOld(
            say("The database is an older copy: commits from this process are missing."),
            hint=say("Nothing more was sent. Restore the database's newest data before you continue."),
        )

    def _log_unsent(self, entries: Sequence[Entry]) -> None:
        unsent = [attempt for attempt in attempts_to_log(entries) if attempt.order_id is None]
        if unsent:
            with suppress(JournalError):  # if logging fails too, the attempts are merely in doubt
                self._guarded.log_unsent(unsent)

    def _decision_error(self, error: psycopg.Error) -> JournalError | InternalError:
        if error.sqlstate in {MOVED, DEADLOCK, NOT_FINISHED}:
            return StaleRows()
        if error.sqlstate == FENCED:
            return _takeover_error()
        return self._guarded.disable_writes(error_reason(error))

    def _roll_back(self) -> None:
        connection = self._guarded.connection
        if connection.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}:
            try:
                connection.rollback()
            except psycopg.Error as error:
                self._guarded.disable_writes(error_reason(error))


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The instructions whose facts the database refused, and the effect to report for these facts."""

    numbers: frozenset[int]
    result: MoveResult


def acquire_decision_lock(connection: Connection[Row], process: int) -> bool:
    """Acquire the decision lock unless another live process has it. Returns whether `process` now has it."""
    query = "SELECT take_desk(%s, %s)"
    return fetch(connection, query, (process, dead_processes(connection))) == [(True,)]


class ConcurrentNoteWriter:
    """Writes notes to its own chain, because a run may hold the decision lock for hours. Unusable after an error."""

    def __init__(self, connection: Connection[Row], identity: Identity, intent_lives_s: float) -> None:
        self._connection, self._evidence = connection, evidence_log(connection, identity)
        own = enrol(connection, command=_NOTES_COMMAND, kind=HolderKind.LISTENER, intent_lives_s=intent_lives_s)
        self._process, self._number, self.end = own.number, 0, own.end

    def record_notes(self, notes: Sequence[ConcurrentNote]) -> tuple[int, str, str]:
        """Record notes in one transaction. Returns the last one's number, hash and time."""
        with self._connection.transaction():
            self._evidence.record_notes(self._record, *notes)
        return self._number, *self.end.log_fields[1:]

    def close(self) -> None:
        with suppress(psycopg.Error):  # without a heartbeat, this process counts as dead after a while
            deregister(self._connection, self._process)

    def _record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        staged = stage_facts(entries, self.end)
        results = [line[1:] for line in fetch(self._connection, COMMIT_FACTS, (self._process, *staged.values))]
        self._number, self.end = results[-1][0], staged.end
        return results


def _repeated_intents(entries: Iterable[Entry]) -> Iterator[int]:
    """Yield the index of each intent for the same attempt as an earlier one."""
    attempts = set[tuple[int, int]]()
    for index, entry in enumerate(entries):
        if isinstance(entry.fact, Intended):
            if (entry.instruction, entry.attempt) in attempts:
                yield index
            attempts.add((entry.instruction, entry.attempt))


def _takeover_error() -> JournalError:
    return JournalError(
        say("Another process has taken over the journal, because this process was silent for too long."),
        hint=say("Run the same command again. Everything that was recorded is kept."),
    )
