"""Writes refused rows or a whole sheet for correction, as a table or as a marked copy of the sender's workbook."""

import importlib.util
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from paygw_batch.errors import OutputError, SheetError
from paygw_batch.extras import install_command
from paygw_batch.files import ProtectedFile, check_writable, write_atomically
from paygw_batch.language import mark, say
from paygw_batch.sheet.check.corrections import LEFT_OUT, CellEdit
from paygw_batch.sheet.formats import table_format
from paygw_batch.sheet.model import Sheet, Validated
from paygw_batch.sheet.read.frame import to_sheet
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import reread_bytes
from paygw_batch.sheet.read.xlsx import locate_sheet, read_workbook
from paygw_batch.sheet.write.table import rows_to_correct, write_frame

MAX_MARKED_CELLS = 300_000
"""The maximum number of cells in a marked table. The library creates an object for each."""
NO_MARKED_WORKBOOK = mark(
    "This sheet has no marked workbook, because it has too many cells or cannot be written as a workbook."
)
_FormulaCells = Mapping[str, Collection[int]]
"""A column in the sheet's frame -> the rows in which its cell contains a formula."""


@dataclass(frozen=True, slots=True)
class RejectsFile:
    """A file from `write_rejects`: a marked copy of the sender's workbook (`is_workbook`), or a table."""

    is_workbook: bool
    notes: tuple[str, ...] = ()


def write_rejects(validated: Validated, source: Path, options: ReadOptions, path: Path) -> RejectsFile:
    """Write the refused rows of the sheet at `source` to `path`.

    If both files are workbooks and the sheet can be marked, the result is a marked copy, otherwise a table. Raises
    `OutputError`, for example if `path` is the sheet itself, and `SheetError` if the sheet has changed.
    """
    table_format(path, must_be_readable=True)
    check_writable(path)
    if ProtectedFile(say("the sheet"), source).is_overwritten_by(path):
        raise OutputError(
            say("{path} is the sheet itself.", path=path),
            hint=say("Choose another file. The sheet is never overwritten."),
        )
    if {source.suffix.lower(), path.suffix.lower()} != {".xlsx"}:
        return RejectsFile(is_workbook=False, notes=_write_table(validated, path))
    result = _try_marked_copy(source, validated, options)
    if isinstance(result, str):
        write_frame(rows_to_correct(validated), path)
        template = mark("{name} is a table of the refused rows, not a marked copy of the workbook: {why}.")
        return RejectsFile(is_workbook=False, notes=(say(template, name=path.name, why=result),))
    data, notes = result
    write_atomically(path, data)
    return RejectsFile(is_workbook=True, notes=notes)


def write_marked_workbook(
    validated: Validated, source: Path, options: ReadOptions, path: Path, edits: Sequence[CellEdit]
) -> None:
    """Write the whole sheet at `source` to a workbook, with `edits` applied and every defect marked.

    If `source` is a workbook that can be marked, the file is a marked copy of it, otherwise a table of all rows. Raises
    `OutputError` if the table would be too large, and `SheetError` if `source` has changed since it was read.
    """
    result = _try_marked_copy(source, validated, options, edits) if source.suffix.lower() == ".xlsx" else ""
    if not isinstance(result, str):
        write_atomically(path, result[0])
        return
    table = rows_to_correct(validated, include_valid=True)
    if importlib.util.find_spec("openpyxl") is None or table.height * table.width > MAX_MARKED_CELLS:
        raise OutputError(say(NO_MARKED_WORKBOOK))
    from paygw_batch.sheet.write.marked_workbook import build_marked_table  # noqa: PLC0415 (needs the extra)

    write_atomically(path, build_marked_table(table, validated, title=say("Payees")))


def _write_table(validated: Validated, path: Path) -> tuple[str, ...]:
    """Write the refused rows as a table, whose faulty cells are marked in a workbook. Returns notes for the user."""
    table = rows_to_correct(validated)
    can_mark = path.suffix.lower() == ".xlsx" and importlib.util.find_spec("openpyxl") is not None
    if not can_mark or table.height * table.width > MAX_MARKED_CELLS:
        write_frame(table, path)
        note = say(
            "{name} was not marked, because it has more than {most:,} cells.", name=path.name, most=MAX_MARKED_CELLS
        )
        return (note,) if can_mark else ()
    from paygw_batch.sheet.write.marked_workbook import build_marked_table  # noqa: PLC0415 (needs the extra)

    write_atomically(path, build_marked_table(table, validated, title=say("Refused rows")))
    return ()


def _try_marked_copy(
    source: Path, validated: Validated, options: ReadOptions, edits: Sequence[CellEdit] = ()
) -> tuple[bytes, tuple[str, ...]] | str:
    """Return a marked copy with notes about it, or a clause that says why there is none."""
    if importlib.util.find_spec("openpyxl") is None:
        return say("a marked copy needs the extra `excel`: {command}", command=install_command("excel"))
    from paygw_batch.sheet.write import workbook_copy  # noqa: PLC0415 (needs the extra)
    from paygw_batch.sheet.write.marked_workbook import build_marked_copy  # noqa: PLC0415 (as above)

    data = reread_bytes(source, validated.sheet, options)
    if obstacle := workbook_copy.find_copy_obstacle(data):
        return obstacle
    # Our marks make the copy larger, so it may exceed the limit for sheets when it is read again.
    max_bytes = options.max_sheet_bytes + 4 * workbook_copy.MAX_UNPACKED_BYTES
    options = replace(options, file=source.name, max_sheet_bytes=max_bytes)
    location = locate_sheet(data, options)
    try:
        copy, formula_cells = build_marked_copy(data, location, validated, edits)
    except Exception as error:  # noqa: BLE001 (the library raises many kinds; a table is written instead)
        return say("the workbook cannot be copied ({kind})", kind=type(error).__name__)
    names, formulas = dict(enumerate(location.names, start=1)), defaultdict[str, list[int]](list)
    for row, column in formula_cells:
        formulas[names.get(column, f"column {column}")].append(row)
    if not _reads_alike(copy, formulas, validated.sheet, options):
        return say("a copy would be read differently from the workbook")
    notes = []
    if formula_cells:
        notes.append(
            say(
                "Cells with formulas: {cells:,}. They have no values in the copy. Open and save the copy in a "
                "spreadsheet program before you submit it.",
                cells=len(formula_cells),
            )
        )
    if lost := workbook_copy.lost_part_kinds(data, copy):
        notes.append(say("The copy does not have the workbook's {lost}.", lost=", ".join(say(part) for part in lost)))
    return copy, tuple(notes)


def _reads_alike(copy: bytes, formulas: _FormulaCells, original: Sheet, options: ReadOptions) -> bool:
    """Return whether the copy reads like the sheet, except for formula cells, which have no values yet."""
    try:
        table = read_workbook(copy, options)
        copied_sheet = to_sheet(table, replace(options, max_rows=table.frame.height), sha256="")
    except SheetError:
        return False
    expected, actual = _clear_formulas(original.frame, formulas), _clear_formulas(copied_sheet.frame, formulas)
    new_columns = [name for name in actual.columns if name not in expected.columns]
    return (
        set(expected.columns) <= set(actual.columns)
        and expected.equals(actual.select(expected.columns))
        and all(actual[name].null_count() == actual.height for name in new_columns)
        and _defects_outside_formulas(original, formulas).equals(_defects_outside_formulas(copied_sheet, formulas))
    )


def _clear_formulas(frame: pl.DataFrame, formulas: _FormulaCells) -> pl.DataFrame:
    """Replace formula cells with null, and drop rows that become empty."""
    cleared = frame.with_columns(
        pl.when(pl.col("row").is_in(rows)).then(None).otherwise(pl.col(name)).alias(name)
        for name, rows in formulas.items()
        if name in frame.columns
    )
    return cleared.filter(~pl.all_horizontal(pl.exclude("row").is_null()))


def _defects_outside_formulas(sheet: Sheet, formulas: _FormulaCells) -> pl.DataFrame:
    """Return the defects outside formula cells, except rows left out."""
    defects = sheet.defects.filter(pl.col("code") != LEFT_OUT)
    in_formula = [(pl.col("column") == name) & pl.col("row").is_in(rows) for name, rows in formulas.items()]
    return defects.filter(~pl.any_horizontal(in_formula)) if in_formula else defects
