"""Creates and upgrades the tables for a journal and its workers' jobs, and grants rights to roles.

A later version's script must not change existing lines. If a function's meaning changes, it gets a new name and the old
one is removed, so that older programs fail.

Logins are members of roles, which are named after the database. NAME_worker can send. NAME_desk can also open, release
and settle, and set limits. NAME_reader can read. The tables' owner does not need a role.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path

from procrastinate.schema import SchemaManager
from psycopg import Connection, sql

from paygw_batch.errors import JournalCorrupt, JournalError, JournalHeld, JournalMissing, JournalOutdated
from paygw_batch.journal.facts import line_text_sql
from paygw_batch.journal.port import JOBS_SCHEMA, TimetableJob
from paygw_batch.journal.postgres.session import SCHEMA, TIME, Row, Server, fetch, time_limit
from paygw_batch.journal.tables import MOVE_LINES, insert_triggers
from paygw_batch.journal.values import Identity
from paygw_batch.language import say


class JournalRole(StrEnum):
    """A session's rights in a journal's database."""

    OWNER = "owner"
    DESK = "desk"
    WORKER = "worker"
    READER = "reader"


_REVOCATIONS = (
    "REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}",
    "REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM {role}",
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM {role}",
    "REVOKE ALL ON ALL TABLES IN SCHEMA {jobs} FROM {role}",
    "REVOKE ALL ON ALL SEQUENCES IN SCHEMA {jobs} FROM {role}",
)
"""Revokes all of a role's rights before new ones are granted, so that it keeps none from an earlier version."""
_READER_RIGHTS = (
    "GRANT USAGE ON SCHEMA {schema}, {jobs} TO {role}",
    "GRANT SELECT ON ALL TABLES IN SCHEMA {schema}, {jobs} TO {role}",
    "GRANT EXECUTE ON FUNCTION is_alive, is_left, is_free, may_decide TO {role}",
)
_WORKER_RIGHTS = (
    *_READER_RIGHTS,
    "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {jobs} TO {role}",
    "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {jobs} TO {role}",
    "GRANT UPDATE (stop_reason, ended_at) ON run TO {role}",
    "GRANT EXECUTE ON FUNCTION enrol, show_life, end_life, join_run, claim_rows, ask_gate, leave_gate TO {role}",
    "GRANT EXECUTE ON FUNCTION commit_facts TO {role}",
    "GRANT EXECUTE ON FUNCTION database_life, answer_roll, call_roll, lives TO {role}",
)
_RIGHTS: Mapping[JournalRole, tuple[str, ...]] = {
    JournalRole.READER: _READER_RIGHTS,
    JournalRole.WORKER: (*_WORKER_RIGHTS, "REVOKE SELECT ON audit FROM {role}"),
    JournalRole.DESK: (
        *_WORKER_RIGHTS,
        "GRANT INSERT ON batch, page, instruction, known, order_id, payee_words TO {role}",
        "GRANT INSERT (instruction, batch, country, currency, minor) ON state TO {role}",
        "GRANT INSERT ON run TO {role}",
        "GRANT UPDATE (is_urgent) ON run TO {role}",
        "GRANT INSERT ON plan_document, audit TO {role}",
        "GRANT INSERT, UPDATE (content, tries, tried_at, next_at, sent_at, problem) ON notice TO {role}",
        "GRANT UPDATE (instruction) ON order_id TO {role}",
        "GRANT EXECUTE ON FUNCTION open_gate, set_limits, retire_host TO {role}",
        "GRANT EXECUTE ON FUNCTION take_desk, leave_desk, hold_desk, lock_rows, accept_loss, left_is_older TO {role}",
        "GRANT EXECUTE ON FUNCTION begin_forgetting, forget_people, forget_said TO {role}",
        "GRANT EXECUTE ON FUNCTION forget_texts, forget_heard, forget_sheet, forget_plans TO {role}",
    ),
}


def grant_rights(connection: Connection[Row]) -> list[str]:
    """Create missing roles and grant each role its rights. Returns the names of all roles."""
    names = []
    with connection.transaction():
        fetch(connection, "SELECT pg_advisory_xact_lock(7021)")  # the lock that `create_journal` takes
        for role, rights in _RIGHTS.items():
            name = _role_name(connection, role)
            if not fetch(connection, "SELECT FROM pg_roles WHERE rolname = %s", (name,)):
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name)))
            for query in (*_REVOCATIONS, *rights):
                identifiers = {"schema": SCHEMA, "jobs": JOBS_SCHEMA, "role": name}
                statement = sql.SQL(query).format(
                    **{placeholder: sql.Identifier(identifier) for placeholder, identifier in identifiers.items()}
                )
                connection.execute(statement)
            names.append(name)
    return names


def rights_are_granted(connection: Connection[Row]) -> bool:
    query = "SELECT has_schema_privilege(oid, %s, 'USAGE') FROM pg_roles WHERE rolname = %s"
    return fetch(connection, query, (SCHEMA, _role_name(connection, JournalRole.DESK))) == [(True,)]


def session_role(connection: Connection[Row]) -> JournalRole | None:
    query = """SELECT pg_has_role(current_user, nspowner, 'MEMBER') FROM pg_namespace WHERE nspname = %s"""
    if fetch(connection, query, (SCHEMA,)) == [(True,)]:
        return JournalRole.OWNER
    query = "SELECT pg_has_role(current_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = %s"
    for role in (JournalRole.DESK, JournalRole.WORKER, JournalRole.READER):
        if fetch(connection, query, (_role_name(connection, role),)) == [(True,)]:
            return role
    return None


def _role_name(connection: Connection[Row], role: JournalRole) -> str:
    ((database,),) = fetch(connection, "SELECT current_database()")
    return f"{database}_{role.value}"


_RESULT_TABLE = """CREATE TABLE paygw_result (job text PRIMARY KEY, host text, began_at timestamptz,
    ended_at timestamptz, exit_code integer, missed_at timestamptz)"""
_TIMETABLE = f"""SELECT coalesce(r.job, j.queue_name), coalesce(j.status = 'doing', false), coalesce(j.attempts, 0),
        {TIME.format("j.scheduled_at")}, r.host, {TIME.format("r.began_at")}, {TIME.format("r.ended_at")},
        r.exit_code, {TIME.format("r.missed_at")}
    FROM {JOBS_SCHEMA}.paygw_result r FULL JOIN (
        SELECT DISTINCT ON (queue_name) queue_name, status, attempts, scheduled_at
        FROM {JOBS_SCHEMA}.procrastinate_jobs WHERE queue_name <> 'share' AND status IN ('todo', 'doing')
        ORDER BY queue_name, status = 'doing' DESC
    ) j ON j.queue_name = r.job ORDER BY 1"""  # noqa: S608 - only our own constants
_VERSION_QUERY = """SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s"""


def newest_jobs_version() -> str:
    """Return the version of the job tables that procrastinate needs: the name of its last migration."""
    return _migrations()[-1].stem


def jobs_version(connection: Connection[Row]) -> str:
    lines = fetch(connection, _VERSION_QUERY, (JOBS_SCHEMA,))
    return (lines[0][0] or "") if lines else ""


def timetable_jobs(connection: Connection[Row]) -> list[TimetableJob]:
    if not jobs_version(connection):
        return []
    return [TimetableJob(*line) for line in fetch(connection, _TIMETABLE)]


def upgrade_job_tables(connection: Connection[Row]) -> tuple[str, str]:
    """Create or upgrade the job tables in the open transaction. Returns the old and the new version."""
    old, newest = jobs_version(connection), newest_jobs_version()
    if old >= newest:
        return old, old
    schema = sql.Identifier(JOBS_SCHEMA)
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(schema))
    for script in _scripts_after(old):
        connection.execute(script.encode())
    connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(schema, sql.Literal(newest)))
    connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(sql.Identifier(SCHEMA)))
    return old, newest


def check_jobs(connection: Connection[Row], server: Server) -> str:
    """Return the version of the job tables. Raises `JournalError` if procrastinate needs a different one."""
    version = jobs_version(connection)
    if version < newest_jobs_version():
        raise JournalOutdated(
            say("The job tables in {place} are missing or out of date.", place=server.location),
            hint=say(
                "Nothing was sent. Run `paygw-batch journal upgrade` with the login of the tables' owner in [journal] "
                "url. Every host then needs this version."
            ),
        )
    if version > newest_jobs_version():
        raise JournalError(
            say("The job tables in {place} were created by a newer version of procrastinate.", place=server.location),
            hint=say("Nothing was sent. Install that version, or a later one."),
        )
    return version


def _scripts_after(version: str) -> list[str]:
    if not version:
        return [SchemaManager.get_schema(), _RESULT_TABLE]
    return [file.read_text(encoding="utf-8") for file in _migrations() if file.stem > version]


def _migrations() -> list[Path]:
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))


@cache
def scripts() -> tuple[str, ...]:
    """Return the scripts that upgrade the tables, one per version. The first one creates them."""
    folder = resources.files(__package__)
    parts = ("schema-1.sql", "roll_call.sql", "forgetting.sql")
    script = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in parts)
    return (insert_triggers(script).replace("{chained}", line_text_sql("l", "l.seq", "chr(10)", "::text")),)


def newest_version() -> int:
    return len(scripts())


def tables_version(connection: Connection[Row]) -> int:
    """Return the version of the tables, or 0 if the database has no journal."""
    if fetch(connection, "SELECT to_regclass(%s) IS NULL", (f"{SCHEMA}.migration",)) == [(True,)]:
        return 0
    ((version,),) = fetch(connection, "SELECT coalesce(max(version), 0) FROM migration")
    return int(version)


def create_journal(connection: Connection[Row], identity: Identity) -> bool:
    """Create a journal in one transaction. Returns False if the database already has one."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(7021)")  # so that only one process creates it
        if tables_version(connection):
            return False
        create_tables(connection, identity)
    return True


def create_tables(connection: Connection[Row], identity: Identity) -> None:
    """Create a journal's tables and store its identity in the open transaction."""
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
    for number, script in enumerate(scripts(), start=1):
        connection.execute(script.encode())
        fetch(connection, "INSERT INTO migration VALUES (%s, %s)", (number, identity.created_at))
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO move VALUES (%s, %s, %s, %s, %s, %s, %s)", MOVE_LINES)
    columns = (identity.journal_id, identity.endpoint, identity.consumer_key_sha256, identity.created_at)
    fetch(connection, "INSERT INTO identity VALUES (1, %s, %s, %s, %s)", columns)
    fetch(connection, "INSERT INTO gate (endpoint) VALUES (%s)", (identity.endpoint,))
    fetch(connection, "INSERT INTO roll_call VALUES (1, database_life(), 'the journal was made', true)")
    upgrade_job_tables(connection)


def upgrade_tables(connection: Connection[Row], server: Server, now: str) -> int:
    """Upgrade the journal tables and the job tables in one transaction. Returns the journal's previous version.

    Raises `JournalHeld` while another process, which knows only the previous version, uses the tables.
    """
    with time_limit(connection, math.inf), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(7021)")  # the lock that `create_journal` takes
        version = tables_version(connection)
        if version == newest_version() and jobs_version(connection) >= newest_jobs_version():
            return version
        connection.execute("LOCK TABLE process IN SHARE ROW EXCLUSIVE MODE")  # keeps other processes from enrolling
        query = """SELECT command, pid, host FROM process WHERE ended_at IS NULL AND is_alive(number)
            ORDER BY number LIMIT 1"""
        for command, pid, host in fetch(connection, query):
            raise JournalHeld(
                say(
                    "A process is using the journal in {place}: {command}, process {pid} on {host}.",
                    place=server.location,
                    command=command,
                    pid=pid,
                    host=host,
                ),
                hint=say(
                    "Nothing was changed. Stop the workers, listeners and runs on all hosts, wait half a minute, then "
                    "run this command again."
                ),
            )
        for number, script in enumerate(scripts()[version:], start=version + 1):
            connection.execute(script.encode())
            fetch(connection, "INSERT INTO migration VALUES (%s, %s)", (number, now))
        upgrade_job_tables(connection)
    return version


def check_version(connection: Connection[Row], server: Server) -> None:
    """Raise `JournalMissing` if the database has no journal, or `JournalError` if its version is not the newest."""
    version = tables_version(connection)
    if version == 0:
        raise JournalMissing(say("There is no journal in the database {place}.", place=server.location))
    if version > newest_version():
        raise JournalError(
            say("The journal in {place} was written by a newer version of this program.", place=server.location),
            hint=say("Nothing was sent. Install that version, or a later one."),
        )
    if version < newest_version():
        raise JournalOutdated(
            say("The journal's tables in {place} are from an older version of this program.", place=server.location),
            hint=say(
                "Nothing was sent. Run `paygw-batch journal upgrade` with the login of the tables' owner in [journal] "
                "url. Every host then needs this version."
            ),
        )


def load_identity(connection: Connection[Row], server: Server) -> Identity:
    """Load the journal's identity. Its `home` is the address of the database."""
    lines = fetch(connection, "SELECT journal_id, endpoint, created_at, consumer_key_sha256 FROM identity")
    if not lines:
        raise JournalCorrupt(say("The journal does not have an id."))
    ((journal_id, endpoint, created_at, key_digest),) = lines
    return Identity(journal_id, endpoint, created_at, server.location, key_digest)


COPIED, DONE = "copied", "done"


@dataclass(frozen=True, slots=True)
class MoveStep:
    """The progress of a journal's move from the file `home`. The copied chain has `facts` facts and ends at `hash`."""

    name: str
    home: str
    facts: int
    hash: bytes


def move_step(connection: Connection[Row]) -> MoveStep | None:
    """Return the progress of this journal's move to this database, or None if it was created here."""
    steps = fetch(connection, "SELECT step, home, facts, hash FROM moved_here ORDER BY step = %s DESC LIMIT 1", (DONE,))
    return MoveStep(*steps[0]) if steps else None


def check_move_finished(connection: Connection[Row]) -> None:
    """Raise `JournalError` if this journal was copied from a file but its move was not finished."""
    step = move_step(connection)
    if step is not None and step.name == COPIED:
        raise JournalError(
            say(
                "The move of the journal {home} to this database was interrupted: nothing is paid from it yet.",
                home=step.home,
            ),
            hint=say("Run `paygw-batch journal move {home}` again, on the host where that file is.", home=step.home),
        )
