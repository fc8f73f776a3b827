"""Reports a run to the log, the metrics and a hook. A failed report never changes the result of the run."""

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
from paygw_batch.extras import RUN_HOOK_MODULES, extras
from paygw_batch.files import append_line
from paygw_batch.language import say
from paygw_batch.opening.open_journal import Echo
from paygw_batch.processes import child_environment
from paygw_batch.settings.configuration import Settings, secret_variables
from paygw_batch.settings.sections import ReportingSection
from paygw_batch.show.summary import ExitCode, Summary, error_summary
from paygw_batch.submit.notices import add_refused_sheet_notice
from paygw_batch.unattended.metrics import EndedRun, write_metrics

_LONG_NUMBER = re.compile(r"[0-9]{4,}(?=[0-9]{3})")
"""Matches all but the last three digits of a possible phone or account number."""
_DATE = r"(?<![0-9])20[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?![0-9])"
_REST_OF_NAME = r"(?=[^\s/]*\.(?:csv|txt|tsv|xlsx|parquet|json|html|toml)\b)"
_OWN_NAME = re.compile(rf"([0-9]{{8}}T[0-9]{{12}}Z(?=-)|\b(?=[0-9]*[a-f])[0-9a-f]{{16}}\b|{_DATE}{_REST_OF_NAME})")
"""Matches numbers not to mask: the time in a stored sheet's name, a batch id, or a date in a file name."""


def mask_numbers(message: str) -> str:
    """Mask all but the last three digits of long numbers, such as phone and account numbers.

    Batch ids and dates in file names are not masked, because they are needed to find the file.
    """
    parts = _OWN_NAME.split(message)
    return "".join(part if index % 2 else _LONG_NUMBER.sub("***", part) for index, part in enumerate(parts))


_WORK_COMMAND = "work"


class RunReport:
    """The report of one run. If its log cannot be written, the run continues."""

    def __init__(self, settings: Settings, command: str, echo: Echo) -> None:
        self.summary = Summary(ExitCode.UNEXPECTED, say("The run ended without a summary."))
        self.files: Mapping[str, int] = {}
        self.sheet: Path | None = None
        """The command's sheet, if people should be notified when it is refused."""
        self._settings, self._command, self._echo = settings, command, echo
        self._run = secrets.token_hex(8)
        self._failure: str | None = None
        """The message if the log could not be written."""

    def log(self, event: str, **details: object) -> None:
        """Append a line to the log with the time, run, command, event and details."""
        path = self._settings.reporting.log
        if path is None or self._failure is not None:
            return
        line = {"at": timestamp(utc_now()), "run": self._run, "command": self._command, "event": event, **details}
        try:
            append_line(path, (json.dumps(line) + "\n").encode())
        except OSError as error:
            reason = say(error.strerror or "unknown reason").lower()
            self._failure = say("The log {path} cannot be written: {reason}.", path=path, reason=reason)

    def log_message(self, message: str) -> None:
        """Log a message that was shown to a person."""
        self.log("said", sentence=mask_numbers(message))

    def report_failure(self, message: str) -> None:
        """Show and log why a report failed."""
        self._echo(message)
        self.log("could_not_tell", sentence=mask_numbers(message))

    def end(self) -> None:
        """Report the summary to the log, the metrics and the hook."""
        summary, settings = self.summary, self._settings
        message = summary.message
        if code := summary.extra.get("code"):  # The message of a question names payees.
            message = say("The sheet was refused: {code}.", code=code)
        self.log(
            "run_ended",
            exit_code=int(summary.exit_code),
            message=mask_numbers(message),
            batch=summary.batch,
            rows=summary.rows,
            states=dict(summary.states),
            totals={currency: dict(sums) for currency, sums in summary.totals.items()},
            sent_this_run=summary.sent_this_run,
            seconds=round(summary.seconds, 3),
        )
        if (failure := write_metrics(settings, EndedRun(self._command, summary, self.files))) is not None:
            self.report_failure(failure)
        if settings.reporting.hook:
            hook_input = {**summary.as_json(), "command": self._command, "run": self._run}
            environ = child_environment(os.environ, secret=secret_variables(settings))
            if (failure := _run_hook(settings.reporting, hook_input, environ)) is not None:
                self.report_failure(failure)
        if self._failure is not None:
            self._echo(self._failure)


@contextmanager
def report_run_end(settings: Settings, command: str, echo: Echo, interrupted: Callable[[], str]) -> Iterator[RunReport]:
    """Log the start of a run, and report its end to the log, the metrics and the hook, even after an error.

    `echo` receives the reason if a report fails. `interrupted` returns the message for a run stopped by a person.
    """
    started_s = time.monotonic()
    # Errors in the configuration of notices are reported before the run. A worker sends no notices, so its host needs
    # no password for them.
    modules = () if command == _WORK_COMMAND else extras(RUN_HOOK_MODULES)
    notice_senders = [module.begin(settings, os.environ) for module in modules]
    report = RunReport(settings, command, echo)
    report.log("run_started", pid=os.getpid())
    try:
        yield report
    except BaseException as error:
        report.summary = error_summary(error, interrupted())
        raise
    finally:
        report.summary = replace(report.summary, seconds=time.monotonic() - started_s)
        report.end()
        summary = report.summary
        if report.sheet is not None and summary.exit_code is ExitCode.DEFECTS:
            sheet = summary.sheet or report.sheet.name
            add_refused_sheet_notice(settings, sheet, summary.defects, None, report.report_failure)
        for send_notices in notice_senders:
            send_notices(report.report_failure)


def _run_hook(section: ReportingSection, hook_input: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """Run the hook with the summary on its standard input. Returns an error message if it fails, or None."""
    try:
        process = subprocess.run(  # noqa: S603 (a command that the configuration names, without a shell)
            section.hook,
            input=json.dumps(hook_input),
            text=True,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=section.hook_timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return say(
            "The hook was stopped because it took longer than {seconds:g} seconds.", seconds=section.hook_timeout_s
        )
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        return say("The hook {hook} cannot be run: {reason}.", hook=section.hook[0], reason=reason)
    return None if process.returncode == 0 else say("The hook ended with exit code {code}.", code=process.returncode)
