"""Settles rows by a statement of the gateway's: questions out, answers in, a preview, and then by one or two people."""

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.actions.follow_payout import followed_batch, running_now
from paygw_batch.compose.actions.payout_folder import plain_file_name
from paygw_batch.compose.actions.settle_rows import (
    as_of_time,
    carry_out_statement,
    compare_statement,
    draft_order,
    hold_contrary,
)
from paygw_batch.compose.approvals import needs_order
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.compose.operator import in_words, person
from paygw_batch.compose.run_journal import run_journal
from paygw_batch.console.pages.document_signing import signing_key
from paygw_batch.console.pages.payout_page import payout_record
from paygw_batch.console.pages.reconcile_page import file_to_take_away, has_workbooks
from paygw_batch.console.pages.settling.open_orders import drafted_order
from paygw_batch.console.pages.settling.settle_page import FIRST_PERSON, choice_name
from paygw_batch.console.pages.settling.statement_folder import (
    StatementFolder,
    UploadedStatement,
    new_statement_folder,
    read_in_process,
    statement_folder_of,
    statement_folders,
)
from paygw_batch.console.permissions import Act
from paygw_batch.console.visits import ActRefused, PageNotFound, Visit
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.errors import SheetError, UsageError
from paygw_batch.journal import BatchRecord, JournalReader, make_directory
from paygw_batch.language import mark, say
from paygw_batch.report.questions import questions
from paygw_batch.run.match_statement import Matched
from paygw_batch.run.quarantine_clock import clock_sentences
from paygw_batch.run.resolve import standings_of
from paygw_batch.sheet.write.table import write_frame

LINES_A_PAGE = 50
MOST_LISTED = 20
"""How many statements of a payout its page lists: the newest."""
_AT_ONCE = 1024 * 1024
_OLD = mark("The page is too old: something was changed since. Open it again, and look once more.")


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line of a statement, or a row that it does not settle, in the preview. Of `line` and `row` one can be 0."""

    line: int
    row: int
    order_id: str
    becomes: str
    why: str


def download_questions(visit: Visit) -> Response:
    """Return the rows in doubt as questions for the gateway, in a file."""
    ending = visit.path("ending")
    if ending not in {"csv", "xlsx"} or (ending == "xlsx" and not has_workbooks()):
        raise PageNotFound(say("There is no such file."))

    def write(path: Path) -> str:
        with journal_to_plan_with(visit.console.settings) as journal:
            record = payout_record(journal, visit.path("batch"))
            write_frame(questions(journal, record, minor_units_by_currency()), path)
        return f"{Path(record.sheet_name).stem}.questions.{ending}"

    return file_to_take_away(visit, ending, write)


def statement_form(visit: Visit) -> Response:
    """Show how the gateway is asked about rows in doubt, and the form for its answers."""
    with journal_to_plan_with(visit.console.settings) as journal:
        record = payout_record(journal, visit.path("batch"))
        followed = followed_batch(visit.console.settings, journal, record)
    folders = list(statement_folders(_directory(visit), record.batch))[:MOST_LISTED]
    return visit.page(
        "statement.html",
        record=record,
        in_doubt=followed.counts.get("in_doubt", 0),
        endings=[("csv", "CSV"), *([("xlsx", say("Workbook"))] if has_workbooks() else [])],
        statements=[(f"/statements/{one.number}", one.uploaded) for one in folders],
        most_mib=visit.console.settings.console.max_upload_mib,
    )


def upload_statement(visit: Visit) -> Response:
    """Keep a statement, read it, and lead to its preview. One that cannot be read is not kept."""
    console, upload, form = visit.console, visit.upload, visit.form
    with journal_to_plan_with(console.settings) as journal:
        record = payout_record(journal, visit.path("batch"))
    if upload is None or not upload.filename:
        raise UsageError(say("No file was chosen."), hint=say("Choose the statement, and upload it again."))
    words, as_of = form.get("words", "").strip(), form.get("as_of", "").strip()
    if as_of:
        as_of_time(as_of, say("The time"))
    uploaded = UploadedStatement(
        batch=record.batch,
        name=plain_file_name(upload.filename),
        by=visit.member.name,
        at=timestamp(console.now()),
        words=in_words(words, say("How you got it")) if words else "",
        as_of=as_of,
    )
    make_directory(console.directory)
    with tempfile.NamedTemporaryFile(dir=console.directory, prefix=".upload-", delete=False) as kept:
        try:
            shutil.copyfileobj(upload.file, kept, _AT_ONCE)
            kept.flush()
            found = new_statement_folder(_directory(visit), Path(kept.name), uploaded)
        finally:
            Path(kept.name).unlink(missing_ok=True)
    try:
        read_in_process(found, console.settings, config=console.config, environ=console.environ)
    except SheetError:
        found.remove()
        raise
    return visit.go_to(f"/statements/{found.number}")


def statement_preview(visit: Visit) -> Response:
    """Show the rows that a statement would settle, and the lines that do not fit, with why. Nothing is changed."""
    found = _required(visit)
    asked, settings = found.asked(visit.member.name), visit.console.settings
    with journal_to_plan_with(settings) as journal:
        record = payout_record(journal, found.uploaded.batch)
        matched = compare_statement(settings, journal, record, asked)
        wanted = visit.query("show") or ("settles" if matched.settlements else "differs")
        start = visit.query_number("from")
        lines = _shown(journal, record, matched, wanted, start)
        return visit.page(
            "statement_preview.html",
            record=record,
            number=found.number,
            uploaded=found.uploaded,
            matched=matched,
            words=_counted(matched),
            needs_two=bool(needs_order(settings, journal, record, matched.settlements)),
            code=_code(matched),
            done=asked.carried_out_before(journal, record),
            notes=clock_sentences(journal, utc_now()),
            is_running=running_now(settings) is not None,
            wanted=wanted,
            lines=lines[:LINES_A_PAGE],
            start=start,
            next_start=start + LINES_A_PAGE if len(lines) > LINES_A_PAGE else 0,
        )


def use_statement(visit: Visit) -> Response:
    """Carry a statement out: by one person's word, or as an order where a line lets rows be sent again.

    Lines by which the gateway has an order that could be sent from here hold that order at once.
    """
    found, settings = _required(visit), visit.console.settings
    asked = found.asked(person(visit.member.name))
    with run_journal(settings, "console", lambda _sentence: None) as journal:
        record = payout_record(journal, found.uploaded.batch)
        if asked.carried_out_before(journal, record):  # the second click
            return visit.go_to(f"/payouts/{record.batch}")
        matched = compare_statement(settings, journal, record, asked)
        if _code(matched) != visit.form.get("code"):
            raise UsageError(say(_OLD), hint="")
        if not needs_order(settings, journal, record, matched.settlements):
            carry_out_statement(settings, journal, record, asked, lambda _matched, _held: None)
            return visit.go_to(f"/payouts/{record.batch}")
        if not visit.may(Act.ORDER):
            raise ActRefused(say(FIRST_PERSON))
        hold_contrary(settings, journal, record, asked, matched)
        settlements, key = asked.settlements(matched), signing_key(visit)
        draft = draft_order(settings, journal, record, settlements, key, statement=asked.statement)
    return visit.go_to(f"/orders/{drafted_order(visit, draft).number}")


def remove_statement(visit: Visit) -> Response:
    """Remove an uploaded statement. Rows that it settled stay settled."""
    found = statement_folder_of(_directory(visit), visit.path("statement"))
    if found is None:
        return visit.go_to("/")
    batch = found.uploaded.batch
    found.remove()
    return visit.go_to(f"/payouts/{batch}/statement")


def _directory(visit: Visit) -> Path:
    return visit.console.directory / "statements"


def _required(visit: Visit) -> StatementFolder:
    found = statement_folder_of(_directory(visit), visit.path("statement"))
    if found is None or not found.lines_file.exists():
        raise PageNotFound(say("There is no such statement. It may have been removed."))
    return found


def _code(matched: Matched) -> str:
    """Return a text that is the same while a statement would do the same."""
    contrary = [line.order_id for line in matched.contrary]
    text = repr((list(matched.settlements), list(matched.differences), contrary))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _counted(matched: Matched) -> Sequence[tuple[str, int]]:
    """Return how many rows a statement settles by each word."""
    counts = ((one, sum(settled.resolution is one for settled in matched.settlements)) for one in Resolution)
    return [(choice_name(one), count) for one, count in counts if count]


def _shown(
    journal: JournalReader, record: BatchRecord, matched: Matched, wanted: str, start: int
) -> Sequence[ShownLine]:
    """Return a page of the lines that are wanted, and the first of the next page, where there is one."""
    part = slice(start, start + LINES_A_PAGE + 1)
    match wanted:
        case "settles":
            settled = matched.settlements[part]
            known = standings_of(journal, record, [one.row for one in settled])
            return [
                ShownLine(0, one.row, known[one.row].sent_orderid or "", choice_name(one.resolution), one.evidence)
                for one in settled
            ]
        case "differs":
            return [ShownLine(one.line, 0, one.order_id, "", one.sentence) for one in matched.differences[part]]
        case "silent":
            return [
                ShownLine(0, row.row, row.sent_orderid or "", "", say("The statement does not settle it."))
                for row in matched.silent[part]
            ]
        case _:
            raise PageNotFound(say("There is no such page."))
