"""Guards a writer's session: replaces a lost connection, makes a failure final, and logs commits."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import Connection

from paygw_batch.errors import InternalError, JournalError, JournalUnwritable, OpenRollCall
from paygw_batch.journal.postgres.hosts import LifeOver, RollCall
from paygw_batch.journal.postgres.schema import identity_in
from paygw_batch.journal.postgres.session import Row, Session, error_reason, fetch, time_limit
from paygw_batch.journal.sent_log import LoggedAttempt, SentLogWriter, log_failure_reason, unwritable_message
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import mark, say

T = TypeVar("T")

_MAX_TRIES = 5
_RECONNECT_LIMIT_S = 60.0
_HURRIED_LIMIT_S = 10.0
"""How long an ending process waits for the server to record its rows in flight."""
_RECONNECT_EVERY_S = 0.25
_WAIT_CANCELLED = "01000"
"""The warning, not an error, with which a commit returns if its wait for a standby was cancelled."""
_HINT = mark("Fix the database, then run again.")
_DISCONNECT_CODES = ("08", "57P", "25P03")
"""The prefixes of the error codes with which a server ends a connection."""


class GuardedSession:
    """The session of a process that writes. After a final failure it never writes again."""

    def __init__(self, session: Session, identity: Identity, log: SentLogWriter, roll: RollCall | None = None) -> None:
        self.session = session
        self._identity = identity
        self._sent_log = log
        self._roll = roll
        self._process = os.getpid()
        self._failure: str | None = None
        self._last_commit: tuple[int, Link] | None = None
        self._has_warned = False
        self._hurried_until_s = math.inf
        self._watch_warnings()

    @property
    def connection(self) -> Connection[Row]:
        return self.session.connection

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def is_lost(self, error: psycopg.Error) -> bool:
        """Return whether an error means that the connection and its answer are lost."""
        return self.connection.closed or (error.sqlstate or "").startswith(_DISCONNECT_CODES)

    def shorten_waits(self) -> None:
        """Give up soon if the server does not return. Safe to call repeatedly, from any thread."""
        self._hurried_until_s = min(self._hurried_until_s, time.monotonic() + _HURRIED_LIMIT_S)

    def reconnect(self) -> None:
        """Open a new connection, waiting as long as a server may take to restart. Raises `JournalUnwritable`."""
        deadline_s = time.monotonic() + _RECONNECT_LIMIT_S
        while True:
            try:
                self.session.reconnect()
                break
            except JournalError as error:
                if time.monotonic() > min(deadline_s, self._hurried_until_s):
                    raise self.give_up(error.message.removesuffix(".")) from None
                time.sleep(_RECONNECT_EVERY_S)
        self._watch_warnings()
        # The address may now lead to another database, or to a restored copy or lagging standby of the same one. Both
        # are ruled out before anything is written.
        if identity_in(self.connection, self.session.server) != self._identity:
            raise self.give_up(say("another journal is in its place"))
        if self._roll is not None:
            self._answer(self._roll, deadline_s)

    def _answer(self, roll: RollCall, deadline_s: float) -> None:
        """Answer the roll-call of a database that may have been replaced, and wait for the other hosts."""
        while True:
            try:
                with time_limit(self.connection, self.session.server.commit_limit_s):
                    roll.answer(self.connection)
            except OpenRollCall as error:
                if time.monotonic() > min(deadline_s, self._hurried_until_s):
                    raise self.give_up(error.message.removesuffix(".")) from None
                time.sleep(_RECONNECT_EVERY_S)
            except JournalError:
                self.give_up(say("the database is an older copy"))
                raise
            else:
                return

    def retry(self, call: Callable[[], T], *, is_long: bool = False) -> T:
        """Make a repeatable call, on a new connection if the old one is lost or silent.

        A call that `is_long` may read a whole batch, so it has no time limit.
        """
        limit_s = None if is_long else self.session.server.commit_limit_s
        try:
            with time_limit(self.connection, limit_s):
                return call()
        except psycopg.Error as error:
            if not self.is_lost(error):
                raise
            self.reconnect()
            with time_limit(self.connection, limit_s):
                return call()

    @contextmanager
    def confirming_commit(self) -> Iterator[None]:
        """Ensure that a commit in the block is durable, because a server can return before a standby has it."""
        self._has_warned = False
        yield
        if self._has_warned:
            self.flush()

    def flush(self) -> None:
        """Make another write durable, and with it all data that was read before."""
        for _ in range(_MAX_TRIES):
            self._has_warned = False
            with time_limit(self.connection, self.session.server.commit_limit_s):
                fetch(self.connection, "SELECT pg_logical_emit_message(true, 'paygw', '')")
            if not self._has_warned:
                return
        raise self.give_up(say("no standby confirms the writes"))

    def log_commit(self, number: int, end: Link, attempts: Sequence[LoggedAttempt] = ()) -> None:
        """Log a commit: the number of its newest fact, the `end` of its chain, and the attempts that may now leave."""
        self._last_commit = number, end
        line = number, *end.log_fields[1:], attempts
        try:
            try:
                self._sent_log.log_commit(*line)
            except LifeOver:
                # Another process of this host has entered another life of the database, which may lack the commit.
                self.reconnect()
                if fetch(self.connection, "SELECT hash FROM fact WHERE number = %s", (number,)) != [(end.hash,)]:
                    raise self.give_up(say("the database is an older copy")) from None
                self.flush()
                self._sent_log.log_commit(*line)
        except LifeOver:
            raise self.give_up(say("the database is an older copy")) from None
        except OSError as error:
            raise self.give_up(log_failure_reason(error)) from None

    def log_unsent(self, attempts: Sequence[LoggedAttempt]) -> None:
        """Log unsent attempts under the newest commit."""
        if self._last_commit is not None:
            self.log_commit(*self._last_commit, attempts)

    def give_up(self, reason: str) -> JournalUnwritable:
        """Bar this process from writing to the journal again and return the error to raise."""
        if self._failure is None:
            self._failure = unwritable_message(self.session.server.place, reason)
        return JournalUnwritable(self._failure, hint=say(_HINT))

    def require_writable(self) -> None:
        """Raise `JournalUnwritable` after a final failure."""
        if self._failure is not None:
            raise JournalUnwritable(self._failure, hint=say(_HINT))
        if os.getpid() != self._process:
            raise InternalError("a journal was written from a process that did not open it")

    @contextmanager
    def barring_on_failure(self) -> Iterator[None]:
        """Bar this process from writing if the database fails in the block. Raises `JournalUnwritable`."""
        try:
            yield
        except psycopg.Error as error:
            raise self.give_up(error_reason(error)) from None

    def close(self) -> None:
        """Release the sent log of this process, so that another process can use it."""
        self._sent_log.close()

    def _watch_warnings(self) -> None:
        def record_warning(notice: psycopg.errors.Diagnostic) -> None:
            self._has_warned |= notice.sqlstate == _WAIT_CANCELLED

        self.connection.add_notice_handler(record_warning)
