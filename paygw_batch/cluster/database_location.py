"""Creates, opens and inspects a journal in PostgreSQL, which several hosts share."""

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
from paygw_batch.journal.location import JournalLocation, RecordNotes
from paygw_batch.journal.lock import LockHolder, check_directory, check_endpoint, make_directory
from paygw_batch.journal.lost import find_loss
from paygw_batch.journal.port import GateState, LimitChange, SharedRun, SharedWork, TimetableJob, WorkerStatus
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
        say("journal.url is set, but the part of this program for PostgreSQL is not installed."),
        hint=say(
            "Install it with `{command}`, or remove journal.url to keep the journal in a file.",
            command=install_command("cluster"),
        ),
    ) from None

J = TypeVar("J", bound=PostgresJournal)
_NEWEST_PLAN = """SELECT plan, version, code, content FROM plan_document WHERE code = %s
    ORDER BY plan DESC, version DESC LIMIT 1"""
_PLANS_FOR_PAYMENTS = """SELECT * FROM (
        SELECT DISTINCT ON (plan) plan, version, code, content FROM plan_document WHERE payments = %s
        ORDER BY plan DESC, version DESC
    ) p ORDER BY plan DESC"""


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """A loss that this host accepted: the number of its commits that the database has lost, and their rows.

    If `is_estimate` is true, this host does not know all of these commits, so it put every unfinished row in doubt.
    """

    commits: int
    rows: AcceptedRows
    is_estimate: bool
    missing: Sequence[MissingHost]


@dataclass(frozen=True, slots=True)
class DatabaseLocation(JournalLocation):
    """The location of a journal in a database on `server`."""

    server: Server
    intent_lives_s: float = 30.0

    def may_exist(self) -> bool:
        """Return True, because only opening the database shows whether it contains a journal."""
        return True

    def create(self, command: str, *, beside: str | None = None) -> Identity | None:  # noqa: ARG002 - unused here
        known_journals, now = self.known_journals, self.now()
        with ExitStack() as stack:
            stack.enter_context(known_journals.hold_lock(now))
            check_other_journals(self._other_merchant_journals(), beside, command="journal new")
            session = stack.enter_context(self._session(write=True))
            key = self.endpoint.consumer_key_sha256
            identity = Identity(secrets.token_hex(16), self.endpoint.name, now, self.server.location, key)
            if not schema.create_journal(session.connection, identity):
                schema.check_version(session.connection, self.server)
                self._require_merchant(session)
                return None
            known_journals.register(KnownJournal(identity.journal_id, (self.endpoint,), identity.home, now))
        return identity

    def upgrade(self) -> tuple[int, int, bool]:
        """Upgrade the tables to this program's version, and grant the roles rights on new tables.

        Returns the old and new version, and whether the job tables were upgraded. Only the owner can do this.
        """
        with self._session(write=True) as session:
            with suppress(JournalOutdated):
                schema.check_version(session.connection, self.server)
            self._require_merchant(session)
            if schema.session_role(session.connection) is not schema.JournalRole.OWNER:
                raise JournalError(
                    say(
                        "The role in [journal] url does not own the tables in {place}, so it cannot upgrade them.",
                        place=self.server.location,
                    ),
                    hint=say(
                        "Nothing was changed. Use the owner's login in [journal] url for this one command, for example "
                        "in a separate configuration (--config)."
                    ),
                )
            old_jobs_version = schema.jobs_version(session.connection)
            old_version = schema.upgrade_tables(session.connection, self.server, self.now())
            if schema.rights_are_granted(session.connection):
                schema.grant_rights(session.connection)
            return old_version, schema.newest_version(), schema.jobs_version(session.connection) != old_jobs_version

    def open_to_write(self, command: str, kind: HolderKind = HolderKind.RUN) -> PostgresJournal:
        return self._open_journal(PostgresJournal, command, kind)

    def open_to_work(self, command: str, kind: HolderKind = HolderKind.WORKER) -> WorkerJournal:
        """Open the journal to send rows as a worker, without the decision lock."""
        return self._open_journal(WorkerJournal, command, kind)

    def open_to_read(self, *, must_be_known: bool = False) -> PostgresReader:  # noqa: ARG002 - a database is known
        """Open the journal to read it, which any login of the database may do."""
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
        """Return the process that holds the decision lock or, if there is none, one that is sending, or None."""
        with self._session(write=False) as session:
            schema.check_version(session.connection, self.server)
            return workers.current_holder(session.connection)

    def workers(self) -> Sequence[WorkerStatus]:
        """Return the live workers on all hosts, and dead workers with rows in flight."""
        with closing(self.open_to_read()) as journal:
            return journal.workers()

    def dead_workers(self, since: str) -> Sequence[WorkerStatus]:
        """Return the workers that died unexpectedly and were last seen after `since`."""
        with self._session(write=False) as session:
            return workers.find_dead_workers(session.connection, since)

    def shared_work(self) -> SharedWork:
        """Return the workers, unfinished runs and limits on all hosts."""
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
                tables.run("lock_audit_trail")
                yield tables

    @contextmanager
    def run_exclusively(self, name: str) -> Iterator[None]:
        """Run the block in only one process at a time. Raises `JournalHeld` if any host is already running `name`."""
        # Two may run if the connection is lost. That is harmless, because the journal determines which rows are sent.
        with self._session(write=False) as session:
            # If the server's answer is lost, closing the connection releases the lock.
            with time_limit(session.connection, self.server.commit_limit_s):
                self._require_readable(session)
                result = fetch(session.connection, "SELECT pg_try_advisory_lock(7023, hashtext(%s))", (name,))
            if result != [(True,)]:
                raise JournalHeld(say("Another process is already doing this: {name}.", name=name))
            yield

    def waiting_runs(self) -> "WaitingRuns":
        """Return a callable that finds the runs waiting for a worker."""
        return WaitingRuns(self.server, self._require_readable)

    def timetable_jobs(self) -> Sequence[TimetableJob]:
        """Return the timetable's jobs with their latest results."""
        with self._checked_session(write=False) as (session, _):
            return schema.timetable_jobs(session.connection)

    def check_jobs(self) -> str:
        """Return the version of the job tables. Raises `JournalError` if this program cannot use it."""
        with self._session(write=False) as session:
            return schema.check_jobs(session.connection, self.server)

    @contextmanager
    def _connect_note_recorder(self) -> Iterator[RecordNotes]:
        with self._checked_session(write=True) as (session, identity):
            self._roll_call(identity).register(session.connection)  # so that later roll-calls include this host
            folder = self._host_folder(identity)
            with closing(ConcurrentNoteWriter(session.connection, identity, self.intent_lives_s)) as writer:

                def record_notes(notes: Sequence[ConcurrentNote]) -> None:
                    with translating_errors(self.server), time_limit(session.connection, self.server.commit_limit_s):
                        fact = writer.record_notes(notes)
                    try:
                        log_concurrent_fact(folder, *fact)
                    except OSError as error:
                        message = unwritable_message(self.server.location, log_failure_reason(error))
                        raise JournalUnwritable(message) from None

                yield record_notes

    def limits(self) -> GateState:
        """Return the workers, and the limits that they all share."""
        with self._checked_session(write=False) as (session, _):
            return workers.read_gate(session.connection)

    def change_limits(self, change: LimitChange) -> GateState:
        """Set and return the limits that all workers share, which also apply to workers already sending."""
        with self._checked_session(write=True) as (session, _):
            workers.set_limits(session.connection, change)
            return workers.read_gate(session.connection)

    def grant_rights(self) -> list[str]:
        """Create the journal's roles, grant them their rights, and return their names. Only the owner can do this."""
        with self._checked_session(write=True) as (session, _):
            return schema.grant_rights(session.connection)

    def role(self) -> schema.JournalRole | None:
        """Return the journal role of the login, or None if it has none.

        Raises `JournalError` if no run could use the database, unless the role is read-only.
        """
        with self._session(write=False) as session:
            role = schema.session_role(session.connection)
        if role is not schema.JournalRole.READER:
            Session(self.server, write=True).close()
        return role

    def read_replication(self) -> ReplicationState:
        with self._session(write=False) as session:
            return replication_state(session.connection)

    def newest_plan(self, code: str) -> StoredPlan | None:
        """Return the newest version of the plan with this code, or None."""
        with self._checked_session(write=False) as (session, _):
            return next((StoredPlan(*columns) for columns in fetch(session.connection, _NEWEST_PLAN, (code,))), None)

    def find_plans(self, payments: str) -> list[StoredPlan]:
        """Return the plans whose payments have this digest, newest first."""
        with self._checked_session(write=False) as (session, _):
            return [StoredPlan(*columns) for columns in fetch(session.connection, _PLANS_FOR_PAYMENTS, (payments,))]

    def store_plan(
        self,
        code: str,
        content: str,
        previous: StoredPlan | None = None,
        *,
        payments: str = "",
        notices: Sequence[NewNotice] = (),
    ) -> bool:
        """Store a plan or a new version of `previous`, with notices. Returns False if that version already exists."""
        number, version = "(SELECT coalesce(max(plan), 0) + 1 FROM plan_document)", 1
        if previous is not None:
            number, version = str(previous.number), previous.version + 1
        query = f"INSERT INTO plan_document (plan, version, code, payments, content) VALUES ({number}, %s, %s, %s, %s)"  # noqa: S608 - ours
        with self._checked_session(write=True) as (session, _), session.connection.transaction():
            try:
                with session.connection.transaction():
                    fetch(session.connection, query, (version, code, payments, content))
            except psycopg.errors.UniqueViolation:
                return False
            PostgresOutbox(session.connection).add(notices, self.now())
        return True

    def dump(self, file: Path) -> None:
        """Copy a snapshot of the journal (without jobs) to a private file for pg_restore. Raises `JournalError`."""
        program = shutil.which("pg_dump")
        if program is None:
            raise UsageError(
                say("A journal in PostgreSQL is copied by pg_dump, which is not installed here. Nothing was copied."),
                hint=say("Install the PostgreSQL client programs, in the server's version or a later one."),
            )
        part_file = file.with_name(f"{file.name}.part")
        try:
            part_file.unlink(missing_ok=True)
            create_if_missing(part_file, b"")  # create it privately before pg_dump writes to it
            options = ["--format=custom", f"--schema={SCHEMA}", f"--file={part_file}", f"--dbname={self.server.url}"]
            command = [program, "--no-password", *options]
            process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: S603 - ours
            if process.returncode != 0:
                part_file.unlink(missing_ok=True)
                reason = next(iter(process.stderr.strip().splitlines()), str(process.returncode))
                raise JournalError(
                    say("pg_dump could not copy the journal: {reason}.", reason=reason), hint=say("Nothing was copied.")
                )
            with part_file.open("rb") as stream:
                os.fsync(stream.fileno())
            part_file.rename(file)
        except OSError as error:
            raise OutputError(
                say("{path} cannot be written: {reason}.", path=file, reason=say(error.strerror or ""))
            ) from None

    def roll_call(self) -> Sequence[MissingHost]:
        """Answer the roll-call for this host, and return the missing hosts. Raises `JournalTooOld`."""
        with self._session(write=True) as session:
            return self._roll_call(self._require_right_journal(session)).register(session.connection)

    def retire(self, name: str, *, by: str) -> tuple[MissingHost, int]:
        """Retire a host that has not answered the roll-call. Returns the host and the number of its rows in doubt.

        `name` is its name or id. Raises `UsageError` if several hosts match, or none, or one that is alive and so must
        accept its own loss. Raises `JournalHeld` while another process has a row in flight.
        """
        with self._session(write=True) as session, ExitStack() as cleanup:
            identity = self._require_right_journal(session)
            roll_call = self._roll_call(identity)
            with suppress(JournalTooOld):  # the missing host may be this one; that is refused below
                roll_call.register(session.connection)
            host = _require_missing_host(missing_hosts(session.connection), name)
            if host.is_alive or host.host_id == roll_call.host_id:
                raise UsageError(
                    say("The host {name} is still running, and it knows which of its rows were sent.", name=host.name),
                    hint=say(
                        "Nothing was changed. Run `paygw-batch journal roll-call --accept-loss` on that host. If it "
                        "is permanently lost, you can retire it 10 minutes after it was last seen."
                    ),
                )
            writer = self._create_loss_writer(session, identity, "journal retire", cleanup)
            # Once the host is retired, others may send again. So first put every row that it may have sent in doubt.
            rows = put_unfinished_in_doubt(session.connection, writer, self.now())
            record_retirement(session.connection, host.host_id, by)
        return host, rows

    def accept_loss(self, *, by: str) -> AcceptedLoss:
        """Put the rows in this host's lost commits in doubt, and answer the roll-call. Can be repeated safely.

        Raises `JournalHeld` while a process on this host may send, or another process is sending one of these rows.
        """
        now = self.now()
        with self._session(write=True) as session, ExitStack() as cleanup:
            identity = self._require_right_journal(session)
            roll_call = self._roll_call(identity)
            if roll_call.is_retired(session.connection):
                raise roll_call.retired_error()
            with suppress(JournalTooOld, SentLogDamaged):
                missing = roll_call.register(session.connection)
                return AcceptedLoss(0, AcceptedRows(), is_estimate=False, missing=missing)
            folder = self._host_folder(identity)
            for name in writer_names(folder):
                if name != NOTES:
                    cleanup.callback(lock_log(folder, name, now=now, command="journal roll-call").close)
            loss = find_loss(folder, partial(find_present_lines, session.connection))
            is_estimate = not loss.is_complete or roll_call.has_older_logs(session.connection)
            writer = self._create_loss_writer(session, identity, "journal roll-call", cleanup)
            loss_writer = LossWriter(session.connection, identity, writer, loss, by=by, at=now)
            rows = loss_writer.write_worst_case() if is_estimate else loss_writer.write()
            record_accepted_loss(session.connection, roll_call.host_id, by)
            log_accepted_loss(folder, writer_names(folder), partial(newest_fact, session.connection))
            return AcceptedLoss(loss.commits, rows, is_estimate, roll_call.register(session.connection))

    def _open_journal(self, journal_type: type[J], command: str, kind: HolderKind) -> J:
        now = self.now()
        with ExitStack() as cleanup:
            is_worker = issubclass(journal_type, WorkerJournal)
            session = Session(self.server, write=True, idle_limit=WORKER_IDLE_LIMIT if is_worker else IDLE_LIMIT)
            cleanup.callback(session.close)
            with translating_errors(self.server), time_limit(session.connection, self.server.commit_limit_s):
                identity = self._require_right_journal(session)
                endpoints = evidence_log(session.connection, identity).endpoints(identity)
                is_new = self._is_new_endpoint(identity.journal_id, endpoints)
                roll_call = self._roll_call(identity)
                roll_call.answer(session.connection)
                folder = self._host_folder(identity)
                sent_log = ProcessSentLog(folder, roll_call.incarnation_file, now=now, command=command)
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
            # Registering the journal prevents people from creating a second one for this merchant by mistake.
            all_endpoints = tuple(dict.fromkeys((*endpoints, self.endpoint)))
            entry = KnownJournal(identity.journal_id, all_endpoints, identity.home, identity.created_at)
            self.known_journals.write_if_changed(entry, now)
            cleanup.pop_all()
        return journal_type(session, identity, writer)

    def _create_writer(self, guarded: GuardedSession, identity: Identity, command: str, kind: HolderKind) -> FactWriter:
        process = workers.enrol(guarded.connection, command=command, kind=kind, intent_lives_s=self.intent_lives_s)
        heartbeat = workers.Heartbeat(self.server, process.number, self.intent_lives_s)
        return FactWriter(guarded, process, heartbeat, identity, self.intent_lives_s)

    def _create_loss_writer(self, session: Session, identity: Identity, command: str, cleanup: ExitStack) -> FactWriter:
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
        """Return the journal's identity. Raises `JournalError` if this host used another journal before."""
        schema.check_version(session.connection, self.server)
        identity = self._require_merchant(session)
        schema.check_move_finished(session.connection)
        for entry in self.known_journals.entries():
            is_here = entry.path == identity.home and not entry.is_lost
            if is_here and entry.journal_id != identity.journal_id and entry.belongs_to((self.endpoint,)):
                raise JournalTooOld(
                    say("This is not the journal that this machine last sent rows from."),
                    hint=say("Nothing was sent. Restore the database, or set [journal] url to the right one."),
                )
        return identity

    def _require_merchant(self, session: Session) -> Identity:
        """Return the journal's identity. Raises `JournalError` if the journal has another merchant or endpoint."""
        identity = schema.load_identity(session.connection, self.server)
        check_endpoint(
            evidence_log(session.connection, identity).endpoints(identity), self.endpoint, self.server.location
        )
        return identity

    def _roll_call(self, identity: Identity) -> RollCall:
        return RollCall(self.server, self._host_folder(identity))

    def _host_folder(self, identity: Identity) -> Path:
        """Return this host's folder for the journal, creating it if necessary."""
        folder = self.known_journals.folder(identity.journal_id)
        make_directory(folder)
        check_directory(folder)
        return folder

    def _other_merchant_journals(self) -> list[KnownJournal]:
        try:
            with closing(Session(self.server, write=False)) as session:
                schema.check_version(session.connection, self.server)
                own_id = schema.load_identity(session.connection, self.server).journal_id
        except (JournalMissing, psycopg.Error):
            own_id = ""
        return list(self.known_journals.merchant_journals((self.endpoint,), except_id=own_id))


class WaitingRuns:
    """Finds runs that are waiting for a worker, over one connection. Not thread-safe."""

    def __init__(self, server: Server, check: Callable[[Session], object]) -> None:
        self._server, self._check = server, check
        self._session: Session | None = None

    def __call__(self) -> Sequence[SharedRun]:
        """Return the runs that are waiting for a worker, urgent ones first. Ends runs without remaining rows."""
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


def _require_missing_host(hosts: Sequence[MissingHost], name: str) -> MissingHost:
    matches = [host for host in hosts if name in {host.host_id, host.name}]
    if len(matches) == 1:
        return matches[0]
    known_names = ", ".join(
        say("{name} ({host_id}, last seen {time})", name=host.name, host_id=host.host_id, time=host.seen_at)
        for host in hosts
    )
    if matches:
        raise UsageError(
            say("Several missing hosts are called {named}: {known}.", named=name, known=known_names),
            hint=say("Use the host's id instead of its name."),
        )
    raise UsageError(
        say("No missing host is called {named}. Nothing was changed.", named=name),
        hint=say("Missing hosts: {known}.", known=known_names or say("none")),
    )
