"""The workers of all hosts, their payouts, their timetable and the shared limits: read-only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from starlette.responses import Response

from paygw_batch.actions.send import why_stopped
from paygw_batch.console.rendering import Page
from paygw_batch.console.visits import PageNotFound, Visit
from paygw_batch.journal import RunNow, SharedWork, TimetableJob, WorkerLife
from paygw_batch.language import mark, say
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import pick_up_name
from paygw_batch.wiring.journal import require_workers

_JOBS: Mapping[str, str] = {
    "refresh": mark("Ask the gateway about open rows"),
    "verify": mark("Verify the whole journal"),
    "backup": mark("Back up the database"),
}
"""The timetable's jobs in words, except those of folders."""


@dataclass(frozen=True, slots=True)
class ShownWorker:
    """A worker, the sheet it is sending, and its rate in rows a minute since it started."""

    life: WorkerLife
    sheet_name: str
    rows_a_minute: float


@dataclass(frozen=True, slots=True)
class WorkersPage(Page):
    """The workers of all hosts."""

    template: ClassVar[str] = "workers.html"

    workers: Sequence[ShownWorker]
    runs: Sequence[RunNow]
    jobs: Sequence[tuple[str, TimetableJob]]
    """The timetable's jobs, each with its description."""
    rate_per_s: float
    """0: no limit."""
    in_flight: int
    """The maximum number of rows in flight over all workers."""
    stopped_at: str
    stop_reason: str
    rest_until: str


def workers_of_all_hosts(visit: Visit) -> Response:
    """Show the workers. Raises `PageNotFound` if the journal is a file, which only one machine sends from."""
    settings = visit.console.settings
    if settings.journal.url is None:
        raise PageNotFound(say("This machine sends all payouts itself. There are no workers."))
    place = require_workers(settings)
    return visit.page(workers_page(place.shared_work(), place.timetable_jobs(), settings, visit.console.now()))


def workers_page(work: SharedWork, jobs: Sequence[TimetableJob], settings: Settings, now: datetime) -> WorkersPage:
    """Build the page about the work of all hosts."""
    gate, configured = work.gate, settings.submission
    names = {run.batch: run.sheet_name for run in work.runs}
    concurrency = configured.concurrency if gate.concurrency is None else gate.concurrency
    return WorkersPage(
        workers=[ShownWorker(one, names.get(one.batch or "", ""), _rate(one, now)) for one in work.workers],
        runs=work.runs,
        jobs=[(_job_words(one.name, settings), one) for one in jobs],
        rate_per_s=configured.rate_per_s if gate.rate_per_s is None else gate.rate_per_s,
        in_flight=concurrency,
        stopped_at=gate.stopped_at if gate.stop is not None else "",
        stop_reason=why_stopped(gate),
        rest_until=gate.rest_until,
    )


def _job_words(name: str, settings: Settings) -> str:
    """Describe a job. A folder watched only by another host has no name here."""
    if (known := _JOBS.get(name)) is not None:
        return say(known)
    folders = {pick_up_name(one.folder): one.folder.name for one in settings.timetable.pick_up}
    if name in folders:
        return say("Pay the sheets in the folder {folder}", folder=folders[name])
    return say("Pay the sheets in a folder of another machine")


def _rate(worker: WorkerLife, now: datetime) -> float:
    minutes = (now - datetime.fromisoformat(worker.since)).total_seconds() / 60
    return worker.rows / minutes if minutes > 0 else 0.0
