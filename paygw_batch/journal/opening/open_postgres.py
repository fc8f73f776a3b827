"""Makes and opens the journal in PostgreSQL: to write it, one command at a time, or to look into it."""

import secrets
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.errors import (
    ConfigurationError,
    HolderKind,
    JournalError,
    JournalOutdated,
    JournalWentBack,
    UsageError,
)
from paygw_batch.journal.facts.chain import Identity
from paygw_batch.journal.gate_port import GateState, LimitChange
from paygw_batch.journal.guards.location import check_directory, make_directory, settled
from paygw_batch.journal.guards.lock import LockHolder
from paygw_batch.journal.kept_plan import KeptPlan
from paygw_batch.journal.opening.create import check_beside
from paygw_batch.journal.opening.registry import JournalRegistry, Registered
from paygw_batch.journal.sqlite.inbox import InboxReader, inbox_path

__all__ = ["MissingHost", "PostgresJournal", "PostgresReader", "WorkerJournal"]

try:
    import psycopg

    from paygw_batch.journal.postgres.kept_plans import keep_plan, newest_plan
    from paygw_batch.journal.postgres.leasing import leases
    from paygw_batch.journal.postgres.leasing.desk_writer import DeskWriter
    from paygw_batch.journal.postgres.leasing.guarded_session import GuardedSession
    from paygw_batch.journal.postgres.leasing.host_witness import HostWitness, check_witnesses, set_aside
    from paygw_batch.journal.postgres.leasing.lease_writer import LeaseWriter
    from paygw_batch.journal.postgres.leasing.leases import DESK, Heartbeat, HeldLeases
    from paygw_batch.journal.postgres.leasing.postgres_gate import read_gate, set_limits
    from paygw_batch.journal.postgres.leasing.retired_host import NoWitness, put_undone_in_doubt, write_retired
    from paygw_batch.journal.postgres.leasing.roll_call import MissingHost, RollCall, missing_hosts
    from paygw_batch.journal.postgres.migrations import (
        check_endpoint,
        check_version,
        identity_in,
        make_tables,
        newest_version,
        upgrade_tables,
    )
    from paygw_batch.journal.postgres.moved_copy import check_moved
    from paygw_batch.journal.postgres.postgres_journal import PostgresJournal
    from paygw_batch.journal.postgres.postgres_reader import PostgresReader
    from paygw_batch.journal.postgres.roles import JournalRole, give_rights, has_rights, role_of
    from paygw_batch.journal.postgres.session import Server, Session, limited, plainly
    from paygw_batch.journal.postgres.worker_journal import WorkerJournal
except ModuleNotFoundError as error:
    if error.name != "psycopg":
        raise
    raise ConfigurationError(
        "journal.url is set, and the part of this program that speaks with PostgreSQL is not installed.",
        hint="Install it: pip install 'paygw-batch[cluster]'. Or leave journal.url out: the journal is then a file.",
    ) from None

J = TypeVar("J", bound=PostgresJournal)


@dataclass(frozen=True, slots=True)
class PostgresPlace:
    """The place of a journal in PostgreSQL, and of the files that this host keeps beside it.

    `inbox` is the file in which notifications wait. `registry_dir` remembers journals; None remembers nothing.
    """

    server: Server
    witness_dir: Path
    registry_dir: Path | None
    inbox: Path
    endpoint: EndpointIdentity
    lease_s: float = 30.0
    chunk_rows: int = 1_000

    @property
    def registry(self) -> JournalRegistry | None:
        """The registry of journals, if there is one."""
        return None if self.registry_dir is None else JournalRegistry(settled(self.registry_dir))


def place_of_database(
    url: str,
    *,
    replication: str,
    witness_dir: Path,
    registry_dir: Path | None,
    journal: Path,
    endpoint: EndpointIdentity,
    lease_s: float,
    chunk_rows: int,
) -> PostgresPlace:
    """Return the place of the journal in the database at `url`; the inbox of this host is beside the path `journal`."""
    server = Server(url, replication)
    return PostgresPlace(server, witness_dir, registry_dir, inbox_path(journal), endpoint, lease_s, chunk_rows)


def new_postgres_journal(place: PostgresPlace, *, now: str, beside: str | None = None) -> Identity | None:
    """Make the journal of the endpoint in its database; return which one it is, or None where one is there already.

    Raises `JournalError` when another journal of the endpoint is remembered and not named by `beside`.
    """
    registry = place.registry
    with ExitStack() as held:
        if registry is not None:
            held.enter_context(registry.held(now))
            check_beside(_others(registry, place), beside, command="journal new")
        session = held.enter_context(closing(Session(place.server, write=True)))
        identity = Identity(secrets.token_hex(16), place.endpoint.name, now, place.server.place)
        with plainly(place.server):
            if not make_tables(session.connection, identity, place.endpoint):
                check_version(session.connection, place.server)
                check_endpoint(session.connection, place.server, place.endpoint)
                return None
        if registry is not None:
            for entry in registry.entries():
                if entry.path == identity.home:  # a person said that it is lost: it is told apart from the new one
                    registry.write(replace(entry, path=f"{entry.path} (before {now})"))
            registry.write(Registered(identity.journal_id, (place.endpoint,), identity.home, now))
    return identity


def upgrade_postgres_journal(place: PostgresPlace, *, now: str) -> tuple[int, int]:
    """Bring the tables up to the version of this program; return the versions that they were and are of.

    The roles get the rights on what is new. Raises `JournalError` for anybody but the owner of the tables.
    """
    with closing(Session(place.server, write=True)) as session, plainly(place.server):
        with suppress(JournalOutdated):
            check_version(session.connection, place.server)
        check_endpoint(session.connection, place.server, place.endpoint)
        if role_of(session.connection) is not JournalRole.OWNER:
            raise JournalError(
                f"The role of [journal] url does not own the tables in {place.server.place}: it cannot bring them up.",
                hint="Nothing was changed. Name the owner in [journal] url for this one command, for example by a "
                "configuration of its own (--config).",
            )
        before = upgrade_tables(session.connection, place.server, now)
        if has_rights(session.connection):
            give_rights(session.connection)
        return before, newest_version()


def open_postgres_journal(
    place: PostgresPlace, *, now: str, holder: str, kind: HolderKind = HolderKind.RUN
) -> PostgresJournal:
    """Open the journal for a run, and hold its desk until `close`. It must be there.

    Raises `JournalMissing` when there is none, `JournalHeld` when another run has its desk, `JournalWentBack` when this
    host has seen more of it, and `JournalError` for everything else that speaks against using it.
    """
    return _opened(PostgresJournal, place, now=now, holder=holder, kind=kind)


def open_worker_journal(
    place: PostgresPlace, *, now: str, holder: str, kind: HolderKind = HolderKind.WORKER
) -> WorkerJournal:
    """Open the journal for a worker: it holds no desk, and takes chunks that are offered. Raises as the above."""
    return _opened(WorkerJournal, place, now=now, holder=holder, kind=kind)


def _opened(journal: type[J], place: PostgresPlace, *, now: str, holder: str, kind: HolderKind) -> J:
    witness_dir = settled(place.witness_dir)
    with ExitStack() as undo:
        session = Session(place.server, write=True)
        undo.callback(session.close)
        with plainly(place.server), limited(session.connection, place.server.commit_limit_s):
            identity = _identified(session, place)
            roll = _roll_of(place, identity)
            roll.answer(session.connection)
            witness = HostWitness(witness_dir, identity.journal_id, now=now, command=holder)
            undo.callback(witness.close)
            worker = leases.enrol(session.connection, command=holder, kind=kind, lease_s=place.lease_s)
            held = HeldLeases(worker, None)
            guarded = GuardedSession(session, identity, witness, roll)
            if not issubclass(journal, WorkerJournal):
                with session.connection.transaction():
                    held.desk = leases.take(session.connection, DESK, worker)
                if held.desk is None:
                    leases.give_back(session.connection, [], worker)
                    raise leases.held_by(session.connection, DESK)
        _remember(place, identity, now)
        heartbeat = Heartbeat(place.server, worker, place.lease_s)
        undo.callback(heartbeat.close)
        writer = LeaseWriter(guarded, held, heartbeat)
        desk_writer = DeskWriter(guarded, held, writer.forget_all)
        undo.pop_all()
    inbox = InboxReader(place.inbox)
    return journal(session, identity, writer, desk_writer, inbox, chunk_rows=place.chunk_rows)


def read_postgres_journal(place: PostgresPlace) -> PostgresReader:
    """Open the journal to look into it, also while runs write it: one snapshot. Raises the errors of opening it."""
    session = Session(place.server, write=False)
    try:
        with plainly(place.server):
            identity = _checked(session, place, settled(place.witness_dir))
            session.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    except BaseException:
        session.close()
        raise
    return PostgresReader(session, identity, InboxReader(place.inbox))


def postgres_holder(place: PostgresPlace) -> LockHolder | None:
    """Return the living process that has the desk of the journal, or else a chunk of it; None: nobody has."""
    with closing(Session(place.server, write=False)) as session, plainly(place.server):
        check_version(session.connection, place.server)
        return leases.holder_of(session.connection, DESK, living=True) or leases.sender_now(session.connection)


def roll_call_of(place: PostgresPlace) -> Sequence[MissingHost]:
    """Show the witness of this host, and return the hosts that have not shown theirs. Raises `JournalWentBack`."""
    with closing(Session(place.server, write=True)) as session, plainly(place.server):
        return _roll_of(place, _identified(session, place)).missing(session.connection)


def retire_host(place: PostgresPlace, named: str, *, by: str, now: str) -> tuple[MissingHost, int]:
    """Retire a host that is missing in the roll-call, by its name or id; return it, and how many rows are in doubt.

    Raises `UsageError` where no such host is missing, or several are.
    """
    with ExitStack() as undo:
        session = Session(place.server, write=True)
        undo.callback(session.close)
        with plainly(place.server):
            identity = _identified(session, place)
            roll = _roll_of(place, identity)
            with suppress(JournalWentBack):  # it may be this host itself
                roll.missing(session.connection)
            host = _one_missing(missing_hosts(session.connection), named)
            worker = leases.enrol(session.connection, command="retire", kind=HolderKind.RUN, lease_s=place.lease_s)
            heartbeat = Heartbeat(place.server, worker, place.lease_s)
            guarded = GuardedSession(session, identity, NoWitness())
            writer = LeaseWriter(guarded, HeldLeases(worker, None), heartbeat)
            undo.callback(writer.close)
            rows = put_undone_in_doubt(session.connection, writer, now)
            write_retired(session.connection, host.host_id, by)
    if host.host_id == roll.host_id:
        set_aside(settled(place.witness_dir), identity.journal_id)
    return host, rows


def _one_missing(missing: Sequence[MissingHost], named: str) -> MissingHost:
    found = [one for one in missing if named in {one.host_id, one.name}]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.name} ({one.host_id}, last seen {one.seen_at})" for one in missing) or "none"
    if found:
        raise UsageError(f"Several hosts of the name {named} are missing: {known}.", hint="Name one by its id.")
    raise UsageError(
        f"The roll-call does not miss a host {named}: nothing was changed.", hint=f"Hosts that are missing: {known}."
    )


def _roll_of(place: PostgresPlace, identity: Identity) -> RollCall:
    witness_dir = settled(place.witness_dir)
    make_directory(witness_dir)
    check_directory(witness_dir)
    return RollCall(place.server, witness_dir, identity.journal_id)


def postgres_limits(place: PostgresPlace) -> GateState:
    """Return the limits over all workers, and who has which part of them."""
    with closing(Session(place.server, write=False)) as session, plainly(place.server):
        _checked(session, place, settled(place.witness_dir))
        return read_gate(session.connection)


def change_postgres_limits(place: PostgresPlace, change: LimitChange) -> GateState:
    """Set limits over all workers, also while they send, and return them."""
    with closing(Session(place.server, write=True)) as session, plainly(place.server):
        _checked(session, place, settled(place.witness_dir))
        set_limits(session.connection, change)
        return read_gate(session.connection)


def give_postgres_rights(place: PostgresPlace) -> list[str]:
    """Make the roles of the journal, and give them their rights; return their names. The owner's business."""
    with closing(Session(place.server, write=True)) as session, plainly(place.server):
        _checked(session, place, settled(place.witness_dir))
        return give_rights(session.connection)


def postgres_role(place: PostgresPlace) -> JournalRole | None:
    """Return the rights that the role of the address has; None: none that this program knows.

    Raises `JournalError` where no run could use the database: a standby, clocks that differ, commits that may be lost.
    One who only looks needs none of that.
    """
    with closing(Session(place.server, write=False)) as session, plainly(place.server):
        role = role_of(session.connection)
    if role is not JournalRole.READER:
        Session(place.server, write=True).close()
    return role


def newest_postgres_plan(place: PostgresPlace, code: str) -> KeptPlan | None:
    """Return the newest plan with this code that is kept in the database; None where there is none."""
    with closing(Session(place.server, write=False)) as session, plainly(place.server):
        _checked(session, place, settled(place.witness_dir))
        return newest_plan(session.connection, code)


def keep_postgres_plan(place: PostgresPlace, code: str, content: str, before: KeptPlan | None = None) -> bool:
    """Keep a new plan, or the next version of the one `before`; False where somebody was faster."""
    with closing(Session(place.server, write=True)) as session, plainly(place.server):
        _checked(session, place, settled(place.witness_dir))
        return keep_plan(session.connection, code, content, before)


def _checked(session: Session, place: PostgresPlace, witness_dir: Path) -> Identity:
    """Return which journal it is, once nothing speaks against looking into it."""
    identity = _identified(session, place)
    check_witnesses(session.connection, place.server, witness_dir, identity.journal_id)
    return identity


def _identified(session: Session, place: PostgresPlace) -> Identity:
    """Return which journal it is, once it is known to be the right one."""
    check_version(session.connection, place.server)
    identity = identity_in(session.connection, place.server)
    check_endpoint(session.connection, place.server, place.endpoint)
    check_moved(session.connection)
    registry = place.registry
    for entry in [] if registry is None else registry.entries():
        if entry.path == identity.home and entry.journal_id != identity.journal_id and entry.pays((place.endpoint,)):
            raise JournalWentBack(
                f"Another journal stands in {identity.home}, where this machine knows one that rows were sent from.",
                hint="Nothing was sent. Bring the database back, or name the right one in [journal] url.",
            )
    return identity


def _others(registry: JournalRegistry, place: PostgresPlace) -> list[Registered]:
    """Return the journals of the endpoint that are remembered, except the one in this database."""
    try:
        with closing(Session(place.server, write=False)) as session:
            check_version(session.connection, place.server)
            ours = identity_in(session.connection, place.server).journal_id
    except (JournalError, psycopg.Error):
        ours = ""
    return list(registry.paying((place.endpoint,), but=ours))


def _remember(place: PostgresPlace, identity: Identity, now: str) -> None:
    """Register the journal with this user, so that no second one of its endpoint is made by mistake."""
    registry = place.registry
    wanted = Registered(identity.journal_id, (place.endpoint,), identity.home, identity.created_at)
    if registry is None or registry.entry(identity.journal_id) == wanted:
        return
    with registry.held(now):
        registry.write(wanted)
