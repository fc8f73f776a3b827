"""Files about a payout to take away: its reconciliation as CSV or workbook, and a page to print."""

from pathlib import Path

from starlette.responses import Response

from paygw_batch.actions.results import write_results
from paygw_batch.console.visits import FILE_TYPES, PageNotFound, Visit, file_to_take_away, has_workbooks, payout_record
from paygw_batch.journal import BatchRecord, JournalReader
from paygw_batch.language import say
from paygw_batch.wiring.journal import journal_for_planning
from paygw_batch.wiring.operations import minor_units_of


def download_reconciliation(visit: Visit) -> Response:
    """Return the reconciliation of a payout as a file."""
    ending = visit.path("ending")
    if ending not in FILE_TYPES or (ending == "xlsx" and not has_workbooks()):
        raise PageNotFound(say("There is no such file."))

    def write(path: Path) -> str:
        with journal_for_planning(visit.console.settings) as journal:
            record = payout_record(journal, visit.path("batch"))
            _write(visit, journal, record, path)
        return f"{Path(record.sheet_name).stem}.reconciliation.{ending}"

    return file_to_take_away(visit, ending, write)


def _write(visit: Visit, journal: JournalReader, record: BatchRecord, path: Path) -> None:
    minor_units, quarantine_h = minor_units_of(visit.console.rules), visit.console.settings.submission.quarantine_h
    is_page = path.suffix == ".html"
    out, report = (None, path) if is_page else (path, None)
    write_results(journal, record, minor_units, out=out, report=report, quarantine_h=quarantine_h)
