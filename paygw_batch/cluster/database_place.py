"""The place of a journal in PostgreSQL, shared by several hosts: creates, opens and inspects the journal."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from paygw_batch.errors import (
    ConfigurationError,
    HolderKind,
    JournalError,
    JournalHeld,
    JournalMissing,
    JournalOutdated,
    JournalTooOld,
    JournalUnwritable,
    OutputError,
    SentLogDamaged,
    UsageError,
)
from paygw_batch.extras import install_command
from paygw_batch.files import create_if_missing
from paygw_batch.journal.known_journals import KnownJournal, check_other_journals
from paygw_batch.journal.lock import LockHolder, check_directory, check_endpoint, make_directory
from paygw_batch.journal.lost import find_loss
from paygw_batch.journal.place import JournalPlace, RecordNotes
from paygw_batch.journal.port import GateState, LimitChange, SharedRun, SharedWork, TimetableJob, WorkerLife
from paygw_batch.journal.sent_log import (
    NOTES,
    NoSentLog,
    log_accepted_loss,
    log_concurrent_fact,
    log_failure_reason,
    unwritable_message,
    writer_names,
)
from paygw_batch.journal.values import (
    AcceptedRows,
    ConcurrentNote,
    EndpointNote,
    Identity,
    NewNotice,
    Remark,
    StoredPlan,
)
from paygw_batch.language import say

__all__ = ["MissingHost", "ReplicationState", "Server", "WorkerJournal"]

try:
    import psycopg

    from paygw_batch.journal.postgres import schema, workers
    from paygw_batch.journal.postgres.accepted_loss import (
        LossWriter,
        put_unfinished_in_doubt,
        record_accepted_loss,
        record_retirement,
    )
    from paygw_batch.journal.postgres.fact_writer import ConcurrentNoteWriter, FactWriter, acquire_decision_lock
    from paygw_batch.journal.postgres.guarded_session import GuardedSession
    from paygw_batch.journal.postgres.hosts import (
        MissingHost,
        ProcessSentLog,
        RollCall,
        check_sent_log,
        find_present_lines,
        lock_log,
        missing_hosts,
        newest_fact,
    )
    from paygw_batch.journal.postgres.postgres_journal import (
        PostgresJournal,
        PostgresOutbox,
        PostgresReader,
        WorkerJournal,
    )
    from paygw_batch.journal.postgres.session import (
        IDLE_LIMIT,
        SCHEMA,
        WORKER_IDLE_LIMIT,
        PostgresTables,
        ReplicationState,
        Server,
        Session,
        evidence_log,
        fetch,
        postgres_tables,
        replication_state,
        time_limit,
        translating_errors,
    )
except ModuleNotFoundError as error:
    if error.name not in {"psycopg", "procrastinate"}:
        raise
    raise ConfigurationError(
        say("journal.url is set, but the part of this program that talks to PostgreSQL is not installed."),
        hint=say(
            "Install it: {command}. Or leave journal.url out: the journal is then a file.",
            command=install_command("cluster"),
        ),
    ) from None

J = TypeVar("J", bound=PostgresJournal)
_NEWEST_PLAN = """SELECT plan, version, code, content FROM plan_document WHERE code = %s
    ORDER BY plan DESC, version DESC LIMIT 1"""
_PLANS_OF_PAYMENTS = """SELECT * FROM (
        SELECT DISTINCT ON (plan) plan, version, code, content FROM plan_document WHERE payments = %s
        ORDER BY plan DESC, version DESC
    ) p ORDER BY plan DESC"""


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """A loss that this host accepted: its commits that the database lacks, and their rows.

    If `is_guess`, the host does not know all of these commits, so it put every unfinished row in doubt.
    """

    commits: int
    rows: AcceptedRows
    is_guess: bool
    missing: Sequence[MissingHost]


@dataclass(frozen=True, slots=True)
class DatabasePlace(JournalPlace):
    """The place of a journal on `server`."""

    server: Server
    intent_lives_s: float = 30.0

    def may_exist(self) -> bool:
        """Return True: only opening the database shows whether it has a journal."""
        return True

    def make(self, command: str, *, beside: str | None = None) -> Identity | None:  # noqa: ARG002 - nobody sees it
        known_journals, now = self.known_journals, self.now()
        with ExitStack() as stack:
            stack.enter_context(known_journals.hold_lock(now))
            check_other_journals(self._other_merchant_journals(), beside, command="journal new")
            session = stack.enter_context(self._session(write=True))
            key = self.endpoint.consumer_key_sha256
            identity = Identity(secrets.token_hex(16), self.endpoint.name, now, self.server.place, key)
            if not schema.make_tables(session.connection, identity):
                schema.check_version(session.connection, self.server)
                self._require_merchant(session)
                return None
            known_journals.register(KnownJournal(identity.journal_id, (self.endpoint,), identity.home, now))
        return identity

    def upgrade(self) -> tuple[int, int, bool]:
        """Upgrade the tables to this program's version and grant the roles their rights on new tables.

        Return the old and new versions, and whether the job tables were upgraded. Raises `JournalError` for anyone
        but the owner of the tables.
        """
        with self._session(write=True) as session:
            with suppress(JournalOutdated):
                schema.check_version(session.connection, self.server)
            self._require_merchant(session)
            if schema.session_role(session.connection) is not schema.JournalRole.OWNER:
                raise JournalError(
                    say(
                        "The role of [journal] url does not own the tables in {place}, so it cannot upgrade them.",
                        place=self.server.place,
                    ),
                    hint=say(
                        "Nothing was changed. Use the owner's login in [journal] url for this one command, for example "
                        "in a separate configuration (--config)."
                    ),
                )
            jobs = schema.jobs_version_in(session.connection)
            old_version = schema.upgrade_tables(session.connection, self.server, self.now())
            if schema.has_rights(session.connection):
                schema.grant_rights(session.connection)
            return old_version, schema.newest_version(), schema.jobs_version_in(session.connection) != jobs

    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> PostgresJournal:
        return self._open_journal(PostgresJournal, command, kind)

    def open_to_work(self, command: str, kind: HolderKind = HolderKind.WORKER) -> WorkerJournal:
        """Open the journal for a worker, which sends rows of shared runs without the decision lock."""
        return self._open_journal(WorkerJournal, command, kind)

    def open_to_read(self, *, must_be_known: bool = False) -> PostgresReader:  # noqa: ARG002 - a database is known
        """Open the journal to read it. Anyone who can sign in to the database may."""
        session = Session(self.server, write=False)
        try:
            with translating_errors(self.server):
                identity = self._require_readable(session)
                session.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        except BaseException:
            session.close()
            raise
        return PostgresReader(session, identity)

    def holder(self) -> LockHolder | None:
        """Return the process that holds the decision lock, or otherwise one that is sending."""
        with self._session(write=False) as session:
            schema.check_version(session.connection, self.server)
            return workers.current_holder(session.connection)

    def workers(self) -> Sequence[WorkerLife]:
        """Return the live workers of all hosts, and dead ones that left rows in flight."""
        with closing(self.open_to_read()) as journal:
            return journal.workers()

    def dead_workers(self, since: str) -> Sequence[WorkerLife]:
        """Return the workers last seen after `since` that died without signing off."""
        with self._session(write=False) as session:
            return workers.find_dead_workers(session.connection, since)

    def shared_work(self) -> SharedWork:
        """Return the current work of all hosts: workers, unfinished runs and limits."""
        with closing(self.open_to_read()) as journal:
            return SharedWork(journal.workers(), journal.current_runs(), self.limits())

    @contextmanager
    def outbox(self, *, write: bool) -> "Iterator[PostgresOutbox]":
        with self._checked_session(write=write) as (session, _):
            yield PostgresOutbox(session.connection)

    @contextmanager
    def _audit_transaction(self) -> "Iterator[PostgresTables]":
        with (
            self._checked_session(write=True) as (session, identity),
            time_limit(session.connection, self.server.commit_limit_s),
        ):
            tables = postgres_tables(session.connection, identity)
            with session.connection.transaction():
                tables.run("note_in_turn")
                yield tables

    @contextmanager
    def run_exclusively(self, name: str) -> Iterator[None]:
        """Run the block in only one process of all hosts. Raises `JournalHeld` in others with the same name.

        If the connection is lost, both may continue. This is harmless: the journal alone decides which rows are sent.
        """
        with self._session(write=False) as session:
            # If the answer is lost, the connection is closed, and the lock is released with it.
            with time_limit(session.connection, self.server.commit_limit_s):
                self._require_readable(session)
                locked = fetch(session.connection, "SELECT pg_try_advisory_lock(7023, hashtext(%s))", (name,))
            if locked != [(True,)]:
                raise JournalHeld(say("Another process is already doing this: {name}.", name=name))
            yield

    def waiting_runs(self) -> "WaitingRuns":
        """Return a callable that finds the runs waiting for a worker."""
        return WaitingRuns(self.server, self._require_readable)

    def timetable_jobs(self) -> Sequence[TimetableJob]:
        """Return the timetable's jobs with their last results."""
        with self._checked_session(write=False) as (session, _):
            return schema.timetable_jobs(session.connection)

    def check_jobs(self) -> str:
        """Return the version of the job tables. Raises `JournalError` if this program cannot use that version."""
        with self._session(write=False) as session:
            return schema.check_jobs(session.connection, self.server)

    @contextmanager
    def _connect_note_recorder(self) -> Iterator[RecordNotes]:
        with self._checked_session(write=True) as (session, identity):
            self._roll_call(identity).register(session.connection)  # this registers the host for later roll-calls
            folder = self._folder(identity)
            with closing(ConcurrentNoteWriter(session.connection, identity, self.intent_lives_s)) as writer:

                def record_notes(notes: Sequence[ConcurrentNote]) -> None:
                    with translating_errors(self.server), time_limit(session.connection, self.server.commit_limit_s):
                        fact = writer.record_notes(notes)
                    try:
                        log_concurrent_fact(folder, *fact)
                    except OSError as error:
                        message = unwritable_message(self.server.place, log_failure_reason(error))
                        raise JournalUnwritable(message) from None

                yield record_notes

    def limits(self) -> GateState:
        """Return the limits shared by all workers, and these workers."""
        with self._checked_session(write=False) as (session, _):
            return workers.read_gate(session.connection)

    def change_limits(self, change: LimitChange) -> GateState:
        """Set the limits shared by all workers, even while they send, and return them."""
        with self._checked_session(write=True) as (session, _):
            workers.set_limits(session.connection, change)
            return workers.read_gate(session.connection)

    def grant_rights(self) -> list[str]:
        """Create the journal's roles and grant their rights. Returns the roles' names. Only the owner can do this."""
        with self._checked_session(write=True) as (session, _):
            return schema.grant_rights(session.connection)

    def role(self) -> schema.JournalRole | None:
        """Return the journal role of the URL's login, or None if it has none.

        Raises `JournalError` if no run could use the database: it is a standby, its clock differs, or commits may be
        lost. A read-only role is not checked.
        """
        with self._session(write=False) as session:
            role = schema.session_role(session.connection)
        if role is not schema.JournalRole.READER:
            Session(self.server, write=True).close()
        return role

    def copies(self) -> ReplicationState:
        with self._session(write=False) as session:
            return replication_state(session.connection)

    def newest_plan(self, code: str) -> StoredPlan | None:
        """Return the newest plan with this code in the database, or None."""
        with self._checked_session(write=False) as (session, _):
            return next((StoredPlan(*columns) for columns in fetch(session.connection, _NEWEST_PLAN, (code,))), None)

    def find_plans(self, payments: str) -> list[StoredPlan]:
        """Return the plans with this digest of payments, newest first."""
        with self._checked_session(write=False) as (session, _):
            return [StoredPlan(*columns) for columns in fetch(session.connection, _PLANS_OF_PAYMENTS, (payments,))]

    def store_plan(
        self,
        code: str,
        content: str,
        before: StoredPlan | None = None,
        *,
        payments: str = "",
        notices: Sequence[NewNotice] = (),
    ) -> bool:
        """Store a new plan, or a new version of `before`, with notices. Returns False if another version came first."""
        plan, version = "(SELECT coalesce(max(plan), 0) + 1 FROM plan_document)", 1
        if before is not None:
            plan, version = str(before.number), before.version + 1
        query = f"INSERT INTO plan_document (plan, version, code, payments, content) VALUES ({plan}, %s, %s, %s, %s)"  # noqa: S608 - ours
        with self._checked_session(write=True) as (session, _), session.connection.transaction():
            try:
                with session.connection.transaction():
                    fetch(session.connection, query, (version, code, payments, content))
            except psycopg.errors.UniqueViolation:
                return False
            PostgresOutbox(session.connection).add(notices, self.now())
        return True

    def dump(self, file: Path) -> None:
        """Copy one snapshot of the journal to a new file for pg_restore, with mode 0600. Raises `JournalError`.

        Workers' jobs are not copied, because workers create them again.
        """
        program = shutil.which("pg_dump")
        if program is None:
            raise UsageError(
                say("A journal in PostgreSQL is copied by pg_dump, which is not installed here. Nothing was copied."),
                hint=say("Install the client programs of PostgreSQL, of the server's version or a later one."),
            )
        part = file.with_name(f"{file.name}.part")
        try:
            part.unlink(missing_ok=True)
            create_if_missing(part, b"")  # private to its owner before pg_dump writes to it
            done = subprocess.run(  # noqa: S603 - the database's own program
                [
                    program,
                    "--format=custom",
                    f"--schema={SCHEMA}",
                    f"--file={part}",
                    "--no-password",
                    f"--dbname={self.server.url}",
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                part.unlink(missing_ok=True)
                reason = next(iter(done.stderr.strip().splitlines()), str(done.returncode))
                raise JournalError(
                    say("pg_dump could not copy the journal: {reason}.", reason=reason), hint=say("Nothing was copied.")
                )
            with part.open("rb") as stream:
                os.fsync(stream.fileno())
            part.rename(file)
        except OSError as error:
            raise OutputError(
                say("{path} cannot be written: {reason}.", path=file, reason=say(error.strerror or ""))
            ) from None

    def roll_call(self) -> Sequence[MissingHost]:
        """Answer the roll-call for this host and return the missing hosts. Raises `JournalTooOld`."""
        with self._session(write=True) as session:
            return self._roll_call(self._require_right_journal(session)).register(session.connection)

    def retire(self, name: str, *, by: str) -> tuple[MissingHost, int]:
        """Retire a host that has not answered the roll-call and return it, and the number of its rows in doubt.

        `name` is its name or id. Raises `UsageError` unless exactly one such host is missing, or if the host is alive,
        because it then accepts its own loss. Raises `JournalHeld` while another process has a row in flight.
        """
        with self._session(write=True) as session, ExitStack() as cleanup:
            identity = self._require_right_journal(session)
            roll_call = self._roll_call(identity)
            with suppress(JournalTooOld):  # the missing host may be this one, which is refused below
                roll_call.register(session.connection)
            host = _find_missing_host(missing_hosts(session.connection), name)
            if host.lives or host.host_id == roll_call.host_id:
                raise UsageError(
                    say("The host {name} is alive: it knows which of its rows were sent.", name=host.name),
                    hint=say(
                        "Nothing was changed. Run `paygw-batch journal roll-call --accept-loss` on that host. "
                        "If it is gone for good, retire it 10 minutes after it was last seen."
                    ),
                )
            writer = self._create_loss_writer(session, identity, "journal retire", cleanup)
            # Once the host is retired, the roll-call no longer waits for it, and other hosts send again. So every row
            # that it may have sent is put in doubt first.
            rows = put_unfinished_in_doubt(session.connection, writer, self.now())
            record_retirement(session.connection, host.host_id, by)
        return host, rows

    def accept_loss(self, *, by: str) -> AcceptedLoss:
        """Put the rows of this host's lost commits in doubt and answer the roll-call. Safe to repeat.

        Raises `JournalHeld` while a process of this host may send, or another process is sending one of these rows.
        """
        now = self.now()
        with self._session(write=True) as session, ExitStack() as cleanup:
            identity = self._require_right_journal(session)
            roll_call = self._roll_call(identity)
            if roll_call.is_retired(session.connection):
                raise roll_call.retired_error()
            with suppress(JournalTooOld, SentLogDamaged):
                return AcceptedLoss(0, AcceptedRows(), is_guess=False, missing=roll_call.register(session.connection))
            folder = self._folder(identity)
            for name in writer_names(folder):
                if name != NOTES:
                    cleanup.callback(lock_log(folder, name, now=now, command="journal roll-call").close)
            loss = find_loss(folder, partial(find_present_lines, session.connection))
            is_guess = not loss.is_whole or roll_call.is_older(session.connection)
            writer = self._create_loss_writer(session, identity, "journal roll-call", cleanup)
            accepting = LossWriter(session.connection, identity, writer, loss, by=by, at=now)
            rows = accepting.write_estimate() if is_guess else accepting.write()
            record_accepted_loss(session.connection, roll_call.host_id, by)
            log_accepted_loss(folder, writer_names(folder), partial(newest_fact, session.connection))
            return AcceptedLoss(loss.commits, rows, is_guess, roll_call.register(session.connection))

    def _open_journal(self, journal: type[J], command: str, kind: HolderKind) -> J:
        now = self.now()
        with ExitStack() as cleanup:
            is_worker = issubclass(journal, WorkerJournal)
            session = Session(self.server, write=True, idle_limit=WORKER_IDLE_LIMIT if is_worker else IDLE_LIMIT)
            cleanup.callback(session.close)
            with translating_errors(self.server), time_limit(session.connection, self.server.commit_limit_s):
                identity = self._require_right_journal(session)
                names = evidence_log(session.connection, identity).names(identity)
                is_new = self._require_own(identity.journal_id, names)
                roll_call = self._roll_call(identity)
                roll_call.answer(session.connection)
                sent_log = ProcessSentLog(self._folder(identity), roll_call.life, now=now, command=command)
                cleanup.callback(sent_log.close)
                guarded = GuardedSession(session, identity, sent_log, roll_call)
                writer = self._create_writer(guarded, identity, command, kind)
                cleanup.callback(writer.close)
                if not is_worker:
                    writer.has_decision_lock = acquire_decision_lock(session.connection, writer.process)
                    if not writer.has_decision_lock:
                        raise workers.decision_lock_error(session.connection)
                if is_new and not is_worker:
                    with writer.decision_transaction():
                        writer.record([Remark(EndpointNote(self.endpoint, ""), now)])
            # The entry prevents people from creating a second journal for this merchant by mistake.
            every_name = tuple(dict.fromkeys((*names, self.endpoint)))
            entry = KnownJournal(identity.journal_id, every_name, identity.home, identity.created_at)
            self.known_journals.remember(entry, now)
            cleanup.pop_all()
        return journal(session, identity, writer)

    def _create_writer(self, guarded: GuardedSession, identity: Identity, command: str, kind: HolderKind) -> FactWriter:
        process = workers.enrol(guarded.connection, command=command, kind=kind, intent_lives_s=self.intent_lives_s)
        signs_of_life = workers.SignsOfLife(self.server, process.number, self.intent_lives_s)
        return FactWriter(guarded, process, signs_of_life, identity, self.intent_lives_s)

    def _create_loss_writer(self, session: Session, identity: Identity, command: str, cleanup: ExitStack) -> FactWriter:
        """Return a writer for the facts about a loss. It sends nothing and keeps no sent log."""
        writer = self._create_writer(GuardedSession(session, identity, NoSentLog()), identity, command, HolderKind.RUN)
        cleanup.callback(writer.close)
        return writer

    @contextmanager
    def _session(self, *, write: bool) -> Iterator[Session]:
        with closing(Session(self.server, write=write)) as session, translating_errors(self.server):
            yield session

    @contextmanager
    def _checked_session(self, *, write: bool) -> Iterator[tuple[Session, Identity]]:
        with self._session(write=write) as session:
            yield session, self._require_readable(session)

    def _require_readable(self, session: Session) -> Identity:
        """Return the journal's identity. Raises `JournalError` if the journal must not be read."""
        identity = self._require_right_journal(session)
        check_sent_log(session.connection, self.server, self.known_journals.folder(identity.journal_id))
        return identity

    def _require_right_journal(self, session: Session) -> Identity:
        """Return the journal's identity. Raises `JournalError` if this is not the right journal."""
        schema.check_version(session.connection, self.server)
        identity = self._require_merchant(session)
        schema.check_moved(session.connection)
        for entry in self.known_journals.entries():
            is_here = entry.path == identity.home and not entry.is_lost
            if is_here and entry.journal_id != identity.journal_id and entry.belongs_to((self.endpoint,)):
                raise JournalTooOld(
                    say("This is not the journal that this machine last sent rows from."),
                    hint=say("Nothing was sent. Restore the database, or set [journal] url to the right one."),
                )
        return identity

    def _require_merchant(self, session: Session) -> Identity:
        """Return the journal's identity. Raises `JournalError` if it belongs to another merchant or host."""
        identity = schema.identity_in(session.connection, self.server)
        check_endpoint(evidence_log(session.connection, identity).names(identity), self.endpoint, self.server.place)
        return identity

    def _roll_call(self, identity: Identity) -> RollCall:
        return RollCall(self.server, self._folder(identity))

    def _folder(self, identity: Identity) -> Path:
        """Return the folder of this journal on this host and create it if it is missing."""
        folder = self.known_journals.folder(identity.journal_id)
        make_directory(folder)
        check_directory(folder)
        return folder

    def _other_merchant_journals(self) -> list[KnownJournal]:
        try:
            with closing(Session(self.server, write=False)) as session:
                schema.check_version(session.connection, self.server)
                own_id = schema.identity_in(session.connection, self.server).journal_id
        except (JournalMissing, psycopg.Error):
            own_id = ""
        return list(self.known_journals.merchant_journals((self.endpoint,), except_id=own_id))


class WaitingRuns:
    """Finds runs that wait for a worker, on an open connection. Not thread-safe."""

    def __init__(self, server: Server, check: Callable[[Session], object]) -> None:
        self._server, self._check = server, check
        self._session: Session | None = None

    def __call__(self) -> Sequence[SharedRun]:
        """Return the runs that wait for a worker, urgent ones first. Runs with nothing left to send end."""
        try:
            with translating_errors(self._server):
                if self._session is None:
                    self._session = Session(self._server, write=True, idle_limit=WORKER_IDLE_LIMIT)
                    self._check(self._session)
                return workers.waiting_runs(self._session.connection)
        except JournalError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _find_missing_host(missing: Sequence[MissingHost], name: str) -> MissingHost:
    matching = [host for host in missing if name in {host.host_id, host.name}]
    if len(matching) == 1:
        return matching[0]
    missing_text = ", ".join(
        say("{name} ({host_id}, last seen {time})", name=host.name, host_id=host.host_id, time=host.seen_at)
        for host in missing
    )
    if matching:
        raise UsageError(
            say("Several missing hosts are called {named}: {known}.", named=name, known=missing_text),
            hint=say("Choose one by its id."),
        )
    raise UsageError(
        say("No host called {named} is missing from the roll-call. Nothing was changed.", named=name),
        hint=say("Missing hosts: {known}.", known=missing_text or say("none")),
    )
