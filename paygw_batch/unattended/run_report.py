"""Reports a run to its machine, beyond the exit code: in the log, as metrics, and by a hook.

No report changes the result of the run. A report that fails only causes a line on standard error.
"""

import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.errors import PaygwError
from paygw_batch.extras import AFTER_A_COMMAND, extras
from paygw_batch.files import append_line
from paygw_batch.language import say
from paygw_batch.opening.open_journal import Tell
from paygw_batch.processes import child_environment
from paygw_batch.settings.configuration import Settings, secret_variables
from paygw_batch.settings.sections import ReportingSection
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.submit.notices import tell_of_refused_sheet
from paygw_batch.unattended.metrics import EndedRun, write_metrics

_LONG_NUMBER = re.compile(r"[0-9]{4,}(?=[0-9]{3})")
"""All digits but the last three of a number that could be a phone or an account."""
_DATE = r"(?<![0-9])20[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?![0-9])"
_REST_OF_NAME = r"(?=[^\s/]*\.(?:csv|txt|tsv|xlsx|parquet|json|html|toml)\b)"
_OWN_NAME = re.compile(rf"([0-9]{{8}}T[0-9]{{12}}Z(?=-)|\b(?=[0-9]*[a-f])[0-9a-f]{{16}}\b|{_DATE}{_REST_OF_NAME})")
"""The time that `run-folder` puts before a sheet's name, the id of a batch, or a date in a file name."""


def masked(sentence: str) -> str:
    """Return a sentence with long numbers, such as phones and accounts, cut to their last three digits.

    Names made by this program remain whole, because a person needs them to find the file.
    """
    parts = _OWN_NAME.split(sentence)
    return "".join(part if place % 2 else _LONG_NUMBER.sub("***", part) for place, part in enumerate(parts))


_WORK = "work"


class RunReport:
    """The report of one run. Before the end, the command sets its summary and the files of its drop folder by kind.

    Each line of the log has the run's id. A log that cannot be written stops no payroll.
    """

    def __init__(self, settings: Settings, command: str, tell: Tell) -> None:
        self.summary = Summary(ExitCode.UNEXPECTED, say("The run ended without a summary."))
        self.files: Mapping[str, int] = {}
        self.sheet: Path | None = None
        """The sheet of the command. People are notified if it is refused."""
        self._settings, self._command, self._tell = settings, command, tell
        self._run = secrets.token_hex(8)
        self._failure: str | None = None
        """The reason why the log could not be written, once that has happened."""

    def log(self, event: str, **details: object) -> None:
        """Append one line to the log: `at`, `run`, `command`, `event`, and the details of the event."""
        path = self._settings.reporting.log
        if path is None or self._failure is not None:
            return
        line = {"at": timestamp(utc_now()), "run": self._run, "command": self._command, "event": event, **details}
        try:
            append_line(path, (json.dumps(line) + "\n").encode())
        except OSError as error:
            reason = say(error.strerror or "unknown reason").lower()
            self._failure = say("The log {path} cannot be written: {reason}.", path=path, reason=reason)

    def said(self, sentence: str) -> None:
        """Log a sentence that was shown to a person."""
        self.log("said", sentence=masked(sentence))

    def could_not(self, sentence: str) -> None:
        """Show and log the reason why something could not be reported."""
        self._tell(sentence)
        self.log("could_not_tell", sentence=masked(sentence))

    def end(self) -> None:
        """Report the summary to the log, the metrics and the hook."""
        summary, settings = self.summary, self._settings
        self.log(
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
        if (failure := write_metrics(settings, EndedRun(self._command, summary, self.files))) is not None:
            self.could_not(failure)
        if settings.reporting.hook:
            members = {**summary.as_json(), "command": self._command, "run": self._run}
            environ = child_environment(os.environ, secret=secret_variables(settings))
            if (problem := _call(settings.reporting, members, environ)) is not None:
                self.could_not(problem)
        if self._failure is not None:
            self._tell(self._failure)


@contextmanager
def run_reported(settings: Settings, command: str, tell: Tell, interrupted: Callable[[], str]) -> Iterator[RunReport]:
    """Log the start and the end of a run, and report its end to metrics and hook, even if an error ends it.

    `tell` gets the reason if a report fails. `interrupted` returns how a run ended that a person stopped.
    """
    started_s = time.monotonic()
    # Faulty channels of notices are reported before the run. A worker sends no notices, so its host needs no password.
    ends = () if command == _WORK else [module.begin(settings, os.environ) for module in extras(AFTER_A_COMMAND)]
    report = RunReport(settings, command, tell)
    report.log("run_started", pid=os.getpid())
    try:
        yield report
    except BaseException as error:
        report.summary = _of_error(error, interrupted)
        raise
    finally:
        report.summary = replace(report.summary, seconds=time.monotonic() - started_s)
        report.end()
        summary = report.summary
        if report.sheet is not None and summary.exit_code is ExitCode.DEFECTS:
            sheet = summary.sheet or report.sheet.name
            tell_of_refused_sheet(settings, sheet, summary.defects, None, report.could_not)
        for end in ends:
            end(report.could_not)


def _of_error(error: BaseException, interrupted: Callable[[], str]) -> Summary:
    if isinstance(error, PaygwError):
        return Summary(ExitCode(error.exit_code), error.message)
    if isinstance(error, KeyboardInterrupt):
        return Summary(ExitCode.INTERRUPTED, interrupted())
    return Summary(ExitCode.UNEXPECTED, say("Unexpected error ({kind}).", kind=type(error).__name__))


def _call(section: ReportingSection, members: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """Run the hook with the summary on its standard input. Return a sentence if the hook fails, or None."""
    try:
        done = subprocess.run(  # noqa: S603 (a command that the configuration names, without a shell)
            section.hook,
            input=json.dumps(members),
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
        reason = say(error.strerror or "unknown reason").lower()
        return say("The hook {hook} cannot be run: {reason}.", hook=section.hook[0], reason=reason)
    return None if done.returncode == 0 else say("The hook ended with exit code {code}.", code=done.returncode)
