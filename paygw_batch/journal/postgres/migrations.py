"""Makes the tables of a journal in PostgreSQL, upgrades them, and says which version they are of.

A script of a later version changes no line that is there. A function whose call would mean something else to a program
of before gets another name, and the old one is removed: such a program is then refused.
"""

import math
from functools import cache
from importlib import resources

from psycopg import Connection, sql

from paygw_batch.errors import JournalCorrupt, JournalError, JournalHeld, JournalMissing, JournalOutdated
from paygw_batch.journal.facts.chain import text_in_sql
from paygw_batch.journal.postgres.jobs_schema import bring_jobs_up, jobs_version_in, newest_jobs_version
from paygw_batch.journal.postgres.session import SCHEMA, Row, Server, fetch, limited
from paygw_batch.journal.tables import MOVE_LINES, with_triggers
from paygw_batch.journal.values import Identity
from paygw_batch.language import say


@cache
def scripts() -> tuple[str, ...]:
    """Return the scripts that lead from each version to the next; the first leads from nothing to version 1."""
    folder = resources.files(__package__)
    parts = ("schema-1.sql", "roll_call.sql", "forgetting.sql")
    script = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in parts)
    return (with_triggers(script).replace("{chained}", text_in_sql("l", "l.seq", "chr(10)", "::text")),)


def newest_version() -> int:
    """Return the version of the tables that this program knows."""
    return len(scripts())


def version_in(connection: Connection[Row]) -> int:
    """Return the version of the tables; 0 if there is no journal."""
    if fetch(connection, "SELECT to_regclass(%s) IS NULL", (f"{SCHEMA}.migration",)) == [(True,)]:
        return 0
    ((version,),) = fetch(connection, "SELECT coalesce(max(version), 0) FROM migration")
    return int(version)


def make_tables(connection: Connection[Row], identity: Identity) -> bool:
    """Make the journal in one transaction, and return whether it was made: False if one is there already."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(7021)")  # two makers at the same moment: one makes it
        if version_in(connection):
            return False
        fill_tables(connection, identity)
    return True


def fill_tables(connection: Connection[Row], identity: Identity) -> None:
    """Make the tables of a journal, inside the open transaction, and write down which one it is."""
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(SCHEMA)))
    for number, script in enumerate(scripts(), start=1):
        connection.execute(script.encode())
        fetch(connection, "INSERT INTO migration VALUES (%s, %s)", (number, identity.created_at))
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO move VALUES (%s, %s, %s, %s, %s, %s, %s)", MOVE_LINES)
    line = (identity.journal_id, identity.endpoint, identity.consumer_key_sha256, identity.created_at)
    fetch(connection, "INSERT INTO identity VALUES (1, %s, %s, %s, %s)", line)
    fetch(connection, "INSERT INTO gate (endpoint) VALUES (%s)", (identity.endpoint,))
    fetch(connection, "INSERT INTO roll_call VALUES (1, database_life(), 'the journal was made', true)")
    bring_jobs_up(connection)


def upgrade_tables(connection: Connection[Row], server: Server, now: str) -> int:
    """Upgrade the tables to the newest version in one transaction, and return their former version.

    Those of jobs are brought up as well.

    Raises `JournalHeld` while a process works with them: it knows only what they were.
    """
    with limited(connection, math.inf), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(7021)")  # as `make_tables` does
        version = version_in(connection)
        if version == newest_version() and jobs_version_in(connection) >= newest_jobs_version():
            return version
        connection.execute("LOCK TABLE process IN SHARE ROW EXCLUSIVE MODE")  # none begins meanwhile
        query = """SELECT command, pid, host FROM process WHERE ended_at IS NULL AND is_alive(number)
            ORDER BY number LIMIT 1"""
        for command, pid, host in fetch(connection, query):
            raise JournalHeld(
                say(
                    "A process is using the journal in {place}: {command}, process {pid} on {host}.",
                    place=server.place,
                    command=command,
                    pid=pid,
                    host=host,
                ),
                hint=say(
                    "Nothing was changed. End the workers, listeners and runs of all hosts, wait for "
                    "half a minute, then run this again."
                ),
            )
        for number, script in enumerate(scripts()[version:], start=version + 1):
            connection.execute(script.encode())
            fetch(connection, "INSERT INTO migration VALUES (%s, %s)", (number, now))
        bring_jobs_up(connection)
    return version


def check_version(connection: Connection[Row], server: Server) -> None:
    """Raise `JournalMissing` if there is no journal, and `JournalError` for one of another version."""
    version = version_in(connection)
    if version == 0:
        raise JournalMissing(say("There is no journal in the database {place}.", place=server.place))
    if version > newest_version():
        raise JournalError(
            say("The journal in {place} was written by a newer version of this program.", place=server.place),
            hint=say("Nothing was sent. Install that version, or a later one."),
        )
    if version < newest_version():
        raise JournalOutdated(
            say("The journal's tables in {place} were made by an older version of this program.", place=server.place),
            hint=say(
                "Nothing was sent. Run `paygw-batch journal upgrade` with the owner of the tables in [journal] url. "
                "After that every host needs this version."
            ),
        )


def identity_in(connection: Connection[Row], server: Server) -> Identity:
    """Return which journal it is. Its home is the address of the database."""
    found = fetch(connection, "SELECT journal_id, endpoint, created_at, consumer_key_sha256 FROM identity")
    if not found:
        raise JournalCorrupt(say("The journal does not have an id."))
    ((journal_id, endpoint, created_at, key),) = found
    return Identity(journal_id, endpoint, created_at, server.place, key)
