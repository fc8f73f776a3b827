"""A new payout: the upload of a sheet, how it is read, and the totals that its maker expects."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.actions.check_payout import digest_of
from paygw_batch.compose.actions.mend_sheet import with_headings, write_mending
from paygw_batch.compose.actions.payout_folder import PayoutFolder, UploadedSheet, new_folder
from paygw_batch.console.pages.check_page import SHOWN_HEADINGS, cell_texts, mending_of
from paygw_batch.console.pages.preparing import changing, checked, checked_or_reading, folder, readable
from paygw_batch.console.pages.reconcile_page import file_to_take_away, has_workbooks
from paygw_batch.console.sheet_process import mark_in_process
from paygw_batch.console.visits import PageNotFound, Visit
from paygw_batch.core.money import parse_amount
from paygw_batch.errors import UsageError
from paygw_batch.journal import make_directory
from paygw_batch.language import say
from paygw_batch.sheet.check.mending import Mending
from paygw_batch.sheet.write.template import write_template

_AT_ONCE = 1024 * 1024
_STATED_SUM = re.compile(r"([A-Z]{3})[ =:]+([0-9.,]+)")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_MOST_DECIMALS = 4
_MOST_ROWS_DIGITS = 9


def new_payout(visit: Visit) -> Response:
    """Show the form."""
    console = visit.console
    countries = sorted((say(rule.name), code) for code, rule in console.rules.items() if rule.form is not None)
    return visit.page(
        "new.html",
        most_mib=console.settings.console.max_upload_mib,
        most_rows=console.settings.limits.max_rows,
        countries=countries,
        has_workbooks=has_workbooks(),
    )


def download_template(visit: Visit) -> Response:
    """Return an empty sheet with the columns of a country."""
    code, ending = visit.query("country"), visit.query("ending")
    rule = visit.console.rules.get(code)
    if rule is None or rule.form is None or ending not in {"csv", "xlsx"} or (ending == "xlsx" and not has_workbooks()):
        raise PageNotFound(say("There is no such file."))

    def write(path: Path) -> str:
        path.unlink()  # a template never takes the place of a file
        write_template([rule], path)
        return f"template-{code.lower()}.{ending}"

    return file_to_take_away(visit, ending, write)


def upload(visit: Visit) -> Response:
    """Keep the sheet, check it, and lead to the results."""
    rows, sums = _stated(visit)
    with _kept(visit) as (name, content):
        uploaded = UploadedSheet(
            name,
            visit.member.name,
            timestamp(utc_now()),
            worksheet=visit.form.get("worksheet", "").strip() or None,
            reference=visit.form.get("reference", "").strip() or None,
            stated_rows=rows,
            stated_sums=sums,
        )
        found = new_folder(visit.console.directory, uploaded, content)
    checked_or_reading(visit, found)
    return visit.go_to(f"/sheets/{found.number}")


def upload_again(visit: Visit) -> Response:
    """Put a corrected file in the place of the sheet. It is read as before; rows that are the same stay left out."""
    with changing(visit) as found, _kept(visit) as (name, content):
        before = found.mending
        left_out = {} if before is None or not found.was_read else _left_out_cells(found, before)
        found.replace_sheet(name, content)
        if before is not None:
            write_mending(Mending(digest_of(found.sheet), headings=before.headings), found.mending_file)
            _leave_out_again(visit, found, before, left_out)
        checked_or_reading(visit, found)
    return visit.go_to(f"/sheets/{found.number}")


def choose_reading(visit: Visit) -> Response:
    """Read the sheet otherwise: another worksheet, another reference, other meanings of its headings."""
    with changing(visit) as found:
        summary, uploaded, mending = checked(visit, found), found.uploaded, mending_of(found)
        worksheet = visit.form.get("worksheet", uploaded.worksheet or "").strip() or None
        if worksheet != uploaded.worksheet:  # its rows have other numbers
            mending = replace(mending, edits=(), left_out=())
        meant = _meant(visit, summary)
        if meant != _read_now(summary, meant):
            mending = with_headings(mending, meant, by=visit.member.name, at=timestamp(utc_now()))
        found.mend(mending)
        reference = visit.form.get("reference", uploaded.reference or "").strip() or None
        found.note(replace(found.uploaded, worksheet=worksheet, reference=reference))
        checked_or_reading(visit, found)
    return visit.go_to(f"/sheets/{found.number}")


def state_totals(visit: Visit) -> Response:
    """Note the control totals that the maker expects."""
    rows, sums = _stated(visit)
    with changing(visit) as found:
        found.mend(mending_of(found))
        found.note(replace(found.uploaded, stated_rows=rows, stated_sums=sums))
        checked_or_reading(visit, found)
    return visit.go_to(f"/sheets/{found.number}")


def download_marked(visit: Visit) -> Response:
    """Return the sheet as a workbook: with everything that was mended here, and its red cells."""
    found, console = folder(visit), visit.console
    readable(visit, found)

    def write(path: Path) -> str:
        mark_in_process(found, console.settings, path, config=console.config, environ=console.environ)
        return f"{found.sheet.stem.removesuffix('.marked')}.marked.xlsx"

    return file_to_take_away(visit, "xlsx", write)


@contextmanager
def _kept(visit: Visit) -> Iterator[tuple[str, Path]]:
    """Yield the name of the uploaded file, and where it is kept; it is removed unless it was moved away."""
    upload = visit.upload
    if upload is None or not upload.filename:
        raise UsageError(say("No file was chosen."), hint=say("Choose the sheet, and upload it again."))
    make_directory(visit.console.directory)
    with tempfile.NamedTemporaryFile(dir=visit.console.directory, prefix=".upload-", delete=False) as kept:
        try:
            shutil.copyfileobj(upload.file, kept, _AT_ONCE)
            kept.flush()
            yield upload.filename, Path(kept.name)
        finally:
            Path(kept.name).unlink(missing_ok=True)


def _left_out_cells(found: PayoutFolder, mending: Mending) -> Mapping[int, Mapping[str, str | None]]:
    return cell_texts(found, [one.row for one in mending.left_out])


def _leave_out_again(
    visit: Visit, found: PayoutFolder, before: Mending, cells: Mapping[int, Mapping[str, str | None]]
) -> None:
    """Leave the rows out that were left out of the file before, where they are the same in this one."""
    if not cells or checked(visit, found)["error"] is not None:
        return
    now = cell_texts(found, list(cells))
    same = {row for row, texts in cells.items() if now.get(row) == texts}
    found.mend(replace(mending_of(found), left_out=tuple(one for one in before.left_out if one.row in same)))
    found.note(replace(found.uploaded, look_again=[row for row in found.uploaded.look_again if row not in same]))


def _meant(visit: Visit, summary: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the chosen meaning of each heading. Raises `PageNotFound` for a column that there is not."""
    form = visit.form
    places = [place for place in range(SHOWN_HEADINGS) if f"heading-{place}" in form]
    meant = {form[f"heading-{place}"]: form.get(f"column-{place}", "") for place in places}
    if not set(meant.values()) <= {"", *summary["known_columns"]}:
        raise PageNotFound(say("The sheet has no such column."))
    return meant


def _read_now(summary: Mapping[str, Any], headings: Mapping[str, str]) -> Mapping[str, str]:
    """Return the meaning that these headings have as the sheet is read now."""
    known = {one["heading"]: one["column"] for one in summary["guesses"] if one["is_known"]}
    return {heading: known.get(heading, "") for heading in headings}


def _stated(visit: Visit) -> tuple[int | None, Mapping[str, str]]:
    """Return the control totals of a form: rows, and the sum of each currency. Raises `UsageError` for other text."""
    rows = _without_separators(visit.form.get("stated_rows", "").strip())
    if not (rows == "" or (rows.isascii() and rows.isdigit() and len(rows) <= _MOST_ROWS_DIGITS)):
        raise UsageError(say("The number of rows is a plain number, such as 1200."), hint=say("Nothing was changed."))
    sums: dict[str, str] = {}
    for line in visit.form.get("stated_sums", "").splitlines():
        if not line.strip():
            continue
        found = _STATED_SUM.fullmatch(line.strip().upper())
        amount = "" if found is None else _without_separators(found[2])
        if found is None or parse_amount(amount, minor_units=_MOST_DECIMALS) is None or found[1] in sums:
            raise UsageError(
                say("Write each sum on a line of its own, as KES 125000.50; no currency twice."),
                hint=say("Nothing was changed."),
            )
        sums[found[1]] = amount
    return int(rows) if rows else None, sums


def _without_separators(number: str) -> str:
    """Return a number without separators where it has them as the pages show them: `1,200.50`."""
    return number.replace(",", "") if _GROUPED.fullmatch(number) else number
