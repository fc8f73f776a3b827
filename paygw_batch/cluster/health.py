"""Checks a journal in PostgreSQL: its replication, the rights of the login, and the jobs of workers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paygw_batch.errors import PaygwError
from paygw_batch.language import mark, say, say_count
from paygw_batch.opening.open_journal import require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.health import Health, HealthCheck
from paygw_batch.show.summary import ExitCode

if TYPE_CHECKING:
    from paygw_batch.cluster.database_place import ReplicationState

_RIGHTS = {
    "owner": mark("owner: can do everything, including creating the tables"),
    "desk": mark("desk: can open batches, send, settle, release and set limits"),
    "worker": mark("worker: can send rows of started batches, but decide nothing"),
    "reader": mark("reader: can read, but not write"),
    "none": mark("none of the program's roles: permissions were granted by hand"),
}
"""The rights of the database role in [journal] url, in words for people."""
_REPLICATION = mark("replication")
_JOBS = mark("jobs of workers")


def _check_replication(copies: "ReplicationState", configured: str | None) -> Iterator[HealthCheck]:
    waits = (
        say("the server waits for {names}", names=copies.waits_for)
        if copies.waits_for
        else say("the server waits for no standby")
    )
    standbys = say_count(copies.standbys, "{count} standby connected", "{count} standbys connected")
    sentence = f"{configured}; {waits} (synchronous_commit = {copies.synchronous_commit}); {standbys}"
    fits = {
        "synchronous": bool(copies.waits_for) and copies.standbys > 0,
        "asynchronous": not copies.waits_for and copies.standbys > 0,
        "none": not copies.waits_for and copies.standbys == 0,
    }.get(configured or "", True)
    if fits:
        yield HealthCheck(_REPLICATION, Health.GOOD, sentence)
    elif configured == "synchronous" and not copies.waits_for:
        sentence = say("{found}. Correct [journal] replication.", found=sentence)
        yield HealthCheck(_REPLICATION, Health.BAD, sentence, ExitCode.JOURNAL)
    else:
        sentence = say("{found}. [journal] replication says otherwise.", found=sentence)
        yield HealthCheck(_REPLICATION, Health.WARNING, sentence)


def checks(settings: Settings) -> Iterator[HealthCheck]:
    """Yield the checks of a journal in a database. Raises `JournalError` if nothing could be sent with it."""
    database = require_workers(settings)
    yield from _check_replication(database.copies(), settings.journal.replication)
    yield HealthCheck(mark("database role"), Health.GOOD, say(_RIGHTS[database.role() or "none"]))
    try:
        yield HealthCheck(_JOBS, Health.GOOD, say("procrastinate tables, {version}", version=database.check_jobs()))
    except PaygwError as error:
        yield HealthCheck.failed(_JOBS, error, ExitCode.JOURNAL)
