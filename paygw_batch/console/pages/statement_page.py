"""The pages that settle rows by a statement of the gateway: its questions, its upload, its preview, and its use."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from paygw_batch.approval.policy import person, required_line
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.pages.agreement import signing_key
from paygw_batch.console.pages.orders import (
    FIRST_PERSON,
    StatementFolder,
    UploadedStatement,
    UsedStatement,
    choice_name,
    drafted_order,
    new_statement_folder,
    open_orders,
    order_folder_of,
    orders_directory,
    read_in_process,
    statement_folders,
    statements_directory,
)
from paygw_batch.console.payout_folder import is_folder_name, new_folder_name, plain_file_name
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import pages_after
from paygw_batch.console.visits import (
    ActRefused,
    PageNotFound,
    PageOutdated,
    Visit,
    file_to_take_away,
    kept_upload,
    made_once,
    payout_at,
    payout_record,
    required_ending,
)
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import SheetError, UsageError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.opening.open_journal import journal_for_planning, run_journal
from paygw_batch.settle.match_statement import Matched
from paygw_batch.settle.resolve import standings_of
from paygw_batch.settle.row_order import Decision
from paygw_batch.settle.settle_rows import (
    as_of_time,
    carry_out_statement,
    compare_statement,
    draft_order,
    hold_contrary,
    needs_order,
)
from paygw_batch.settle.statement import proof_sentence
from paygw_batch.sheet.write.table import write_frame
from paygw_batch.show.batch_status import FollowedRow, followed_batch, running_now, with_payees
from paygw_batch.show.reconcile import questions

LINES_A_PAGE = 50
MAX_LISTED = 20
"""The maximum number of statements that are listed for a payout, the newest first."""
_MAX_SIGNATURE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line of a statement, or a `row`, in the preview. `becomes` is the outcome; empty if the row is not settled."""

    number: int
    order_id: str
    why: str
    becomes: str = ""
    row: FollowedRow | None = None


def download_questions(visit: Visit) -> Response:
    ending = required_ending(visit.path("ending"), "csv", "xlsx")

    def write(path: Path) -> str:
        with payout_at(visit) as (journal, record):
            write_frame(questions(journal, record, minor_units_by_currency()), path)
        return f"{Path(record.sheet_name).stem}.questions.{ending}"

    return file_to_take_away(visit, ending, write)


def statement_form(visit: Visit) -> Response:
    with payout_at(visit) as (journal, record):
        followed = followed_batch(visit.console.settings, journal, record)
    folders = statement_folders(statements_directory(visit), record.batch)[:MAX_LISTED]
    return visit.page(
        "statement.html",
        record=record,
        # The page already names the new folder, so that a form sent twice creates only one folder.
        upload=new_folder_name(),
        in_doubt=followed.counts.get("in_doubt", 0),
        takes_signature=visit.console.settings.evidence.statement_key is not None,
        statements=[(f"/statements/{folder.number}", folder.uploaded) for folder in folders],
        most_mib=visit.console.settings.console.max_upload_mib,
    )


def upload_statement(visit: Visit) -> Response:
    """Store a statement, read it, and redirect to its preview. An unreadable statement is not kept."""
    console, upload, form = visit.console, visit.upload, visit.form
    with payout_at(visit) as (_journal, record):
        batch = record.batch
    if upload is None or not upload.filename:
        raise UsageError(say("No file was chosen."), hint=say("Choose the statement, and upload it again."))
    words, as_of = form.get("words", "").strip(), form.get("as_of", "").strip()
    if as_of:
        as_of_time(as_of, say("The time"))
    uploaded = UploadedStatement(
        batch=batch,
        name=plain_file_name(upload.filename),
        by=visit.member.name,
        at=timestamp(console.now()),
        words=required_line(words, say("How you got the statement")) if words else "",
        as_of=as_of,
    )
    with kept_upload(visit, upload) as content:
        return visit.go_to(f"/statements/{_read_once(visit, content, uploaded)}")


def _read_once(visit: Visit, content: Path, uploaded: UploadedStatement) -> str:
    """Store a statement, read it, and return its number. A form sent twice stores the statement only once."""
    number = visit.form.get("upload", "")
    number = number if is_folder_name(number) else new_folder_name()
    with made_once(number):
        before = StatementFolder.named(statements_directory(visit), number)
        if before is not None:
            if not before.has_file(uploaded, content):
                raise PageOutdated(say("Another file has been uploaded since this page was opened. Reload the page."))
            return number
        folder = new_statement_folder(statements_directory(visit), content, uploaded, number)
        if visit.signature is not None:
            folder.keep_signature(visit.signature.file.read(_MAX_SIGNATURE_BYTES))
        try:
            read_in_process(folder, visit.console)
        except SheetError:
            folder.remove()
            raise
    return number


def statement_preview(visit: Visit) -> Response:
    """Show the rows that a statement would settle, and why other lines do not match. The page changes nothing."""
    folder = _required(visit)
    asked_statement, settings = folder.asked(visit.member.name), visit.console.settings
    with journal_for_planning(settings) as journal:
        record = payout_record(journal, folder.uploaded.batch)
        matched = compare_statement(settings, journal, record, asked_statement)
        counts = Counter(settlement.resolution for settlement in matched.settlements)
        wanted = visit.query("show") or ("settles" if matched.settlements else "differs")
        start = visit.query_number("after")
        lines = _shown(journal, record, matched, wanted, start)
        return visit.page(
            "statement_preview.html",
            record=record,
            number=folder.number,
            uploaded=folder.uploaded,
            matched=matched,
            words=[(choice_name(outcome), counts[outcome]) for outcome in Resolution if counts[outcome]],
            proof=proof_sentence(asked_statement.statement.proof),
            needs_two=bool(needs_order(settings, journal, record, matched.settlements)),
            # The code is a digest of the statement's effect, and changes if the statement would have another effect.
            code=_code(matched),
            orders=open_orders(visit, record.batch),
            done=asked_statement.carried_out_before(journal, record),
            notes=JournalClock.read(journal, utc_now()).sentences(),
            is_running=running_now(settings) is not None,
            wanted=wanted,
            lines=lines[:LINES_A_PAGE],
            pages=pages_after(start, start + LINES_A_PAGE if len(lines) > LINES_A_PAGE else 0, "lines", show=wanted),
        )


def use_statement(visit: Visit) -> Response:
    """Carry out a statement at once, or draft an order of two people if a line lets a row be sent again.

    If a line says that the gateway already has a row that a run could still send, the row is held at once.
    """
    folder, settings = _required(visit), visit.console.settings
    asked_statement = folder.asked(person(visit.member.name))
    with run_journal(settings, "console", lambda _sentence: None) as journal:
        record = payout_record(journal, folder.uploaded.batch)
        if asked_statement.carried_out_before(journal, record):  # a second click
            return visit.go_to(f"/payouts/{record.batch}")
        matched = compare_statement(settings, journal, record, asked_statement)
        if (order := _drafted_before(visit, folder)) is not None:
            return visit.go_to(f"/orders/{order}")
        _require_code(visit, matched)
        if not needs_order(settings, journal, record, matched.settlements):
            carry_out_statement(settings, journal, record, asked_statement, lambda _matched, _held: None)
            return visit.go_to(f"/payouts/{record.batch}")
        if not visit.may(Act.ORDER):
            raise ActRefused(say(FIRST_PERSON))
        # The gateway already has some rows that a run could still send. These rows are held now, because two people may
        # need days to agree on the order.
        hold_contrary(settings, journal, record, asked_statement, matched)
        decisions = [Decision.of(settlement) for settlement in asked_statement.settlements(matched)]
        key = signing_key(visit)
        draft = draft_order(settings, journal, record, decisions, key, statement=asked_statement.statement)
        order = drafted_order(visit, draft).number
        folder.note_used(UsedStatement(visit.member.name, _code(matched), order))
    return visit.go_to(f"/orders/{order}")


def _drafted_before(visit: Visit, folder: StatementFolder) -> str | None:
    """Return the number of the order that the first click on this form drafted; None if there is no such order."""
    used = folder.used
    if used is None or (used.by, used.code) != (visit.member.name, visit.form.get("code")):
        return None
    return used.order if order_folder_of(orders_directory(visit), used.order) is not None else None


def _require_code(visit: Visit, matched: Matched) -> None:
    """Raise `PageOutdated` unless the statement would still make the changes that the page showed."""
    if _code(matched) != visit.form.get("code"):
        raise PageOutdated(say("Rows of this payout have changed since this page was opened."))


def remove_statement(visit: Visit) -> Response:
    """Remove an uploaded statement. Rows that were settled by it stay settled."""
    folder = StatementFolder.named(statements_directory(visit), visit.path("statement"))
    with journal_for_planning(visit.console.settings) as journal:
        batch = payout_record(journal, visit.form.get("batch", "") if folder is None else folder.uploaded.batch)
        if folder is not None and folder.lines_file.exists():
            _require_code(
                visit, compare_statement(visit.console.settings, journal, batch, folder.asked(visit.member.name))
            )
    if folder is not None:
        folder.remove()
    return visit.go_to(f"/payouts/{batch.batch}/statement")


def _required(visit: Visit) -> StatementFolder:
    folder = StatementFolder.named(statements_directory(visit), visit.path("statement"))
    if folder is None or not folder.lines_file.exists():
        raise visit.gone(say("There is no such statement. It may have been removed."))
    return folder


def _code(matched: Matched) -> str:
    """Return a value that changes whenever a statement would have another effect."""
    contrary = [line.order_id for line in matched.contrary]
    text = repr((list(matched.settlements), list(matched.differences), contrary))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shown(
    journal: JournalReader, record: BatchRecord, matched: Matched, wanted: str, start: int
) -> Sequence[ShownLine]:
    """Return the `wanted` lines from `start`: a page of lines, and one more if there is another page."""
    part = slice(start, start + LINES_A_PAGE + 1)
    match wanted:
        case "settles":
            settled = matched.settlements[part]
            known = standings_of(journal, record, [line.row for line in settled])
            followed = with_payees(journal, record, [known[line.row] for line in settled], None)
            return [
                ShownLine(line.row, row.standing.sent_orderid or "", line.said, choice_name(line.resolution), row)
                for line, row in zip(settled, followed, strict=True)
            ]
        case "differs":
            return [ShownLine(line.line, line.order_id, line.sentence) for line in matched.differences[part]]
        case "silent":
            why = say("The statement doesn't settle it.")
            followed = with_payees(journal, record, matched.silent[part], None)
            return [ShownLine(row.standing.row, row.standing.sent_orderid or "", why, row=row) for row in followed]
        case _:
            raise PageNotFound(say("There is no such page."))
