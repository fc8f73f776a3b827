"""A writer's session: replaces lost connections, prevents writes after a failure, and logs commits."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from psycopg import Connection

from paygw_batch.errors import InternalError, JournalError, JournalUnwritable, OpenRollCall
from paygw_batch.journal.postgres.hosts import IncarnationChanged, RollCall
from paygw_batch.journal.postgres.schema import load_identity
from paygw_batch.journal.postgres.session import Row, Session, error_reason, fetch, time_limit
from paygw_batch.journal.sent_log import LoggedAttempt, SentLogWriter, log_failure_reason, unwritable_message
from paygw_batch.journal.values import Identity, Link
from paygw_batch.language import mark, say

T = TypeVar("T")

_MAX_TRIES = 5
_RECONNECT_LIMIT_S = 60.0
_HURRIED_LIMIT_S = 10.0
"""How long an ending process may take to reconnect and record the outcomes of its rows in flight."""
_RECONNECT_EVERY_S = 0.25
_WAIT_CANCELLED = "01000"
"""The code of the warning that a commit has stopped waiting for a standby."""
_HINT = mark("Fix the database, then try again.")
_DISCONNECT_CODES = ("08", "57P", "25P03")


class GuardedSession:
    """The session of a writing process, which never writes again after `disable_writes`."""

    def __init__(
        self, session: Session, identity: Identity, log: SentLogWriter, roll_call: RollCall | None = None
    ) -> None:
        self.session = session
        self._identity = identity
        self._sent_log = log
        self._roll_call = roll_call
        self._process = os.getpid()
        self._failure: str | None = None
        self._last_commit: tuple[int, Link] | None = None
        self._has_warned = False
        self._hurried_deadline_s = math.inf
        self._watch_warnings()

    @property
    def connection(self) -> Connection[Row]:
        return self.session.connection

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def is_disconnect(self, error: psycopg.Error) -> bool:
        """Return whether an error means that the connection is lost, and the response with it."""
        return self.connection.closed or (error.sqlstate or "").startswith(_DISCONNECT_CODES)

    def shorten_waits(self) -> None:
        """Shorten the wait for a server that does not respond. May be called repeatedly and from any thread."""
        self._hurried_deadline_s = min(self._hurried_deadline_s, time.monotonic() + _HURRIED_LIMIT_S)

    def reconnect(self) -> None:
        """Open a new connection, waiting for the server to restart if necessary. Raises `JournalUnwritable`."""
        deadline_s = time.monotonic() + _RECONNECT_LIMIT_S
        while True:
            try:
                self.session.reconnect()
                break
            except JournalError as error:
                if time.monotonic() > min(deadline_s, self._hurried_deadline_s):
                    raise self.disable_writes(error.message.removesuffix(".")) from None
                time.sleep(_RECONNECT_EVERY_S)
        self._watch_warnings()
        # The address may now lead to another database, or to a restored copy or lagging standby of this one. That must
        # be ruled out before anything is written.
        if load_identity(self.connection, self.session.server) != self._identity:
            raise self.disable_writes(say("there is another journal in its place"))
        if self._roll_call is not None:
            self._answer_roll_call(self._roll_call, deadline_s)

    def _answer_roll_call(self, roll_call: RollCall, deadline_s: float) -> None:
        """Answer the roll-call and wait for the other hosts' answers, because the database may have been replaced."""
        while True:
            try:
                with time_limit(self.connection, self.session.server.commit_limit_s):
                    roll_call.answer(self.connection)
            except OpenRollCall as error:
                if time.monotonic() > min(deadline_s, self._hurried_deadline_s):
                    raise self.disable_writes(error.message.removesuffix(".")) from None
                time.sleep(_RECONNECT_EVERY_S)
            except JournalError:
                self.disable_writes(say("the database is an older copy"))
                raise
            else:
                return

    def retry(self, call: Callable[[], T], *, is_long: bool = False) -> T:
        """Make a call, and repeat it on a new connection if the old one is lost. Sets no time limit if `is_long`."""
        limit_s = None if is_long else self.session.server.commit_limit_s
        try:
            with time_limit(self.connection, limit_s):
                return call()
        except psycopg.Error as error:
            if not self.is_disconnect(error):
                raise
            self.reconnect()
            with time_limit(self.connection, limit_s):
                return call()

    @contextmanager
    def confirming_commit(self) -> Iterator[None]:
        """Ensure that a commit in the block is durable, even if the server stops waiting for a standby."""
        self._has_warned = False
        yield
        if self._has_warned:
            self.flush()

    def flush(self) -> None:
        """Write something durably. Everything that was read before is then durable too."""
        for _ in range(_MAX_TRIES):
            self._has_warned = False
            with time_limit(self.connection, self.session.server.commit_limit_s):
                fetch(self.connection, "SELECT pg_logical_emit_message(true, 'paygw', '')")
            if not self._has_warned:
                return
        raise self.disable_writes(say("no standby confirms the writes"))

    def log_commit(self, number: int, end: Link, attempts: Sequence[LoggedAttempt] = ()) -> None:
        """Log a commit: its last fact's number, the new `end` of the chain, and the attempts that may be sent."""
        self._last_commit = number, end
        line = number, *end.log_fields[1:], attempts
        try:
            try:
                self._sent_log.log_commit(*line)
            except IncarnationChanged:
                # Another process on this host has seen another incarnation of the database, which may lack the commit.
                self.reconnect()
                if fetch(self.connection, "SELECT hash FROM fact WHERE number = %s", (number,)) != [(end.hash,)]:
                    raise self.disable_writes(say("the database is an older copy")) from None
                self.flush()
                self._sent_log.log_commit(*line)
        except IncarnationChanged:
            raise self.disable_writes(say("the database is an older copy")) from None
        except OSError as error:
            raise self.disable_writes(log_failure_reason(error)) from None

    def log_unsent(self, attempts: Sequence[LoggedAttempt]) -> None:
        if self._last_commit is not None:
            self.log_commit(*self._last_commit, attempts)

    def disable_writes(self, reason: str) -> JournalUnwritable:
        """Keep this process from writing again, and return the error to raise."""
        if self._failure is None:
            self._failure = unwritable_message(self.session.server.location, reason)
        return JournalUnwritable(self._failure, hint=say(_HINT))

    def require_writable(self) -> None:
        if self._failure is not None:
            raise JournalUnwritable(self._failure, hint=say(_HINT))
        if os.getpid() != self._process:
            raise InternalError("a journal was written from a process that did not open it")

    @contextmanager
    def disabling_writes_on_failure(self) -> Iterator[None]:
        """Keep this process from writing again if the database fails in the block. Raises `JournalUnwritable`."""
        try:
            yield
        except psycopg.Error as error:
            raise self.disable_writes(error_reason(error)) from None

    def close(self) -> None:
        """Release this process's sent log for use by another process."""
        self._sent_log.close()

    def _watch_warnings(self) -> None:
        def record_warning(notice: psycopg.errors.Diagnostic) -> None:
            self._has_warned |= notice.sqlstate == _WAIT_CANCELLED

        self.connection.add_notice_handler(record_warning)
