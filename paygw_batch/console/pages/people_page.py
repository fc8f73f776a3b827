"""The read-only pages about people, keys, health, the audit trail and workers."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from paygw_batch.console.pages.orders import (
    StatementFolder,
    find_order_folder,
    order_summary,
    orders_directory,
    statements_directory,
)
from paygw_batch.console.payout_folder import PayoutFolder
from paygw_batch.console.permissions import Member
from paygw_batch.console.rendering import page_links
from paygw_batch.console.start_run import last_run, last_summary, start_run
from paygw_batch.console.visits import RECORDED_AS_DONE, PageNotFound, Visit, parse_subject, payout_name_lookup
from paygw_batch.errors import PaygwError
from paygw_batch.journal import (
    NO_ENTRY,
    AuditEntry,
    AuditResult,
    JournalReader,
    SharedWork,
    TimetableJob,
    WorkerStatus,
    make_directory,
)
from paygw_batch.language import mark, mark_all, say
from paygw_batch.opening.open_journal import database_location, file_location, open_journal_to_read, require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import pick_up_job_name
from paygw_batch.sheet.columns import column_label
from paygw_batch.show.batch_status import running_process
from paygw_batch.submit.send import gate_stop_reason

_JOBS: Mapping[str, str] = {
    "refresh": mark("Ask the gateway about open rows"),
    "verify": mark("Verify the whole journal"),
    "backup": mark("Back up the database"),
}


def show_workers(visit: Visit) -> Response:
    """Show the workers. Raises `PageNotFound` for a journal in a file, from which only one machine sends."""
    settings = visit.console.settings
    if settings.journal.url is None:
        raise PageNotFound(say("This machine sends all payouts itself. There are no workers."))
    database = require_workers(settings)
    work = page_values(database.shared_work(), database.timetable_jobs(), settings, visit.console.now())
    return visit.page("workers.html", **work)


def page_values(work: SharedWork, jobs: Sequence[TimetableJob], settings: Settings, now: datetime) -> Mapping[str, Any]:
    """Return the template values of the workers page."""
    gate, submission = work.gate, settings.submission
    names = {run.batch: run.sheet_name for run in work.runs}

    def rows_per_minute(worker: WorkerStatus) -> float:
        minutes = (now - datetime.fromisoformat(worker.since)).total_seconds() / 60
        return worker.rows / minutes if minutes > 0 else 0.0

    return {
        # Each worker is listed with the sheet that it is sending and its rate in rows per minute.
        "workers": [(worker, names.get(worker.batch or "", ""), rows_per_minute(worker)) for worker in work.workers],
        "work": work,
        "jobs": [(_job_label(job.name, settings), job) for job in jobs],
        # 0 means no limit.
        "rate_per_s": submission.rate_per_s if gate.rate_per_s is None else gate.rate_per_s,
        # The maximum number of rows in flight across all workers.
        "in_flight": submission.concurrency if gate.concurrency is None else gate.concurrency,
        # Empty while workers may send.
        "stop_reason": gate_stop_reason(gate),
    }


def _job_label(name: str, settings: Settings) -> str:
    """Return a job's label. A job from another host may use a folder that is not in this configuration."""
    if (label := _JOBS.get(name)) is not None:
        return say(label)
    folders = {pick_up_job_name(entry.folder): entry.folder.name for entry in settings.timetable.pick_up}
    if name in folders:
        return say("Pay the sheets in the folder {folder}", folder=folders[name])
    return say("Pay the sheets in a folder on another machine")


ENTRIES_PER_PAGE = 50
LOOKAHEAD = 50
"""Number of newer entries searched for refusals of the actions on the page."""
_CHECKS: Mapping[str, str] = {
    "doctor": mark("Configuration, key, clock, journal and connection"),
    "verify": mark("Every entry in the journal"),
}
"""The commands that check the program, each with a label for what it checks."""
HEALTH_FOLDER = "health"
AUDIT_RESULTS = mark_all("done", "refused")
"""The results in the audit trail, which are in English, marked for the catalogue."""
_REFUSAL_REASONS: Mapping[str, str] = {
    "ActRefused": mark("not allowed"),
    "PageOutdated": mark("the page was out of date"),
    "PageNotFound": mark("not found"),
    "FieldRefused": mark("a field was not filled in correctly"),
    "UsageError": mark("a field was not filled in correctly"),
    "SheetError": mark("the sheet could not be used"),
    "ApprovalError": mark("the signatures are invalid or out of date"),
    "DocumentWithdrawn": mark("it was withdrawn"),
    "JournalHeld": mark("a payout was running"),
    "exit 3": mark("the sheet could not be used"),
    "exit 7": mark("the journal could not be used"),
    "exit 8": mark("the signatures are invalid or out of date"),
    "BodyRefused": mark("the file was too large or took too long"),
}
"""The reasons for refusals, by the error class or exit code recorded in the audit trail."""
_OTHER_REASON = mark("the action failed")


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """The last check of the program that somebody started in the console. `at` is empty if there was none.

    `findings` holds the name and result of each individual check that failed.
    """

    name: str
    about: str
    is_running: bool = False
    at: str = ""
    by: str = ""
    is_good: bool = False
    message: str = ""
    findings: Sequence[tuple[str, str]] = ()


def show_people_and_health(visit: Visit) -> Response:
    console, settings = visit.console, visit.console.settings
    keys: dict[Member, list[str]] = defaultdict(list)
    for key, member in console.access.keys.items():
        keys[member].append(key.fingerprint)
    before = visit.query_number("before") or NO_ENTRY
    head, audit_entries, audit_error = None, list[tuple[AuditEntry, str, str, str]](), ""
    try:
        with open_journal_to_read(settings) as journal:
            head, format_subject = journal.head(), _subject_formatter(visit, journal)
            # The refusal of an action is a later entry, which may be on the previous page.
            end = min(before + LOOKAHEAD, NO_ENTRY)
            entries = journal.audit_entries(before=end, limit=ENTRIES_PER_PAGE + LOOKAHEAD)
            resolved = [entry for entry in _resolve_results(entries) if entry[0].number < before][:ENTRIES_PER_PAGE]
            audit_entries = [(entry, format_subject(entry.thing), result, reason) for entry, result, reason in resolved]
    except PaygwError as error:
        audit_error = error.message
    is_file = database_location(settings) is None
    last_number = audit_entries[-1][0].number if len(audit_entries) == ENTRIES_PER_PAGE else None
    return visit.page(
        "people.html",
        # Each person is listed with the fingerprints of their keys.
        members=[(member, sorted(keys[member])) for member in console.members],
        needed=settings.approval.needed,
        expires_h=settings.approval.expires_h,
        endpoint=settings.endpoint(),
        journal=head,
        running=running_process(settings),
        # `backup` copies only a journal file, from which only one machine sends.
        is_file=is_file,
        last_backup_at=file_location(settings).last_backup_at() if is_file else None,
        checks=[_program_check(visit, name) for name in _CHECKS],
        entries=audit_entries,
        pages=page_links("before", {say("Older entries"): last_number}),
        # Why the audit trail cannot be read, or empty.
        audit_error=audit_error,
    )


def start_check(visit: Visit) -> Response:
    """Start a check in another process, because verifying a million rows takes time."""
    name, console = visit.form.get("check", ""), visit.console
    if name not in _CHECKS:
        raise PageNotFound(say("This check does not exist."))
    make_directory(console.directory)
    command = [*console.program, "--json", name]
    start_run(console.directory / HEALTH_FOLDER, name, command, by=visit.member.name, environ=visit.environ)
    return visit.redirect("/people#health")


def _program_check(visit: Visit, name: str) -> ProgramCheck:
    directory, about = visit.console.directory / HEALTH_FOLDER, say(_CHECKS[name])
    run = last_run(directory, name)
    if run is None:
        return ProgramCheck(name, about)
    if run.is_alive:
        return ProgramCheck(name, about, is_running=True, at=run.at, by=run.by)
    summary = last_summary(directory, name)
    if summary is None:
        return ProgramCheck(name, about, at=run.at, by=run.by, message=say("The check ended without a result."))
    checks = summary.get("checks")
    failed_checks = [check for check in (checks if isinstance(checks, list) else []) if check["state"] != "ok"]
    findings = [(str(check["check"]), str(check["found"])) for check in failed_checks]
    message = str(summary.get("message", ""))
    return ProgramCheck(name, about, False, run.at, run.by, summary.get("exit_code") == 0, message, findings)


def _resolve_results(entries: Iterable[AuditEntry]) -> Iterator[tuple[AuditEntry, str, str]]:
    """Yield each entry, newest first, with its result and any reason for refusal, which a newer entry may hold."""
    refusals = defaultdict[tuple[str, ...], list[str]](list)
    for entry in entries:
        action = (entry.who, entry.act, entry.thing)
        if entry.result != AuditResult.REFUSED:
            reason = refusals[action].pop() if refusals[action] else ""
        else:
            reason = say(_REFUSAL_REASONS.get(entry.said.removeprefix(RECORDED_AS_DONE), _OTHER_REASON))
            if entry.said.startswith(RECORDED_AS_DONE):
                refusals[action].append(reason)
        yield entry, AuditResult.REFUSED if reason else entry.result, reason


def _subject_formatter(visit: Visit, journal: JournalReader) -> Callable[[str], str]:
    """Return a function that describes an audit entry's subject, such as a sheet, row and column."""
    payout_name = payout_name_lookup(visit.console)

    def subject_parts(text: str) -> Iterator[str]:
        subject = parse_subject(text)
        if (number := subject.get("sheet")) is not None:
            folder = PayoutFolder.find(visit.console.directory, number)
            yield say("a sheet that was removed") if folder is None else folder.uploaded.display_name
        if (batch := subject.get("batch")) is not None:
            record = journal.batch(batch)
            yield say("a payout that does not exist") if record is None else payout_name(batch, record.sheet_name)
        if (number := subject.get("order")) is not None:
            order = find_order_folder(orders_directory(visit), number)
            if order is None:
                yield say("an order that was removed")
            else:
                yield payout_name(order.document.batch, order.document.content.sheet)
                yield order_summary(order.document)
        if (number := subject.get("statement")) is not None:
            statement = StatementFolder.find(statements_directory(visit), number)
            yield say("a statement that was removed") if statement is None else statement.uploaded.name
        if (row := subject.get("row")) is not None:
            yield say("row {row}", row=row)
        if (column := subject.get("column")) is not None:
            yield column_label(column)

    return lambda text: ", ".join(subject_parts(text))
