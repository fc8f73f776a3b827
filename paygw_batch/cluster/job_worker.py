"""Runs procrastinate's worker beside the sending thread. It passes shares to that thread and carries out the timetable.

Rows are sent in the main thread, because a signal can drain it there. The entries of the timetable are commands of the
program, each in a separate process. So they take no time from the rows in flight, and each may be killed and repeated.
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

from paygw_batch.clock import HEED_EVERY_S, timestamp, utc_now
from paygw_batch.cluster.asked import AskedShare, Trouble
from paygw_batch.cluster.calling import SHARE, AsyncAnswered, pool_of, prepare_async, priority, share_lock
from paygw_batch.errors import JournalError
from paygw_batch.journal import SharedRun
from paygw_batch.settings.sections import TimetableSection, pick_up_name

if TYPE_CHECKING:
    from procrastinate.app import WorkerOptions
    from typing_extensions import Unpack

    from paygw_batch.cluster.database_place import WaitingRuns


TEND_EVERY_S = 2.0
"""The seconds between two searches of the journal for runs that lost their jobs, or whose worker died."""
AGAIN_AFTER_S = 1.0
"""The delay before checking the jobs again after a failure."""
LASTING_S = 60.0
_HEALTHY_S = 10.0
_LEAVE_S = 3.0
_BEATS = 3
_STANDARD_ERROR = 2
_FAILED = frozenset({1, 7, 130})
"""The exit codes of a command that is repeated: a defect of ours, an error of the journal, an interruption."""
_RETRY = RetryStrategy(max_attempts=5, exponential_wait=3)
_RESULT = """INSERT INTO paygw_result (job, host, began_at, ended_at, exit_code)
    VALUES (%(job)s, %(host)s, %(began_at)s, %(ended_at)s, %(exit_code)s)
    ON CONFLICT (job) DO UPDATE SET host = excluded.host, began_at = excluded.began_at,
        ended_at = excluded.ended_at, exit_code = excluded.exit_code"""
_MISSED = """INSERT INTO paygw_result (job, missed_at) VALUES (%(job)s, %(missed_at)s)
    ON CONFLICT (job) DO UPDATE SET missed_at = excluded.missed_at"""
LATEST_S = 600
"""How late a job of the timetable may start. A job that waited longer because no worker was alive is skipped."""
_LONG_AGO = datetime.fromtimestamp(0, UTC)


BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class ScheduledCommand:
    """An entry of the timetable: its name, the times at which it is due, and the words of its command.

    Its name is also that of its queue. A host takes the jobs that its own configuration names, and runs the command
    that its configuration has for them.
    """

    name: str
    cron: str
    zone: str
    words: tuple[str, ...]

    def command_words(self) -> list[str]:
        """Return the words of the command to run now; each backup gets a new name."""
        if self.name != BACKUP:
            return list(self.words)
        at = timestamp(utc_now()).replace("-", "").replace(":", "")
        return [BACKUP, f"{self.words[1]}/journal-{at}.dump"]


def scheduled_in(timetable: TimetableSection) -> Iterator[ScheduledCommand]:
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


def times_of(entry: ScheduledCommand, task: Task[..., object, ...]) -> PeriodicTask[..., object, ...]:
    """Return the times at which a task is due by an entry of the timetable, in its zone; procrastinate uses UTC."""

    class Zoned(PeriodicTask[..., object, ...]):
        @cached_property
        def croniter(self) -> croniter:
            return croniter(entry.cron, datetime.now(ZoneInfo(entry.zone)))

    return Zoned(task=task, cron=entry.cron, periodic_id="", configure_kwargs={})


class CommandFailed(Exception):
    """A command of the timetable failed and is to be repeated."""


class JobWorker:
    """The worker of this process for jobs. `program` are the words that start the program with its configuration.

    `tend` finds runs in the journal that wait for a worker. It is closed together with this worker.
    """

    def __init__(
        self,
        url: str,
        silent_s: float,
        scheduled: Sequence[ScheduledCommand],
        program: Sequence[str],
        tend: "WaitingRuns",
    ) -> None:
        self._silent_s, self._program, self._tend = silent_s, list(program), tend
        self._by_queue = {entry.name: entry for entry in scheduled}
        self._connector = PsycopgConnector(**pool_of(url, prepare_async, AsyncAnswered), min_size=1, max_size=4)
        self._jobs = _Jobs(self._connector)
        how: WorkerOptions = {
            "delete_jobs": "always",
            "install_signal_handlers": False,
            "update_heartbeat_interval": silent_s / _BEATS,
            "stalled_worker_timeout": max(silent_s, LATEST_S),  # until then `_take_back` reads when a worker died
        }
        self._shares = App(connector=self._connector, worker_defaults=how)
        self._scheduled = App(connector=self._connector, worker_defaults=how)
        self._shares.job_manager = self._scheduled.job_manager = self._jobs
        self._task = self._shares.task(name=SHARE, queue=SHARE)(self._share)
        for entry in scheduled:
            self._add(entry)
        self._asked: SimpleQueue[AskedShare | Trouble | None] = SimpleQueue()
        self._children: set[asyncio.subprocess.Process] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()
        self._failing_since_s: float | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        for name in ("procrastinate", "psycopg.pool"):  # the main thread reports their errors in one sentence
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self._thread.start()

    def next(self) -> AskedShare | Trouble | None:
        """Wait up to a second for the next share or trouble. Return None after that, or if `wake` was called."""
        # The system may give a signal to any thread, and does so once a frozen process continues. Python calls the
        # handler when the main thread runs next, which would never happen in a wait without end.
        with suppress(Empty):
            return self._asked.get(timeout=HEED_EVERY_S)
        return None

    def wake(self) -> None:
        """End the wait in `next`. A signal handler may call it at any moment."""
        self._asked.put(None)

    def call(self, run: SharedRun) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._call_soon, run)

    def close(self) -> None:
        """Take no more jobs; ask the commands of the timetable to end, and wait for them."""
        with suppress(RuntimeError):  # the loop has ended too
            self._loop.call_soon_threadsafe(self._ending.set)
        while self._thread.is_alive():
            self._thread.join(_LEAVE_S)
            if not self._children:  # the thread now only waits for a server that does not answer
                return

    # The following methods run in the thread of the jobs.

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        except Exception as error:
            self._asked.put(Trouble(type(error).__name__, is_lasting=True))  # so that the main thread does not wait on
            raise
        finally:
            self._tend.close()
            self._loop.close()

    async def _serve(self) -> None:
        self._loop.set_exception_handler(lambda _loop, _context: None)  # finishing a job that is gone is no error
        while not self._ending.is_set():
            began_s = time.monotonic()
            try:
                async with self._shares.open_async():
                    kept = [self._kept(self._shares, queues=[SHARE], concurrency=1)]
                    if queues := list(self._by_queue):
                        how: WorkerOptions = {"queues": queues, "concurrency": len(queues), "listen_notify": False}
                        kept.append(self._kept(self._scheduled, **how))
                    await asyncio.gather(*kept, self._tended(), self._end_children())
            except psycopg.Error as error:
                await self._pause(error, began_s)

    async def _kept(self, app: App, **options: "Unpack[WorkerOptions]") -> None:
        """Run a worker until this process is to end. If its tables were emptied, it registers again."""
        while not self._ending.is_set():
            began_s = time.monotonic()
            working = asyncio.create_task(app.run_worker_async(**options))
            ending = asyncio.create_task(self._ending.wait())
            await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            working.cancel()  # the worker then takes no further job, and waits for its jobs under way
            (result,) = await asyncio.gather(working, return_exceptions=True)
            if isinstance(result, Exception) and not self._ending.is_set():
                await self._pause(result, began_s)

    async def _pause(self, error: Exception, began_s: float) -> None:
        """Report a failure to the main thread, and wait for a moment."""
        now_s = time.monotonic()
        if self._failing_since_s is None or now_s - began_s > _HEALTHY_S:
            self._failing_since_s = now_s
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0].removesuffix(".") or type(cause).__name__
        self._asked.put(Trouble(reason, now_s - self._failing_since_s > LASTING_S))
        await self._wait(AGAIN_AFTER_S)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)

    async def _tended(self) -> None:
        """Take back the jobs of dead workers, and call workers to waiting runs, until this process is to end."""
        while not self._ending.is_set():
            with suppress(ConnectorException, psycopg.Error, JournalError):
                await self._take_back()
                for run in await asyncio.to_thread(self._tend):
                    await self._call(run)
            await self._wait(TEND_EVERY_S)

    async def _take_back(self) -> None:
        """Let the jobs of dead workers be tried again. If the worker died long ago, its job then counts as too late."""
        late_s = max(self._silent_s, LATEST_S)
        late = {job.id for job in await self._jobs.get_stalled_jobs(seconds_since_heartbeat=late_s)}
        for job in await self._jobs.get_stalled_jobs(seconds_since_heartbeat=self._silent_s):
            await self._jobs.retry_job(job, retry_at=_LONG_AGO if job.id in late else None)

    def _call_soon(self, run: SharedRun) -> None:
        task = self._loop.create_task(self._call(run))
        self._calls.add(task)  # without a reference the task could be collected, because the loop keeps none
        task.add_done_callback(self._calls.discard)

    async def _call(self, run: SharedRun) -> None:
        """Call a worker to a run, unless a job for the run waits already."""
        with suppress(ConnectorException, psycopg.Error, AlreadyEnqueued):
            lock = share_lock(run)
            if not await self._jobs.list_jobs_async(queueing_lock=lock, status=Status.TODO.value):
                job = self._task.configure(queueing_lock=lock, priority=priority(run))
                await job.defer_async(run=run.number)

    async def _share(self, *, run: int) -> None:
        share = AskedShare(run, self._loop)
        self._asked.put(share)
        await share.over.wait()

    def _add(self, entry: ScheduledCommand) -> None:
        name = entry.name
        task = self._scheduled.task(
            name=name, queue=name, lock=name, queueing_lock=name, retry=_RETRY, pass_context=True
        )
        self._scheduled.periodic_registry.periodic_tasks[name, ""] = times_of(entry, task(self._do))

    async def _do(self, context: JobContext, *, timestamp: int = 0) -> None:
        """Run the command that this host's configuration has for a job's queue, never a command that the job names.

        `timestamp` is the time at which the job was due. A job that comes too late runs nothing.
        """
        entry, began_at = self._by_queue[context.job.queue], datetime.now(UTC)
        if self._ending.is_set():
            raise CommandFailed
        due_at = datetime.fromtimestamp(timestamp, UTC)
        again_at = context.job.scheduled_at or due_at  # a repeated job has the time of its next try
        if (began_at - max(due_at, again_at)).total_seconds() > LATEST_S:
            await self._miss(entry, due_at, began_at)
            return
        command = [*self._program, "-q", *entry.command_words()]
        child = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=_STANDARD_ERROR, start_new_session=True
        )
        self._children.add(child)
        if self._ending.is_set():
            child.terminate()
        try:
            code = await child.wait()
        finally:
            self._children.discard(child)
        line = {"job": entry.name, "host": socket.gethostname(), "began_at": began_at, "ended_at": datetime.now(UTC)}
        await self._connector.execute_query_async(_RESULT, **line, exit_code=code)
        if code in _FAILED or code < 0 or self._ending.is_set():
            raise CommandFailed

    async def _miss(self, entry: ScheduledCommand, due_at: datetime, now: datetime) -> None:
        """Record a missed time, and make the jobs that became due meanwhile: they could not wait beside this one."""
        await self._connector.execute_query_async(_MISSED, job=entry.name, missed_at=due_at)
        deferrer = PeriodicDeferrer(self._scheduled.periodic_registry, LATEST_S)
        await deferrer.defer_jobs(list(deferrer.get_previous_tasks(now.timestamp())))

    async def _end_children(self) -> None:
        """Ask the commands under way to end, once, because a second signal would not wait for rows in flight."""
        await self._ending.wait()
        for child in self._children:
            with suppress(ProcessLookupError):
                child.terminate()


class _Jobs(JobManager):
    """The jobs in the database. A job that is to be repeated may find the next job of its name waiting.

    The end of a job is written until the server confirms it. Otherwise procrastinate would forget a job whose end was
    lost, and that job would keep its lock as long as its worker lives.
    """

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        await _until_answered(partial(super().finish_job, job, status, delete_job))

    async def retry_job(
        self,
        job: Job,
        retry_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        lock: str | None = None,
    ) -> None:
        """Let a job be tried again. If the next job of its name waits already, that one is the next try."""
        try:
            await _until_answered(partial(super().retry_job, job, retry_at, priority, queue, lock))
        except UniqueViolation:
            await self.finish_job(job, Status.FAILED, delete_job=True)


async def _until_answered(write: Callable[[], Awaitable[None]]) -> None:
    """Write the end of a job, and repeat that while the server does not answer."""
    while True:
        try:
            await write()
        except ConnectorException as error:
            if not isinstance(error.__cause__, psycopg.OperationalError):
                raise
            await asyncio.sleep(AGAIN_AFTER_S)
        else:
            return
