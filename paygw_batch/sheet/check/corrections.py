"""Applies a person's corrections to an uploaded sheet: corrected cells, rows left out, and meanings of headings.

The file itself is unchanged, with its row numbers and other defects. The corrected sheet is validated like any other,
so a correction never makes a value valid by itself.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.files import read_regular, write_atomically
from paygw_batch.language import say
from paygw_batch.sheet.columns import CONTROL
from paygw_batch.sheet.findings import DEFECT_SCHEMA, build_findings
from paygw_batch.sheet.model import Sheet

LEFT_OUT = "row.left_out"
"""The code of a row that a person left out. It is not paid, and repeats no other row."""
MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class CellEdit:
    """A corrected cell: its text in the file (`was`), and its new text (`now`, None if empty). `at` is in UTC."""

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
class HeadingMeaning:
    """The meaning that a person gave a heading: one of our columns, or none (empty)."""

    heading: str
    column: str
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class Corrections:
    """All corrections of one sheet, which is identified by the digest of its bytes."""

    sheet_sha256: str
    edits: tuple[CellEdit, ...] = ()
    left_out: tuple[RowLeftOut, ...] = ()
    headings: tuple[HeadingMeaning, ...] = ()

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that a person assigned to the sender's headings."""
        return {meaning.heading: meaning.column for meaning in self.headings}


def apply_corrections(sheet: Sheet, corrections: Corrections) -> Sheet:
    """Apply all corrections to a sheet. Raises `SheetError` if they were made for other content."""
    if corrections.sheet_sha256 != sheet.sha256:
        raise SheetError(
            say("The corrections are for a different file, not for {name}.", name=sheet.name),
            hint=say("Upload the sheet again."),
        )
    if not corrections.edits and not corrections.left_out:
        return sheet
    frame = _apply_edits(sheet.frame, corrections.edits)
    positions = _row_positions(frame, [row.row for row in corrections.left_out])
    if missing_rows := [row.row for row in corrections.left_out if row.row not in positions]:
        raise SheetError(say("The sheet has no row {row}, which was to be left out.", row=missing_rows[0]))
    corrected_cells = pl.DataFrame(
        [(edit.row, edit.column) for edit in corrections.edits],
        schema={"row": pl.UInt32, "column": pl.String},
        orient="row",
    )
    left_out = build_findings(
        (row.row, "", None, LEFT_OUT, say("Left out by {by}: it is not paid with this sheet.", by=row.by))
        for row in corrections.left_out
    )
    file_defects = sheet.defects.join(corrected_cells, on=["row", "column"], how="anti")
    return replace(
        sheet,
        frame=frame,
        defects=pl.concat([file_defects, left_out]).match_to_schema(DEFECT_SCHEMA),
        warnings=sheet.warnings.join(corrected_cells, on=["row", "column"], how="anti"),
    )


def parse_cell(text: str) -> str | None:
    """Parse the typed text of a cell. Returns None if it is empty. Raises `SheetError` if no cell can hold it."""
    cell = text.strip()
    if len(cell) > MAX_CHARACTERS or pl.Series([cell]).str.contains(CONTROL).any():
        raise SheetError(
            say(
                "A cell must be a single line of at most {characters} characters, without control characters.",
                characters=MAX_CHARACTERS,
            )
        )
    return cell or None


def _row_positions(frame: pl.DataFrame, rows: Sequence[int]) -> Mapping[int, int]:
    """Return the positions of these rows in the frame. Missing rows are omitted."""
    positions = frame["row"].is_in(pl.Series(rows, dtype=pl.UInt32).implode()).arg_true()
    return dict(zip(frame["row"].gather(positions), positions, strict=True))


def _apply_edits(frame: pl.DataFrame, edits: Sequence[CellEdit]) -> pl.DataFrame:
    positions = _row_positions(frame, [edit.row for edit in edits])
    by_column: dict[str, list[CellEdit]] = defaultdict(list)
    for edit in edits:
        by_column[edit.column].append(edit)
    changed_rows = []
    for column, column_edits in by_column.items():
        if column not in frame.columns[1:]:
            raise SheetError(say("The sheet has no column {column}, which was to be corrected.", column=column))
        cells = frame[column].clone()
        for edit in column_edits:
            position = positions.get(edit.row)
            if position is None or cells[position] != edit.was:
                raise SheetError(
                    say("Row {row}, column {column}, has changed since it was corrected.", row=edit.row, column=column)
                )
            cells[position] = edit.now
        changed_rows.append(cells.alias(column))
    return frame.with_columns(changed_rows)


MAX_EDITS = 20_000
"""The maximum number of corrected cells. Further cells must be corrected in the file itself."""
_MAX_BYTES = 64 * 1024 * 1024


def read_corrections(path: Path) -> Corrections:
    """Read corrections from a file. Raises `SheetError` if it is missing or unreadable."""
    try:
        content = json.loads(read_regular(path, _MAX_BYTES))
        return Corrections(
            str(content["sheet_sha256"]),
            tuple(CellEdit(**entry) for entry in content["edits"]),
            tuple(RowLeftOut(**entry) for entry in content["left_out"]),
            tuple(HeadingMeaning(**entry) for entry in content["headings"]),
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


def write_corrections(corrections: Corrections, path: Path) -> None:
    """Write corrections to a file atomically."""
    write_atomically(path, (json.dumps(asdict(corrections), ensure_ascii=False, indent=1) + "\n").encode())


def add_edits(
    corrections: Corrections, cells: Iterable[tuple[int, str, str | None, str]], *, by: str, at: str
) -> Corrections:
    """Add corrected cells, each given as row, column, text in the file, and typed text.

    Typing the file's own text removes a correction. Raises `SheetError` for a string that no cell can hold.
    """
    edits = {(edit.row, edit.column): edit for edit in corrections.edits}
    for row, column, was, text in cells:
        now = parse_cell(text)
        edits.pop((row, column), None)
        if now != was:
            edits[row, column] = CellEdit(row, column, was, now, by, at)
    if len(edits) > MAX_EDITS:
        raise SheetError(say("Too many cells were corrected here. Correct the file itself and upload it again."))
    return replace(corrections, edits=tuple(edits.values()))


def set_row_left_out(corrections: Corrections, row: int, *, is_out: bool, by: str, at: str) -> Corrections:
    """Leave a row out, or include it again if not `is_out`."""
    other_rows = tuple(left_out for left_out in corrections.left_out if left_out.row != row)
    return replace(corrections, left_out=(*other_rows, RowLeftOut(row, by, at)) if is_out else other_rows)


def set_headings(corrections: Corrections, columns_by_heading: Mapping[str, str], *, by: str, at: str) -> Corrections:
    """Set the meanings of headings: a heading -> our column, or none (empty).

    Corrected cells are dropped, because their columns may change. Raises `SheetError` if two headings mean one column.
    """
    headings_of: dict[str, str] = {}
    for heading, column in columns_by_heading.items():
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
    headings = tuple(HeadingMeaning(heading, column, by, at) for heading, column in columns_by_heading.items())
    return replace(corrections, edits=(), headings=headings)
