"""Reports a run to the machine that it runs on, beside its exit code: log, metrics, and a hook.

None of it can change what the run came to: a mail that cannot be sent is said on standard error, and that is all.
"""

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from paygw_batch.cli.runs.run_log import RunLog, masked
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.signals import interruption
from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.batch_status import journal_status
from paygw_batch.compose.journal import journal_to_read
from paygw_batch.core.shown_states import SHOWN_IN_DOUBT, STATES
from paygw_batch.errors import OutputError, PaygwError
from paygw_batch.files import write_whole
from paygw_batch.language import say
from paygw_batch.processes import child_environment
from paygw_batch.report.metrics import EndedRun, JournalTotals, metrics_text
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.settings.configuration import Settings, secret_variables
from paygw_batch.settings.tables import ReportingSection

METRICS_MODE = 0o644
"""The exporter is another user. The figures name nobody."""
LOCK_TRIES = 100
BETWEEN_TRIES_S = 0.05


@dataclass(slots=True)
class Report:
    """The summary of a run. The command sets it before its block ends."""

    summary: Summary


@contextmanager
def reported(settings: Settings, command: str, screen: Screen) -> Iterator[Report]:
    """Log a run's beginning and end, and tell metrics and hook of its end, also when it ends by an error."""
    started_s = time.monotonic()
    log = RunLog(settings.reporting.log, command)
    log.write("run_started", pid=os.getpid())
    screen.listener = lambda sentence: log.write("said", sentence=masked(sentence))
    report = Report(Summary(ExitCode.UNEXPECTED, say("The run ended without a summary.")))
    try:
        yield report
    except BaseException as error:
        report.summary = _of_error(error)
        raise
    finally:
        screen.listener = None
        report.summary = replace(report.summary, seconds=time.monotonic() - started_s)
        _tell(settings, command, screen, log, report.summary)


def _of_error(error: BaseException) -> Summary:
    if isinstance(error, PaygwError):
        return Summary(ExitCode(error.exit_code), error.message)
    if isinstance(error, KeyboardInterrupt):
        return Summary(ExitCode.INTERRUPTED, interruption.sentence())
    return Summary(ExitCode.UNEXPECTED, say("Unexpected error ({kind}).", kind=type(error).__name__))


def _tell(settings: Settings, command: str, screen: Screen, log: RunLog, summary: Summary) -> None:
    log.write(
        "run_ended",
        exit_code=int(summary.exit_code),
        message=masked(summary.message),
        batch=summary.batch,
        rows=summary.rows,
        states=dict(summary.states),
        totals={currency: dict(sums) for currency, sums in summary.totals.items()},
        sent_this_run=summary.sent_this_run,
        seconds=round(summary.seconds, 3),
    )
    if (failure := write_metrics(settings, EndedRun(command, summary))) is not None:
        _could_not(screen, log, failure)
    if settings.reporting.hook:
        told = {**summary.as_json(), "command": command, "run": log.run}
        environ = child_environment(os.environ, secret=secret_variables(settings))
        if (said := _call(settings.reporting, told, environ)) is not None:
            _could_not(screen, log, said)
    if log.failure is not None:
        screen.err.print(say("Note: {sentence}", sentence=log.failure))


def write_metrics(settings: Settings, ended: EndedRun | None) -> str | None:
    """Write the gauges where they are wanted, and keep those of other commands; return why they cannot be written.

    `ended` is None where the journal has changed and no command has ended.
    """
    path = settings.reporting.metrics
    if path is None:
        return None
    try:
        with _alone_in(path.parent):
            text = metrics_text(ended, _figures(settings), utc_now(), earlier=_earlier(path))
            write_whole(path, text.encode(), mode=METRICS_MODE)
    except OutputError as error:
        return error.message
    return None


def _figures(settings: Settings) -> JournalTotals | None:
    """Return the totals of the journal over all batches; None where it cannot be read."""
    try:
        with journal_to_read(settings) as journal:
            found = journal_status(journal)
            in_doubt = (journal.rows(one.record.number, states=SHOWN_IN_DOUBT) for one in found.batches)
            left = [row.intended_at for rows in in_doubt for row in rows if row.intended_at is not None]
            oldest = datetime.fromisoformat(min(left)) if left else None
            return JournalTotals({state: found.states.get(state, 0) for state in STATES}, found.totals, oldest)
    except PaygwError:
        return None  # the exit code of the run says it


def _earlier(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep two commands that end together from writing the same file. After a bound it goes on without."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(BETWEEN_TRIES_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)


def _could_not(screen: Screen, log: RunLog, sentence: str) -> None:
    screen.err.print(say("Note: {sentence}", sentence=sentence), soft_wrap=True)
    log.write("could_not_tell", sentence=masked(sentence))


def _call(section: ReportingSection, told: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """Run the hook with the summary on its standard input; return a sentence about its failure, or None."""
    try:
        done = subprocess.run(  # noqa: S603 (a command that the configuration names, without a shell)
            section.hook,
            input=json.dumps(told),
            text=True,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=section.hook_timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return say("The hook was stopped: it took longer than {seconds:g} seconds.", seconds=section.hook_timeout_s)
    except OSError as error:
        return say(
            "The hook {hook} cannot be run: {reason}.",
            hook=section.hook[0],
            reason=say(error.strerror or "unknown reason").lower(),
        )
    return None if done.returncode == 0 else say("The hook ended with exit code {code}.", code=done.returncode)
