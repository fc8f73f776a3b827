"""Creates the tables of procrastinate, which assigns jobs to workers, in a schema beside the journal's.

No journal reads them: they can be emptied at any time, and no row is lost or sent twice. The version is in the comment
of the schema, so that emptied tables keep it.
"""

from pathlib import Path

from procrastinate.schema import SchemaManager
from psycopg import Connection, sql

from paygw_batch.errors import JournalError, JournalOutdated
from paygw_batch.journal.port import JOBS_SCHEMA, TimetableJob
from paygw_batch.journal.postgres.session import SCHEMA, Row, Server, fetch
from paygw_batch.language import say

_RESULTS = """CREATE TABLE paygw_result (job text PRIMARY KEY, host text, began_at timestamptz, ended_at timestamptz,
    exit_code integer, missed_at timestamptz)"""
_TIME = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
_TIMETABLE = f"""SELECT coalesce(r.job, j.queue_name), coalesce(j.status = 'doing', false), coalesce(j.attempts, 0),
        {_TIME.format("j.scheduled_at")}, r.host, {_TIME.format("r.began_at")}, {_TIME.format("r.ended_at")},
        r.exit_code, {_TIME.format("r.missed_at")}
    FROM {JOBS_SCHEMA}.paygw_result r FULL JOIN (
        SELECT DISTINCT ON (queue_name) queue_name, status, attempts, scheduled_at
        FROM {JOBS_SCHEMA}.procrastinate_jobs WHERE queue_name <> 'share' AND status IN ('todo', 'doing')
        ORDER BY queue_name, status = 'doing' DESC
    ) j ON j.queue_name = r.job ORDER BY 1"""  # noqa: S608 - constants of ours
_COMMENT = """SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s"""


def newest_jobs_version() -> str:
    """Return the version of the tables that the installed procrastinate needs: the name of its last migration."""
    return _migrations()[-1].stem


def jobs_version_in(connection: Connection[Row]) -> str:
    """Return the version of the job tables; empty if there are none."""
    found = fetch(connection, _COMMENT, (JOBS_SCHEMA,))
    return (found[0][0] or "") if found else ""


def timetable_jobs(connection: Connection[Row]) -> list[TimetableJob]:
    """Return the timetable's jobs: waiting, running and done."""
    if not jobs_version_in(connection):
        return []
    return [TimetableJob(*line) for line in fetch(connection, _TIMETABLE)]


def bring_jobs_up(connection: Connection[Row]) -> tuple[str, str]:
    """Create or upgrade the tables of jobs inside the open transaction; return their version before and now."""
    before, newest = jobs_version_in(connection), newest_jobs_version()
    if before >= newest:
        return before, before
    schema = sql.Identifier(JOBS_SCHEMA)
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(schema))
    for script in _scripts_after(before):
        connection.execute(script.encode())
    connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(schema, sql.Literal(newest)))
    connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(sql.Identifier(SCHEMA)))
    return before, newest


def check_jobs(connection: Connection[Row], server: Server) -> str:
    """Return the version of the tables of jobs. Raises `JournalError` unless the installed procrastinate needs it."""
    version = jobs_version_in(connection)
    if version < newest_jobs_version():
        raise JournalOutdated(
            say("The tables of jobs in {place} are missing or of an older version.", place=server.place),
            hint=say(
                "Nothing was sent. `paygw-batch journal upgrade`, with the owner of the tables in [journal] "
                "url, upgrades them. After that every host needs this version."
            ),
        )
    if version > newest_jobs_version():
        raise JournalError(
            say("The tables of jobs in {place} were made by a newer version of procrastinate.", place=server.place),
            hint=say("Nothing was sent. Install that version, or a later one."),
        )
    return version


def _scripts_after(version: str) -> list[str]:
    if not version:
        return [SchemaManager.get_schema(), _RESULTS]
    return [file.read_text(encoding="utf-8") for file in _migrations() if file.stem > version]


def _migrations() -> list[Path]:
    """Return procrastinate's scripts that upgrade existing tables, in order."""
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
