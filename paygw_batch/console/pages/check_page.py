"""Check the sheet: the sender's own table with sentences in the red cells, mended here or left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import polars as pl
from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.actions.check_payout import FOUND, ROWS
from paygw_batch.compose.actions.mend_sheet import with_edits, with_row_out
from paygw_batch.compose.actions.payout_folder import PayoutFolder
from paygw_batch.console.pages.preparing import changing, checked, folder, opened_batch
from paygw_batch.console.permissions import Act
from paygw_batch.console.visits import PageNotFound, Visit
from paygw_batch.errors import UsageError
from paygw_batch.language import say
from paygw_batch.sheet.check.mending import Mending

ROWS_A_PAGE = 20
_TO_MEND = "to-mend"
_MENDED = "mended"


@dataclass(frozen=True, slots=True)
class ShownCell:
    """A cell of the sender's table. `suggestion` is the one text that mends it; None: there is none."""

    column: str
    text: str | None
    defects: Sequence[str] = ()
    warnings: Sequence[str] = ()
    suggestion: str | None = None
    is_mended: bool = False


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of the sender's table. `of_row` are sentences about the row as a whole."""

    number: int
    cells: Sequence[ShownCell]
    of_row: Sequence[str]
    is_out: bool


def check_sheet(visit: Visit) -> Response:
    """Show the cells to mend, and the rows that are worth a look."""
    found = folder(visit)
    summary = checked(visit, found)
    if summary["error"] is not None:
        return visit.page("unreadable.html", uploaded=found.uploaded, number=found.number, **summary["error"])
    if (batch := opened_batch(visit, summary)) is not None:
        return visit.go_to(f"/payouts/{batch}")
    kind, after = visit.query("kind") or _first_kind(summary), visit.query_number("after")
    rows = _rows(found, summary, kind, after)
    return visit.page(
        "check.html",
        uploaded=found.uploaded,
        number=found.number,
        checked=summary,
        kind=kind,
        rows=rows[:ROWS_A_PAGE],
        after=after,
        next_after=rows[ROWS_A_PAGE - 1].number if len(rows) > ROWS_A_PAGE else 0,
        edits=_edits(found, summary),
        can_mend=visit.may(Act.MEND, found.uploaded.by),
        warned=sum(one["rows"] for one in summary["kinds"] if not one["is_defect"]),
        one_answer=_has_one_answer(found, kind),
    )


def mend(visit: Visit) -> Response:
    """Correct one cell, and check the sheet again."""
    with changing(visit) as found:
        summary = checked(visit, found)
        row, column = _row(visit), visit.form.get("column", "")
        if column not in summary["columns"]:
            raise PageNotFound(say("The sheet has no such column."))
        mending = _mending(found)
        edit = next((one for one in mending.edits if (one.row, one.column) == (row, column)), None)
        was = _cell(found, row, column) if edit is None else edit.was
        cells = [(row, column, was, visit.form.get("text", ""))]
        found.mend(with_edits(mending, cells, by=visit.member.name, at=timestamp(utc_now())))
        checked(visit, found)
    return _back(visit, row)


def mend_kind(visit: Visit) -> Response:
    """Correct all cells of one kind that have one answer."""
    code = visit.form.get("kind", "")
    with changing(visit) as found:
        checked(visit, found)
        answered = _found(found).filter(
            pl.col("is_defect") & (pl.col("code") == code) & pl.col("suggestion").is_not_null()
        )
        mending = _mending(found)
        was = {(edit.row, edit.column): edit.was for edit in mending.edits}
        texts = _texts(found, answered["row"].to_list())
        cells = [
            (row, column, was.get((row, column), texts[row].get(column)), text)
            for row, column, text in answered.select("row", "column", "suggestion").iter_rows()
        ]
        found.mend(with_edits(mending, cells, by=visit.member.name, at=timestamp(utc_now())))
        checked(visit, found)
    return _back(visit, 0)


def leave_out(visit: Visit) -> Response:
    """Leave a row out, or take it back."""
    with changing(visit) as found:
        summary, row = checked(visit, found), _row(visit)
        _cell(found, row, summary["columns"][0])
        mending = _mending(found)
        found.mend(with_row_out(mending, row, by=visit.member.name, at=timestamp(utc_now())))
        checked(visit, found)
    return _back(visit, row)


def repeats_meant(visit: Visit) -> Response:
    """Note that the sheet is meant to repeat the batch that the page named."""
    with changing(visit) as found:
        summary = checked(visit, found)
        repeat = summary["repeat"]
        if repeat is None or repeat["batch"] != visit.form.get("batch"):
            raise UsageError(say("The page is too old: open it again."), hint="")
        found.mend(_mending(found))
        found.note(replace(found.uploaded, repeats_meant=repeat["batch"]))
        checked(visit, found)
    return _back(visit, 0)


def remove_sheet(visit: Visit) -> Response:
    """Remove a sheet that was not started."""
    with changing(visit) as found:
        found.remove()
    return visit.go_to("/")


def _mending(found: PayoutFolder) -> Mending:
    mending = found.mending
    if mending is None:
        raise PageNotFound(say("The sheet could not be read."))
    return mending


def _row(visit: Visit) -> int:
    text = visit.form.get("row", "")
    if not text.isascii() or not text.isdigit() or len(text) > len("1048576000"):
        raise PageNotFound(say("The sheet has no such row."))
    return int(text)


def _back(visit: Visit, row: int) -> Response:
    query = {name: visit.form[name] for name in ("kind", "after") if visit.form.get(name)}
    anchor = f"#row-{row}" if row else ""
    return visit.go_to(f"/sheets/{visit.path('sheet')}?{urlencode(query)}{anchor}")


def _first_kind(summary: Mapping[str, Any]) -> str:
    if summary["rows_to_mend"]:
        return _TO_MEND
    return next((str(one["code"]) for one in summary["kinds"]), _MENDED)


def _found(found: PayoutFolder) -> pl.DataFrame:
    return pl.read_parquet(found.path / FOUND)


def _texts(found: PayoutFolder, rows: Sequence[int]) -> Mapping[int, Mapping[str, str | None]]:
    """Return the cells of some rows, as they are now."""
    wanted = pl.scan_parquet(found.path / ROWS).filter(pl.col("row").is_in(list(rows))).collect()
    return {line["row"]: line for line in wanted.iter_rows(named=True)}


def _cell(found: PayoutFolder, row: int, column: str) -> str | None:
    cells = _texts(found, [row])
    if row not in cells:
        raise PageNotFound(say("The sheet has no such row."))
    return cells[row][column]


def _rows(found: PayoutFolder, summary: Mapping[str, Any], kind: str, after: int) -> Sequence[ShownRow]:
    """Return the rows of one kind after a row, one more than a page has."""
    everything, left_out = _found(found), set(summary["left_out"])
    is_mended = {(row, column) for row, column in summary["mended"]}
    if kind == _TO_MEND:
        chosen = everything.filter(pl.col("is_defect") & ~pl.col("row").is_in(list(left_out)))["row"]
    elif kind == _MENDED:
        chosen = pl.Series(sorted({row for row, _ in is_mended} | left_out), dtype=pl.UInt32)
    else:
        chosen = everything.filter(pl.col("code") == kind)["row"]
    numbers = chosen.filter((chosen > after) & (chosen > 0)).unique().sort().head(ROWS_A_PAGE + 1).to_list()
    cells, about = _texts(found, numbers), everything.filter(pl.col("row").is_in(numbers)).to_dicts()
    return [
        ShownRow(
            number,
            [
                _shown_cell(column, cells[number][column], number, about, is_mended=(number, column) in is_mended)
                for column in summary["columns"]
            ],
            [str(one["message"]) for one in about if one["row"] == number and one["column"] not in summary["columns"]],
            number in left_out,
        )
        for number in numbers
    ]


def _shown_cell(
    column: str, text: str | None, row: int, about: Sequence[Mapping[str, Any]], *, is_mended: bool
) -> ShownCell:
    of_cell = [one for one in about if one["row"] == row and one["column"] == column]
    defects = [one for one in of_cell if one["is_defect"]]
    suggested = next((one["suggestion"] for one in defects if one["suggestion"] is not None), None)
    return ShownCell(
        column,
        text,
        [str(one["message"]) for one in defects],
        [str(one["message"]) for one in of_cell if not one["is_defect"]],
        suggested,
        is_mended,
    )


def _has_one_answer(found: PayoutFolder, kind: str) -> int:
    """Return how many cells of a kind have one answer."""
    answered = _found(found).filter(pl.col("is_defect") & (pl.col("code") == kind) & pl.col("suggestion").is_not_null())
    return answered.height


def _edits(found: PayoutFolder, summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the mended cells: was, is, who, when; under the sender's own headings."""
    return [
        {
            "row": edit.row,
            "heading": summary["headings"].get(edit.column, edit.column),
            "was": edit.was,
            "now": edit.now,
            "by": edit.by,
            "at": edit.at,
        }
        for edit in sorted(_mending(found).edits, key=lambda one: (one.row, one.column))
    ]
