"""The pages on which people upload a sheet, choose how it is read, and enter control totals."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.check_payout import sheet_digest
from paygw_batch.console.pages.agreement import withdraw
from paygw_batch.console.pages.check_page import SHOWN_HEADINGS, read_cell_texts, require_corrections
from paygw_batch.console.pages.preparing import (
    CheckResult,
    ensure_checked,
    lock_for_change,
    recheck,
    require_folder,
    require_readable,
    require_version,
    start_check,
)
from paygw_batch.console.payout_folder import (
    PayoutFolder,
    UnreadableSheet,
    UploadedSheet,
    create_payout_folder,
    is_folder_name,
    plain_file_name,
    random_folder_name,
)
from paygw_batch.console.sheet_process import MARK_PROGRAM
from paygw_batch.console.visits import (
    FieldRefused,
    PageNotFound,
    PageOutdated,
    Visit,
    download_response,
    hold_lock,
    require_extension,
    temporary_upload,
)
from paygw_batch.core.money import parse_amount
from paygw_batch.errors import QuestionKind, SheetError, UsageError
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import Reading
from paygw_batch.settings.sections import Names, Numbers
from paygw_batch.sheet.check.corrections import Corrections, set_headings, write_corrections
from paygw_batch.sheet.write.rejects import NO_MARKED_WORKBOOK
from paygw_batch.sheet.write.template import write_template

_MAX_TITLE = 80
SAMPLE = "payroll-november.csv"
"""The file name of the sample sheet that `tooling/demo --console` creates."""
_STATED_SUM = re.compile("([A-Z]{3})[ =:]+([0-9.,\u202f\u00a0 ]+)")
_SEPARATORS = "[,\u202f\u00a0 ]"
_GROUPED_NUMBER = re.compile(rf"[0-9]{{1,3}}(?:{_SEPARATORS}[0-9]{{3}})+(?:\.[0-9]+)?")
_MAX_DECIMALS = 4
_MAX_COUNT_DIGITS = 9


def _sample_path(visit: Visit) -> Path | None:
    path = visit.console.config.with_name(SAMPLE)
    return path if visit.console.settings.uses_sandbox and path.is_file() else None


def download_sample(visit: Visit) -> Response:
    sample = _sample_path(visit)
    if sample is None:
        raise PageNotFound(say("This file does not exist."))

    def write(path: Path) -> str:
        shutil.copyfile(sample, path)
        return SAMPLE

    return download_response(visit, "csv", write)


def show_new_payout(visit: Visit) -> Response:
    console = visit.console
    countries = sorted((say(rule.name), code) for code, rule in console.rules.items() if rule.form is not None)
    return visit.page(
        "new.html",
        # The form names the new folder, so that sending it twice creates only one.
        number=random_folder_name(),
        max_upload_mib=console.settings.console.max_upload_mib,
        max_rows=console.settings.limits.max_rows,
        countries=countries,
        has_sample=_sample_path(visit) is not None,
    )


def download_template(visit: Visit) -> Response:
    code, extension = visit.query("country"), require_extension(visit.query("ending"), "csv", "xlsx")
    rule = visit.console.rules.get(code)
    if rule is None or rule.form is None:
        raise PageNotFound(say("This file does not exist."))

    def write(path: Path) -> str:
        path.unlink()  # Writing a template never overwrites a file.
        write_template([rule], path)
        return f"template-{code.lower()}.{extension}"

    return download_response(visit, extension, write)


def upload_sheet(visit: Visit) -> Response:
    """Store and check an uploaded sheet. Resending the same form stores nothing."""
    rows, sums = _parse_control_totals(visit)
    number = visit.form.get("number", "")
    number = number if is_folder_name(number) else random_folder_name()
    with hold_lock(number), _uploaded_sheet(visit) as (name, source):
        payout = PayoutFolder.find(visit.console.directory, number)
        if payout is not None:
            if payout.uploaded.by != visit.member.name or not payout.has_sheet(name, source):
                raise PageOutdated
            return visit.redirect(f"/sheets/{number}")
        uploaded = UploadedSheet(
            name,
            visit.member.name,
            timestamp(utc_now()),
            worksheet=visit.form.get("worksheet", "").strip() or None,
            reference=visit.form.get("reference", "").strip() or None,
            stated_rows=rows,
            stated_sums=sums,
            title=_parse_title(visit),
        )
        payout = create_payout_folder(visit.console.directory, uploaded, source, number)
    start_check(visit, payout)
    return visit.redirect(f"/sheets/{payout.number}")


def replace_upload(visit: Visit) -> Response:
    """Replace a sheet with a corrected file. Unchanged rows that were left out stay left out."""
    with lock_for_change(visit) as payout, _uploaded_sheet(visit) as (name, source):
        if payout.has_sheet(name, source):
            return visit.redirect(f"/sheets/{payout.number}")
        require_version(visit, payout)
        old = payout.corrections
        texts = {} if old is None or not payout.was_read else read_cell_texts(payout, [row.row for row in old.left_out])
        withdraw(visit, payout.plan)
        payout.replace_sheet(name, source)
        if old is not None:
            write_corrections(Corrections(sheet_digest(payout.sheet), headings=old.headings), payout.corrections_file)
            _restore_left_out_rows(visit, payout, old, texts)
        start_check(visit, payout)
    return visit.redirect(f"/sheets/{payout.number}")


def choose_reading(visit: Visit) -> Response:
    """Reread a sheet with another worksheet, encoding, value format or column assignment."""
    with lock_for_change(visit) as payout:
        result, uploaded, corrections = ensure_checked(visit, payout), payout.uploaded, require_corrections(payout)
        worksheet = visit.form.get("worksheet", uploaded.worksheet)
        if worksheet != uploaded.worksheet:  # The name of a worksheet may begin or end with spaces.
            worksheet = (worksheet or "").strip() or None
        encoding, formats = _chosen_encoding(visit, result, uploaded), _chosen_formats(visit, uploaded)
        if (worksheet, encoding) != (uploaded.worksheet, uploaded.encoding):  # The corrections no longer fit.
            corrections = replace(corrections, edits=(), left_out=())
        chosen_columns = _chosen_columns(visit, result)
        reference = visit.form.get("reference", uploaded.reference or "").strip() or None
        current_columns = {guess.heading: guess.column for guess in result.guesses if guess.is_known}
        has_same_columns = chosen_columns == {heading: current_columns.get(heading, "") for heading in chosen_columns}
        reading = Reading(reference=reference, worksheet=worksheet, encoding=encoding, **formats)
        if has_same_columns and reading == uploaded.reading:
            return visit.redirect(f"/sheets/{payout.number}")
        require_version(visit, payout)
        if not has_same_columns:
            corrections = set_headings(corrections, chosen_columns, by=visit.member.name, at=timestamp(utc_now()))
        recheck(visit, payout, corrections, worksheet=worksheet, reference=reference, encoding=encoding, **formats)
    return visit.redirect(f"/sheets/{payout.number}")


def choose_worksheets(visit: Visit) -> Response:
    """Prepare a payout for each chosen worksheet: the first in this folder, the others in new folders."""
    with lock_for_change(visit) as payout:
        result, uploaded = ensure_checked(visit, payout), payout.uploaded
        worksheets = [*dict.fromkeys(value for name, value in visit.form.items() if name.startswith("worksheet-"))]
        if not worksheets:
            raise FieldRefused("worksheets", say("Choose at least one worksheet."))
        if worksheets[0] != uploaded.worksheet:  # Otherwise this is a second click.
            require_version(visit, payout)
            if not isinstance(result, UnreadableSheet) or result.asks != QuestionKind.WORKSHEET:
                raise PageOutdated
            if not {*worksheets} <= {*result.choices}:
                raise PageOutdated
            is_one_of_several = len(worksheets) > 1
            corrections = require_corrections(payout)
            recheck(visit, payout, corrections, worksheet=worksheets[0], is_one_of_several=is_one_of_several)
            # After a crash, missing worksheets can be uploaded again. The first worksheet's plan lists them.
            for worksheet in worksheets[1:]:
                shutil.copyfile(payout.sheet, copy := payout.path / ".copy")
                # Each payout needs its own payment run. Otherwise people in the other worksheets would seem missing.
                new_upload = replace(uploaded, worksheet=worksheet, reference=None, is_one_of_several=True)
                new_upload = replace(new_upload, like="", answered=(), sent_back="", look_again=())
                create_payout_folder(visit.console.directory, new_upload, copy, random_folder_name())
    return visit.redirect(f"/sheets/{payout.number}")


def _parse_title(visit: Visit) -> str:
    title = visit.form.get("title", "").strip()
    if title and not (title.isprintable() and len(title) <= _MAX_TITLE):
        raise FieldRefused("title", say("A name must be one line of at most {most} characters.", most=_MAX_TITLE))
    return title


def _chosen_encoding(visit: Visit, result: CheckResult, uploaded: UploadedSheet) -> str | None:
    encoding = visit.form.get("encoding", uploaded.encoding or "") or None
    choices = result.choices if isinstance(result, UnreadableSheet) and result.asks == QuestionKind.ENCODING else ()
    if encoding not in {uploaded.encoding, *choices}:
        raise PageNotFound(say("This text encoding is not one of the choices. Reload the page and choose again."))
    return encoding


def _chosen_formats(visit: Visit, uploaded: UploadedSheet) -> Mapping[str, Any]:
    choices = {"numbers": get_args(Numbers), "names": get_args(Names)}
    answers = {name: visit.form.get(name, getattr(uploaded, name) or "") or None for name in choices}
    if any(answer not in {None, *choices[name]} for name, answer in answers.items()):
        raise PageNotFound(say("This answer is not one of the choices. Reload the page and choose again."))
    return answers


def enter_totals(visit: Visit) -> Response:
    rows, sums = _parse_control_totals(visit)
    with lock_for_change(visit) as payout:
        if (rows, dict(sums)) == (payout.uploaded.stated_rows, dict(payout.uploaded.stated_sums)):
            return visit.redirect(f"/sheets/{payout.number}")
        require_version(visit, payout)
        recheck(visit, payout, require_corrections(payout), stated_rows=rows, stated_sums=sums)
    return visit.redirect(f"/sheets/{payout.number}")


def download_rejects(visit: Visit) -> Response:
    """Return a copy of the corrected sheet with its defects marked. Raises `SheetError` on failure."""
    payout = require_folder(visit)
    require_readable(visit, payout)

    def write(path: Path) -> str:
        if not visit.console.run_on_upload(MARK_PROGRAM, str(payout.path), str(path)):
            raise SheetError(
                say(NO_MARKED_WORKBOOK),
                hint=say("Correct the cells on the page, or correct the file itself and upload it again."),
            )
        return f"{payout.sheet.stem.removesuffix('.marked')}.marked.xlsx"

    return download_response(visit, "xlsx", write)


@contextmanager
def _uploaded_sheet(visit: Visit) -> Iterator[tuple[str, Path]]:
    upload = visit.upload
    if upload is None or not upload.filename:
        raise FieldRefused("sheet", say("No file was chosen."), hint=say("Choose the sheet and upload it again."))
    try:
        plain_file_name(upload.filename)
    except UsageError as error:
        raise FieldRefused("sheet", error.message, hint=error.hint) from None
    with temporary_upload(visit, upload) as source:
        yield upload.filename, source


def _restore_left_out_rows(
    visit: Visit, payout: PayoutFolder, old_corrections: Corrections, old_texts: Mapping[int, Mapping[str, str | None]]
) -> None:
    """Leave out the rows that were left out of the previous file, unless they have changed."""
    if not old_texts or isinstance(ensure_checked(visit, payout), UnreadableSheet):
        return
    current_texts = read_cell_texts(payout, list(old_texts))
    unchanged = {row for row, texts in old_texts.items() if current_texts.get(row) == texts}
    still_left_out = tuple(row for row in old_corrections.left_out if row.row in unchanged)
    payout.replace_corrections(replace(require_corrections(payout), left_out=still_left_out))
    changed_rows = [row for row in payout.uploaded.look_again if row not in unchanged]
    payout.write_upload(replace(payout.uploaded, look_again=changed_rows))


def _chosen_columns(visit: Visit, result: CheckResult) -> Mapping[str, str]:
    form = visit.form
    positions = [position for position in range(SHOWN_HEADINGS) if f"heading-{position}" in form]
    chosen_columns = {form[f"heading-{position}"]: form.get(f"column-{position}", "") for position in positions}
    if not set(chosen_columns.values()) <= {"", *result.known_columns}:
        raise PageNotFound(say("The sheet does not have this column."))
    return chosen_columns


def _parse_control_totals(visit: Visit) -> tuple[int | None, Mapping[str, str]]:
    """Parse the number of rows and the sums by currency. Raises `FieldRefused` if they are malformed."""
    row_count = _strip_separators(visit.form.get("stated_rows", "").strip())
    if not (row_count == "" or (row_count.isascii() and row_count.isdigit() and len(row_count) <= _MAX_COUNT_DIGITS)):
        raise FieldRefused("stated_rows", say("Enter the number of rows in digits, for example 1200."))
    sums: dict[str, str] = {}
    for line in visit.form.get("stated_sums", "").splitlines():
        if not line.strip():
            continue
        match = _STATED_SUM.fullmatch(line.strip().upper())
        amount = "" if match is None else _strip_separators(match[2])
        if match is None or parse_amount(amount, minor_units=_MAX_DECIMALS) is None or match[1] in sums:
            raise FieldRefused(
                "stated_sums",
                say("Enter one total for each currency, each on its own line, for example KES 125000.50."),
            )
        sums[match[1]] = amount
    return int(row_count) if row_count else None, sums


def _strip_separators(number: str) -> str:
    return re.sub(_SEPARATORS, "", number) if _GROUPED_NUMBER.fullmatch(number) else number
