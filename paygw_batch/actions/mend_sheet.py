"""Keeps the corrections of a sheet in a file beside it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from paygw_batch.errors import SheetError
from paygw_batch.files import read_regular, write_whole
from paygw_batch.language import say
from paygw_batch.sheet.check.mending import CellEdit, MeantHeading, Mending, RowLeftOut, plain_cell

MAX_EDITS = 20_000
"""More corrections than this are made in the file itself."""
_MAX_BYTES = 64 * 1024 * 1024


def read_mending(path: Path) -> Mending:
    """Return the corrections in a file. Raises `SheetError` when there are none, or it does not read as such."""
    try:
        found = json.loads(read_regular(path, _MAX_BYTES))
        return Mending(
            str(found["sheet_sha256"]),
            tuple(CellEdit(**one) for one in found["edits"]),
            tuple(RowLeftOut(**one) for one in found["left_out"]),
            tuple(MeantHeading(**one) for one in found["headings"]),
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
    """Write the corrections of a sheet, whole or not at all."""
    write_whole(path, (json.dumps(asdict(mending), ensure_ascii=False, indent=1) + "\n").encode())


def with_edits(mending: Mending, cells: Iterable[tuple[int, str, str | None, str]], *, by: str, at: str) -> Mending:
    """Return the corrections with more: row, column, the text of the file, and the typed one.

    The text of the file typed again takes a correction back. Raises `SheetError` for a text that no cell can hold.
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
    """Return the corrections with a row left out, or (without `is_out`) taken back."""
    others = tuple(one for one in mending.left_out if one.row != row)
    return replace(mending, left_out=(*others, RowLeftOut(row, by, at)) if is_out else others)


def with_headings(mending: Mending, meant: Mapping[str, str], *, by: str, at: str) -> Mending:
    """Return the corrections with the meaning of headings: a heading -> our column, or nothing (empty).

    Mended cells are forgotten: they are known by their columns. Raises `SheetError` if two headings mean one column.
    """
    seen: dict[str, str] = {}
    for heading, column in meant.items():
        if column and seen.setdefault(column, heading) != heading:
            raise SheetError(
                say(
                    "{heading!r} and {other!r} cannot both be the column {column}.",
                    heading=seen[column],
                    other=heading,
                    column=column,
                ),
                hint=say("Choose another column for one of them, or mark it as not used."),
            )
    headings = tuple(MeantHeading(heading, column, by, at) for heading, column in meant.items())
    return replace(mending, edits=(), headings=headings)
