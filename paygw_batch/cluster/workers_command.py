"""`paygw-batch workers`: list the workers of all hosts, or stop their work on a batch."""

from contextlib import closing
from dataclasses import asdict

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import complete_batches, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.errors import HolderKind, UsageError
from paygw_batch.journal import TimetableJob
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import pick_up_name
from paygw_batch.wiring.journal import find_batch, require_workers

_HEADINGS = mark_all("host", "process", "since", "last seen", "batch", "rows sent", "alive")

_JOB_HEADINGS = mark_all("job", "now", "ended", "host", "exit code", "missed")

_MINUTES, _SECONDS = 16, 19


@click.command("workers", cls=HelpCommand)
@click.option("--stop", "batch", metavar="BATCH", shell_complete=complete_batches, help="Stop all work on BATCH.")
@click.pass_obj
def workers_command(invocation: Invocation, *, batch: str | None) -> None:
    """List the workers of all hosts (last seen, batch, rows sent) and the timetable's jobs."""
    screen = Screen(invocation, only_shows=batch is None)
    settings = settings_of(invocation)
    if batch is not None:
        screen.finish(Summary(ExitCode.DONE, _stopped(settings, batch)))
    place = require_workers(settings)
    found, jobs = place.workers(), place.timetable_jobs()
    lines = [
        (
            one.host,
            str(one.pid),  # an identifier, not a number to format
            _short(one.since, _MINUTES),
            _short(one.seen_at, _SECONDS),
            one.batch or "",
            one.rows,
            say("yes") if one.is_alive else say("no"),
        )
        for one in found
    ]
    if lines:
        screen.table(say("Workers"), _HEADINGS, lines)
    if jobs:
        screen.table(say("Timetable"), _JOB_HEADINGS, [_job_line(job, settings) for job in jobs])
    living = sum(one.is_alive for one in found)
    message = say_count(living, "{count:,} worker is alive.", "{count:,} workers are alive.")
    screen.finish(
        Summary(
            ExitCode.DONE,
            message,
            further={"workers": [asdict(one) for one in found], "jobs": [asdict(one) for one in jobs]},
        )
    )


def _job_line(job: TimetableJob, settings: Settings) -> tuple[str, ...]:
    """Return a job's line in the table, with a folder's name if this host knows the folder."""
    folders = {pick_up_name(one.folder): one.folder.name for one in settings.timetable.pick_up}
    state = say("under way") if job.is_being_done else "" if job.due_at is None else _short(job.due_at, _SECONDS)
    ended = "" if job.ended_at is None else _short(job.ended_at, _SECONDS)
    code = "" if job.exit_code is None else str(job.exit_code)
    missed = "" if job.missed_at is None else _short(job.missed_at, _MINUTES)
    return folders.get(job.name, job.name), state, ended, job.host or "", code, missed


def _short(at: str, length: int) -> str:
    """Return a time without its year, up to a length: the table's lines have 80 columns."""
    return f"{at[5:length].replace('T', ' ')}Z"


def _stopped(settings: Settings, batch: str) -> str:
    """Stop the run of a batch, and return the sentence that says so."""
    with closing(require_workers(settings).open_to_work("workers", HolderKind.RUN)) as journal:
        record = find_batch(journal, batch)
        run = next((one for one in journal.runs() if one.batch == record.number), None)
        if run is None:
            raise UsageError(
                say("No worker is sending batch {batch}.", batch=record.batch),
                hint=say("`paygw-batch workers` shows who sends what."),
            )
        journal.stop_run(run, say("An operator stopped it."))
    return say("Batch {batch}: no worker starts another row. Waiting for rows in flight.", batch=record.batch)
