"""`paygw-batch workers` lists the workers of all hosts, or stops their work on a batch; `limits` shows their limits."""

from contextlib import closing
from dataclasses import asdict

import click

from paygw_batch.approval.policy import identify_person
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, WholeNumber
from paygw_batch.cli.options import by_option, complete_batches, settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.core.shown_states import STOPPED_BY_PERSON
from paygw_batch.engine.pacing import stop_message
from paygw_batch.errors import HolderKind, UsageError
from paygw_batch.journal import GateState, LimitChange, TimetableJob
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.opening.open_journal import find_batch, require_database, require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import pick_up_job_name
from paygw_batch.show.summary import ExitCode, Summary

_HEADINGS = mark_all("host", "process", "since", "last seen", "batch", "rows sent", "alive")
_JOB_HEADINGS = mark_all("job", "now", "ended", "host", "exit code", "missed")
_TO_MINUTES, _TO_SECONDS = 16, 19


@click.command("workers", cls=HelpCommand)
@click.option("--stop", "batch", metavar="BATCH", shell_complete=complete_batches, help="Stop all work on BATCH.")
@click.pass_obj
def workers_command(invocation: Invocation, *, batch: str | None) -> None:
    """List the workers of all hosts (last seen, batch, rows sent) and the timetable's jobs."""
    screen = Screen(invocation, is_read_only=batch is None)
    settings = settings_for(invocation)
    if batch is not None:
        screen.finish(Summary(ExitCode.DONE, _stop_batch(settings, batch)))
    database = require_workers(settings)
    workers, jobs = database.workers(), database.timetable_jobs()
    rows = [
        (
            worker.host,
            str(worker.pid),  # an identifier, not a number to format
            _trim_time(worker.since, _TO_MINUTES),
            _trim_time(worker.seen_at, _TO_SECONDS),
            worker.batch or "",
            worker.rows,
            say("yes") if worker.is_alive else say("no"),
        )
        for worker in workers
    ]
    if rows:
        screen.table(say("Workers"), _HEADINGS, rows)
    if jobs:
        screen.table(say("Timetable"), _JOB_HEADINGS, [_job_row(job, settings) for job in jobs])
    alive_count = sum(worker.is_alive for worker in workers)
    message = say_count(alive_count, "{count:,} worker is running.", "{count:,} workers are running.")
    extra = {"workers": [asdict(worker) for worker in workers], "jobs": [asdict(job) for job in jobs]}
    screen.finish(Summary(ExitCode.DONE, message, extra=extra))


def _job_row(job: TimetableJob, settings: Settings) -> tuple[str, ...]:
    folders = {pick_up_job_name(pick_up.folder): pick_up.folder.name for pick_up in settings.timetable.pick_up}
    state = say("running") if job.is_being_done else "" if job.due_at is None else _trim_time(job.due_at, _TO_SECONDS)
    ended_at = "" if job.ended_at is None else _trim_time(job.ended_at, _TO_SECONDS)
    exit_code = "" if job.exit_code is None else str(job.exit_code)
    missed_at = "" if job.missed_at is None else _trim_time(job.missed_at, _TO_MINUTES)
    return folders.get(job.name, job.name), state, ended_at, job.host or "", exit_code, missed_at


def _trim_time(time: str, end: int) -> str:
    """Return a time without its year, up to position `end`, so that the table fits into 80 columns."""
    return f"{time[5:end].replace('T', ' ')}Z"


def _stop_batch(settings: Settings, batch: str) -> str:
    with closing(require_workers(settings).open_to_work("workers", HolderKind.RUN)) as journal:
        record = find_batch(journal, batch)
        run = next((run for run in journal.runs() if run.batch == record.number), None)
        if run is None:
            raise UsageError(
                say("No worker is sending batch {batch}.", batch=record.batch),
                hint=say("To see which worker is sending which batch, run `paygw-batch workers`."),
            )
        journal.stop_run(run, STOPPED_BY_PERSON)
    return say("Workers will not start any more rows of batch {batch}. Waiting for rows in flight.", batch=record.batch)


MIN_RATE_PER_S, MAX_RATE_PER_S = 0.001, 100_000
"""The accepted rates: from a row every quarter of an hour to more than any gateway accepts."""


@click.command("limits", cls=HelpCommand)
@click.option("--rate", type=float, metavar="PER_S", help="Maximum number of rows started a second (0 for no limit).")
@click.option("--concurrency", type=WholeNumber(1, 1024), metavar="N", help="Maximum number of rows in flight.")
@click.option(
    "--as-configured", is_flag=True, help="Remove the limits not named here. Workers then use their own configuration."
)
@by_option
@click.pass_obj
def limits_command(
    invocation: Invocation, *, rate: float | None, concurrency: int | None, as_configured: bool, by: str | None
) -> None:
    """Show the limits that all workers of the endpoint share, and each worker's rows in flight.

    Use the options to set new limits. New limits apply immediately, even to running batches. The journal records who
    set them and when.
    """
    screen = Screen(invocation)
    settings = settings_for(invocation)
    if rate is not None and not (rate == 0 or MIN_RATE_PER_S <= rate <= MAX_RATE_PER_S):
        raise UsageError(
            say("--rate must be 0, or from {slowest:g} to {fastest:,}.", slowest=MIN_RATE_PER_S, fastest=MAX_RATE_PER_S)
        )
    database = require_database(
        settings,
        say("The journal is a file, so only one process sends, and its limits are in the configuration."),
        say("Set rate_per_s and concurrency in [submission]. Workers share limits if [journal] url names a database."),
    )
    if rate is None and concurrency is None and not as_configured:
        state, is_set = database.limits(), False
    else:
        change = LimitChange(identify_person(by), rate, concurrency, as_configured)
        state, is_set = database.change_limits(change), True
    if not screen.as_json:
        _show_limits(screen, state, settings)
    message = say("The new limits are set.") if is_set else say("These are the limits shared by all workers.")
    screen.finish(Summary(ExitCode.DONE, message, extra={"limits": _limits_as_json(state, settings)}))


def _show_limits(screen: Screen, state: GateState, settings: Settings) -> None:
    submission = settings.submission
    rate = submission.rate_per_s if state.rate_per_s is None else state.rate_per_s
    rate_text = say("{rate:g} rows a second", rate=rate) if rate else say("no limit")
    concurrency = submission.concurrency if state.concurrency is None else state.concurrency
    concurrency_text = say_count(concurrency, "{count:,} row", "{count:,} rows")
    rows = [
        (say("rate"), _limit_text(rate_text, is_configured=state.rate_per_s is None)),
        (say("concurrency"), _limit_text(concurrency_text, is_configured=state.concurrency is None)),
    ]
    if state.set_at:
        rows.append((say("set by"), say("{who}, {time}", who=state.set_by, time=state.set_at)))
    pause_text = say("until {time}", time=state.rest_until) if state.rest_until else "-"
    rows += [(say("pause requested by the gateway"), pause_text), (say("sending"), _sending_state(state))]
    screen.table("", (say("limit"), say("in force")), rows)
    workers = [
        (str(worker.worker), f"{worker.command} ({worker.pid}, {worker.host})", str(worker.in_flight))
        for worker in state.workers
    ]
    if workers:
        screen.table("", (say("worker"), say("process"), say("in flight")), workers)


def _limit_text(limit: str, *, is_configured: bool) -> str:
    return say("{limit} (from this host's configuration)", limit=limit) if is_configured else limit


def _sending_state(state: GateState) -> str:
    if state.stop is None:
        return say("allowed")
    return say(
        "stopped since {time}: {reason} To continue, run `paygw-batch resume`.",
        time=state.stopped_at,
        reason=stop_message(state.stop),
    )


def _limits_as_json(state: GateState, settings: Settings) -> dict[str, object]:
    gate = {name: None if value == "" else value for name, value in asdict(state).items() if name != "stop"}
    configured = {"rate_per_s": settings.submission.rate_per_s, "concurrency": settings.submission.concurrency}
    return {**gate, "configured": configured, "stop_reason": None if state.stop is None else stop_message(state.stop)}
