"""Check the sheet: the sender's own table with sentences in the red cells, mended here or left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import polars as pl
from starlette.responses import Response

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.actions.mend_sheet import with_edits, with_row_out
from paygw_batch.compose.actions.payout_folder import FOUND, ROWS, PayoutFolder
from paygw_batch.console.pages.preparing import changing, checked_or_reading, folder, opened_batch, readable
from paygw_batch.console.permissions import Act
from paygw_batch.console.visits import PageNotFound, Visit
from paygw_batch.errors import UsageError
from paygw_batch.language import say
from paygw_batch.sheet.check.mending import Mending

ROWS_A_PAGE = 20
SHOWN_HEADINGS = 200
"""How many headings of a sheet can be given a meaning on the page: the first ones."""
_FEW_ROWS = 10
_BLOCK_BYTES = 1024 * 1024
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
    summary = checked_or_reading(visit, found)
    if summary is None:
        return _reading(visit, found)
    how = {
        "uploaded": found.uploaded,
        "number": found.number,
        "checked": summary,
        "can_mend": visit.may(Act.MEND, found.uploaded.by),
        "headings": summary.get("guesses", ())[:SHOWN_HEADINGS],
        "worksheets": found.uploaded.name.lower().endswith(".xlsx"),
    }
    if summary["error"] is not None:
        return visit.page("unreadable.html", **how, **summary["error"])
    batch = opened_batch(visit, summary)
    if batch is not None and found.plan is not None:
        return visit.go_to(f"/payouts/{batch}")
    kind, after = visit.query("kind") or _first_kind(summary), visit.query_number("after")
    rows = _rows(found, summary, kind, after)
    return visit.page(
        "check.html",
        **how,
        opened=batch or "",
        kind=kind,
        rows=rows[:ROWS_A_PAGE],
        after=after,
        next_after=rows[ROWS_A_PAGE - 1].number if len(rows) > ROWS_A_PAGE else 0,
        edits=_edits(found, summary),
        mostly=_mostly(summary),
        has_guesses=any(one["column"] and not one["is_known"] for one in how["headings"]),
        one_answer=_has_one_answer(found, kind),
    )


def _reading(visit: Visit, found: PayoutFolder) -> Response:
    """Return the page while the sheet is read. A line of a text is a row, more or less."""
    size, rows = found.sheet.stat().st_size, 0
    if not found.sheet.name.lower().endswith((".xlsx", ".parquet")):
        with found.sheet.open("rb") as file:
            rows = sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))
    return visit.page("reading.html", uploaded=found.uploaded, rows=rows, kib=size // 1024)


def _mostly(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the kinds that concern more than half of the rows: one sentence says it for all of them."""
    return [one for one in summary["kinds"] if one["rows"] >= _FEW_ROWS and 2 * one["rows"] > summary["rows"]]


def mend(visit: Visit) -> Response:
    """Correct one cell, and check the sheet again."""
    with changing(visit) as found:
        summary = readable(visit, found)
        row, column = _row(visit), visit.form.get("column", "")
        if column not in summary["columns"]:
            raise PageNotFound(say("The sheet has no such column."))
        mending = mending_of(found)
        edit = next((one for one in mending.edits if (one.row, one.column) == (row, column)), None)
        was = _cell(found, row, column) if edit is None else edit.was
        cells = [(row, column, was, visit.form.get("text", ""))]
        found.mend(with_edits(mending, cells, by=visit.member.name, at=timestamp(utc_now())))
        checked_or_reading(visit, found)
    return _back(visit, row)


def mend_kind(visit: Visit) -> Response:
    """Correct all cells of one kind that have one answer."""
    code = visit.form.get("kind", "")
    with changing(visit) as found:
        readable(visit, found)
        answered = _found(found).filter(
            pl.col("is_defect") & (pl.col("code") == code) & pl.col("suggestion").is_not_null()
        )
        mending = mending_of(found)
        was = {(edit.row, edit.column): edit.was for edit in mending.edits}
        texts = cell_texts(found, answered["row"].to_list())
        cells = [
            (row, column, was.get((row, column), texts[row].get(column)), text)
            for row, column, text in answered.select("row", "column", "suggestion").iter_rows()
        ]
        found.mend(with_edits(mending, cells, by=visit.member.name, at=timestamp(utc_now())))
        checked_or_reading(visit, found)
    return _back(visit, 0)


def leave_out(visit: Visit) -> Response:
    """Leave a row out, or take it back."""
    with changing(visit) as found:
        summary, row = readable(visit, found), _row(visit)
        _cell(found, row, summary["columns"][0])
        mending = mending_of(found)
        found.mend(with_row_out(mending, row, by=visit.member.name, at=timestamp(utc_now())))
        checked_or_reading(visit, found)
    return _back(visit, row)


def repeats_meant(visit: Visit) -> Response:
    """Note that the sheet is meant to repeat the batch that the page named."""
    with changing(visit) as found:
        summary = readable(visit, found)
        repeat = summary["repeat"]
        if repeat is None or repeat["batch"] != visit.form.get("batch"):
            raise UsageError(say("The page is too old: open it again."), hint="")
        found.mend(mending_of(found))
        found.note(replace(found.uploaded, repeats_meant=repeat["batch"]))
        checked_or_reading(visit, found)
    return _back(visit, 0)


def remove_sheet(visit: Visit) -> Response:
    """Remove a sheet that was not started."""
    with changing(visit) as found:
        found.remove()
    return visit.go_to("/")


def mending_of(found: PayoutFolder) -> Mending:
    """Return the corrections of a sheet. Raises `PageNotFound` for one that could not be read at all."""
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
    kinds = [one for one in summary["kinds"] if one not in _mostly(summary)] or summary["kinds"]
    return next((str(one["code"]) for one in kinds), _MENDED)


def _found(found: PayoutFolder) -> pl.DataFrame:
    return pl.read_parquet(found.path / FOUND)


def cell_texts(found: PayoutFolder, rows: Sequence[int]) -> Mapping[int, Mapping[str, str | None]]:
    """Return the cells of some rows, as they are now."""
    wanted = pl.scan_parquet(found.path / ROWS).filter(pl.col("row").is_in(list(rows))).collect()
    return {line["row"]: line for line in wanted.iter_rows(named=True)}


def _cell(found: PayoutFolder, row: int, column: str) -> str | None:
    cells = cell_texts(found, [row])
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
    said_once = [one["code"] for one in _mostly(summary) if one["code"] != kind]
    is_shown = pl.col("row").is_in(numbers) & (pl.col("is_defect") | ~pl.col("code").is_in(said_once))
    cells, about = cell_texts(found, numbers), everything.filter(is_shown).to_dicts()
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
        for edit in sorted(mending_of(found).edits, key=lambda one: (one.row, one.column))
    ]
