"""Runs procrastinate's worker in a separate thread, and timetable commands in separate processes.

Rows are sent in the main thread, where a signal can drain the run. In its own process, a timetable command does not
delay rows in flight, and can be killed and repeated.
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
from paygw_batch.cluster.asked import JobsFailure, ShareRequest
from paygw_batch.cluster.calling import (
    SHARE,
    TimedAsyncConnection,
    configure_async_connection,
    pool_options,
    priority,
    share_lock_name,
)
from paygw_batch.errors import JournalError
from paygw_batch.journal import SharedRun
from paygw_batch.settings.sections import TimetableSection, pick_up_job_name

if TYPE_CHECKING:
    from procrastinate.app import WorkerOptions
    from typing_extensions import Unpack

    from paygw_batch.cluster.database_location import WaitingRuns


RECOVERY_INTERVAL_S = 2.0
"""How often to look for runs whose job was lost or whose worker died."""
POLL_INTERVAL_S = 5.0
"""How often to look for jobs whose notification was lost."""
RETRY_AFTER_S = 1.0
"""The delay before looking for jobs again after a failure."""
LASTING_AFTER_S = 60.0
_HEALTHY_AFTER_S = 10.0
_JOIN_TIMEOUT_S = 3.0
_HEARTBEATS_PER_TIMEOUT = 3
_STDERR = 2
_EXIT_CODES_TO_REPEAT = frozenset({1, 7, 130})
"""The exit codes after which a command is repeated: an unexpected error, a journal error, an interruption."""
_RETRY = RetryStrategy(max_attempts=5, exponential_wait=3)
_INSERT_RESULT = """INSERT INTO paygw_result (job, host, began_at, ended_at, exit_code)
    VALUES (%(job)s, %(host)s, %(began_at)s, %(ended_at)s, %(exit_code)s)
    ON CONFLICT (job) DO UPDATE SET host = excluded.host, began_at = excluded.began_at,
        ended_at = excluded.ended_at, exit_code = excluded.exit_code"""
_INSERT_MISSED = """INSERT INTO paygw_result (job, missed_at) VALUES (%(job)s, %(missed_at)s)
    ON CONFLICT (job) DO UPDATE SET missed_at = excluded.missed_at"""
MAX_LATENESS_S = 600
"""A timetable job that is later than this, because no worker was alive, is skipped."""
_EPOCH = datetime.fromtimestamp(0, UTC)
BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class ScheduledCommand:
    """A timetable entry. `name` is also its queue. `cron` defines when it is due."""

    name: str
    cron: str
    zone: str
    arguments: tuple[str, ...]

    def command_arguments(self) -> list[str]:
        """Return the command's arguments. Each call gives a backup a new file name."""
        if self.name != BACKUP:
            return list(self.arguments)
        at = timestamp(utc_now()).replace("-", "").replace(":", "")
        return [BACKUP, f"{self.arguments[1]}/journal-{at}.dump"]


def scheduled_commands(timetable: TimetableSection) -> Iterator[ScheduledCommand]:
    zone = timetable.time_zone or "UTC"
    for pick_up in timetable.pick_up:
        arguments = ("run-folder", "--wait", *(["--collect"] if pick_up.collect else []), "--", str(pick_up.folder))
        yield ScheduledCommand(pick_up_job_name(pick_up.folder), pick_up.at, zone, arguments)
    if timetable.refresh is not None:
        yield ScheduledCommand("refresh", timetable.refresh, zone, ("refresh", "--wait"))
    if timetable.verify is not None:
        yield ScheduledCommand("verify", timetable.verify, zone, ("verify",))
    if timetable.backup is not None:
        yield ScheduledCommand(BACKUP, timetable.backup.at, zone, (BACKUP, str(timetable.backup.folder)))


def periodic_task_for(entry: ScheduledCommand, task: Task[..., object, ...]) -> PeriodicTask[..., object, ...]:
    """Return a periodic task in the entry's time zone, because Procrastinate itself uses UTC."""

    class ZonedTask(PeriodicTask[..., object, ...]):
        @cached_property
        def croniter(self) -> croniter:
            return croniter(entry.cron, datetime.now(ZoneInfo(entry.zone)))

    return ZonedTask(task=task, cron=entry.cron, periodic_id="", configure_kwargs={})


class CommandFailed(Exception):
    """A timetable command failed and must be repeated."""


class JobWorker:
    """Takes jobs in a separate thread. `program` is the command line of this program with the same configuration.

    `find_waiting_runs` finds the runs that are waiting for a worker. It is closed at the end.
    """

    def __init__(
        self,
        url: str,
        dead_after_s: float,
        commands: Sequence[ScheduledCommand],
        program: Sequence[str],
        find_waiting_runs: "WaitingRuns",
    ) -> None:
        self._dead_after_s, self._program, self._find_waiting_runs = dead_after_s, list(program), find_waiting_runs
        self._command_by_queue = {entry.name: entry for entry in commands}
        pool = pool_options(url, configure_async_connection, TimedAsyncConnection)
        self._connector = PsycopgConnector(**pool, min_size=1, max_size=4)
        self._jobs = _RepeatingJobManager(self._connector)
        options: WorkerOptions = {
            "delete_jobs": "always",
            "install_signal_handlers": False,
            "fetch_job_polling_interval": POLL_INTERVAL_S,
            "update_heartbeat_interval": dead_after_s / _HEARTBEATS_PER_TIMEOUT,
            # `_requeue_dead_jobs` needs the heartbeats until this timeout.
            "stalled_worker_timeout": max(dead_after_s, MAX_LATENESS_S),
        }
        self._share_app = App(connector=self._connector, worker_defaults=options)
        self._cron_app = App(connector=self._connector, worker_defaults=options)
        self._share_app.job_manager = self._cron_app.job_manager = self._jobs
        self._share_task = self._share_app.task(name=SHARE, queue=SHARE)(self._request_share)
        for entry in commands:
            self._add_periodic_task(entry)
        self._messages: SimpleQueue[ShareRequest | JobsFailure | None] = SimpleQueue()
        self._children: set[asyncio.subprocess.Process] = set()
        self._request_tasks: set[asyncio.Task[None]] = set()
        self._is_ending = asyncio.Event()
        self._failing_since_s: float | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        for name in ("procrastinate", "psycopg.pool"):  # the main thread summarises their errors
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self._thread.start()

    def next(self) -> ShareRequest | JobsFailure | None:
        """Return the next share request or failure, or None after a second or a call to `wake`."""
        # Python calls signal handlers in the main thread, which must therefore not wait forever.
        with suppress(Empty):
            return self._messages.get(timeout=SIGNAL_CHECK_INTERVAL_S)
        return None

    def wake(self) -> None:
        """Interrupt `next`. Safe to call from a signal handler."""
        self._messages.put(None)

    def request_worker(self, run: SharedRun) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._request_worker_soon, run)

    def close(self) -> None:
        """Take no more jobs, terminate running timetable commands, and wait for them."""
        with suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self._is_ending.set)
        while self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)
            if not self._children:  # the thread is only waiting for a silent server
                return

    # Methods that run in the jobs thread:

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
        self._loop.set_exception_handler(lambda _loop, _context: None)  # finishing a deleted job is not an error
        while not self._is_ending.is_set():
            started_s = time.monotonic()
            try:
                async with self._share_app.open_async():
                    workers = [self._run_worker(self._share_app, queues=[SHARE], concurrency=1)]
                    if queues := list(self._command_by_queue):
                        options: WorkerOptions = {"queues": queues, "concurrency": len(queues), "listen_notify": False}
                        workers.append(self._run_worker(self._cron_app, **options))
                    await asyncio.gather(*workers, self._recover_runs(), self._terminate_children())
            except psycopg.Error as error:
                await self._report_and_pause(error, started_s)

    async def _run_worker(self, app: App, **options: "Unpack[WorkerOptions]") -> None:
        """Run a worker until this process ends. Restart it after a failure, for example if its tables were emptied."""
        while not self._is_ending.is_set():
            started_s = time.monotonic()
            worker_task = asyncio.create_task(app.run_worker_async(**options))
            end_task = asyncio.create_task(self._is_ending.wait())
            await asyncio.wait([worker_task, end_task], return_when=asyncio.FIRST_COMPLETED)
            end_task.cancel()
            worker_task.cancel()  # the worker takes no more jobs, and waits for its running ones
            (result,) = await asyncio.gather(worker_task, return_exceptions=True)
            if isinstance(result, Exception) and not self._is_ending.is_set():
                await self._report_and_pause(result, started_s)

    async def _report_and_pause(self, error: Exception, started_s: float) -> None:
        now_s = time.monotonic()
        if self._failing_since_s is None or now_s - started_s > _HEALTHY_AFTER_S:
            self._failing_since_s = now_s
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0].removesuffix(".") or type(cause).__name__
        self._messages.put(JobsFailure(reason, now_s - self._failing_since_s > LASTING_AFTER_S))
        await self._wait(RETRY_AFTER_S)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_ending.wait(), seconds)

    async def _recover_runs(self) -> None:
        """Requeue dead workers' jobs and request workers for waiting runs, until this process ends."""
        while not self._is_ending.is_set():
            with suppress(ConnectorException, psycopg.Error, JournalError):
                await self._requeue_dead_jobs()
                for run in await asyncio.to_thread(self._find_waiting_runs):
                    await self._request_worker(run)
            await self._wait(RECOVERY_INTERVAL_S)

    async def _requeue_dead_jobs(self) -> None:
        """Requeue the jobs of dead workers, marking those of workers that died long ago as late."""
        late_s = max(self._dead_after_s, MAX_LATENESS_S)
        late_ids = {job.id for job in await self._jobs.get_stalled_jobs(seconds_since_heartbeat=late_s)}
        for job in await self._jobs.get_stalled_jobs(seconds_since_heartbeat=self._dead_after_s):
            await self._jobs.retry_job(job, retry_at=_EPOCH if job.id in late_ids else None)

    def _request_worker_soon(self, run: SharedRun) -> None:
        task = self._loop.create_task(self._request_worker(run))
        self._request_tasks.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._request_tasks.discard)

    async def _request_worker(self, run: SharedRun) -> None:
        with suppress(ConnectorException, psycopg.Error, AlreadyEnqueued):
            lock = share_lock_name(run)
            if not await self._jobs.list_jobs_async(queueing_lock=lock, status=Status.TODO.value):
                job = self._share_task.configure(queueing_lock=lock, priority=priority(run))
                await job.defer_async(run=run.number)

    async def _request_share(self, *, run: int) -> None:
        share = ShareRequest(run, self._loop)
        self._messages.put(share)
        await share.is_finished.wait()

    def _add_periodic_task(self, entry: ScheduledCommand) -> None:
        name = entry.name
        task = self._cron_app.task(
            name=name, queue=name, lock=name, queueing_lock=name, retry=_RETRY, pass_context=True
        )
        self._cron_app.periodic_registry.periodic_tasks[name, ""] = periodic_task_for(entry, task(self._run_command))

    async def _run_command(self, context: JobContext, *, timestamp: int = 0) -> None:
        """Run the command that this host configures for the job's queue, never one named by the job.

        `timestamp` is when the job was due. If that was too long ago, the job is only recorded as missed.
        """
        entry, began_at = self._command_by_queue[context.job.queue], datetime.now(UTC)
        if self._is_ending.is_set():
            raise CommandFailed
        due_at = datetime.fromtimestamp(timestamp, UTC)
        retry_at = context.job.scheduled_at or due_at  # a repeated job is due again later
        if (began_at - max(due_at, retry_at)).total_seconds() > MAX_LATENESS_S:
            await self._record_missed(entry, due_at, began_at)
            return
        command = [*self._program, "-q", *entry.command_arguments()]
        child = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=_STDERR, start_new_session=True)
        self._children.add(child)
        if self._is_ending.is_set():
            child.terminate()
        try:
            exit_code = await child.wait()
        finally:
            self._children.discard(child)
        result = {"job": entry.name, "host": socket.gethostname(), "began_at": began_at, "ended_at": datetime.now(UTC)}
        await self._connector.execute_query_async(_INSERT_RESULT, **result, exit_code=exit_code)
        if exit_code in _EXIT_CODES_TO_REPEAT or exit_code < 0 or self._is_ending.is_set():
            raise CommandFailed

    async def _record_missed(self, entry: ScheduledCommand, due_at: datetime, now: datetime) -> None:
        """Record a missed job, and queue the jobs that it blocked."""
        await self._connector.execute_query_async(_INSERT_MISSED, job=entry.name, missed_at=due_at)
        deferrer = PeriodicDeferrer(self._cron_app.periodic_registry, MAX_LATENESS_S)
        await deferrer.defer_jobs(list(deferrer.get_previous_tasks(now.timestamp())))

    async def _terminate_children(self) -> None:
        """Terminate running commands when this process ends, with one signal. A second would leave rows in flight."""
        await self._is_ending.wait()
        for child in self._children:
            with suppress(ProcessLookupError):
                child.terminate()


class _RepeatingJobManager(JobManager):
    """Repeats the update at the end of a job until the server confirms it, or the job would keep its lock."""

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        await _repeat_until_confirmed(partial(super().finish_job, job, status, delete_job))

    async def retry_job(
        self,
        job: Job,
        retry_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lock: str | None = None,
    ) -> None:
        """Queue a job again, unless the next job with the same name is already queued."""
        try:
            await _repeat_until_confirmed(partial(super().retry_job, job, retry_at, priority, queue, lock))
        except UniqueViolation:
            await self.finish_job(job, Status.FAILED, delete_job=True)


async def _repeat_until_confirmed(write: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await write()
        except ConnectorException as error:
            if not isinstance(error.__cause__, psycopg.OperationalError):
                raise
            await asyncio.sleep(RETRY_AFTER_S)
        else:
            return
