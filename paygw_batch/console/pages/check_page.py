"""The page of a checked sheet, on which people correct red cells or leave rows out."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import polars as pl
from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.pages.agreement import withdraw
from paygw_batch.console.pages.preparing import (
    find_opened_batch,
    lock_for_change,
    reading_page,
    recheck,
    require_folder,
    require_readable,
    require_version,
    start_check,
)
from paygw_batch.console.payout_folder import (
    FINDINGS_FILE,
    ROWS_FILE,
    CheckedSheet,
    FindingKind,
    PayoutFolder,
    UnreadableSheet,
)
from paygw_batch.console.permissions import Action
from paygw_batch.console.rendering import next_page_links
from paygw_batch.console.visits import PageNotFound, PageOutdated, Visit, parse_row_number
from paygw_batch.language import say
from paygw_batch.sheet.check.corrections import Corrections, add_edits, parse_cell, set_row_left_out

ROWS_PER_PAGE = 20
SHOWN_HEADINGS = 200
"""Maximum number of headings that can be assigned to columns on the page."""
_MIN_FREQUENT_ROWS = 10
_TO_CORRECT = "to-mend"
_CORRECTED = "mended"


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell of the sender's table. `correction` is the suggested text, or None."""

    column: str
    text: str | None
    defects: Sequence[str] = ()
    warnings: Sequence[str] = ()
    correction: str | None = None
    is_corrected: bool = False


@dataclass(frozen=True, slots=True)
class RowView:
    """A row of the sender's table. `row_messages` are about the whole row. `digest` covers its texts."""

    number: int
    cells: Sequence[CellView]
    row_messages: Sequence[str]
    is_left_out: bool
    digest: str


@dataclass(frozen=True, slots=True)
class ChangeView:
    """The last change. `undo` is the action that reverses it with the form `fields`, or empty."""

    sentence: str
    undo: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


def show_sheet(visit: Visit) -> Response:
    payout = require_folder(visit)
    result, uploaded = start_check(visit, payout), payout.uploaded
    if result is None:
        return reading_page(visit, payout)
    can_correct, headings = visit.may(Action.CORRECT, uploaded.by), result.guesses[:SHOWN_HEADINGS]
    has_worksheets = uploaded.name.lower().endswith(".xlsx")
    if isinstance(result, UnreadableSheet):
        return visit.page(
            "unreadable.html",
            uploaded=uploaded,
            number=payout.number,
            version=payout.version,
            checked=result,
            can_correct=can_correct,
            headings=headings,
            has_worksheets=has_worksheets,
        )
    batch = find_opened_batch(visit, result)
    if batch is not None and payout.plan is not None:
        return visit.redirect(f"/payouts/{batch}")
    kind, after, change = visit.query("kind"), visit.query_number("after"), _last_change(visit, payout, result)
    cells_to_correct = _cells_to_correct(payout, result)
    has_new_defect = (
        kind == _CORRECTED
        and (visit.query_number("row"), visit.query("column")) in cells_to_correct.select("row", "column").rows()
    )
    if not kind or (change is not None and (has_new_defect or not _has_rows_of_kind(result, kind))):
        kind = _default_kind(result)
    next_cell = _next_cell(cells_to_correct, result, visit, kind) if change is not None or visit.query("row") else None
    rows = _page_rows(payout, result, kind, after)
    if next_cell is not None and next_cell[0] not in [row.number for row in rows[:ROWS_PER_PAGE]]:
        after = next_cell[0] - 1 if next_cell[0] > after else 0
        rows = _page_rows(payout, result, kind, after)
    next_after = rows[ROWS_PER_PAGE - 1].number if len(rows) > ROWS_PER_PAGE else 0
    return visit.page(
        "check.html",
        uploaded=uploaded,
        number=payout.number,
        version=payout.version,
        file=require_corrections(payout).sheet_sha256,
        checked=result,
        can_correct=can_correct,
        headings=headings,
        has_worksheets=has_worksheets,
        opened=batch or "",
        kind=kind,
        rows=rows[:ROWS_PER_PAGE],
        after=after,
        pages=next_page_links(after, next_after, "look", kind=kind),
        edits=sorted(require_corrections(payout).edits, key=lambda edit: (edit.row, edit.column)),
        frequent_kinds=_frequent_kinds(result),
        has_guesses=any(heading.column and not heading.is_known for heading in headings),
        # The kinds of defects for which one click corrects all cells.
        correctable_kinds=list(_correctable_kinds(payout, result, kind)),
        change=change,
        next_cell=next_cell,
    )


def _has_rows_of_kind(result: CheckedSheet, kind: str) -> bool:
    if kind == _TO_CORRECT:
        return result.rows_to_mend > 0
    return kind == _CORRECTED or any(entry.code == kind for entry in result.kinds)


def _cells_to_correct(payout: PayoutFolder, result: CheckedSheet) -> pl.DataFrame:
    """Return the cells to correct in sheet order, as `row, column, code, position`."""
    positions = {name: position for position, name in enumerate(result.columns)}
    cells = _read_findings(payout).filter(
        pl.col("is_defect") & ~pl.col("row").is_in(list(result.left_out)) & pl.col("column").is_in(list(result.columns))
    )
    position = pl.col("column").replace_strict(positions, default=0, return_dtype=pl.Int32)
    return cells.select("row", "column", "code", position=position).sort("row", "position")


def _next_cell(cells_to_correct: pl.DataFrame, result: CheckedSheet, visit: Visit, kind: str) -> tuple[int, str] | None:
    """Return (row, column) of the first cell to correct at or after the last change, or else of the first one."""
    matching = cells_to_correct if kind == _TO_CORRECT else cells_to_correct.filter(pl.col("code") == kind)
    row, column = visit.query_number("row"), visit.query("column")
    position = list(result.columns).index(column) if column in result.columns else 0
    is_after = (pl.col("row") > row) | ((pl.col("row") == row) & (pl.col("position") >= position))
    for cells in (matching.filter(is_after), matching):
        if cells.height:
            return int(cells["row"][0]), str(cells["column"][0])
    return None


def _last_change(visit: Visit, payout: PayoutFolder, result: CheckedSheet) -> ChangeView | None:
    row, column, corrections = visit.query_number("row"), visit.query("column"), require_corrections(payout)
    match visit.query("did"):
        case "mend" if column in result.columns:
            edit = next((edit for edit in corrections.edits if (edit.row, edit.column) == (row, column)), None)
            heading = result.headings.get(column, column)
            if edit is None:
                return ChangeView(say("Row {row}, {heading}: restored from your file.", row=row, heading=heading))
            text = edit.now if edit.now is not None else say("empty")
            return ChangeView(
                say("Row {row}, {heading}: changed to {text}.", row=row, heading=heading, text=text),
                "mend",
                {"row": str(row), "column": column, "shown": edit.now or "", "text": edit.was or ""},
            )
        case "leave-out" if row in result.left_out:
            fields = {"row": str(row), "shown": _row_digest(payout, row), "out": "no"}
            return ChangeView(say("Row {row}: left out.", row=row), "leave-out", fields)
        case "leave-out":
            return ChangeView(say("Row {row}: no longer left out.", row=row))
        case "mend-kind":
            return ChangeView(say("The suggested values have been entered."))
        case _:
            return None


def _correctable_kinds(payout: PayoutFolder, result: CheckedSheet, kind: str) -> Iterator[tuple[FindingKind, int, str]]:
    """Yield (kind, count, digest) for each defect kind on the page with several suggested corrections."""
    for entry in result.kinds:
        if entry.is_defect and kind in {_TO_CORRECT, entry.code}:
            suggestions = _suggested_corrections(payout, entry.code)
            if suggestions.height > 1:
                yield entry, suggestions.height, _corrections_digest(suggestions)


def _frequent_kinds(result: CheckedSheet) -> Sequence[FindingKind]:
    """Return the kinds found in most rows, which the page explains only once."""
    return [kind for kind in result.kinds if kind.rows >= _MIN_FREQUENT_ROWS and 2 * kind.rows > result.rows]


def correct_cell(visit: Visit) -> Response:
    with lock_for_change(visit) as payout:
        result = require_readable(visit, payout)
        row, column = _require_row_number(visit), visit.form.get("column", "")
        if column not in result.columns:
            raise PageNotFound(say("The sheet does not have this column."))
        corrections, value = _require_same_file(visit, payout), _require_cell(payout, row, column)
        text = visit.form.get("text", "")
        if parse_cell(text) == value:
            return _redirect_back(visit, change="mend", row=row, column=column)
        if (value or "") != visit.form.get("shown"):
            heading = result.headings.get(column, column)
            raise PageOutdated(
                say("Row {row}, {heading}: now {text}. Reload the page.", row=row, heading=heading, text=value or "-")
            )
        edit = next((edit for edit in corrections.edits if (edit.row, edit.column) == (row, column)), None)
        cells = [(row, column, value if edit is None else edit.was, text)]
        recheck(visit, payout, add_edits(corrections, cells, by=visit.member.name, at=timestamp(utc_now())))
    return _redirect_back(visit, change="mend", row=row, column=column)


def correct_kind(visit: Visit) -> Response:
    """Apply the suggested corrections to all cells with one kind of defect."""
    code = visit.form.get("kind", "")
    with lock_for_change(visit) as payout:
        require_readable(visit, payout)
        corrections, suggestions = _require_same_file(visit, payout), _suggested_corrections(payout, code)
        if suggestions.is_empty():
            return _redirect_back(visit, change="mend-kind")
        if _corrections_digest(suggestions) != visit.form.get("answers"):
            raise PageOutdated(say("Some of these cells have been changed. Reload the page and check again."))
        original_texts = {(edit.row, edit.column): edit.was for edit in corrections.edits}
        texts = read_cell_texts(payout, suggestions["row"].to_list())
        cells = [
            (row, column, original_texts.get((row, column), texts[row].get(column)), text)
            for row, column, text in suggestions.select("row", "column", "correction").iter_rows()
        ]
        recheck(visit, payout, add_edits(corrections, cells, by=visit.member.name, at=timestamp(utc_now())))
    return _redirect_back(visit, change="mend-kind")


def leave_row_out(visit: Visit) -> Response:
    """Leave a row out or include it again, depending on the form."""
    with lock_for_change(visit) as payout:
        result, row = require_readable(visit, payout), _require_row_number(visit)
        is_out = visit.form.get("out") == "yes"
        _require_cell(payout, row, result.columns[0])
        corrections = _require_same_file(visit, payout)
        if is_out == (row in result.left_out):
            return _redirect_back(visit, change="leave-out", row=row)
        if visit.form.get("shown") != _row_digest(payout, row):
            raise PageOutdated(say("Row {row} has been changed. Reload the page and check again.", row=row))
        corrections = set_row_left_out(corrections, row, is_out=is_out, by=visit.member.name, at=timestamp(utc_now()))
        recheck(visit, payout, corrections)
    return _redirect_back(visit, change="leave-out", row=row)


def answer_question(visit: Visit) -> Response:
    """Record that the maker answered "yes" to an open question."""
    with lock_for_change(visit) as payout:
        key = visit.form.get("question", "")
        questions = (entry for entry in require_readable(visit, payout).questions if entry.question)
        question = next((entry for entry in questions if entry.key == key), None)
        if question is None:
            raise PageOutdated
        if question.is_answered:
            return _redirect_back(visit)
        require_version(visit, payout)
        recheck(visit, payout, require_corrections(payout), answered=[*payout.uploaded.answered, key])
    return _redirect_back(visit)


def remove_sheet(visit: Visit) -> Response:
    """Remove a sheet whose payout has not started. A second click does nothing."""
    if PayoutFolder.find(visit.console.directory, visit.path_param("sheet")) is not None:
        with lock_for_change(visit) as payout:
            require_version(visit, payout)
            withdraw(visit, payout.plan)
            payout.remove()
    return visit.redirect("/")


def require_corrections(payout: PayoutFolder) -> Corrections:
    """Return a sheet's corrections. Raises `PageNotFound` if the sheet was never read."""
    corrections = payout.corrections
    if corrections is None:
        raise PageNotFound(say("The sheet could not be read."))
    return corrections


def _require_same_file(visit: Visit, payout: PayoutFolder) -> Corrections:
    corrections = require_corrections(payout)
    if visit.form.get("file") != corrections.sheet_sha256:
        raise PageOutdated(say("Another file has been uploaded since this page was opened. Reload the page."))
    return corrections


def _suggested_corrections(payout: PayoutFolder, code: str) -> pl.DataFrame:
    findings = _read_findings(payout)
    return findings.filter(pl.col("is_defect") & (pl.col("code") == code) & pl.col("correction").is_not_null())


def _corrections_digest(suggestions: pl.DataFrame) -> str:
    columns = suggestions.select("row", "column", "value", "correction")
    return hashlib.sha256(columns.write_csv(quote_style="always").encode()).hexdigest()[:32]


def _row_digest(payout: PayoutFolder, row: int) -> str:
    return texts_digest(read_cell_texts(payout, [row])[row])


def texts_digest(texts: Mapping[str, Any]) -> str:
    """Return a digest of a row's texts, which forms send back."""
    return hashlib.sha256(json.dumps(list(texts.items())).encode()).hexdigest()[:32]


def _require_row_number(visit: Visit) -> int:
    row = parse_row_number(visit.form.get("row", ""))
    if row is None:
        raise PageNotFound(say("The sheet does not have this row."))
    return row


def _redirect_back(visit: Visit, *, change: str = "", row: int = 0, column: str = "") -> Response:
    """Redirect to the form's page. The address has no anchor, so that browsers focus the next red cell."""
    params = {name: visit.form.get(name) for name in ("kind", "after")} | {"did": change, "row": row, "column": column}
    query = urlencode({name: value for name, value in params.items() if value})
    return visit.redirect(f"/sheets/{visit.path_param('sheet')}?{query}")


def _default_kind(result: CheckedSheet) -> str:
    if result.rows_to_mend:
        return _TO_CORRECT
    rarer_kinds = [kind for kind in result.kinds if kind not in _frequent_kinds(result)] or result.kinds
    return next((kind.code for kind in rarer_kinds), _CORRECTED)


def _read_findings(payout: PayoutFolder) -> pl.DataFrame:
    return pl.read_parquet(payout.path / FINDINGS_FILE)


def read_cell_texts(payout: PayoutFolder, rows: Sequence[int]) -> Mapping[int, Mapping[str, str | None]]:
    """Return the current texts of the cells in `rows` by row and column."""
    lines = pl.scan_parquet(payout.path / ROWS_FILE).filter(pl.col("row").is_in(list(rows))).collect()
    return {line["row"]: line for line in lines.iter_rows(named=True)}


def _require_cell(payout: PayoutFolder, row: int, column: str) -> str | None:
    cells = read_cell_texts(payout, [row])
    if row not in cells:
        raise PageNotFound(say("The sheet does not have this row."))
    return cells[row][column]


def _page_rows(payout: PayoutFolder, result: CheckedSheet, kind: str, after: int) -> Sequence[RowView]:
    """Return a page of rows of a kind after row `after`, plus one row if there are more."""
    all_findings, left_out = _read_findings(payout), set(result.left_out)
    corrected_cells = {(row, column) for row, column in result.mended}
    if kind == _TO_CORRECT:
        matching = all_findings.filter(pl.col("is_defect") & ~pl.col("row").is_in(list(left_out)))["row"]
    elif kind == _CORRECTED:
        matching = pl.Series(sorted({row for row, _ in corrected_cells} | left_out), dtype=pl.UInt32)
    else:
        matching = all_findings.filter(pl.col("code") == kind)["row"]
    numbers = matching.filter((matching > after) & (matching > 0)).unique().sort().head(ROWS_PER_PAGE + 1).to_list()
    summarised_codes = [entry.code for entry in _frequent_kinds(result) if entry.code != kind]
    is_shown = pl.col("row").is_in(numbers) & (pl.col("is_defect") | ~pl.col("code").is_in(summarised_codes))
    cells, findings = read_cell_texts(payout, numbers), all_findings.filter(is_shown).to_dicts()
    return [
        RowView(
            row,
            [
                _build_cell(column, cells[row][column], row, findings, is_corrected=(row, column) in corrected_cells)
                for column in result.columns
            ],
            [str(line["message"]) for line in findings if line["row"] == row and line["column"] not in result.columns],
            row in left_out,
            texts_digest(cells[row]),
        )
        for row in numbers
    ]


def _build_cell(
    column: str, text: str | None, row: int, shown_findings: Sequence[Mapping[str, Any]], *, is_corrected: bool
) -> CellView:
    cell_findings = [finding for finding in shown_findings if finding["row"] == row and finding["column"] == column]
    defects = [finding for finding in cell_findings if finding["is_defect"]]
    correction = next((finding["correction"] for finding in defects if finding["correction"] is not None), None)
    return CellView(
        column,
        text,
        [str(finding["message"]) for finding in defects],
        [str(finding["message"]) for finding in cell_findings if not finding["is_defect"]],
        correction,
        is_corrected,
    )
