"""The pages about people, keys, health, the audit trail and workers. They change nothing."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from paygw_batch.console.pages.orders import (
    StatementFolder,
    order_folder_of,
    orders_directory,
    statements_directory,
    what_is_asked,
)
from paygw_batch.console.payout_folder import PayoutFolder
from paygw_batch.console.permissions import Member
from paygw_batch.console.rendering import page_links
from paygw_batch.console.start_run import last_summary, start_run, started_run
from paygw_batch.console.visits import NOTED_BEFORE, PageNotFound, Visit, called_in, parts_of
from paygw_batch.errors import PaygwError
from paygw_batch.journal import (
    NO_ENTRY,
    AuditEntry,
    AuditResult,
    JournalReader,
    SharedWork,
    TimetableJob,
    WorkerLife,
    make_directory,
)
from paygw_batch.language import mark, mark_all, say
from paygw_batch.opening.open_journal import database_of, file_of, journal_to_read, require_workers
from paygw_batch.settings.configuration import Settings
from paygw_batch.settings.sections import pick_up_name
from paygw_batch.sheet.columns import label_of
from paygw_batch.show.batch_status import running_now
from paygw_batch.submit.send import why_stopped

_JOBS: Mapping[str, str] = {
    "refresh": mark("Ask the gateway about open rows"),
    "verify": mark("Verify the whole journal"),
    "backup": mark("Back up the database"),
}
"""The words for the jobs of the timetable, except the jobs that watch folders."""


def workers_of_all_hosts(visit: Visit) -> Response:
    """Show the workers. Raises `PageNotFound` if the journal is a file, because then only one machine sends."""
    settings = visit.console.settings
    if settings.journal.url is None:
        raise PageNotFound(say("This machine sends all payouts itself. There are no workers."))
    place = require_workers(settings)
    work = shown_work(place.shared_work(), place.timetable_jobs(), settings, visit.console.now())
    return visit.page("workers.html", **work)


def shown_work(work: SharedWork, jobs: Sequence[TimetableJob], settings: Settings, now: datetime) -> Mapping[str, Any]:
    """Return the values for the page about the work of all hosts."""
    gate, configured = work.gate, settings.submission
    names = {run.batch: run.sheet_name for run in work.runs}

    def rows_a_minute(worker: WorkerLife) -> float:
        minutes = (now - datetime.fromisoformat(worker.since)).total_seconds() / 60
        return worker.rows / minutes if minutes > 0 else 0.0

    return {
        # Each worker, the sheet that it is sending, and its rate in rows a minute since it started.
        "workers": [(worker, names.get(worker.batch or "", ""), rows_a_minute(worker)) for worker in work.workers],
        "work": work,
        "jobs": [(_job_words(job.name, settings), job) for job in jobs],
        # The value 0 means that there is no limit.
        "rate_per_s": configured.rate_per_s if gate.rate_per_s is None else gate.rate_per_s,
        # This is the maximum number of rows in flight over all workers.
        "in_flight": configured.concurrency if gate.concurrency is None else gate.concurrency,
        # The reason is empty while workers may send.
        "stop_reason": why_stopped(gate),
    }


def _job_words(name: str, settings: Settings) -> str:
    """Return the words for a job. A folder that only another host watches has no name in this configuration."""
    if (known := _JOBS.get(name)) is not None:
        return say(known)
    folders = {pick_up_name(entry.folder): entry.folder.name for entry in settings.timetable.pick_up}
    if name in folders:
        return say("Pay the sheets in the folder {folder}", folder=folders[name])
    return say("Pay the sheets in a folder of another machine")


ENTRIES_A_PAGE = 50
LATER = 50
"""The number of newer entries that are searched for the refusal of an act on the page."""
_CHECKS: Mapping[str, str] = {
    "doctor": mark("Configuration, key, clock, journal and connection"),
    "verify": mark("The whole journal, replayed"),
}
"""The commands with which the program checks itself, each with words for its subject."""
HEALTH = "health"
"""The name of the folder for the results of health checks."""
RESULTS_NOTED = mark_all("done", "refused")
"""The results in the audit trail, which is in English, marked here so that the catalogue has them."""
_WHY: Mapping[str, str] = {
    "ActRefused": mark("not allowed"),
    "PageOutdated": mark("the page was out of date"),
    "PageNotFound": mark("not found"),
    "FieldRefused": mark("a field was not filled in correctly"),
    "UsageError": mark("a field was not filled in correctly"),
    "SheetError": mark("the sheet could not be used"),
    "ApprovalError": mark("what was signed does not count, or is no longer true"),
    "DocumentWithdrawn": mark("it was withdrawn"),
    "JournalHeld": mark("a payout was running"),
    "exit 3": mark("the sheet could not be used"),
    "exit 7": mark("the journal could not be used"),
    "exit 8": mark("what was signed does not count, or is no longer true"),
    "BodyRefused": mark("the file was too large or took too long"),
}
"""The words for the kinds of refusals in the audit trail, and for exit codes of runs."""
_OTHER_REASON = mark("the action failed")


@dataclass(frozen=True, slots=True)
class OwnCheck:
    """The last check of the program that was started from these pages. `at` is empty if there was none.

    `findings` has the name and the finding of each individual check that failed.
    """

    name: str
    about: str
    is_running: bool = False
    at: str = ""
    by: str = ""
    is_good: bool = False
    message: str = ""
    findings: Sequence[tuple[str, str]] = ()


def people_and_health(visit: Visit) -> Response:
    console, settings = visit.console, visit.console.settings
    keys: dict[Member, list[str]] = defaultdict(list)
    for key, owner in console.access.keys.items():
        keys[owner].append(key.fingerprint)
    before = visit.query_number("before") or NO_ENTRY
    head, acts, trouble = None, list[tuple[AuditEntry, str, str, str]](), ""
    try:
        with journal_to_read(settings) as journal:
            head, about = journal.head(), _about(visit, journal)
            # The refusal of an entry is a later entry, which may be on the page of newer entries.
            entries = journal.acts(before=min(before + LATER, NO_ENTRY), limit=ENTRIES_A_PAGE + LATER)
            told = [entry for entry in _told(entries) if entry[0].number < before][:ENTRIES_A_PAGE]
            acts = [(entry, about(entry.thing), result, why) for entry, result, why in told]
    except PaygwError as error:
        trouble = error.message
    is_file = database_of(settings) is None
    return visit.page(
        "people.html",
        # Each person with the fingerprints of their keys.
        members=[(member, sorted(keys[member])) for member in console.members],
        needed=settings.approval.needed,
        expires_h=settings.approval.expires_h,
        endpoint=settings.endpoint(),
        journal=head,
        running=running_now(settings),
        # Whether the journal is a file, which `backup` copies and only one machine sends from.
        is_file=is_file,
        copied_at=file_of(settings).copied_at() if is_file else None,
        checks=[_own_check(visit, name) for name in _CHECKS],
        entries=acts,
        pages=page_links("before", {say("Older entries"): acts[-1][0].number if len(acts) == ENTRIES_A_PAGE else None}),
        # The reason why the audit trail cannot be read; empty if it can.
        trouble=trouble,
    )


def check_program(visit: Visit) -> Response:
    """Start a check of the program in another process, because a journal of a million rows takes a while."""
    name, console = visit.form.get("check", ""), visit.console
    if name not in _CHECKS:
        raise PageNotFound(say("There is no such check."))
    make_directory(console.directory)
    command = [*console.program, "--json", name]
    start_run(console.directory / HEALTH, name, command, by=visit.member.name, environ=visit.environ)
    return visit.go_to("/people#health")


def _own_check(visit: Visit, name: str) -> OwnCheck:
    directory, about = visit.console.directory / HEALTH, say(_CHECKS[name])
    run = started_run(directory, name)
    if run is None:
        return OwnCheck(name, about)
    if run.is_alive:
        return OwnCheck(name, about, is_running=True, at=run.at, by=run.by)
    summary = last_summary(directory, name)
    if summary is None:
        return OwnCheck(name, about, at=run.at, by=run.by, message=say("The check ended without a result."))
    checks = summary.get("checks")
    failed = [check for check in (checks if isinstance(checks, list) else []) if check["state"] != "ok"]
    findings = [(str(check["check"]), str(check["found"])) for check in failed]
    message = str(summary.get("message", ""))
    return OwnCheck(name, about, False, run.at, run.by, summary.get("exit_code") == 0, message, findings)


def _told(newest_first: Iterable[AuditEntry]) -> Iterator[tuple[AuditEntry, str, str]]:
    """Yield each entry with its result, and the reason of a refusal. An act with a later refusal counts as refused."""
    refused = dict[tuple[str, ...], str]()
    for entry in newest_first:
        act = (entry.who, entry.act, entry.thing)
        if entry.result != AuditResult.REFUSED:
            why = refused.pop(act, "")
        else:
            why = say(_WHY.get(entry.said.removeprefix(NOTED_BEFORE), _OTHER_REASON))
            if entry.said.startswith(NOTED_BEFORE):
                refused[act] = why
        yield entry, AuditResult.REFUSED if why else entry.result, why


def _about(visit: Visit, journal: JournalReader) -> Callable[[str], str]:
    """Return a function that puts the subject of an entry into words, such as its sheet, row and column."""
    called = called_in(visit.console)

    def parts(thing: str) -> Iterator[str]:
        named = parts_of(thing)
        if (number := named.get("sheet")) is not None:
            folder = PayoutFolder.named(visit.console.directory, number)
            yield say("a sheet that was removed") if folder is None else folder.uploaded.called
        if (batch := named.get("batch")) is not None:
            record = journal.batch(batch)
            yield say("a payout that doesn't exist") if record is None else called(batch, record.sheet_name)
        if (number := named.get("order")) is not None:
            order = order_folder_of(orders_directory(visit), number)
            if order is None:
                yield say("an order that was removed")
            else:
                yield called(order.document.batch, order.document.content.sheet)
                yield what_is_asked(order.document)
        if (number := named.get("statement")) is not None:
            statement = StatementFolder.named(statements_directory(visit), number)
            yield say("a statement that was removed") if statement is None else statement.uploaded.name
        if (row := named.get("row")) is not None:
            yield say("row {row}", row=row)
        if (column := named.get("column")) is not None:
            yield label_of(column)

    return lambda thing: ", ".join(parts(thing))
