"""Applies a person's corrections to an uploaded sheet: corrected cells, rows left out, and meanings of headings.

The file itself, row numbers and the defects of other cells do not change. The corrected sheet is validated like any
other, so no correction makes a value valid by itself.
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
"""The code of a row that a person left out. The row is not paid, and does not count as a repetition."""
MAX_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class CellEdit:
    """A corrected cell: its text in the file (`was`) and its new text (`now`, None if empty). `at` is in UTC."""

    row: int
    column: str
    was: str | None
    now: str | None
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class RowLeftOut:
    """A row that a person (`by`) left out."""

    row: int
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class HeadingMeaning:
    """The column that a person chose for a heading, or "" for none."""

    heading: str
    column: str
    by: str
    at: str


@dataclass(frozen=True, slots=True)
class Corrections:
    """All corrections to one sheet, identified by the digest of its bytes."""

    sheet_sha256: str
    edits: tuple[CellEdit, ...] = ()
    left_out: tuple[RowLeftOut, ...] = ()
    headings: tuple[HeadingMeaning, ...] = ()

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns that a person chose, by heading."""
        return {meaning.heading: meaning.column for meaning in self.headings}


def apply_corrections(sheet: Sheet, corrections: Corrections) -> Sheet:
    """Apply corrections to a sheet. Raises `SheetError` if they don't fit the sheet."""
    if corrections.sheet_sha256 != sheet.sha256:
        raise SheetError(
            say("The corrections are for another file, not {name}.", name=sheet.name),
            hint=say("Upload the sheet again."),
        )
    if not corrections.edits and not corrections.left_out:
        return sheet
    frame = _apply_edits(sheet.frame, corrections.edits)
    positions = _row_positions(frame, [entry.row for entry in corrections.left_out])
    if missing := [entry.row for entry in corrections.left_out if entry.row not in positions]:
        raise SheetError(
            say("The corrections leave out row {row}, but the sheet does not have this row.", row=missing[0])
        )
    addresses = [(edit.row, edit.column) for edit in corrections.edits]
    edited_cells = pl.DataFrame(addresses, schema={"row": pl.UInt32, "column": pl.String}, orient="row")
    left_out = build_findings(
        (entry.row, "", None, LEFT_OUT, say("Left out by {by}, so not paid with this sheet.", by=entry.by))
        for entry in corrections.left_out
    )
    other_defects = sheet.defects.join(edited_cells, on=["row", "column"], how="anti")
    return replace(
        sheet,
        frame=frame,
        defects=pl.concat([other_defects, left_out]).match_to_schema(DEFECT_SCHEMA),
        warnings=sheet.warnings.join(edited_cells, on=["row", "column"], how="anti"),
    )


def parse_cell(text: str) -> str | None:
    """Return the text typed into a cell, or None if it is blank. Raises `SheetError` for invalid text."""
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
    """Map `rows` to their positions in the frame. Rows that it does not have are omitted."""
    positions = frame["row"].is_in(pl.Series(rows, dtype=pl.UInt32).implode()).arg_true()
    return dict(zip(frame["row"].gather(positions), positions, strict=True))


def _apply_edits(frame: pl.DataFrame, edits: Sequence[CellEdit]) -> pl.DataFrame:
    positions = _row_positions(frame, [edit.row for edit in edits])
    by_column: dict[str, list[CellEdit]] = defaultdict(list)
    for edit in edits:
        by_column[edit.column].append(edit)
    changed_columns = []
    for column, column_edits in by_column.items():
        if column not in frame.columns[1:]:
            raise SheetError(
                say("The corrections change column {column}, but the sheet does not have this column.", column=column)
            )
        cells = frame[column].clone()
        for edit in column_edits:
            position = positions.get(edit.row)
            if position is None or cells[position] != edit.was:
                raise SheetError(
                    say("Row {row}, column {column}, has changed since it was corrected.", row=edit.row, column=column)
                )
            cells[position] = edit.now
        changed_columns.append(cells.alias(column))
    return frame.with_columns(changed_columns)


MAX_EDITS = 20_000
"""The maximum number of corrected cells. Beyond it, the file itself must be corrected."""
_MAX_BYTES = 64 * 1024 * 1024


def read_corrections(path: Path) -> Corrections:
    """Read corrections from a file. Raises `SheetError` if it is missing or unreadable."""
    try:
        content = json.loads(read_regular(path, _MAX_BYTES))
        return Corrections(
            str(content["sheet_sha256"]),
            tuple(CellEdit(**fields) for fields in content["edits"]),
            tuple(RowLeftOut(**fields) for fields in content["left_out"]),
            tuple(HeadingMeaning(**fields) for fields in content["headings"]),
        )
    except OSError as error:
        reason = say(str(error.strerror))
        raise SheetError(
            say("{path} cannot be read: {reason}.", path=path, reason=reason), hint=say("Check the path.")
        ) from None
    except (ValueError, TypeError, KeyError):
        raise SheetError(
            say("{name} is not a corrections file.", name=path.name),
            hint=say("Nothing was sent. Use --mended with the file that the console wrote for this sheet."),
            for_terminal=True,
        ) from None


def write_corrections(corrections: Corrections, path: Path) -> None:
    write_atomically(path, (json.dumps(asdict(corrections), ensure_ascii=False, indent=1) + "\n").encode())


def add_edits(
    corrections: Corrections, cells: Iterable[tuple[int, str, str | None, str]], *, by: str, at: str
) -> Corrections:
    """Edit `cells` (row, column, text in the file, new text). Identical texts undo an edit. Raises `SheetError`."""
    edits = {(edit.row, edit.column): edit for edit in corrections.edits}
    for row, column, old_text, text in cells:
        new_text = parse_cell(text)
        edits.pop((row, column), None)
        if new_text != old_text:
            edits[row, column] = CellEdit(row, column, old_text, new_text, by, at)
    if len(edits) > MAX_EDITS:
        raise SheetError(say("Too many cells were corrected here. Correct the file itself and upload it again."))
    return replace(corrections, edits=tuple(edits.values()))


def set_row_left_out(corrections: Corrections, row: int, *, is_out: bool, by: str, at: str) -> Corrections:
    """Leave a row out, or include it again if not `is_out`."""
    other_rows = tuple(left_out for left_out in corrections.left_out if left_out.row != row)
    return replace(corrections, left_out=(*other_rows, RowLeftOut(row, by, at)) if is_out else other_rows)


def set_headings(corrections: Corrections, columns_by_heading: Mapping[str, str], *, by: str, at: str) -> Corrections:
    """Map headings to columns, and drop all edits. Raises `SheetError` if two headings have the same column."""
    heading_by_column: dict[str, str] = {}
    for heading, column in columns_by_heading.items():
        if column and heading_by_column.setdefault(column, heading) != heading:
            raise SheetError(
                say(
                    "{heading!r} and {other!r} cannot both be the column {column}.",
                    heading=heading_by_column[column],
                    other=heading,
                    column=column,
                ),
                hint=say("Choose another column for one of the headings, or mark it as not used."),
            )
    headings = tuple(HeadingMeaning(heading, column, by, at) for heading, column in columns_by_heading.items())
    return replace(corrections, edits=(), headings=headings)
