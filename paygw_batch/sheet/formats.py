"""Defines the formats in which tables are written.

The ending of a file's name chooses one; each is an entry of `FORMATS`. A format's library is loaded only when a table
is written, because every command asks here which files it may overwrite.
"""

import importlib.util
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paygw_batch.errors import OutputError
from paygw_batch.extras import install_command
from paygw_batch.files import head_of
from paygw_batch.language import say

if TYPE_CHECKING:
    from polars import DataFrame

_HEAD_BYTES = 64 * 1024
_MAX_STRINGS_BYTES = 64 * 1024 * 1024
"""The number of bytes of a workbook's strings in which we look for ours."""
_FOOTER_BYTES = 8
"""The length of the end of a Parquet file, which has the size of the metadata and a mark."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A format of tables.

    `write` gets a frame in pieces. `recognise` finds out by the first columns whether a file is ours. `is_readable`: a
    sheet can have this format, so a person can send the file back. `is_guarded`: texts that a spreadsheet would take
    for formulas are guarded.
    """

    ending: str
    write: "Callable[[Iterable[DataFrame], IO[bytes]], None]"
    recognise: Callable[[Path, Sequence[str]], bool]
    is_readable: bool = True
    is_guarded: bool = False
    max_rows: int | None = None
    library: str = ""
    """The library that writes the format, if the extra `excel` installs it."""


def table_format(path: Path, *, is_read_again: bool = False) -> TableFormat:
    """Return the format that a file's ending names. Raises `OutputError` if it cannot be written, or read again."""
    endings = [entry.ending for entry in FORMATS if entry.is_readable or not is_read_again]
    ending = path.suffix.lower()
    if ending not in endings:
        raise OutputError(
            say("{name} ends in none of {endings}.", name=path.name, endings=", ".join(endings)),
            hint=say("The ending decides the format."),
        )
    chosen = next(entry for entry in FORMATS if entry.ending == ending)
    if chosen.library and importlib.util.find_spec(chosen.library) is None:
        raise OutputError(
            say("{name}: writing .xlsx needs the extra `excel`.", name=path.name),
            hint=say("Install it: {command}. Or write .csv or .parquet.", command=install_command("excel")),
        )
    return chosen


def workbook_options() -> dict[str, Any]:
    """Return the options of every workbook. Text stays text, and no temporary file contains payees' data."""
    return {"strings_to_formulas": False, "strings_to_numbers": False, "strings_to_urls": False, "in_memory": True}


def _write_csv(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    for place, piece in enumerate(pieces):
        piece.write_csv(file, include_header=place == 0)


def _write_parquet(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    from polars.io.plugins import register_io_source  # noqa: PLC0415 (`status` reads no table)

    remaining = iter(pieces)
    if (first := next(remaining, None)) is None:
        return
    raised: list[BaseException] = []

    def source(*_: object) -> "Iterator[DataFrame]":
        try:
            yield first
            yield from remaining
        except BaseException as error:
            raised.append(error)
            raise

    try:
        register_io_source(source, schema=first.schema).sink_parquet(file)
    finally:
        if raised:  # polars raised another class in place of this error
            raise raised[0] from None


def _write_workbook(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    with Workbook(file, workbook_options()) as workbook:
        whole = reduce(lambda frame, piece: frame.vstack(piece), pieces)
        integers = [name for name, kind in whole.schema.items() if kind.is_integer()]
        whole.write_excel(workbook, autofilter=False, column_formats=dict.fromkeys(integers, "0"))


def _has_heading(path: Path, names: Sequence[str]) -> bool:
    """Whether a text table starts with these columns, even after a spreadsheet has saved it again."""
    line = head_of(path, _HEAD_BYTES).decode("utf-8-sig", "replace").partition("\n")[0].rstrip("\r")
    tables = ([cell.strip().strip('"') for cell in line.split(delimiter)] for delimiter in ",;\t")
    return any(cells[: len(names)] == [*names] for cells in tables)


def _has_parquet_columns(path: Path, names: Sequence[str]) -> bool:
    """Whether the metadata of a Parquet file names these columns, in this order. No row is decoded."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - _FOOTER_BYTES))
            end = file.read(_FOOTER_BYTES)
            length = int.from_bytes(end[:4], "little")
            if end[4:] != b"PAR1" or length > size - _FOOTER_BYTES:
                return False
            file.seek(size - _FOOTER_BYTES - length)
            footer = file.read(min(length, _MAX_STRINGS_BYTES))
    except OSError:
        return False
    return re.search(b".*".join(re.escape(name.encode()) for name in names), footer, re.DOTALL) is not None


def _has_cells(path: Path, names: Sequence[str]) -> bool:
    return has_strings(path, [f">{name}</t>" for name in names])


def has_strings(path: Path, texts: Sequence[str]) -> bool:
    """Whether a workbook contains all these texts, in the table of shared strings or in its cells."""
    missing, remaining = {text.encode() for text in texts}, _MAX_STRINGS_BYTES
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):  # the table of shared texts comes before the worksheets
                if name == "xl/sharedStrings.xml" or name.startswith("xl/worksheets/sheet"):
                    with archive.open(name) as part:
                        content = part.read(remaining)
                    remaining -= len(content)
                    missing = {text for text in missing if text not in content}
    except (OSError, ValueError, NotImplementedError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    return not missing


FORMATS = (
    TableFormat(".csv", _write_csv, _has_heading, is_guarded=True),
    TableFormat(".parquet", _write_parquet, _has_parquet_columns),
    TableFormat(".xlsx", _write_workbook, _has_cells, max_rows=1_048_575, library="xlsxwriter"),
)
"""All formats. A worksheet has one row more than `max_rows`, for the headings."""
