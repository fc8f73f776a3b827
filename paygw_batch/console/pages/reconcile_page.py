"""Files about a payout to take away: its reconciliation as CSV or workbook, and a page to print."""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.compose.operations import minor_units_of
from paygw_batch.console.pages.payout_page import payout_record
from paygw_batch.console.visits import PageNotFound, Visit
from paygw_batch.journal import BatchRecord, JournalReader, make_directory
from paygw_batch.language import say
from paygw_batch.report.html import report_html
from paygw_batch.report.reconcile import reconciled, reconciliation
from paygw_batch.report.totals import books
from paygw_batch.report.workbook import workbook_of
from paygw_batch.sheet.write.table import write_pieces

_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html; charset=utf-8",
}


def download_reconciliation(visit: Visit) -> Response:
    """Return the reconciliation of a payout as a file."""
    ending = visit.path("ending")
    if ending not in _TYPES or (ending == "xlsx" and not has_workbooks()):
        raise PageNotFound(say("There is no such file."))

    def write(path: Path) -> str:
        with journal_to_plan_with(visit.console.settings) as journal:
            record = payout_record(journal, visit.path("batch"))
            _write(visit, journal, record, path)
        return f"{Path(record.sheet_name).stem}.reconciliation.{ending}"

    return file_to_take_away(visit, ending, write)


def file_to_take_away(visit: Visit, ending: str, write: Callable[[Path], str]) -> Response:
    """Return the file that `write` writes, and names for the person; nothing of it is left behind."""
    make_directory(visit.console.directory)
    with tempfile.NamedTemporaryFile(
        dir=visit.console.directory, prefix=".download-", suffix=f".{ending}", delete=False
    ) as kept:
        path = Path(kept.name)
    try:
        name = write(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileResponse(
        path,
        media_type=_TYPES[ending],
        filename=name,
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


def has_workbooks() -> bool:
    """Whether workbooks can be written: that needs another extra."""
    return importlib.util.find_spec("xlsxwriter") is not None


def _write(visit: Visit, journal: JournalReader, record: BatchRecord, path: Path) -> None:
    settings, minor_units = visit.console.settings, minor_units_of(visit.console.rules)
    if path.suffix == ".csv":
        write_pieces(reconciled(journal, record, minor_units), path)
        return
    frame = reconciliation(journal, record, minor_units)
    counted = books(frame, minor_units)
    if path.suffix == ".xlsx":
        path.write_bytes(workbook_of(frame, counted, record, minor_units))
    else:
        quarantine_h = settings.submission.quarantine_h
        path.write_text(
            report_html(journal, record, frame, counted, minor_units, quarantine_h=quarantine_h), encoding="utf-8"
        )
