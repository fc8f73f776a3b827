"""Holds the rows of a file as text, and makes a `Sheet` of them: the steps that all formats share."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.columns import CONTROL, REJECTS_COLUMNS
from paygw_batch.sheet.deferred import Deferred
from paygw_batch.sheet.model import Sheet, no_defects
from paygw_batch.sheet.read.headings import Headings
from paygw_batch.sheet.read.other_digits import with_our_digits

_SEEN = r"[^\p{C}\p{Z}]"


@dataclass(frozen=True, slots=True)
class Table:
    """A file's rows below its header. `frame`: `row` (UInt32), then columns as `headings.names`, all String.

    `worksheet` is the name of the one that was read, where the file has several that could have been meant.
    Without `has_empty`, no text of the frame is empty.
    """

    frame: pl.DataFrame
    headings: Headings
    notes: tuple[str, ...] = ()
    defects: pl.DataFrame = field(default_factory=no_defects)
    warnings: pl.DataFrame = field(default_factory=no_defects)
    worksheet: str | None = None
    has_empty: bool = True


def to_sheet(table: Table, *, operation: str, file: str, sha256: str, max_rows: int) -> Sheet:
    """Return the table as a sheet: without blank rows (row numbers stay), blank texts as nulls.

    Raises `SheetError` for a sheet without a row or with more than `max_rows`.
    """
    headings = table.headings
    frame = rows_said(table)
    if not frame.height:
        raise SheetError(
            say("{file} has a header and no row below it.", file=file),
            hint=say("Nothing was sent: there is nobody to pay."),
        )
    if frame.height > max_rows:
        raise SheetError(
            say(
                "{file} has {height} rows; at most {max_rows} are allowed.",
                file=file,
                height=frame.height,
                max_rows=max_rows,
            ),
            hint=say("Split the sheet, or raise limits.max_rows in the configuration."),
        )
    hollow = {name for name in headings.nameless if frame[name].null_count() == frame.height}
    frame, read_in_other_digits = with_our_digits(frame.drop(hollow))
    frame = frame.rechunk()
    return Sheet(
        name=file if table.worksheet is None else f"{file} [{table.worksheet}]",
        sha256=sha256,
        content=Deferred.of(frame),
        headers={name: headings.sender[name] for name in frame.columns[1:]},
        unknown=tuple(name for name in headings.unknown if name not in hollow),
        notes=(*table.notes, *notes_of(headings)),
        defects=found_in(table.defects, frame),
        warnings=pl.concat([found_in(table.warnings, frame), read_in_other_digits]),
        operation=operation,
    )


def headers_of(headings: Headings) -> dict[str, str]:
    """Return the columns that are kept of a file, each with the sender's heading."""
    return {name: headings.sender[name] for name in headings.names if name not in headings.ours}


def sheet_gone_through(
    headings: Headings,
    held: Collection[str],
    defects: Mapping[int, pl.DataFrame],
    *,
    file: str,
    operation: str,
    sha256: str,
    frame: Callable[[], pl.DataFrame],
) -> Sheet:
    """Return a sheet that was read part by part, of which these columns hold something; `defects` by their part."""
    hollow = {name for name in headings.nameless if name not in held}
    return Sheet(
        name=file,
        sha256=sha256,
        content=Deferred(frame),
        headers={name: heading for name, heading in headers_of(headings).items() if name not in hollow},
        unknown=tuple(name for name in headings.unknown if name not in hollow),
        notes=notes_of(headings),
        defects=pl.concat(found for _, found in sorted(defects.items())),
        operation=operation,
    )


def notes_of(headings: Headings) -> tuple[str, ...]:
    """Return sentences for a person about the columns of a sheet."""
    if not headings.ours:
        return ()
    names = say(" and ").join(REJECTS_COLUMNS)
    return (say("The columns {names} are those of a rejects file, and are left out.", names=names),)


def rows_said(table: Table) -> pl.DataFrame:
    """Return the table's frame without blank rows and the columns of a rejects file; blank texts as nulls."""
    frame = table.frame.drop(table.headings.ours)
    if table.has_empty:
        frame = frame.with_columns(_empty_as_null(frame, name) for name in frame.columns[1:])
    blank = _blank_rows(frame)
    return rows_of(frame, ~blank) if blank.any() else frame  # a copy of every text, so only where it must be


def found_in(found: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the defects or warnings that were `found` in the rows of a frame."""
    return found.filter(pl.col("row").is_in(frame["row"].implode())) if found.height else found


def rows_of(frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """Return the rows that `mask` marks, in one piece.

    polars 2.1 may leave an empty first chunk behind, upon which `pl.format` panics.
    """
    return frame.filter(mask).rechunk()


def copied(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with their texts copied: all else are texts, beside `row`.

    A few rows of a piece share its memory, and would keep all texts of it for as long as they are kept themselves.
    """
    return rows.select("row", pl.exclude("row") + "")


def _empty_as_null(frame: pl.DataFrame, name: str) -> pl.Series:
    text = frame[name]
    empty = text == ""
    return text.set(empty, None) if empty.any() else text


def refuse_control_characters(table: Table, file: str) -> None:
    """Raise `SheetError` for a control character or a line break inside a field, naming row and column."""
    for name in table.frame.columns[1:]:
        text = table.frame[name]
        hit = text.str.contains(CONTROL).fill_null(value=False)
        if hit.any():
            row = table.frame["row"][hit.arg_max()]
            raise SheetError(
                say(
                    "{file}, row {row}, column {name!r}: the field holds a line break or a control character.",
                    file=file,
                    row=row,
                    name=name,
                ),
                hint=say("Write the field on one line, without such characters."),
            )


def _blank_rows(frame: pl.DataFrame) -> pl.Series:
    """Return which rows hold nothing that can be seen. Only rows without a country are looked at closely."""
    country = frame["country"]
    if country.unique().str.contains(_SEEN).fill_null(value=False).all():
        return pl.Series([False]).new_from_index(0, frame.height)
    blank = ~country.str.contains(_SEEN).fill_null(value=False)
    suspects = frame.filter(blank).select(pl.exclude("row").str.contains(_SEEN).fill_null(value=False))
    return blank.scatter(blank.arg_true(), ~suspects.select(pl.any_horizontal(pl.all())).to_series())
