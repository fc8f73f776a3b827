"""Guards the session of a writer: a lost connection is replaced, a failure is final, the witness learns of commits."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import Connection

from paygw_batch.errors import InternalError, JournalError, JournalUnwritable, RollCallOpen
from paygw_batch.journal.facts.chain import Identity
from paygw_batch.journal.postgres.leasing.host_witness import CommitWitness
from paygw_batch.journal.postgres.leasing.intent_log import Noted
from paygw_batch.journal.postgres.leasing.roll_call import RollCall
from paygw_batch.journal.postgres.migrations import identity_in
from paygw_batch.journal.postgres.session import Row, Session, fetch, limited, reason_of_failure
from paygw_batch.journal.values import Link
from paygw_batch.language import mark, say

T = TypeVar("T")

_MAX_TRIES = 5
_RECONNECT_LIMIT_S = 60.0
_HURRIED_LIMIT_S = 10.0
"""How long a process that was asked to end waits for the server, so that its rows in flight are known."""
_RECONNECT_EVERY_S = 0.25
_WAIT_CANCELLED = "01000"
"""A commit whose wait for a standby was cancelled returns as if all were well, with this warning."""
_HINT = mark("Fix the database, then run again.")
_ENDINGS = ("08", "57P", "25P03")
"""How the codes of errors begin with which a server ends a connection."""


class GuardedSession:
    """The session of one process that writes. After a write that failed for good it never writes again."""

    def __init__(
        self, session: Session, identity: Identity, witness: CommitWitness, roll: RollCall | None = None
    ) -> None:
        self.session = session
        self._identity = identity
        self._witness = witness
        self._roll = roll
        self._process = os.getpid()
        self._failure: str | None = None
        self._told: tuple[int, Link] | None = None
        self._has_warned = False
        self._hurried_until_s = math.inf
        self._watch_warnings()

    @property
    def connection(self) -> Connection[Row]:
        """The connection that is open now."""
        return self.session.connection

    @property
    def has_failed(self) -> bool:
        """Whether a write failed for good."""
        return self._failure is not None

    def is_lost(self, error: psycopg.Error) -> bool:
        """Whether an error means that the connection is gone, and with it the answer."""
        return self.connection.closed or (error.sqlstate or "").startswith(_ENDINGS)

    def hurry(self) -> None:
        """Give up soon where the server does not come back. Called from any thread, once or more often."""
        self._hurried_until_s = min(self._hurried_until_s, time.monotonic() + _HURRIED_LIMIT_S)

    def reconnect(self) -> None:
        """Open a new connection, for as long as a server may take to come back. Raises `JournalUnwritable`."""
        give_up_s = time.monotonic() + _RECONNECT_LIMIT_S
        while True:
            try:
                self.session.reconnect()
                break
            except JournalError as error:
                if time.monotonic() > min(give_up_s, self._hurried_until_s):
                    raise self.give_up(error.message.removesuffix(".")) from None
                time.sleep(_RECONNECT_EVERY_S)
        self._watch_warnings()
        if identity_in(self.connection, self.session.server) != self._identity:
            raise self.give_up("another journal is in its place")
        if self._roll is not None:
            self._answer(self._roll, give_up_s)

    def _answer(self, roll: RollCall, give_up_s: float) -> None:
        """Show the witness to a database that may be another one; wait for the hosts that do the same just now."""
        while True:
            try:
                with limited(self.connection, self.session.server.commit_limit_s):
                    roll.answer(self.connection)
            except RollCallOpen as error:
                if time.monotonic() > min(give_up_s, self._hurried_until_s):
                    raise self.give_up(error.message.removesuffix(".")) from None
                time.sleep(_RECONNECT_EVERY_S)
            except JournalError:
                self.give_up("the database is an older copy")
                raise
            else:
                return

    def again(self, call: Callable[[], T]) -> T:
        """Make a call that may be made twice: where the connection is lost or silent, it is made on a new one."""
        try:
            with limited(self.connection, self.session.server.commit_limit_s):
                return call()
        except psycopg.Error as error:
            if not self.is_lost(error):
                raise
            self.reconnect()
            with limited(self.connection, self.session.server.commit_limit_s):
                return call()

    @contextmanager
    def confirmed(self) -> Iterator[None]:
        """Make sure that a commit in the block is durable: a server can return from it although no standby has it."""
        self._has_warned = False
        yield
        if self._has_warned:
            self.flush()

    def flush(self) -> None:
        """Make one more durable write: everything read before it cannot be lost either once it is there."""
        for _ in range(_MAX_TRIES):
            self._has_warned = False
            with limited(self.connection, self.session.server.commit_limit_s):
                fetch(self.connection, "SELECT pg_logical_emit_message(true, 'paygw', '')")
            if not self._has_warned:
                return
        raise self.give_up("no standby confirms what is written")

    def tell_witness(self, ends: Mapping[int, Link], noted: Sequence[Noted] = ()) -> None:
        """Note one end of a commit, by segment, and its attempts: its chains were written together."""
        self._told = segment, end = next(iter(ends.items()))
        try:
            self._witness.note(segment, end, noted)
        except OSError as error:
            raise self.give_up(f"its witness: {error.strerror}") from None

    def tell_unsent(self, noted: Sequence[Noted]) -> None:
        """Note attempts of which nothing left. The newest commit stays the one that it is."""
        if self._told is not None:
            self.tell_witness(dict([self._told]), noted)

    def give_up(self, reason: str) -> JournalUnwritable:
        """Stop this process from writing the journal ever again, and return the error that says so."""
        if self._failure is None:
            self._failure = say(
                "The journal {path} can no longer be written ({reason}); nothing more was sent.",
                path=self.session.server.place,
                reason=reason,
            )
        return JournalUnwritable(self._failure, hint=say(_HINT))

    def require_writable(self) -> None:
        """Raise `JournalUnwritable` after a write that failed for good."""
        if self._failure is not None:
            raise JournalUnwritable(self._failure, hint=say(_HINT))
        if os.getpid() != self._process:
            raise InternalError("a journal was written from a process that did not open it")

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Give up where the database fails in the block."""
        try:
            yield
        except psycopg.Error as error:
            raise self.give_up(reason_of_failure(error)) from None

    def close(self) -> None:
        """Close the witness."""
        self._witness.close()

    def _watch_warnings(self) -> None:
        def take_note(notice: psycopg.errors.Diagnostic) -> None:
            self._has_warned |= notice.sqlstate == _WAIT_CANCELLED

        self.connection.add_notice_handler(take_note)
