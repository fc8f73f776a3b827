"""The pages of a new payout: people upload a sheet, say how to read it, and state the totals that they expect."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.check_payout import digest_of
from paygw_batch.console.pages.agreement import withdraw
from paygw_batch.console.pages.check_page import SHOWN_HEADINGS, cell_texts, mending_of
from paygw_batch.console.pages.preparing import (
    Check,
    changing,
    checked,
    checked_or_reading,
    folder,
    readable,
    recheck,
    require_version,
)
from paygw_batch.console.payout_folder import (
    PayoutFolder,
    UnreadableSheet,
    UploadedSheet,
    is_folder_name,
    new_folder,
    new_folder_name,
    plain_file_name,
)
from paygw_batch.console.sheet_process import MARKING
from paygw_batch.console.visits import (
    FieldRefused,
    PageNotFound,
    PageOutdated,
    Visit,
    file_to_take_away,
    kept_upload,
    made_once,
    required_ending,
)
from paygw_batch.core.money import parse_amount
from paygw_batch.errors import Asked, SheetError, UsageError
from paygw_batch.language import say
from paygw_batch.opening.given_sheet import Reading
from paygw_batch.settings.sections import Names, Numbers
from paygw_batch.sheet.check.mending import Mending, with_headings, write_mending
from paygw_batch.sheet.write.rejects import NO_MARKED_WORKBOOK
from paygw_batch.sheet.write.template import write_template

_MAX_TITLE = 80
SAMPLE = "payroll-november.csv"
"""The file name of the sample sheet, which `tooling/demo --console` creates."""
_STATED_SUM = re.compile("([A-Z]{3})[ =:]+([0-9.,\u202f\u00a0 ]+)")
_SEPARATORS = "[,\u202f\u00a0 ]"
_GROUPED = re.compile(rf"[0-9]{{1,3}}(?:{_SEPARATORS}[0-9]{{3}})+(?:\.[0-9]+)?")
_MAX_DECIMALS = 4
_MAX_ROWS_DIGITS = 9


def _sample(visit: Visit) -> Path | None:
    """Return the path of the sample sheet beside the configuration of a sandbox; None if there is no such file."""
    path = visit.console.config.with_name(SAMPLE)
    return path if visit.console.settings.uses_sandbox and path.is_file() else None


def download_sample(visit: Visit) -> Response:
    sample = _sample(visit)
    if sample is None:
        raise PageNotFound(say("There is no such file."))

    def write(path: Path) -> str:
        shutil.copyfile(sample, path)
        return SAMPLE

    return file_to_take_away(visit, "csv", write)


def new_payout(visit: Visit) -> Response:
    console = visit.console
    countries = sorted((say(rule.name), code) for code, rule in console.rules.items() if rule.form is not None)
    return visit.page(
        "new.html",
        # The page already names the new folder, so that a form sent twice creates only one folder.
        number=new_folder_name(),
        most_mib=console.settings.console.max_upload_mib,
        most_rows=console.settings.limits.max_rows,
        countries=countries,
        has_sample=_sample(visit) is not None,
    )


def download_template(visit: Visit) -> Response:
    """Return an empty sheet with the columns of a country."""
    code, ending = visit.query("country"), required_ending(visit.query("ending"), "csv", "xlsx")
    rule = visit.console.rules.get(code)
    if rule is None or rule.form is None:
        raise PageNotFound(say("There is no such file."))

    def write(path: Path) -> str:
        path.unlink()  # a template never overwrites a file
        write_template([rule], path)
        return f"template-{code.lower()}.{ending}"

    return file_to_take_away(visit, ending, write)


def upload(visit: Visit) -> Response:
    """Store and check an uploaded sheet, and redirect to the results. A form sent twice leads to the same sheet."""
    rows, sums = _stated(visit)
    number = visit.form.get("number", "")
    number = number if is_folder_name(number) else new_folder_name()
    with made_once(number), _kept(visit) as (name, content):
        before = PayoutFolder.named(visit.console.directory, number)
        if before is not None:
            if before.uploaded.by != visit.member.name or not before.has_sheet(name, content):
                raise PageOutdated
            return visit.go_to(f"/sheets/{number}")
        uploaded = UploadedSheet(
            name,
            visit.member.name,
            timestamp(utc_now()),
            worksheet=visit.form.get("worksheet", "").strip() or None,
            reference=visit.form.get("reference", "").strip() or None,
            stated_rows=rows,
            stated_sums=sums,
            title=_title(visit),
        )
        payout = new_folder(visit.console.directory, uploaded, content, number)
    checked_or_reading(visit, payout)
    return visit.go_to(f"/sheets/{payout.number}")


def upload_again(visit: Visit) -> Response:
    """Replace a sheet with a corrected file, which is read in the same way. Left-out rows stay so if unchanged."""
    with changing(visit) as payout, _kept(visit) as (name, content):
        if payout.has_sheet(name, content):
            return visit.go_to(f"/sheets/{payout.number}")
        require_version(visit, payout)
        before = payout.mending
        left_out = (
            {} if before is None or not payout.was_read else cell_texts(payout, [row.row for row in before.left_out])
        )
        withdraw(visit, payout.plan)
        payout.replace_sheet(name, content)
        if before is not None:
            write_mending(Mending(digest_of(payout.sheet), headings=before.headings), payout.mending_file)
            _leave_out_again(visit, payout, before, left_out)
        checked_or_reading(visit, payout)
    return visit.go_to(f"/sheets/{payout.number}")


def choose_reading(visit: Visit) -> Response:
    """Read a sheet in another way, such as with another worksheet, encoding, or meaning of its headings."""
    with changing(visit) as payout:
        result, uploaded, mending = checked(visit, payout), payout.uploaded, mending_of(payout)
        worksheet = visit.form.get("worksheet", uploaded.worksheet or "").strip() or None
        encoding, spelling = _encoding(visit, result, uploaded), _spelling(visit, uploaded)
        if (worksheet, encoding) != (uploaded.worksheet, uploaded.encoding):  # the rows or the texts change
            mending = replace(mending, edits=(), left_out=())
        meant = _meant(visit, result)
        reference = visit.form.get("reference", uploaded.reference or "").strip() or None
        known = {guess.heading: guess.column for guess in result.guesses if guess.is_known}
        is_read_so = meant == {heading: known.get(heading, "") for heading in meant}
        reading = Reading(reference=reference, worksheet=worksheet, encoding=encoding, **spelling)
        if is_read_so and reading == uploaded.reading:
            return visit.go_to(f"/sheets/{payout.number}")
        require_version(visit, payout)
        if not is_read_so:
            mending = with_headings(mending, meant, by=visit.member.name, at=timestamp(utc_now()))
        recheck(visit, payout, mending, worksheet=worksheet, reference=reference, encoding=encoding, **spelling)
    return visit.go_to(f"/sheets/{payout.number}")


def _title(visit: Visit) -> str:
    """Return the name of the payout from the form, or empty if the file's name is meant. Raises `FieldRefused`."""
    title = visit.form.get("title", "").strip()
    if title and not (title.isprintable() and len(title) <= _MAX_TITLE):
        raise FieldRefused("title", say("A name is one line of at most {most} characters.", most=_MAX_TITLE))
    return title


def _encoding(visit: Visit, result: Check, uploaded: UploadedSheet) -> str | None:
    """Return the encoding from the form. Raises `PageNotFound` if the page does not offer this encoding."""
    encoding = visit.form.get("encoding", uploaded.encoding or "") or None
    offered = result.choices if isinstance(result, UnreadableSheet) and result.asks == Asked.ENCODING.value else ()
    if encoding not in {uploaded.encoding, *offered}:
        raise PageNotFound(say("This text encoding is not on the page. Reload the page and choose again."))
    return encoding


def _spelling(visit: Visit, uploaded: UploadedSheet) -> Mapping[str, Any]:
    """Return the answers about numbers and names from the form. Raises `PageNotFound` for an unknown answer."""
    known = {"numbers": get_args(Numbers), "names": get_args(Names)}
    answers = {name: visit.form.get(name, getattr(uploaded, name) or "") or None for name in known}
    if any(answer not in {None, *known[name]} for name, answer in answers.items()):
        raise PageNotFound(say("This answer is not on the page. Reload the page and choose again."))
    return answers


def state_totals(visit: Visit) -> Response:
    rows, sums = _stated(visit)
    with changing(visit) as payout:
        if (rows, dict(sums)) == (payout.uploaded.stated_rows, dict(payout.uploaded.stated_sums)):
            return visit.go_to(f"/sheets/{payout.number}")
        require_version(visit, payout)
        recheck(visit, payout, mending_of(payout), stated_rows=rows, stated_sums=sums)
    return visit.go_to(f"/sheets/{payout.number}")


def download_marked(visit: Visit) -> Response:
    """Return the sheet as a workbook with all corrections and marked defects. Raises `SheetError` if that fails."""
    payout = folder(visit)
    readable(visit, payout)

    def write(path: Path) -> str:
        if not visit.console.ran_within_limits(MARKING, str(payout.path), str(path)):
            raise SheetError(
                say(NO_MARKED_WORKBOOK),
                hint=say("Correct the cells on the page, or correct the file itself and upload it again."),
            )
        return f"{payout.sheet.stem.removesuffix('.marked')}.marked.xlsx"

    return file_to_take_away(visit, "xlsx", write)


@contextmanager
def _kept(visit: Visit) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path (`kept_upload`) of an uploaded sheet. Raises `FieldRefused` without a usable file."""
    upload = visit.upload
    if upload is None or not upload.filename:
        raise FieldRefused("sheet", say("No file was chosen."), hint=say("Choose the sheet, and upload it again."))
    try:
        plain_file_name(upload.filename)
    except UsageError as error:
        raise FieldRefused("sheet", error.message, hint=error.hint) from None
    with kept_upload(visit, upload) as content:
        yield upload.filename, content


def _leave_out_again(
    visit: Visit, payout: PayoutFolder, before: Mending, cells: Mapping[int, Mapping[str, str | None]]
) -> None:
    """Leave out the rows that were left out of the previous file, if their texts are the same in this file."""
    if not cells or isinstance(checked(visit, payout), UnreadableSheet):
        return
    now = cell_texts(payout, list(cells))
    same = {row for row, texts in cells.items() if now.get(row) == texts}
    payout.mend(replace(mending_of(payout), left_out=tuple(row for row in before.left_out if row.row in same)))
    payout.note(replace(payout.uploaded, look_again=[row for row in payout.uploaded.look_again if row not in same]))


def _meant(visit: Visit, result: Check) -> Mapping[str, str]:
    """Return the column chosen for each heading, or empty. Raises `PageNotFound` for an unknown column."""
    form = visit.form
    places = [place for place in range(SHOWN_HEADINGS) if f"heading-{place}" in form]
    meant = {form[f"heading-{place}"]: form.get(f"column-{place}", "") for place in places}
    if not set(meant.values()) <= {"", *result.known_columns}:
        raise PageNotFound(say("The sheet has no such column."))
    return meant


def _stated(visit: Visit) -> tuple[int | None, Mapping[str, str]]:
    """Return the control totals in a form: the number of rows, and the sum by currency. Raises `FieldRefused`."""
    rows = _without_separators(visit.form.get("stated_rows", "").strip())
    if not (rows == "" or (rows.isascii() and rows.isdigit() and len(rows) <= _MAX_ROWS_DIGITS)):
        raise FieldRefused("stated_rows", say("Write the number of rows as a plain number, such as 1200."))
    sums: dict[str, str] = {}
    for line in visit.form.get("stated_sums", "").splitlines():
        if not line.strip():
            continue
        match = _STATED_SUM.fullmatch(line.strip().upper())
        amount = "" if match is None else _without_separators(match[2])
        if match is None or parse_amount(amount, minor_units=_MAX_DECIMALS) is None or match[1] in sums:
            raise FieldRefused(
                "stated_sums", say("Write each total on its own line, such as KES 125000.50, and each currency once.")
            )
        sums[match[1]] = amount
    return int(rows) if rows else None, sums


def _without_separators(number: str) -> str:
    """Return a number without separators between thousands, which the pages and many people write: `1,200.50`."""
    return re.sub(_SEPARATORS, "", number) if _GROUPED.fullmatch(number) else number
