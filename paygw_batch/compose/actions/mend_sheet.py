"""Keeps the corrections of a sheet in a file beside it, and suggests mended texts."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetError
from paygw_batch.files import write_whole
from paygw_batch.language import in_all_languages, say
from paygw_batch.sheet.check.mending import CellEdit, MeantHeading, Mending, RowLeftOut, plain_cell

MOST_EDITS = 20_000
"""More corrections than this are made in the file itself."""
_MOST_BYTES = 64 * 1024 * 1024


def read_mending(path: Path) -> Mending:
    """Return the corrections in a file. Raises `SheetError` when there are none, or it does not read as such."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
        return Mending(
            str(found["sheet_sha256"]),
            tuple(CellEdit(**one) for one in found["edits"]),
            tuple(RowLeftOut(**one) for one in found["left_out"]),
            tuple(MeantHeading(**one) for one in found.get("headings", ())),  # earlier versions wrote none
        )
    except (OSError, ValueError, TypeError, KeyError):
        raise SheetError(say("{name} does not read as the corrections of a sheet.", name=path.name)) from None


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
    if len(edits) > MOST_EDITS:
        raise SheetError(say("Too many cells were mended here: correct the file itself, and upload it again."))
    return replace(mending, edits=tuple(edits.values()))


def with_row_out(mending: Mending, row: int, *, by: str, at: str) -> Mending:
    """Return the corrections with a row left out, or taken back where it was left out before."""
    others = tuple(one for one in mending.left_out if one.row != row)
    is_out = len(others) < len(mending.left_out)
    return replace(mending, left_out=others if is_out else (*others, RowLeftOut(row, by, at)))


def with_headings(mending: Mending, meant: Mapping[str, str], *, by: str, at: str) -> Mending:
    """Return the corrections with the meaning of headings: a heading -> our column, or nothing (empty).

    Mended cells are forgotten: they are known by their columns. Raises `SheetError` where two headings mean one column.
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
                hint=say("Choose another column for one of the two, or that it is not used."),
            )
    headings = tuple(MeantHeading(heading, column, by, at) for heading, column in meant.items())
    return replace(mending, edits=(), headings=headings)


def suggestion(code: str, message: str, country: str | None, rules: Rules) -> str | None:
    """Return the one text that mends a cell, where there is one: "" for leaving it empty, None for no answer."""
    column, _, what = code.partition(".")
    if what == "not_used":
        return ""
    if code == "currency.mismatch" and country is not None and country in rules:
        return rules[country].currency
    found = _write_pattern().search(message)
    if (
        column in {"amount", "country"}
        and found is not None
        and not any(word in message for word in in_all_languages(" or "))
    ):
        return found.group(1)
    return None


def _write_pattern() -> re.Pattern[str]:
    """Return the pattern of the end of a sentence that names the one right text, in any language."""
    middles = (
        said.partition("{value}")[2].partition("{code}")[0] for said in in_all_languages("{value}: write {code}.")
    )
    return re.compile(rf"(?:{'|'.join(map(re.escape, middles))})([^\s,;]+?)\.?$")
