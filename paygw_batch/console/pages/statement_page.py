"""The pages on which people settle rows according to a gateway statement: questions, upload and preview."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from paygw_batch.approval.policy import identify_person, require_line
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.pages.agreement import signing_key
from paygw_batch.console.pages.orders import (
    ASK_MAKER_MESSAGE,
    StatementFolder,
    StatementUse,
    UploadedStatement,
    choice_name,
    create_statement_folder,
    find_order_folder,
    open_orders,
    orders_directory,
    read_statement_in_process,
    statement_folders,
    statements_directory,
    store_draft,
)
from paygw_batch.console.payout_folder import is_folder_name, plain_file_name, random_folder_name
from paygw_batch.console.permissions import Action
from paygw_batch.console.rendering import next_page_links
from paygw_batch.console.visits import (
    ActionRefused,
    PageNotFound,
    PageOutdated,
    Visit,
    download_response,
    hold_lock,
    open_payout,
    require_extension,
    require_payout,
    temporary_upload,
)
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import SheetError, UsageError
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.opening.open_journal import journal_for_planning, open_journal_for_run
from paygw_batch.settle.match_statement import StatementMatch
from paygw_batch.settle.resolve import row_states
from paygw_batch.settle.row_order import Decision
from paygw_batch.settle.settle_rows import (
    carry_out_statement,
    compare_statement,
    draft_order,
    hold_blocked_orders,
    parse_as_of,
    rows_needing_order,
)
from paygw_batch.settle.statement import proof_message
from paygw_batch.sheet.write.table import write_frame
from paygw_batch.show.batch_status import PaymentView, add_payees, batch_view, running_process
from paygw_batch.show.reconcile import questions

LINES_PER_PAGE = 50
MAX_LISTED = 20
"""Maximum number of statements listed for a payout, newest first."""
_MAX_SIGNATURE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class LineView:
    """A statement line or a row in the preview. `becomes` is the outcome that the row would get, or empty."""

    number: int
    order_id: str
    reason: str
    becomes: str = ""
    row: PaymentView | None = None


def download_questions(visit: Visit) -> Response:
    extension = require_extension(visit.path_param("ending"), "csv", "xlsx")

    def write(path: Path) -> str:
        with open_payout(visit) as (journal, record):
            write_frame(questions(journal, record, minor_units_by_currency()), path)
        return f"{Path(record.sheet_name).stem}.questions.{extension}"

    return download_response(visit, extension, write)


def show_statement_form(visit: Visit) -> Response:
    with open_payout(visit) as (journal, record):
        view = batch_view(visit.console.settings, journal, record)
    folders = statement_folders(statements_directory(visit), record.batch)[:MAX_LISTED]
    return visit.page(
        "statement.html",
        record=record,
        # The form names the new folder, so that sending it twice creates only one.
        upload=random_folder_name(),
        in_doubt=view.counts.get("in_doubt", 0),
        takes_signature=visit.console.settings.evidence.statement_key is not None,
        statements=[(f"/statements/{folder.number}", folder.uploaded) for folder in folders],
        max_upload_mib=visit.console.settings.console.max_upload_mib,
    )


def add_statement(visit: Visit) -> Response:
    """Store and read a statement, and redirect to its preview. Removes a statement that cannot be read."""
    console, upload, form = visit.console, visit.upload, visit.form
    with open_payout(visit) as (_journal, record):
        batch = record.batch
    if upload is None or not upload.filename:
        raise UsageError(say("No file was chosen."), hint=say("Choose the statement and upload it again."))
    words, as_of = form.get("words", "").strip(), form.get("as_of", "").strip()
    if as_of:
        parse_as_of(as_of, say("The time"))
    uploaded = UploadedStatement(
        batch=batch,
        name=plain_file_name(upload.filename),
        by=visit.member.name,
        at=timestamp(console.now()),
        words=require_line(words, say("The source of the statement")) if words else "",
        as_of=as_of,
    )
    with temporary_upload(visit, upload) as source:
        return visit.redirect(f"/statements/{_store_and_read(visit, source, uploaded)}")


def _store_and_read(visit: Visit, source: Path, uploaded: UploadedStatement) -> str:
    """Store and read a statement, and return its folder's name. Resending the form stores nothing."""
    number = visit.form.get("upload", "")
    number = number if is_folder_name(number) else random_folder_name()
    with hold_lock(number):
        folder = StatementFolder.find(statements_directory(visit), number)
        if folder is not None:
            if not folder.has_file(uploaded, source):
                raise PageOutdated(say("Another file has been uploaded since this page was opened. Reload the page."))
            return number
        folder = create_statement_folder(statements_directory(visit), source, uploaded, number)
        if visit.signature is not None:
            folder.write_signature(visit.signature.file.read(_MAX_SIGNATURE_BYTES))
        try:
            read_statement_in_process(folder, visit.console)
        except SheetError:
            folder.remove()
            raise
    return number


def show_statement_preview(visit: Visit) -> Response:
    """Show the rows that a statement would settle, and why its other lines would settle none."""
    folder = _require_statement(visit)
    requested_statement, settings = folder.build_requested_statement(visit.member.name), visit.console.settings
    with journal_for_planning(settings) as journal:
        record = require_payout(journal, folder.uploaded.batch)
        match = compare_statement(settings, journal, record, requested_statement)
        counts = Counter(settlement.resolution for settlement in match.settlements)
        kind = visit.query("show") or ("settles" if match.settlements else "differs")
        start = visit.query_number("after")
        lines = _page_lines(journal, record, match, kind, start)
        next_start = start + LINES_PER_PAGE if len(lines) > LINES_PER_PAGE else 0
        return visit.page(
            "statement_preview.html",
            record=record,
            number=folder.number,
            uploaded=folder.uploaded,
            match=match,
            outcome_counts=[(choice_name(outcome), counts[outcome]) for outcome in Resolution if counts[outcome]],
            proof=proof_message(requested_statement.statement.proof),
            needs_two=bool(rows_needing_order(settings, journal, record, match.settlements)),
            code=_match_code(match),
            orders=open_orders(visit, record.batch),
            reuse_message=requested_statement.reuse_message(journal, record),
            notes=JournalClock.read(journal, utc_now()).messages(),
            is_running=running_process(settings) is not None,
            kind=kind,
            lines=lines[:LINES_PER_PAGE],
            pages=next_page_links(start, next_start, "lines", show=kind),
        )


def use_statement(visit: Visit) -> Response:
    """Settle rows according to a statement, or draft an order if a second person must agree.

    If the statement shows that the gateway already has a row that a run could send, that row is held immediately.
    """
    folder, settings = _require_statement(visit), visit.console.settings
    requested_statement = folder.build_requested_statement(identify_person(visit.member.name))
    with open_journal_for_run(settings, "console", lambda _sentence: None) as journal:
        record = require_payout(journal, folder.uploaded.batch)
        if requested_statement.reuse_message(journal, record):  # This is a second click.
            return visit.redirect(f"/payouts/{record.batch}")
        match = compare_statement(settings, journal, record, requested_statement)
        if (order := _earlier_order(visit, folder)) is not None:
            return visit.redirect(f"/orders/{order}")
        _require_same_match(visit, match)
        if not rows_needing_order(settings, journal, record, match.settlements):
            carry_out_statement(settings, journal, record, requested_statement, lambda _matched, _held: None)
            return visit.redirect(f"/payouts/{record.batch}")
        if not visit.may(Action.ORDER):
            raise ActionRefused(say(ASK_MAKER_MESSAGE))
        # Hold rows that the gateway has but a run could still send, because two people may need days to agree.
        hold_blocked_orders(settings, journal, record, requested_statement, match)
        decisions = [Decision.from_settlement(settlement) for settlement in requested_statement.settlements(match)]
        key = signing_key(visit)
        draft = draft_order(settings, journal, record, decisions, key, statement=requested_statement.statement)
        order = store_draft(visit, draft).number
        folder.record_use(StatementUse(visit.member.name, _match_code(match), order))
    return visit.redirect(f"/orders/{order}")


def _earlier_order(visit: Visit, folder: StatementFolder) -> str | None:
    """Return the number of the order drafted by an earlier click, or None."""
    use = folder.statement_use
    if use is None or (use.by, use.code) != (visit.member.name, visit.form.get("code")):
        return None
    return use.order if find_order_folder(orders_directory(visit), use.order) is not None else None


def _require_same_match(visit: Visit, match: StatementMatch) -> None:
    if _match_code(match) != visit.form.get("code"):
        raise PageOutdated(say("Rows of this payout have changed since this page was opened."))


def remove_statement(visit: Visit) -> Response:
    """Remove an uploaded statement. Rows that it settled stay settled."""
    folder = StatementFolder.find(statements_directory(visit), visit.path_param("statement"))
    with journal_for_planning(visit.console.settings) as journal:
        record = require_payout(journal, visit.form.get("batch", "") if folder is None else folder.uploaded.batch)
        if folder is not None and folder.lines_file.exists():
            requested_statement = folder.build_requested_statement(visit.member.name)
            _require_same_match(visit, compare_statement(visit.console.settings, journal, record, requested_statement))
    if folder is not None:
        folder.remove()
    return visit.redirect(f"/payouts/{record.batch}/statement")


def _require_statement(visit: Visit) -> StatementFolder:
    folder = StatementFolder.find(statements_directory(visit), visit.path_param("statement"))
    if folder is None or not folder.lines_file.exists():
        raise visit.missing_error(say("This statement does not exist. It may have been removed."))
    return folder


def _match_code(match: StatementMatch) -> str:
    blocking = [line.order_id for line in match.blocking]
    text = repr((list(match.settlements), list(match.differences), blocking))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _page_lines(
    journal: JournalReader, record: BatchRecord, match: StatementMatch, kind: str, start: int
) -> Sequence[LineView]:
    """Return a page of lines of a kind from index `start`, plus one line if there are more."""
    part = slice(start, start + LINES_PER_PAGE + 1)
    match kind:
        case "settles":
            settled = match.settlements[part]
            states = row_states(journal, record, [line.row for line in settled])
            views = add_payees(journal, record, [states[line.row] for line in settled], None)
            return [
                LineView(
                    line.row, row.standing.sent_orderid or "", line.evidence_text, choice_name(line.resolution), row
                )
                for line, row in zip(settled, views, strict=True)
            ]
        case "differs":
            return [LineView(line.line, line.order_id, line.sentence) for line in match.differences[part]]
        case "silent":
            reason = say("The statement does not settle this row.")
            views = add_payees(journal, record, match.unsettled_rows[part], None)
            return [LineView(row.standing.row, row.standing.sent_orderid or "", reason, row=row) for row in views]
        case _:
            raise PageNotFound(say("This page does not exist."))
