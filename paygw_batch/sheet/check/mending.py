"""Applies a person's corrections to a sheet after its upload: mended cells, rows left out, and meanings of headings.

The file stays as it was received, with its row numbers and other defects. The corrected sheet is validated like any
other. A correction never makes a value right by itself.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.files import read_regular, write_whole
from paygw_batch.language import say
from paygw_batch.sheet.columns import CONTROL
from paygw_batch.sheet.findings import DEFECT_SCHEMA, as_defects
from paygw_batch.sheet.model import Sheet

LEFT_OUT = "row.left_out"
"""The code of a row that a person left out. The row is not paid, and does not count as a repetition of another row."""
MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class CellEdit:
    """A corrected cell: its text in the file (`was`), and its new text (`now`; None: empty). `at` is in UTC."""

    row: int
    column: str
    was: str | None
    now: str | None
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class RowLeftOut:
    """A row that a person left out, with the person and the time."""

    row: int
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class MeantHeading:
    """A heading and its meaning, as a person stated it: one of our columns, or no meaning (empty)."""

    heading: str
    column: str
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class Mending:
    """All corrections of one sheet, which is identified by the digest of its bytes."""

    sheet_sha256: str
    edits: tuple[CellEdit, ...] = ()
    left_out: tuple[RowLeftOut, ...] = ()
    headings: tuple[MeantHeading, ...] = ()

    @property
    def columns(self) -> Mapping[str, str]:
        """A sender's heading -> the column that it means by a person's statement."""
        return {meant.heading: meant.column for meant in self.headings}


def mended_sheet(sheet: Sheet, mending: Mending) -> Sheet:
    """Return the sheet with all corrections. Raises `SheetError` if they were made for another sheet or text."""
    if mending.sheet_sha256 != sheet.sha256:
        raise SheetError(
            say("The corrections are for a different file, not for {name}.", name=sheet.name),
            hint=say("Upload the sheet again."),
        )
    if not mending.edits and not mending.left_out:
        return sheet
    frame = _edited(sheet.frame, mending.edits)
    places = _places(frame, [row.row for row in mending.left_out])
    if strange := [row.row for row in mending.left_out if row.row not in places]:
        raise SheetError(say("The sheet has no row {row}, which was to be left out.", row=strange[0]))
    mended = pl.DataFrame(
        [(edit.row, edit.column) for edit in mending.edits],
        schema={"row": pl.UInt32, "column": pl.String},
        orient="row",
    )
    left_out = as_defects(
        (row.row, "", None, LEFT_OUT, say("Left out by {by}: it is not paid with this sheet.", by=row.by))
        for row in mending.left_out
    )
    of_file = sheet.defects.join(mended, on=["row", "column"], how="anti")
    return replace(
        sheet,
        frame=frame,
        defects=pl.concat([of_file, left_out]).match_to_schema(DEFECT_SCHEMA),
        warnings=sheet.warnings.join(mended, on=["row", "column"], how="anti"),
    )


def plain_cell(text: str) -> str | None:
    """Return a typed text as a cell has it, or None if empty. Raises `SheetError` for a text that no cell can hold."""
    cell = text.strip()
    if len(cell) > MAX_CHARACTERS or pl.Series([cell]).str.contains(CONTROL).any():
        raise SheetError(
            say(
                "A cell is one line of at most {characters} characters, without control characters.",
                characters=MAX_CHARACTERS,
            )
        )
    return cell or None


def _places(frame: pl.DataFrame, rows: Sequence[int]) -> Mapping[int, int]:
    """Return the places of these rows in the frame, without rows that it lacks."""
    at = frame["row"].is_in(pl.Series(rows, dtype=pl.UInt32).implode()).arg_true()
    return dict(zip(frame["row"].gather(at), at, strict=True))


def _edited(frame: pl.DataFrame, edits: Sequence[CellEdit]) -> pl.DataFrame:
    places = _places(frame, [edit.row for edit in edits])
    by_column: dict[str, list[CellEdit]] = defaultdict(list)
    for edit in edits:
        by_column[edit.column].append(edit)
    changed = []
    for column, of_column in by_column.items():
        if column not in frame.columns[1:]:
            raise SheetError(say("The sheet has no column {column}, which was to be corrected.", column=column))
        cells = frame[column].clone()
        for edit in of_column:
            place = places.get(edit.row)
            if place is None or cells[place] != edit.was:
                raise SheetError(
                    say("Row {row}, column {column}, has changed since it was corrected.", row=edit.row, column=column)
                )
            cells[place] = edit.now
        changed.append(cells.alias(column))
    return frame.with_columns(changed)


MAX_EDITS = 20_000
"""The maximum number of corrected cells. Further corrections are made in the file itself."""
_MAX_BYTES = 64 * 1024 * 1024


def read_mending(path: Path) -> Mending:
    """Return the corrections in a file. Raises `SheetError` when the file is missing or has no readable corrections."""
    try:
        content = json.loads(read_regular(path, _MAX_BYTES))
        return Mending(
            str(content["sheet_sha256"]),
            tuple(CellEdit(**entry) for entry in content["edits"]),
            tuple(RowLeftOut(**entry) for entry in content["left_out"]),
            tuple(MeantHeading(**entry) for entry in content["headings"]),
        )
    except OSError as error:
        reason = say(str(error.strerror))
        raise SheetError(
            say("{path} cannot be read: {reason}.", path=path, reason=reason), hint=say("Check the path.")
        ) from None
    except (ValueError, TypeError, KeyError):
        raise SheetError(
            say("{name} is not a file of corrections.", name=path.name),
            hint=say("Nothing was sent. --mended takes the file that the console wrote for this sheet."),
            for_terminal=True,
        ) from None


def write_mending(mending: Mending, path: Path) -> None:
    """Write the corrections of a sheet to a file, which is written whole or not at all."""
    write_whole(path, (json.dumps(asdict(mending), ensure_ascii=False, indent=1) + "\n").encode())


def with_edits(mending: Mending, cells: Iterable[tuple[int, str, str | None, str]], *, by: str, at: str) -> Mending:
    """Return the corrections with more cells, each given as row, column, text of the file and typed text.

    Typing the text of the file again removes a correction. Raises `SheetError` for a text that no cell can hold.
    """
    edits = {(edit.row, edit.column): edit for edit in mending.edits}
    for row, column, was, text in cells:
        now = plain_cell(text)
        edits.pop((row, column), None)
        if now != was:
            edits[row, column] = CellEdit(row, column, was, now, by, at)
    if len(edits) > MAX_EDITS:
        raise SheetError(say("Too many cells were corrected here. Correct the file itself and upload it again."))
    return replace(mending, edits=tuple(edits.values()))


def with_row_out(mending: Mending, row: int, *, is_out: bool, by: str, at: str) -> Mending:
    """Return the corrections with a row left out, or included again without `is_out`."""
    others = tuple(left_out for left_out in mending.left_out if left_out.row != row)
    return replace(mending, left_out=(*others, RowLeftOut(row, by, at)) if is_out else others)


def with_headings(mending: Mending, meant: Mapping[str, str], *, by: str, at: str) -> Mending:
    """Return the corrections with the meaning of headings: a heading -> our column, or no meaning (empty).

    Mended cells are dropped: they are identified by their columns. Raises `SheetError` if two headings mean one column.
    """
    headings_of: dict[str, str] = {}
    for heading, column in meant.items():
        if column and headings_of.setdefault(column, heading) != heading:
            raise SheetError(
                say(
                    "{heading!r} and {other!r} cannot both be the column {column}.",
                    heading=headings_of[column],
                    other=heading,
                    column=column,
                ),
                hint=say("Choose another column for one of them, or mark it as not used."),
            )
    headings = tuple(MeantHeading(heading, column, by, at) for heading, column in meant.items())
    return replace(mending, edits=(), headings=headings)
