"""Runs procrastinate's worker in a thread next to the sending thread, and the commands of the timetable.

Rows are sent in the main thread, where a signal can drain the run. Entries of the timetable are commands that run in
separate processes, so they do not delay rows in flight, and each may be killed and repeated.
"""

import asyncio
import logging
import socket
import threading
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import psycopg
from croniter import croniter
from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, UniqueViolation
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.periodic import PeriodicDeferrer, PeriodicTask
from procrastinate.tasks import Task

from paygw_batch.clock import SIGNAL_CHECK_INTERVAL_S, timestamp, utc_now
from paygw_batch.cluster.asked import JobsFailure, RequestedShare
from paygw_batch.cluster.calling import (
    SHARE,
    TimedAsyncConnection,
    configure_async_connection,
    pool_options,
    priority,
    share_lock,
)
from paygw_batch.errors import JournalError
from paygw_batch.journal import SharedRun
from paygw_batch.settings.sections import TimetableSection, pick_up_name

if TYPE_CHECKING:
    from procrastinate.app import WorkerOptions
    from typing_extensions import Unpack

    from paygw_batch.cluster.database_place import WaitingRuns


TEND_EVERY_S = 2.0
"""The interval in seconds of searches for runs that lost their jobs or whose worker died."""
POLL_EVERY_S = 5.0
"""The interval in seconds of searches for jobs that no notification announced."""
RETRY_AFTER_S = 1.0
"""The delay before checking the jobs again after a failure."""
LASTING_S = 60.0
_HEALTHY_S = 10.0
_JOIN_TIMEOUT_S = 3.0
_HEARTBEATS_PER_SILENCE = 3
_STANDARD_ERROR = 2
_REPEATED_EXIT_CODES = frozenset({1, 7, 130})
"""The exit codes after which a command is repeated: our defect, a journal error, an interruption."""
_RETRY = RetryStrategy(max_attempts=5, exponential_wait=3)
_INSERT_RESULT = """INSERT INTO paygw_result (job, host, began_at, ended_at, exit_code)
    VALUES (%(job)s, %(host)s, %(began_at)s, %(ended_at)s, %(exit_code)s)
    ON CONFLICT (job) DO UPDATE SET host = excluded.host, began_at = excluded.began_at,
        ended_at = excluded.ended_at, exit_code = excluded.exit_code"""
_INSERT_MISSED = """INSERT INTO paygw_result (job, missed_at) VALUES (%(job)s, %(missed_at)s)
    ON CONFLICT (job) DO UPDATE SET missed_at = excluded.missed_at"""
MAX_LATENESS_S = 600
"""The maximum delay of a timetable job. A job that waited longer because no worker was alive is skipped."""
_EPOCH = datetime.fromtimestamp(0, UTC)


BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class ScheduledCommand:
    """A timetable entry: its name, the times at which it is due, and its command.

    Its queue has the same name. A host takes only jobs that its own configuration lists, and runs the command
    configured there.
    """

    name: str
    cron: str
    zone: str
    words: tuple[str, ...]

    def command_words(self) -> list[str]:
        """Return the command line to run now. Each backup gets a new name."""
        if self.name != BACKUP:
            return list(self.words)
        at = timestamp(utc_now()).replace("-", "").replace(":", "")
        return [BACKUP, f"{self.words[1]}/journal-{at}.dump"]


def scheduled_commands(timetable: TimetableSection) -> Iterator[ScheduledCommand]:
    zone = timetable.time_zone or "UTC"
    for pick_up in timetable.pick_up:
        words = ("run-folder", "--wait", *(["--collect"] if pick_up.collect else []), "--", str(pick_up.folder))
        yield ScheduledCommand(pick_up_name(pick_up.folder), pick_up.at, zone, words)
    if timetable.refresh is not None:
        yield ScheduledCommand("refresh", timetable.refresh, zone, ("refresh", "--wait"))
    if timetable.verify is not None:
        yield ScheduledCommand("verify", timetable.verify, zone, ("verify",))
    if timetable.backup is not None:
        yield ScheduledCommand(BACKUP, timetable.backup.at, zone, (BACKUP, str(timetable.backup.folder)))


def periodic_task_for(entry: ScheduledCommand, task: Task[..., object, ...]) -> PeriodicTask[..., object, ...]:
    """Return a periodic task that is due in the time zone of a timetable entry. Procrastinate itself uses UTC."""

    class Zoned(PeriodicTask[..., object, ...]):
        @cached_property
        def croniter(self) -> croniter:
            return croniter(entry.cron, datetime.now(ZoneInfo(entry.zone)))

    return Zoned(task=task, cron=entry.cron, periodic_id="", configure_kwargs={})


class CommandFailed(Exception):
    """A command of the timetable failed and must be repeated."""


class JobWorker:
    """The job worker of this process. `program` starts this program with the same configuration.

    `tend` finds waiting runs in the journal, and is closed with this worker.
    """

    def __init__(
        self,
        url: str,
        silent_s: float,
        commands: Sequence[ScheduledCommand],
        program: Sequence[str],
        tend: "WaitingRuns",
    ) -> None:
        self._silent_s, self._program, self._find_waiting_runs = silent_s, list(program), tend
        self._by_queue = {entry.name: entry for entry in commands}
        pool = pool_options(url, configure_async_connection, TimedAsyncConnection)
        self._connector = PsycopgConnector(**pool, min_size=1, max_size=4)
        self._jobs = _RepeatingJobManager(self._connector)
        options: WorkerOptions = {
            "delete_jobs": "always",
            "install_signal_handlers": False,
            "fetch_job_polling_interval": POLL_EVERY_S,
            "update_heartbeat_interval": silent_s / _HEARTBEATS_PER_SILENCE,
            # `_requeue_dead_jobs` needs the heartbeat until then.
            "stalled_worker_timeout": max(silent_s, MAX_LATENESS_S),
        }
        self._shares = App(connector=self._connector, worker_defaults=options)
        self._scheduled = App(connector=self._connector, worker_defaults=options)
        self._shares.job_manager = self._scheduled.job_manager = self._jobs
        self._task = self._shares.task(name=SHARE, queue=SHARE)(self._request_share)
        for entry in commands:
            self._schedule(entry)
        self._messages: SimpleQueue[RequestedShare | JobsFailure | None] = SimpleQueue()
        self._children: set[asyncio.subprocess.Process] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_ending = asyncio.Event()
        self._failing_since_s: float | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        for name in ("procrastinate", "psycopg.pool"):  # the main thread reports their errors in one sentence
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self._thread.start()

    def next(self) -> RequestedShare | JobsFailure | None:
        """Return the next share or failure, or None after one second or after `wake`."""
        # The system may deliver a signal to any thread. Python calls the handler when the main thread next runs, which
        # would never happen during an endless wait.
        with suppress(Empty):
            return self._messages.get(timeout=SIGNAL_CHECK_INTERVAL_S)
        return None

    def wake(self) -> None:
        """End the wait in `next`. A signal handler may call it at any moment."""
        self._messages.put(None)

    def request_worker(self, run: SharedRun) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._schedule_request, run)

    def close(self) -> None:
        """Stop taking jobs, ask running timetable commands to end, and wait for them."""
        with suppress(RuntimeError):  # the loop has ended too
            self._loop.call_soon_threadsafe(self._is_ending.set)
        while self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)
            if not self._children:  # the thread only waits for a silent server now
                return

    # The following methods run in the jobs thread.

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        except Exception as error:
            # Without this message, the main thread would wait forever.
            self._messages.put(JobsFailure(type(error).__name__, is_lasting=True))
            raise
        finally:
            self._find_waiting_runs.close()
            self._loop.close()

    async def _serve(self) -> None:
        self._loop.set_exception_handler(lambda _loop, _context: None)  # finishing a deleted job is no error
        while not self._is_ending.is_set():
            began_s = time.monotonic()
            try:
                async with self._shares.open_async():
                    workers = [self._run_worker(self._shares, queues=[SHARE], concurrency=1)]
                    if queues := list(self._by_queue):
                        options: WorkerOptions = {"queues": queues, "concurrency": len(queues), "listen_notify": False}
                        workers.append(self._run_worker(self._scheduled, **options))
                    await asyncio.gather(*workers, self._tend_runs(), self._terminate_children())
            except psycopg.Error as error:
                await self._pause(error, began_s)

    async def _run_worker(self, app: App, **options: "Unpack[WorkerOptions]") -> None:
        """Run a worker until this process ends. Registers it again if its tables were emptied."""
        while not self._is_ending.is_set():
            began_s = time.monotonic()
            working = asyncio.create_task(app.run_worker_async(**options))
            end_task = asyncio.create_task(self._is_ending.wait())
            await asyncio.wait([working, end_task], return_when=asyncio.FIRST_COMPLETED)
            end_task.cancel()
            working.cancel()  # the worker then takes no further job, and waits for its jobs under way
            (result,) = await asyncio.gather(working, return_exceptions=True)
            if isinstance(result, Exception) and not self._is_ending.is_set():
                await self._pause(result, began_s)

    async def _pause(self, error: Exception, began_s: float) -> None:
        """Report a failure to the main thread and wait briefly."""
        now_s = time.monotonic()
        if self._failing_since_s is None or now_s - began_s > _HEALTHY_S:
            self._failing_since_s = now_s
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0].removesuffix(".") or type(cause).__name__
        self._messages.put(JobsFailure(reason, now_s - self._failing_since_s > LASTING_S))
        await self._wait(RETRY_AFTER_S)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_ending.wait(), seconds)

    async def _tend_runs(self) -> None:
        """Requeue the jobs of dead workers and request workers for waiting runs, until this process ends."""
        while not self._is_ending.is_set():
            with suppress(ConnectorException, psycopg.Error, JournalError):
                await self._requeue_dead_jobs()
                for run in await asyncio.to_thread(self._find_waiting_runs):
                    await self._request_worker(run)
            await self._wait(TEND_EVERY_S)

    async def _requeue_dead_jobs(self) -> None:
        """Requeue the jobs of dead workers. A job whose worker died long ago then counts as late."""
        late_s = max(self._silent_s, MAX_LATENESS_S)
        late = {job.id for job in await self._jobs.get_stalled_jobs(seconds_since_heartbeat=late_s)}
        for job in await self._jobs.get_stalled_jobs(seconds_since_heartbeat=self._silent_s):
            await self._jobs.retry_job(job, retry_at=_EPOCH if job.id in late else None)

    def _schedule_request(self, run: SharedRun) -> None:
        task = self._loop.create_task(self._request_worker(run))
        self._calls.add(task)  # the loop keeps no reference, so the task could be collected
        task.add_done_callback(self._calls.discard)

    async def _request_worker(self, run: SharedRun) -> None:
        """Request a worker for a run, unless a job for the run is queued."""
        with suppress(ConnectorException, psycopg.Error, AlreadyEnqueued):
            lock = share_lock(run)
            if not await self._jobs.list_jobs_async(queueing_lock=lock, status=Status.TODO.value):
                job = self._task.configure(queueing_lock=lock, priority=priority(run))
                await job.defer_async(run=run.number)

    async def _request_share(self, *, run: int) -> None:
        share = RequestedShare(run, self._loop)
        self._messages.put(share)
        await share.is_over.wait()

    def _schedule(self, entry: ScheduledCommand) -> None:
        name = entry.name
        task = self._scheduled.task(
            name=name, queue=name, lock=name, queueing_lock=name, retry=_RETRY, pass_context=True
        )
        self._scheduled.periodic_registry.periodic_tasks[name, ""] = periodic_task_for(entry, task(self._run_command))

    async def _run_command(self, context: JobContext, *, timestamp: int = 0) -> None:
        """Run the command that this host's configuration has for a job's queue, never one from the job itself.

        `timestamp` is the time at which the job was due. A late job runs nothing.
        """
        entry, began_at = self._by_queue[context.job.queue], datetime.now(UTC)
        if self._is_ending.is_set():
            raise CommandFailed
        due_at = datetime.fromtimestamp(timestamp, UTC)
        again_at = context.job.scheduled_at or due_at  # a repeated job has the time of its next try
        if (began_at - max(due_at, again_at)).total_seconds() > MAX_LATENESS_S:
            await self._record_missed(entry, due_at, began_at)
            return
        command = [*self._program, "-q", *entry.command_words()]
        child = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=_STANDARD_ERROR, start_new_session=True
        )
        self._children.add(child)
        if self._is_ending.is_set():
            child.terminate()
        try:
            code = await child.wait()
        finally:
            self._children.discard(child)
        line = {"job": entry.name, "host": socket.gethostname(), "began_at": began_at, "ended_at": datetime.now(UTC)}
        await self._connector.execute_query_async(_INSERT_RESULT, **line, exit_code=code)
        if code in _REPEATED_EXIT_CODES or code < 0 or self._is_ending.is_set():
            raise CommandFailed

    async def _record_missed(self, entry: ScheduledCommand, due_at: datetime, now: datetime) -> None:
        """Record a missed run and queue the jobs that this job blocked meanwhile."""
        await self._connector.execute_query_async(_INSERT_MISSED, job=entry.name, missed_at=due_at)
        deferrer = PeriodicDeferrer(self._scheduled.periodic_registry, MAX_LATENESS_S)
        await deferrer.defer_jobs(list(deferrer.get_previous_tasks(now.timestamp())))

    async def _terminate_children(self) -> None:
        """Terminate running commands.

        Signal them only once: a second signal makes them quit without waiting for rows in flight.
        """
        await self._is_ending.wait()
        for child in self._children:
            with suppress(ProcessLookupError):
                child.terminate()


class _RepeatingJobManager(JobManager):
    """The jobs in the database. When a job is retried, the next job of its name may already be waiting.

    Writing the end of a job is repeated until the server confirms it. Otherwise procrastinate would forget the job,
    which would keep its lock as long as its worker lives.
    """

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        await _write_until_answered(partial(super().finish_job, job, status, delete_job))

    async def retry_job(
        self,
        job: Job,
        retry_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lock: str | None = None,
    ) -> None:
        """Queue a job again, unless the next job of its name is already waiting and replaces it."""
        try:
            await _write_until_answered(partial(super().retry_job, job, retry_at, priority, queue, lock))
        except UniqueViolation:
            await self.finish_job(job, Status.FAILED, delete_job=True)


async def _write_until_answered(write: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await write()
        except ConnectorException as error:
            if not isinstance(error.__cause__, psycopg.OperationalError):
                raise
            await asyncio.sleep(RETRY_AFTER_S)
        else:
            return
