"""Writes facts to the chains that this process leases, and determines the fate of a commit that got no answer.

The facts of a run go to the chains of its chunks, one call for each group. People's decisions and evidence go to the
chain of the desk, in transactions of several statements.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

import psycopg
from psycopg import Connection
from psycopg.pq import TransactionStatus

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.lifecycle import Concluded, Intended, Interrupted
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.errors import HolderKind, InternalError, JournalError, JournalWentBack, RowsMoved
from paygw_batch.journal.guards.left import Noted, noted_of
from paygw_batch.journal.postgres.leasing import leases
from paygw_batch.journal.postgres.leasing.fact_commit import (
    CALL,
    DEADLOCK,
    FENCED,
    HELD,
    MOVED,
    NOT_OVER,
    RUN_OVER,
    STOPPED,
    StagedFacts,
    stage_facts,
)
from paygw_batch.journal.postgres.leasing.guarded_session import GuardedSession
from paygw_batch.journal.postgres.leasing.leases import DESK, Heartbeat, HeldLeases, Lease
from paygw_batch.journal.postgres.lines import chunks_of
from paygw_batch.journal.postgres.session import Row, fetch, limited, reason_of_failure
from paygw_batch.journal.postgres.tables import evidence_in
from paygw_batch.journal.values import Entry, Identity, Link, MoveResult, Remark, Withdrawal
from paygw_batch.language import say

T = TypeVar("T")
CloseChunk = Callable[..., None]
"""Closes a lease on a connection, in one transaction. Keyword arguments: `chunk`, `segment`, `worker`."""

_MAX_TRIES = 5
_MAX_DEADLOCKS = 10
_AFTER_DEADLOCK_S = 0.02
"""The pause before the first try after a deadlock; it grows with each. The server took a second to find it."""
_WITHDRAWING = "withdraw"
_MINE = "SELECT hold_segment(%s, %s, %s)"


class _Fate(Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not_committed"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class _Moved:
    """A commit that was made: whether each fact moved its row."""

    moves: Sequence[bool]


@dataclass(frozen=True, slots=True)
class _Refused:
    """A commit that was not made: the rows whose intents are not kept, and why. Without rows it may be tried again."""

    numbers: frozenset[int]
    result: MoveResult


class ChainWriter:
    """The chains of one process: the desk, its leased chunks, its own. Called from one thread at a time."""

    def __init__(self, guarded: GuardedSession, held: HeldLeases, heartbeat: Heartbeat) -> None:
        self._guarded, self._held, self._heartbeat = guarded, held, heartbeat
        self._chunks: dict[int, int] = {}
        """The chunks of instructions that facts are about."""
        self._newest = 0
        """The number of the newest fact of the open transaction at the desk."""
        self.has_lost = False
        """Whether another process has taken over a lease of this one."""
        self.is_stopped = False
        """Whether the run of this process is over: nothing more of it may be sent."""
        self.known_unsent: AbstractSet[tuple[int, int]] = frozenset()
        """The attempts (instruction, number) of which, by this host's lines, nothing left."""

    @property
    def worker(self) -> int:
        """The number of this process as a worker."""
        return self._held.worker

    @property
    def has_desk(self) -> bool:
        """Whether this process has the desk, as far as it knows."""
        return self._held.desk is not None

    def hurry(self) -> None:
        """From now on, wait only briefly for a server that does not answer."""
        self._guarded.hurry()

    def ask(self, call: Callable[[Connection[Row]], T]) -> T:
        """Make a call that can be repeated; on a new connection if the old one is lost."""
        with self._guarded.failing():
            return self._guarded.again(lambda: call(self._guarded.connection))

    def ask_at_length(self, call: Callable[[Connection[Row]], T]) -> T:
        """Make a call as `ask` does, without its time limit: it may read a whole batch."""
        with self._guarded.failing():
            try:
                return call(self._guarded.connection)
            except psycopg.Error as error:
                if not self._guarded.is_lost(error):
                    raise
                self._guarded.reconnect()
                return call(self._guarded.connection)

    def chunks_of(self, numbers: Sequence[int]) -> Mapping[int, int]:
        """Return the chunk of each instruction."""
        return self.ask(lambda connection: chunks_of(connection, numbers))

    def learn(self, numbers: Iterable[int]) -> None:
        """Find the chunks of instructions before they are sent, so that their intents need no other read."""
        wanted = list(numbers)
        self._chunks.update(self.ask(lambda connection: chunks_of(connection, wanted)))

    def lease_chunks(self, chunks: Iterable[int]) -> frozenset[int]:
        """Take the leases of chunks that no other process has; return all that this one has now."""
        self._guarded.require_writable()
        with self._guarded.failing():
            for chunk in sorted(set(chunks) - self._held.chunks.keys()):
                if (lease := self._taken(chunk, timestamp(utc_now()))) is not None:
                    self._held.chunks[chunk] = lease
        return frozenset(self._held.chunks)

    def conclude(self, at: str) -> int:
        """Put in doubt the rows that this process and dead ones left in flight; count them, and give up all leases.

        The rows of a living process are not touched.
        """
        self._guarded.require_writable()
        self._held.chunks.clear()
        self._chunks.clear()
        interrupted = 0
        with self._guarded.failing():
            query = "SELECT chain FROM segment WHERE sealed_at IS NULL AND chain > 0 ORDER BY chain"
            for (chunk,) in self._guarded.again(lambda: fetch(self._guarded.connection, query)):
                if (lease := self._taken(chunk, at)) is not None:
                    interrupted += lease.end.seq
                    self.ask(partial(leases.seal, segment=lease.segment))
        return interrupted

    def finish(self, chunk: int, numbers: Iterable[int], close: CloseChunk) -> None:
        """Return a chunk by `close`, unless a row of it is in flight; this process writes no more facts of its rows."""
        lease = self._held.chunks[chunk]
        for number in numbers:
            self._chunks.pop(number, None)
        if self.ask(lambda _: self._clear([lease])):
            del self._held.chunks[chunk]
            self.ask(partial(close, chunk=chunk, segment=lease.segment, worker=self._held.worker))

    def give_back(self) -> bool:
        """Return the chunks without rows in flight, and forget all; return whether that was every chunk.

        If this process may no longer send, a row can stay in flight without an answer. The next process that takes its
        chunk puts it in doubt, once this one has signed off.
        """
        held = list(self._held.chunks.values())
        clear = self.ask(lambda _: self._clear(held))
        for segment in clear:
            self.ask(partial(leases.seal, segment=segment))
        self._held.chunks.clear()
        self._chunks.clear()
        return len(clear) == len(held)

    def close(self) -> None:
        """Return all leases. Rows in flight are left to the next process that takes their chunk."""
        try:
            self._heartbeat.close()
            if self._guarded.connection.closed:  # otherwise the leases would still expire, but later
                self._guarded.session.reconnect()
            with limited(self._guarded.connection, self._guarded.session.server.commit_limit_s):
                clear = [] if self._guarded.has_failed else self._clear(self._held.all())
                leases.give_back(self._guarded.connection, clear, self._held.worker)
        except (psycopg.Error, JournalError):
            return  # nothing is lost: the leases expire
        finally:
            self._guarded.close()

    def take_desk(self) -> None:
        """Take the desk. Raises `JournalHeld` if another process has it."""
        with self._guarded.failing():
            self._held.desk = self._taken(DESK)
        if self._held.desk is None:
            raise leases.held_by(self._guarded.connection, DESK)

    def leave_desk(self) -> None:
        """Release the desk to other processes; nothing can be written there until it is taken again."""
        if (desk := self._held.desk) is not None:
            self._held.desk = None
            self.ask(partial(leases.seal, segment=desk.segment))

    @contextmanager
    def at_desk(self) -> Iterator[Connection[Row]]:
        """Run one transaction at the desk: at the end it is durable and noted as left, or has no effect."""
        self._guarded.require_writable()
        desk, connection = self._desk(), self._guarded.connection
        before, self._newest = desk.end, 0
        try:
            fetch(connection, "BEGIN")
            if fetch(connection, _MINE, (desk.segment, before.seq, before.hash)) != [(True,)]:
                raise _taken_over()  # noqa: TRY301 - the transaction is rolled back on the way out
            yield connection
            self._commit_desk(desk, before)
        except BaseException as error:
            self._roll_back()
            desk.end = before
            if isinstance(error, psycopg.Error):
                raise self._failed_at_desk(error) from None
            raise
        if desk.end.seq != before.seq:
            self._guarded.note(self._newest, desk.end)

    def not_before(self, at: str) -> None:
        """Give no fact of the desk a time before `at`."""
        desk = self._desk()
        desk.end = desk.end._replace(at=max(desk.end.at, at))

    def record(self, entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
        """Add facts to the chain of the desk, inside `at_desk`; return number, time and whether it moved its row."""
        if not entries:
            return []
        desk = self._desk()
        staged = stage_facts(entries, lambda _: desk)
        added = self._call(staged)
        desk.end = staged.ends[desk.segment]
        self._newest = added[-1][2]
        return [(number, at, has_moved) for _, _, number, at, has_moved in added]

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one call, and move their instructions; return the effect of each.

        An intent is also HELD if this process may no longer send: a lease was taken over or is too old, the run is
        over, or a worker stopped all workers.
        """
        if not entries:
            return []
        self._guarded.require_writable()
        results = dict.fromkeys(_repeated(entries), MoveResult.NOT_MOVED)
        for _ in range(_MAX_TRIES):
            if self.has_lost or self.is_stopped:
                results |= {at: MoveResult.HELD for at, one in enumerate(entries) if isinstance(one.fact, Intended)}
            places = [at for at in range(len(entries)) if at not in results]
            if not places:
                break
            try:
                with self._guarded.failing():
                    held = self._try([entries[at] for at in places])
            except JournalError:
                self._note_unsent([one for one in entries if _is_unsent(one)])
                raise
            if isinstance(held, _Moved):
                moves = (MoveResult.MOVED if has_moved else MoveResult.NOT_MOVED for has_moved in held.moves)
                results |= dict(zip(places, moves, strict=True))
                break
            results |= {
                at: held.result
                for at in places
                if entries[at].instruction in held.numbers and isinstance(entries[at].fact, Intended)
            }
        else:
            raise self._guarded.give_up(say("another process keeps moving the rows"))
        # Since the commit this process was frozen or cut off, or its lease was taken over.
        if self.has_lost or not self._heartbeat.is_good():
            results |= {at: MoveResult.HELD for at, one in enumerate(entries) if isinstance(one.fact, Intended)}
            self._note_unsent([one for one in entries if isinstance(one.fact, Intended)])
        return [results[at] for at in range(len(entries))]

    def may_leave(self, age_s: float) -> bool:
        """Whether no other process can have the row of an intent that was submitted `age_s` seconds ago.

        Its commit was a sign of life to the database: for the length of the lease from then on nobody takes it over.
        """
        is_ours = not self.has_lost and not self._guarded.has_failed and self._heartbeat.is_good()
        return is_ours and age_s < self._heartbeat.margin_s

    def _try(self, entries: Sequence[Entry]) -> _Moved | _Refused:
        """Commit facts; return whether each moved its row, or the rows whose intents may not be kept."""
        unknown = {entry.instruction for entry in entries} - self._chunks.keys()
        self._chunks.update(self._guarded.again(lambda: chunks_of(self._guarded.connection, unknown)))
        staged = stage_facts(entries, self._lease_of)
        deadlocks = 0
        while True:
            since_s = self._heartbeat.now_s()
            try:
                fate = self._called(staged)
            except psycopg.errors.Error as error:
                if error.sqlstate == DEADLOCK and deadlocks < _MAX_DEADLOCKS:  # all of it was undone
                    deadlocks += 1
                    time.sleep(_AFTER_DEADLOCK_S * deadlocks)
                    continue
                if error.sqlstate != FENCED:
                    return self._refused(error, entries)
                fate = self._fate_of(staged.before, staged.ends)
                if fate is _Fate.NOT_COMMITTED:
                    raise InternalError("a commit was refused although its lease is as it was left") from None
                if fate is _Fate.COMMITTED:  # by a call before this one, whose answer was lost
                    fate = self._added(staged)
            if isinstance(fate, list):
                self._done(staged, entries, fate, since_s)
                return _Moved([has_moved for *_, has_moved in fate])
            if fate is _Fate.FENCED:
                return _Refused(frozenset(), MoveResult.HELD)

    def _refused(self, error: psycopg.Error, entries: Sequence[Entry]) -> _Refused:
        """Record why a call was refused; return the instructions that may not be sent."""
        if error.sqlstate in {HELD, MOVED}:
            numbers = frozenset(map(int, (error.diag.message_detail or "").split()))
            return _Refused(numbers, MoveResult.HELD if error.sqlstate == HELD else MoveResult.NOT_MOVED)
        if error.sqlstate not in {RUN_OVER, STOPPED}:
            raise error
        self.is_stopped |= error.sqlstate == RUN_OVER
        intents = (entry.instruction for entry in entries if isinstance(entry.fact, Intended))
        return _Refused(frozenset(intents), MoveResult.HELD)

    def _called(self, staged: StagedFacts) -> list[Row] | _Fate:
        """Make the call that commits, and return what it added. If no answer comes, determine its fate."""
        guarded = self._guarded
        with guarded.confirmed():
            try:
                with limited(guarded.connection, guarded.session.server.commit_limit_s):
                    return self._call(staged)
            except psycopg.Error as error:
                if not guarded.is_lost(error):
                    raise
                # The commit may have succeeded although its answer was lost. Repeating it could write intents twice;
                # assuming that it failed would leave rows in flight. The ends of the chains show which it was.
                guarded.reconnect()
                fate = self._fate_of(staged.before, staged.ends)
                return self._added(staged) if fate is _Fate.COMMITTED else fate

    def _commit_desk(self, desk: Lease, before: Link) -> None:
        """Commit the transaction at the desk. If no answer comes, determine its fate."""
        guarded = self._guarded
        with guarded.confirmed():
            try:
                fetch(guarded.connection, "COMMIT")
            except psycopg.Error as error:
                if not guarded.is_lost(error):
                    raise
                guarded.reconnect()
                # A transaction without a fact leaves no trace in the chain: nobody knows whether it was committed.
                if desk.end.seq == before.seq:
                    raise
                if self._fate_of({desk.segment: before}, {desk.segment: desk.end}) is not _Fate.COMMITTED:
                    raise

    def _call(self, staged: StagedFacts) -> list[Row]:
        """Send facts to the database: as a commit of their own, or as part of the open transaction.

        Return in their order segment, seq, number and time of each, and whether it moved its row.
        """
        added = fetch(self._guarded.connection, CALL, (self._held.worker, *staged.values))
        return _in_order(staged, added)

    def _added(self, staged: StagedFacts) -> list[Row]:
        """Return the same of facts whose commit was not answered."""
        query = """SELECT f.segment, f.seq, f.number, f.at, c.fact IS NULL FROM fact f
            LEFT JOIN contradiction c ON c.fact = f.number WHERE f.segment = %s AND f.seq > %s AND f.seq <= %s"""
        added: list[Row] = []
        for segment, before in staged.before.items():
            added += fetch(self._guarded.connection, query, (segment, before.seq, staged.ends[segment].seq))
        return _in_order(staged, added)

    def _fate_of(self, before: Mapping[int, Link], after: Mapping[int, Link]) -> _Fate:
        """Determine a commit's fate by the ends of the chains. Raises `JournalWentBack` if they were never there."""
        query = "SELECT number, head_seq, head_hash, sealed_at IS NOT NULL FROM segment WHERE number = ANY (%s)"
        found = {line[0]: line[1:] for line in fetch(self._guarded.connection, query, (list(after),))}
        self._guarded.flush()
        lost = [one for one in after if found.get(one, (0, b"", False))[2]]
        self.has_lost |= bool(lost)
        self._held.lose(lost)
        if all(found.get(one, ())[:2] == (end.seq, end.hash) for one, end in after.items()):
            return _Fate.COMMITTED
        if not all(found.get(one, ())[:2] == (end.seq, end.hash) for one, end in before.items()):
            self._guarded.give_up(say("the database is an older copy"))
            raise JournalWentBack(
                say("The database is an older copy: it lacks commits of this process."),
                hint=say("Nothing more was sent. First of all, restore the newest data of the database."),
            )
        return _Fate.FENCED if lost else _Fate.NOT_COMMITTED

    def _done(self, staged: StagedFacts, entries: Sequence[Entry], added: Sequence[Row], since_s: float) -> None:
        """Apply a commit to our state: the chains' ends, what may leave."""
        for lease in self._held.all():
            lease.end = staged.ends.get(lease.segment, lease.end)
        self._heartbeat.seen(since_s)
        # Before any of it leaves: after a failover these attempts, and no others, may have left from this host.
        moved = [one for one, (*_, has_moved) in zip(entries, added, strict=True) if has_moved]
        self._note(staged, added, noted_of(moved))

    def _note(self, staged: StagedFacts, added: Sequence[Row], noted: Sequence[Noted] = ()) -> None:
        """Note a commit by its last fact, which is the end of one of its chains: all were written together."""
        segment, _, number, *_ = added[-1]
        self._guarded.note(number, staged.ends[segment], noted)

    def _note_unsent(self, entries: Sequence[Entry]) -> None:
        """Note the attempts of which nothing left, because the database may never learn it."""
        if entries:
            with suppress(JournalError):  # then they are in doubt, as without the note
                self._guarded.note_unsent([Noted(one.instruction, one.attempt, None) for one in entries])

    def _lease_of(self, entry: Entry) -> Lease:
        lease = self._held.chunks.get(self._chunks[entry.instruction])
        if lease is not None:
            return lease
        if isinstance(entry.fact, Intended):
            raise InternalError("a row of a chunk that this process has not leased was about to be sent")
        return self._held.desk or self._own_lease()

    def _own_lease(self) -> Lease:
        """Return the chain for late answers, used after the leases of this process were taken over."""
        if self._held.own is None:
            self._held.own = self._taken(-self._held.worker)
        if self._held.own is None:
            raise InternalError("the chain of a worker was taken by another")
        return self._held.own

    def _desk(self) -> Lease:
        if self._held.desk is None:
            raise _taken_over()
        return self._held.desk

    def _taken(self, chain: int, at: str = "") -> Lease | None:
        """Take a lease, and put in doubt the rows that its predecessor left in flight there, in one transaction."""
        return self._guarded.again(lambda: self._taken_once(chain, at))

    def _taken_once(self, chain: int, at: str) -> Lease | None:
        connection = self._guarded.connection
        staged, added = None, list[Row]()
        with connection.transaction():
            lease = leases.take(connection, chain, self._held.worker)
            if lease is None:
                return None
            if not lease.is_clear:
                query = """SELECT s.instruction, s.attempt
                    FROM chunk c JOIN state s ON s.instruction BETWEEN c.first AND c.last AND s.state = 'in_flight'
                    WHERE c.number = %s ORDER BY 1"""
                found = fetch(connection, query, (chain,))
                entries = [self._ending(number, attempt, at) for number, attempt in found]
                staged = stage_facts(entries, lambda _: lease)
                added = self._call(staged)
        if staged is not None:
            lease.end = staged.ends.get(lease.segment, lease.end)
            lease.is_clear = True
        if staged is not None and added:
            self._note(staged, added)
        return lease

    def _ending(self, number: int, attempt: int, at: str) -> Entry:
        """Return the fact that closes an attempt that a dead process left in flight."""
        if (number, attempt) in self.known_unsent:
            return Entry(number, attempt, Concluded(Outcome(OutcomeKind.NOT_SENT, "run.stopped")), at)
        return Entry(number, attempt, Interrupted(), at)

    def _clear(self, held: Iterable[Lease]) -> list[int]:
        """Return the segments of leases under which nothing is in flight."""
        in_flight = """SELECT FROM chunk c JOIN state t ON t.instruction BETWEEN c.first AND c.last
            WHERE c.number = %s AND t.state = 'in_flight' LIMIT 1"""
        return [lease.segment for lease in held if not fetch(self._guarded.connection, in_flight, (lease.chain,))]

    def _failed_at_desk(self, error: psycopg.Error) -> JournalError | InternalError:
        if error.sqlstate in {MOVED, DEADLOCK, NOT_OVER}:
            return RowsMoved()
        if error.sqlstate == FENCED:
            return _taken_over()
        return self._guarded.give_up(reason_of_failure(error))

    def _roll_back(self) -> None:
        """Roll back the open transaction. If the connection is gone, the server does."""
        connection = self._guarded.connection
        if connection.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}:
            try:
                connection.rollback()
            except psycopg.Error as error:
                self._guarded.give_up(reason_of_failure(error))


def write_withdrawal(
    connection: Connection[Row], identity: Identity, withdrawal: Withdrawal, lease_s: float
) -> tuple[int, Link]:
    """Record a withdrawal in a chain of its own, without the desk, which a run may hold for hours.

    Return the number of the fact, and the end of its chain.
    """
    added: list[tuple[int, Link]] = []
    segments: list[int] = []
    with connection.transaction():
        worker = leases.enrol(connection, command=_WITHDRAWING, kind=HolderKind.RUN, lease_s=lease_s)

        def record(entries: Sequence[Entry | Remark]) -> Sequence[tuple[int, str, bool]]:
            fetch(connection, "SET LOCAL paygw.retires = 'on'")  # it moves no row: a roll-call need not be complete
            lease = leases.take(connection, -worker, worker)
            if lease is None:
                raise InternalError("the chain of a worker was taken by another")
            staged = stage_facts(entries, lambda _: lease)
            ((*_, number, at, has_moved),) = fetch(connection, CALL, (worker, *staged.values))
            added.append((number, staged.ends[lease.segment]))
            segments.append(lease.segment)
            return [(number, at, has_moved)]

        evidence_in(connection, identity).keep(record, withdrawal)
    # After the commit and not for long: a seal waits for who takes the desk, who may wait for who opens a batch. Not
    # sealed, the chain of a process that has ended is as good.
    with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
        fetch(connection, "SET LOCAL lock_timeout = '1s'")
        leases.give_back(connection, segments, worker)
    return added[0]


def _repeated(entries: Sequence[Entry]) -> Iterator[int]:
    """Yield the places of intents whose attempt another intent of the same call is about."""
    seen = set[tuple[int, int]]()
    for place, entry in enumerate(entries):
        if isinstance(entry.fact, Intended):
            if (entry.instruction, entry.attempt) in seen:
                yield place
            seen.add((entry.instruction, entry.attempt))


def _in_order(staged: StagedFacts, added: Iterable[Row]) -> list[Row]:
    """Return lines that begin with segment and seq in the order of the facts."""
    found = {line[:2]: line for line in added}
    return [found[place] for place in staged.places]


def _is_unsent(entry: Entry) -> bool:
    """Whether a fact says that nothing of its attempt left."""
    return isinstance(entry.fact, Concluded) and entry.fact.outcome.kind is OutcomeKind.NOT_SENT


def _taken_over() -> JournalError:
    return JournalError(
        say("Another process has taken over the journal, because this one was silent for too long."),
        hint=say("Run the same command again: what was committed by then is kept."),
    )
