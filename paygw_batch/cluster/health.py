"""Checks a journal in PostgreSQL: replication, the login's role, and the workers' jobs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paygw_batch.errors import PaygwError
from paygw_batch.language import mark, say, say_count
from paygw_batch.opening.open_journal import require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.health import Health, HealthCheck
from paygw_batch.show.summary import ExitCode

if TYPE_CHECKING:
    from paygw_batch.cluster.database_location import ReplicationState

_ROLE_DESCRIPTIONS = {
    "owner": mark("owner: can do everything, including creating the tables"),
    "desk": mark("desk: can open batches, send, settle, release and set limits"),
    "worker": mark("worker: can send rows of started batches, but decide nothing"),
    "reader": mark("reader: can read, but not write"),
    "none": mark("not one of the program's roles: its permissions were granted manually"),
}
"""Descriptions of the database roles that [journal] url may use."""
_REPLICATION = mark("replication")
_JOBS = mark("jobs of workers")


def _check_replication(replication: "ReplicationState", configured: str | None) -> Iterator[HealthCheck]:
    waiting_text = (
        say("the server waits for {names} to confirm each commit", names=replication.waits_for)
        if replication.waits_for
        else say("the server does not wait for a standby")
    )
    standby_text = say_count(replication.standbys, "{count} standby connected", "{count} standbys connected")
    message = f"{configured}; {waiting_text} (synchronous_commit = {replication.synchronous_commit}); {standby_text}"
    is_as_configured = {
        "synchronous": bool(replication.waits_for) and replication.standbys > 0,
        "asynchronous": not replication.waits_for and replication.standbys > 0,
        "none": not replication.waits_for and replication.standbys == 0,
    }.get(configured or "", True)
    if is_as_configured:
        yield HealthCheck(_REPLICATION, Health.GOOD, message)
    elif configured == "synchronous" and not replication.waits_for:
        message = say("{found}. Correct [journal] replication.", found=message)
        yield HealthCheck(_REPLICATION, Health.BAD, message, ExitCode.JOURNAL)
    else:
        message = say("{found}. This does not match [journal] replication.", found=message)
        yield HealthCheck(_REPLICATION, Health.WARNING, message)


def checks(settings: Settings) -> Iterator[HealthCheck]:
    """Yield the results of checking a journal in a database. Raises `JournalError` if it cannot send rows."""
    database = require_workers(settings)
    yield from _check_replication(database.read_replication(), settings.journal.replication)
    yield HealthCheck(mark("database role"), Health.GOOD, say(_ROLE_DESCRIPTIONS[database.role() or "none"]))
    try:
        yield HealthCheck(_JOBS, Health.GOOD, say("procrastinate tables, {version}", version=database.check_jobs()))
    except PaygwError as error:
        yield HealthCheck.failed(_JOBS, error, ExitCode.JOURNAL)
