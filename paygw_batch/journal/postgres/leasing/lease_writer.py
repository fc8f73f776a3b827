"""Writes facts to the chains that this process has leased, and finds the fate of a commit that got no answer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TypeVar

import psycopg
from psycopg import Connection

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.lifecycle import Intended, Interrupted
from paygw_batch.errors import InternalError, JournalError, JournalWentBack
from paygw_batch.journal.postgres.batch_rows import chunks_of, due_rows
from paygw_batch.journal.postgres.leasing import leases
from paygw_batch.journal.postgres.leasing.fact_commit import (
    CALL,
    DEADLOCK,
    FENCED,
    HELD,
    MOVED,
    RUN_OVER,
    STOPPED,
    StagedFacts,
    stage_facts,
)
from paygw_batch.journal.postgres.leasing.guarded_session import GuardedSession
from paygw_batch.journal.postgres.leasing.leases import Heartbeat, HeldLeases, Lease
from paygw_batch.journal.postgres.session import Row, fetch, limited
from paygw_batch.journal.postgres.standing_lines import (
    CHUNK_OF_ROW,
    LOADED,
    Loaded,
    load_instructions,
    loaded_from,
)
from paygw_batch.journal.values import Due, Entry, MoveResult

T = TypeVar("T")
CloseChunk = Callable[..., None]
"""Closes a lease on a connection, in one transaction: `chunk`, `segment` and `worker` are given by name."""

_MOST_TRIES = 5


class _Fate(Enum):
    COMMITTED = "committed"
    NOT_COMMITTED = "not_committed"
    FENCED = "fenced"


class LeaseWriter:
    """The facts of a run: intents and outcomes of the chunks that this process has leased, one call a group.

    Called from one thread at a time.
    """

    def __init__(self, guarded: GuardedSession, held: HeldLeases, heartbeat: Heartbeat) -> None:
        self._guarded, self._held, self._heartbeat = guarded, held, heartbeat
        self._known: dict[int, Loaded] = {}
        self.has_lost = False
        """Whether another process took over any lease of this one."""
        self.is_stopped = False
        """Whether the run of this process is over: nothing of it may be sent any more."""

    @property
    def worker(self) -> int:
        """The number of this process as a worker."""
        return self._held.worker

    def due(self, batch: int, *, after_row: int, limit: int) -> Sequence[Due]:
        """Return up to `limit` rows of a batch above `after_row` that may be sent by the process that leases them."""
        return self._read(lambda: due_rows(self._guarded.connection, batch, after_row, limit))

    def chunks_of(self, numbers: Sequence[int]) -> Mapping[int, int]:
        """Return the chunk of each instruction."""
        return self._read(lambda: chunks_of(self._guarded.connection, numbers))

    def lease_chunks(self, chunks: Iterable[int]) -> frozenset[int]:
        """Take the leases of chunks, as far as no other process has them; return all that this one has."""
        self._guarded.require_writable()
        with self._guarded.failing():
            for chunk in sorted(set(chunks) - self._held.chunks.keys()):
                if (lease := self._taken(chunk, timestamp(utc_now()))) is not None:
                    self._held.chunks[chunk] = lease
        return frozenset(self._held.chunks)

    def conclude(self, at: str) -> int:
        """Put in doubt the rows that dead processes and this one left in flight; count them. All leases are given up.

        The rows of a process that lives are its own.
        """
        self._guarded.require_writable()
        self._held.chunks.clear()
        self._known.clear()
        interrupted = 0
        with self._guarded.failing():
            query = "SELECT chain FROM segment WHERE sealed_at IS NULL AND chain > 0 ORDER BY chain"
            for (chunk,) in self._guarded.again(lambda: fetch(self._guarded.connection, query)):
                if (lease := self._taken(chunk, at)) is not None:
                    interrupted += lease.end.seq
                    self.ask(partial(leases.seal, segment=lease.segment))
        return interrupted

    def learn(self, numbers: Iterable[int]) -> None:
        """Read instructions that are about to be sent, so that their intents need no further look."""
        wanted = list(numbers)
        self._known.update(self._read(lambda: load_instructions(self._guarded.connection, wanted)))

    def append(self, entries: Sequence[Entry]) -> Sequence[MoveResult]:
        """Make facts durable in one call, and move their instructions; return the effect of each.

        An intent is HELD as well where this process may no longer send: a lease was taken over, or is too old, or the
        run is over, or a worker stopped all of them.
        """
        if not entries:
            return []
        self._guarded.require_writable()
        results: dict[int, MoveResult] = {}
        for _ in range(_MOST_TRIES):
            if self.has_lost or self.is_stopped:
                results |= {at: MoveResult.HELD for at, one in enumerate(entries) if isinstance(one.fact, Intended)}
            places = [at for at in range(len(entries)) if at not in results]
            if not places:
                break
            with self._guarded.failing():
                held = self._try([entries[at] for at in places])
            if isinstance(held, StagedFacts):
                moves = (MoveResult.MOVED if line.contradicts is None else MoveResult.NOT_MOVED for line in held.lines)
                results |= dict(zip(places, moves, strict=True))
                break
            results |= {
                at: MoveResult.HELD
                for at in places
                if entries[at].instruction in held and isinstance(entries[at].fact, Intended)
            }
        else:
            raise self._guarded.give_up("rows were moved by another process again and again")
        # Between the commit and here this process was frozen or cut off, or its lease was taken over.
        if self.has_lost or not self._heartbeat.is_good():
            results |= {at: MoveResult.HELD for at, one in enumerate(entries) if isinstance(one.fact, Intended)}
        return [results[at] for at in range(len(entries))]

    def _try(self, entries: Sequence[Entry]) -> StagedFacts | frozenset[int]:
        """Commit facts; return them as committed, or the instructions that evidence holds. None held: try again."""
        numbers = {entry.instruction for entry in entries}
        unknown = numbers - self._known.keys()
        self._known.update(self._guarded.again(lambda: load_instructions(self._guarded.connection, unknown)))
        staged = stage_facts(entries, self._lease_of, {number: self._known[number] for number in numbers})
        while True:
            since_s = self._heartbeat.now_s()
            try:
                fate = self._called(staged)
            except psycopg.errors.Error as error:
                if error.sqlstate == DEADLOCK:  # all of it was undone
                    continue
                if error.sqlstate != FENCED:
                    return self._refused(error, entries)
                fate = self._fate_of(staged)
                if fate is _Fate.NOT_COMMITTED:
                    raise InternalError("a commit was refused although its lease is as it was left") from None
            if fate is _Fate.COMMITTED:
                self._done(staged, since_s)
                return staged
            if fate is _Fate.FENCED:
                self._forget(numbers)
                return frozenset()

    def _refused(self, error: psycopg.Error, entries: Sequence[Entry]) -> frozenset[int]:
        """Take note of why a call was refused; return the instructions that may not be sent."""
        if error.sqlstate == HELD:
            return frozenset(map(int, (error.diag.message_detail or "").split()))
        if error.sqlstate == MOVED:
            self._forget(entry.instruction for entry in entries)
            return frozenset()
        if error.sqlstate not in {RUN_OVER, STOPPED}:
            raise error
        self.is_stopped |= error.sqlstate == RUN_OVER
        return frozenset(entry.instruction for entry in entries if isinstance(entry.fact, Intended))

    def _called(self, staged: StagedFacts) -> _Fate:
        """Make the call that commits. Where no answer comes, find its fate."""
        guarded = self._guarded
        with guarded.confirmed():
            try:
                with limited(guarded.connection, guarded.session.server.commit_limit_s):
                    fetch(guarded.connection, CALL, (self._held.worker, *staged.values))
            except psycopg.Error as error:
                if not guarded.is_lost(error):
                    raise
                guarded.reconnect()
                return self._fate_of(staged)
        return _Fate.COMMITTED

    def _fate_of(self, staged: StagedFacts) -> _Fate:
        """Find the fate of a commit by the ends of the chains. Raises `JournalWentBack` when they were never there."""
        query = "SELECT number, head_seq, head_hash, sealed_at IS NOT NULL FROM segment WHERE number = ANY (%s)"
        found = {line[0]: line[1:] for line in fetch(self._guarded.connection, query, (list(staged.ends),))}
        self._guarded.flush()
        lost = [one for one in staged.ends if found.get(one, (0, b"", False))[2]]
        self.has_lost |= bool(lost)
        self._held.lose(lost)
        if all(found.get(one, ())[:2] == (end.seq, end.hash) for one, end in staged.ends.items()):
            return _Fate.COMMITTED
        if not all(found.get(one, ())[:2] == (end.seq, end.hash) for one, end in staged.before.items()):
            self._guarded.give_up("the database is an older copy")
            raise JournalWentBack(
                "The database no longer has what this process wrote to it: it is an older copy.",
                hint="Nothing more was sent. Bring the newest data of the database back before anything else.",
            )
        return _Fate.FENCED if lost else _Fate.NOT_COMMITTED

    def _done(self, staged: StagedFacts, since_s: float) -> None:
        """Take note of a commit: the ends of the chains, the rows, the witness."""
        for lease in self._held.all():
            lease.end = staged.ends.get(lease.segment, lease.end)
        self._known.update(staged.loaded)
        self._heartbeat.seen(since_s)
        self._guarded.tell_witness(staged.ends)

    def _lease_of(self, entry: Entry) -> Lease:
        lease = self._held.chunks.get(self._known[entry.instruction].chunk)
        if lease is not None:
            return lease
        if isinstance(entry.fact, Intended):
            raise InternalError("a row of a chunk that this process has not leased was about to be sent")
        return self._held.desk or self._own_lease()

    def _own_lease(self) -> Lease:
        """Return the chain for late answers, after the leases of this process were taken over."""
        if self._held.own is None:
            self._held.own = leases.take(self._guarded.connection, -self._held.worker, self._held.worker)
        if self._held.own is None:
            raise InternalError("the chain of a worker was taken by another")
        return self._held.own

    def _taken(self, chunk: int, at: str) -> Lease | None:
        """Take the lease of a chunk, and put in doubt the rows that the one before left in flight: one transaction."""
        return self._guarded.again(lambda: self._taken_once(chunk, at))

    def _taken_once(self, chunk: int, at: str) -> Lease | None:
        connection = self._guarded.connection
        staged = None
        with connection.transaction():
            lease = leases.take(connection, chunk, self._held.worker)
            if lease is None:
                return None
            if not lease.is_clear:
                query = f"""SELECT {LOADED} FROM progress p {CHUNK_OF_ROW}
                    WHERE c.number = %s AND p.state = 'in_flight' ORDER BY p.number"""  # noqa: S608 - constants of ours
                loaded = {line[0]: loaded_from(line) for line in fetch(connection, query, (chunk,))}
                entries = [
                    Entry(one.number, one.progress.standing.attempt, Interrupted(), at) for one in loaded.values()
                ]
                staged = stage_facts(entries, lambda _: lease, loaded)
                fetch(connection, CALL, (self._held.worker, *staged.values))
        if staged is not None:
            lease.end = staged.ends[lease.segment]
            lease.is_clear = True
            self._guarded.tell_witness(staged.ends)
        return lease

    def ask(self, call: Callable[[Connection[Row]], T]) -> T:
        """Make a call that may be made twice; on a new connection where the old one is lost."""
        return self._read(lambda: call(self._guarded.connection))

    def ask_at_length(self, call: Callable[[Connection[Row]], T]) -> T:
        """Make a call as `ask` does that may take as long as a batch is large."""
        with self._guarded.failing():
            try:
                return call(self._guarded.connection)
            except psycopg.Error as error:
                if not self._guarded.is_lost(error):
                    raise
                self._guarded.reconnect()
                return call(self._guarded.connection)

    def _read(self, call: Callable[[], T]) -> T:
        """Read, on a new connection where the old one is lost."""
        with self._guarded.failing():
            return self._guarded.again(call)

    def finish(self, chunk: int, numbers: Iterable[int], close: CloseChunk) -> None:
        """Give a chunk back by `close`, unless something is in flight there; its rows get no other fact from here."""
        lease = self._held.chunks[chunk]
        self._forget(numbers)
        if self.ask(lambda _: self._clear([lease])):
            del self._held.chunks[chunk]
            self.ask(partial(close, chunk=chunk, segment=lease.segment, worker=self._held.worker))

    def give_back(self) -> bool:
        """Give the chunks back in which nothing is in flight, and forget all; return whether those were all.

        Where this process may not send any more, a row can be in flight that no answer will come for. The next process
        that takes its chunk puts it in doubt, once this one has said its end.
        """
        held = list(self._held.chunks.values())
        clear = self.ask(lambda _: self._clear(held))
        for segment in clear:
            self.ask(partial(leases.seal, segment=segment))
        self._held.chunks.clear()
        self._known.clear()
        return len(clear) == len(held)

    def _clear(self, held: Iterable[Lease]) -> list[int]:
        """Return the segments of leases under which nothing is in flight."""
        in_flight = """SELECT FROM chunk c JOIN standing t ON t.instruction BETWEEN c.first AND c.last
            WHERE c.number = %s AND t.state = 'in_flight' LIMIT 1"""
        return [lease.segment for lease in held if not fetch(self._guarded.connection, in_flight, (lease.chain,))]

    def close(self) -> None:
        """Give all leases back. Rows in flight are left to the next process that takes their chunk."""
        try:
            self._heartbeat.close()
            if self._guarded.connection.closed:  # the leases would end by themselves, but later
                self._guarded.session.reconnect()
            with limited(self._guarded.connection, self._guarded.session.server.commit_limit_s):
                clear = [] if self._guarded.has_failed else self._clear(self._held.all())
                leases.give_back(self._guarded.connection, clear, self._held.worker)
        except (psycopg.Error, JournalError):
            return  # nothing is lost: the leases end by themselves
        finally:
            self._guarded.close()

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._known.pop(number, None)

    def forget_all(self) -> None:
        """Read every row again before its next fact: something else than a run has written."""
        self._known.clear()
