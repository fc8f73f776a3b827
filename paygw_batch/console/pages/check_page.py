"""The page of a checked sheet: the sender's own table, in which people correct red cells or leave rows out."""

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
    changing,
    checked_or_reading,
    folder,
    opened_batch,
    readable,
    reading_page,
    recheck,
    require_version,
)
from paygw_batch.console.payout_folder import (
    FOUND,
    ROWS,
    CheckedSheet,
    FoundKind,
    PayoutFolder,
    UnreadableSheet,
)
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import pages_after
from paygw_batch.console.visits import PageNotFound, PageOutdated, Visit, row_number
from paygw_batch.language import say
from paygw_batch.sheet.check.mending import Mending, plain_cell, with_edits, with_row_out

ROWS_A_PAGE = 20
SHOWN_HEADINGS = 200
"""The maximum number of headings of a sheet that can be assigned to columns on the page."""
_FEW_ROWS = 10
_TO_MEND = "to-mend"
_MENDED = "mended"


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell of the sender's table. `correction` is its only possible correction, or None."""

    column: str
    text: str | None
    defects: Sequence[str] = ()
    warnings: Sequence[str] = ()
    correction: str | None = None
    is_mended: bool = False


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of the sender's table. `of_row` has sentences about the whole row. `digest` covers its texts."""

    number: int
    cells: Sequence[ShownCell]
    of_row: Sequence[str]
    is_out: bool
    digest: str


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A sentence about the change just made, and the form that undoes the change.

    `undo` is the last part of the form's address; empty if there is no such form. `fields` are its hidden fields.
    """

    sentence: str
    undo: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


def check_sheet(visit: Visit) -> Response:
    payout = folder(visit)
    result, uploaded = checked_or_reading(visit, payout), payout.uploaded
    if result is None:
        return reading_page(visit, payout)
    can_mend, headings = visit.may(Act.MEND, uploaded.by), result.guesses[:SHOWN_HEADINGS]
    has_worksheets = uploaded.name.lower().endswith(".xlsx")
    if isinstance(result, UnreadableSheet):
        return visit.page(
            "unreadable.html",
            uploaded=uploaded,
            number=payout.number,
            version=payout.version,
            checked=result,
            can_mend=can_mend,
            headings=headings,
            has_worksheets=has_worksheets,
        )
    batch = opened_batch(visit, result)
    if batch is not None and payout.plan is not None:
        return visit.go_to(f"/payouts/{batch}")
    kind, after, change = visit.query("kind"), visit.query_number("after"), _change(visit, payout, result)
    red = _red_cells(payout, result)
    is_red_again = (
        kind == _MENDED and (visit.query_number("row"), visit.query("column")) in red.select("row", "column").rows()
    )
    if not kind or (change is not None and (is_red_again or not _is_of_kind(result, kind))):
        kind = _first_kind(result)
    focus = _next_cell(red, result, visit, kind) if change is not None or visit.query("row") else None
    rows = _rows(payout, result, kind, after)
    if focus is not None and focus[0] not in [row.number for row in rows[:ROWS_A_PAGE]]:
        after = focus[0] - 1 if focus[0] > after else 0
        rows = _rows(payout, result, kind, after)
    return visit.page(
        "check.html",
        uploaded=uploaded,
        number=payout.number,
        version=payout.version,
        file=mending_of(payout).sheet_sha256,
        checked=result,
        can_mend=can_mend,
        headings=headings,
        has_worksheets=has_worksheets,
        opened=batch or "",
        kind=kind,
        rows=rows[:ROWS_A_PAGE],
        after=after,
        pages=pages_after(after, rows[ROWS_A_PAGE - 1].number if len(rows) > ROWS_A_PAGE else 0, "look", kind=kind),
        edits=sorted(mending_of(payout).edits, key=lambda edit: (edit.row, edit.column)),
        mostly=_mostly(result),
        has_guesses=any(heading.column and not heading.is_known for heading in headings),
        # The kinds whose cells one click corrects: the kind shown, or all kinds of defects.
        answered=list(_answered(payout, result, kind)),
        change=change,
        # The red cell to correct next.
        focus=focus,
    )


def _is_of_kind(result: CheckedSheet, kind: str) -> bool:
    """Return whether the page has a row of this kind left to show."""
    if kind == _TO_MEND:
        return result.rows_to_mend > 0
    return kind == _MENDED or any(entry.code == kind for entry in result.kinds)


def _red_cells(payout: PayoutFolder, result: CheckedSheet) -> pl.DataFrame:
    """Return the cells to correct as `row, column, code, place`, in the sheet's order; `place` numbers the columns."""
    places = {name: place for place, name in enumerate(result.columns)}
    cells = _findings(payout).filter(
        pl.col("is_defect") & ~pl.col("row").is_in(list(result.left_out)) & pl.col("column").is_in(list(result.columns))
    )
    place = pl.col("column").replace_strict(places, default=0, return_dtype=pl.Int32)
    return cells.select("row", "column", "code", place=place).sort("row", "place")


def _next_cell(red: pl.DataFrame, result: CheckedSheet, visit: Visit, kind: str) -> tuple[int, str] | None:
    """Return the row and column of the red cell at or after the last change, or else of the first red cell."""
    shown = red if kind == _TO_MEND else red.filter(pl.col("code") == kind)
    row, column = visit.query_number("row"), visit.query("column")
    place = list(result.columns).index(column) if column in result.columns else 0
    is_after = (pl.col("row") > row) | ((pl.col("row") == row) & (pl.col("place") >= place))
    for cells in (shown.filter(is_after), shown):
        if cells.height:
            return int(cells["row"][0]), str(cells["column"][0])
    return None


def _change(visit: Visit, payout: PayoutFolder, result: CheckedSheet) -> ShownChange | None:
    """Return the change after which this page is shown; None if there was none."""
    row, column, mending = visit.query_number("row"), visit.query("column"), mending_of(payout)
    match visit.query("did"):
        case "mend" if column in result.columns:
            edit = next((edit for edit in mending.edits if (edit.row, edit.column) == (row, column)), None)
            heading = result.headings.get(column, column)
            if edit is None:
                return ShownChange(say("Row {row}, {heading}: restored from your file.", row=row, heading=heading))
            text = edit.now if edit.now is not None else say("empty")
            return ShownChange(
                say("Row {row}, {heading}: changed to {text}.", row=row, heading=heading, text=text),
                "mend",
                {"row": str(row), "column": column, "shown": edit.now or "", "text": edit.was or ""},
            )
        case "leave-out" if row in result.left_out:
            fields = {"row": str(row), "shown": _digest_of_row(payout, row), "out": "no"}
            return ShownChange(say("Row {row}: left out.", row=row), "leave-out", fields)
        case "leave-out":
            return ShownChange(say("Row {row}: no longer left out.", row=row))
        case "mend-kind":
            return ShownChange(say("The suggested texts are in the cells."))
        case _:
            return None


def _answered(payout: PayoutFolder, result: CheckedSheet, kind: str) -> Iterator[tuple[FoundKind, int, str]]:
    """Yield each kind of which several cells have one possible correction, with their number and a digest.

    Only the kind shown is yielded, or all kinds of defects if the page shows all rows to correct.
    """
    for entry in result.kinds:
        if entry.is_defect and kind in {_TO_MEND, entry.code}:
            answers = _answers(payout, entry.code)
            if answers.height > 1:
                yield entry, answers.height, _digest_of_answers(answers)


def _mostly(result: CheckedSheet) -> Sequence[FoundKind]:
    """Return the kinds that more than half of the rows have. One sentence on the page is enough for such a kind."""
    return [kind for kind in result.kinds if kind.rows >= _FEW_ROWS and 2 * kind.rows > result.rows]


def mend(visit: Visit) -> Response:
    with changing(visit) as payout:
        result = readable(visit, payout)
        row, column = _row(visit), visit.form.get("column", "")
        if column not in result.columns:
            raise PageNotFound(say("The sheet has no such column."))
        mending, shown = _same_file(visit, payout), _cell(payout, row, column)
        text = visit.form.get("text", "")
        if plain_cell(text) == shown:
            return _back(visit, did="mend", row=row, column=column)
        if (shown or "") != visit.form.get("shown"):
            heading = result.headings.get(column, column)
            raise PageOutdated(
                say(
                    "Row {row}, {heading}, is {text} now. Reload the page.", row=row, heading=heading, text=shown or "-"
                )
            )
        edit = next((edit for edit in mending.edits if (edit.row, edit.column) == (row, column)), None)
        cells = [(row, column, shown if edit is None else edit.was, text)]
        recheck(visit, payout, with_edits(mending, cells, by=visit.member.name, at=timestamp(utc_now())))
    return _back(visit, did="mend", row=row, column=column)


def mend_kind(visit: Visit) -> Response:
    """Correct all cells of one kind that have exactly one possible correction."""
    code = visit.form.get("kind", "")
    with changing(visit) as payout:
        readable(visit, payout)
        mending, answered = _same_file(visit, payout), _answers(payout, code)
        if answered.is_empty():
            return _back(visit, did="mend-kind")
        if _digest_of_answers(answered) != visit.form.get("answers"):
            raise PageOutdated(say("Some of these cells have been changed. Reload the page and check again."))
        was = {(edit.row, edit.column): edit.was for edit in mending.edits}
        texts = cell_texts(payout, answered["row"].to_list())
        cells = [
            (row, column, was.get((row, column), texts[row].get(column)), text)
            for row, column, text in answered.select("row", "column", "correction").iter_rows()
        ]
        recheck(visit, payout, with_edits(mending, cells, by=visit.member.name, at=timestamp(utc_now())))
    return _back(visit, did="mend-kind")


def leave_out(visit: Visit) -> Response:
    """Leave a row out, or include it again, as the form says."""
    with changing(visit) as payout:
        result, row, is_out = readable(visit, payout), _row(visit), visit.form.get("out") == "yes"
        _cell(payout, row, result.columns[0])
        mending = _same_file(visit, payout)
        if is_out == (row in result.left_out):
            return _back(visit, did="leave-out", row=row)
        if visit.form.get("shown") != _digest_of_row(payout, row):
            raise PageOutdated(say("Row {row} has been changed. Reload the page and check again.", row=row))
        recheck(visit, payout, with_row_out(mending, row, is_out=is_out, by=visit.member.name, at=timestamp(utc_now())))
    return _back(visit, did="leave-out", row=row)


def answer(visit: Visit) -> Response:
    """Record that the maker answered a question of the page with yes."""
    with changing(visit) as payout:
        key = visit.form.get("question", "")
        questions = (entry for entry in readable(visit, payout).questions if entry.question)
        question = next((entry for entry in questions if entry.key == key), None)
        if question is None:
            raise PageOutdated
        if question.is_answered:
            return _back(visit)
        require_version(visit, payout)
        recheck(visit, payout, mending_of(payout), answered=[*payout.uploaded.answered, key])
    return _back(visit)


def remove_sheet(visit: Visit) -> Response:
    """Remove a sheet that was not started. A second click does nothing."""
    if PayoutFolder.named(visit.console.directory, visit.path("sheet")) is not None:
        with changing(visit) as payout:
            require_version(visit, payout)
            withdraw(visit, payout.plan)
            payout.remove()
    return visit.go_to("/")


def mending_of(payout: PayoutFolder) -> Mending:
    """Return the corrections of a sheet. Raises `PageNotFound` if the sheet could never be read."""
    mending = payout.mending
    if mending is None:
        raise PageNotFound(say("The sheet could not be read."))
    return mending


def _same_file(visit: Visit, payout: PayoutFolder) -> Mending:
    """Return the corrections of the file shown by the page. Raises `PageOutdated` for another file."""
    mending = mending_of(payout)
    if visit.form.get("file") != mending.sheet_sha256:
        raise PageOutdated(say("Another file has been uploaded since this page was opened. Reload the page."))
    return mending


def _answers(payout: PayoutFolder, code: str) -> pl.DataFrame:
    """Return the present defects of a kind that have exactly one possible correction."""
    return _findings(payout).filter(pl.col("is_defect") & (pl.col("code") == code) & pl.col("correction").is_not_null())


def _digest_of_answers(answered: pl.DataFrame) -> str:
    columns = answered.select("row", "column", "value", "correction")
    return hashlib.sha256(columns.write_csv(quote_style="always").encode()).hexdigest()[:32]


def _digest_of_row(payout: PayoutFolder, row: int) -> str:
    return digest_of_texts(cell_texts(payout, [row])[row])


def digest_of_texts(texts: Mapping[str, Any]) -> str:
    """Return a digest of the texts of a row. A form has the digest of the row that its page showed."""
    return hashlib.sha256(json.dumps(list(texts.items())).encode()).hexdigest()[:32]


def _row(visit: Visit) -> int:
    row = row_number(visit.form.get("row", ""))
    if row is None:
        raise PageNotFound(say("The sheet has no such row."))
    return row


def _back(visit: Visit, *, did: str = "", row: int = 0, column: str = "") -> Response:
    """Redirect to the page of the form, at the next red cell, with a sentence about the change.

    The address has no anchor, because a browser would then not put the focus into the cell.
    """
    shown = {name: visit.form.get(name) for name in ("kind", "after")} | {"did": did, "row": row, "column": column}
    query = urlencode({name: value for name, value in shown.items() if value})
    return visit.go_to(f"/sheets/{visit.path('sheet')}?{query}")


def _first_kind(result: CheckedSheet) -> str:
    if result.rows_to_mend:
        return _TO_MEND
    kinds = [kind for kind in result.kinds if kind not in _mostly(result)] or result.kinds
    return next((kind.code for kind in kinds), _MENDED)


def _findings(payout: PayoutFolder) -> pl.DataFrame:
    return pl.read_parquet(payout.path / FOUND)


def cell_texts(payout: PayoutFolder, rows: Sequence[int]) -> Mapping[int, Mapping[str, str | None]]:
    """Return the present texts of the cells of `rows`, by row and column."""
    wanted = pl.scan_parquet(payout.path / ROWS).filter(pl.col("row").is_in(list(rows))).collect()
    return {line["row"]: line for line in wanted.iter_rows(named=True)}


def _cell(payout: PayoutFolder, row: int, column: str) -> str | None:
    cells = cell_texts(payout, [row])
    if row not in cells:
        raise PageNotFound(say("The sheet has no such row."))
    return cells[row][column]


def _rows(payout: PayoutFolder, result: CheckedSheet, kind: str, after: int) -> Sequence[ShownRow]:
    """Return the rows of a kind after row `after`: at most one more than fits on a page."""
    everything, left_out = _findings(payout), set(result.left_out)
    is_mended = {(row, column) for row, column in result.mended}
    if kind == _TO_MEND:
        chosen = everything.filter(pl.col("is_defect") & ~pl.col("row").is_in(list(left_out)))["row"]
    elif kind == _MENDED:
        chosen = pl.Series(sorted({row for row, _ in is_mended} | left_out), dtype=pl.UInt32)
    else:
        chosen = everything.filter(pl.col("code") == kind)["row"]
    numbers = chosen.filter((chosen > after) & (chosen > 0)).unique().sort().head(ROWS_A_PAGE + 1).to_list()
    said_once = [entry.code for entry in _mostly(result) if entry.code != kind]
    is_shown = pl.col("row").is_in(numbers) & (pl.col("is_defect") | ~pl.col("code").is_in(said_once))
    cells, about = cell_texts(payout, numbers), everything.filter(is_shown).to_dicts()
    return [
        ShownRow(
            number,
            [
                _shown_cell(column, cells[number][column], number, about, is_mended=(number, column) in is_mended)
                for column in result.columns
            ],
            [str(line["message"]) for line in about if line["row"] == number and line["column"] not in result.columns],
            number in left_out,
            digest_of_texts(cells[number]),
        )
        for number in numbers
    ]


def _shown_cell(
    column: str, text: str | None, row: int, about: Sequence[Mapping[str, Any]], *, is_mended: bool
) -> ShownCell:
    of_cell = [finding for finding in about if finding["row"] == row and finding["column"] == column]
    defects = [finding for finding in of_cell if finding["is_defect"]]
    correction = next((finding["correction"] for finding in defects if finding["correction"] is not None), None)
    return ShownCell(
        column,
        text,
        [str(finding["message"]) for finding in defects],
        [str(finding["message"]) for finding in of_cell if not finding["is_defect"]],
        correction,
        is_mended,
    )
