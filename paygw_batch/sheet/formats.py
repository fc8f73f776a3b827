"""Defines the formats in which tables are written.

A file's extension selects one of `FORMATS`. Every command uses this module to check which files it may overwrite. So
a format's library is loaded only when a table is written.
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
from paygw_batch.files import read_head
from paygw_batch.language import say

if TYPE_CHECKING:
    from polars import DataFrame
_MAX_HEADING_BYTES = 64 * 1024
_MAX_SEARCHED_BYTES = 64 * 1024 * 1024
_FOOTER_BYTES = 8
"""The length of a Parquet file's end: the size of its metadata, and a magic number."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A file format for tables.

    `write` takes a frame in pieces. `recognise` returns whether a file starts with the given columns, as ours do. If
    `is_readable`, sheets can have this format. If `is_guarded`, `'` is added before text that looks like a formula.
    """

    extension: str
    write: "Callable[[Iterable[DataFrame], IO[bytes]], None]"
    recognise: Callable[[Path, Sequence[str]], bool]
    is_readable: bool = True
    is_guarded: bool = False
    max_rows: int | None = None
    library: str = ""
    """The library that writes the format, if the extra `excel` installs it."""


def table_format(path: Path, *, must_be_readable: bool = False) -> TableFormat:
    """Return the format for a file's extension. Raises `OutputError` if it is unknown, or needs a missing library."""
    formats = {entry.extension: entry for entry in FORMATS if entry.is_readable or not must_be_readable}
    if (output_format := formats.get(path.suffix.lower())) is None:
        raise OutputError(
            say("{name} must have one of these extensions: {endings}.", name=path.name, endings=", ".join(formats)),
            hint=say("The extension determines the format."),
        )
    if output_format.library and importlib.util.find_spec(output_format.library) is None:
        raise OutputError(
            say("{name}: writing .xlsx needs the extra `excel`.", name=path.name),
            hint=say("Install it: {command}. Or write .csv or .parquet.", command=install_command("excel")),
        )
    return output_format


def workbook_options() -> dict[str, Any]:
    """Return xlsxwriter options that keep text as text and never write payee data to temporary files."""
    return {"strings_to_formulas": False, "strings_to_numbers": False, "strings_to_urls": False, "in_memory": True}


def _write_csv(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    for index, piece in enumerate(pieces):
        piece.write_csv(file, include_header=index == 0)


def _write_parquet(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    from polars.io.plugins import register_io_source  # noqa: PLC0415 (`status` reads no table)

    other_pieces = iter(pieces)
    if (first := next(other_pieces, None)) is None:
        return
    errors: list[BaseException] = []

    def stream_pieces(*_: object) -> "Iterator[DataFrame]":
        try:
            yield first
            yield from other_pieces
        except BaseException as error:
            errors.append(error)
            raise

    try:
        register_io_source(stream_pieces, schema=first.schema).sink_parquet(file)
    finally:
        if errors:  # polars raised a different exception
            raise errors[0] from None


def _write_workbook(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    with Workbook(file, workbook_options()) as workbook:
        table = reduce(lambda frame, piece: frame.vstack(piece), pieces)
        integers = [name for name, dtype in table.schema.items() if dtype.is_integer()]
        table.write_excel(workbook, autofilter=False, column_formats=dict.fromkeys(integers, "0"))


def _has_csv_columns(path: Path, names: Sequence[str]) -> bool:
    """Return whether a CSV file starts with these columns, even if a spreadsheet has saved it again."""
    line = read_head(path, _MAX_HEADING_BYTES).decode("utf-8-sig", "replace").partition("\n")[0].rstrip("\r")
    rows = ([cell.strip().strip('"') for cell in line.split(delimiter)] for delimiter in ",;\t")
    return any(cells[: len(names)] == [*names] for cells in rows)


def _has_parquet_columns(path: Path, names: Sequence[str]) -> bool:
    """Return whether a Parquet file's metadata lists these columns, in order. No row is decoded."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - _FOOTER_BYTES))
            tail = file.read(_FOOTER_BYTES)
            footer_bytes = int.from_bytes(tail[:4], "little")
            if tail[4:] != b"PAR1" or footer_bytes > size - _FOOTER_BYTES:
                return False
            file.seek(size - _FOOTER_BYTES - footer_bytes)
            footer = file.read(min(footer_bytes, _MAX_SEARCHED_BYTES))
    except OSError:
        return False
    return re.search(b".*".join(re.escape(name.encode()) for name in names), footer, re.DOTALL) is not None


def _has_workbook_columns(path: Path, names: Sequence[str]) -> bool:
    return contains_texts(path, [f">{name}</t>" for name in names])


def contains_texts(path: Path, texts: Sequence[str]) -> bool:
    """Return whether a workbook contains all these strings, shared or in cells."""
    missing, remaining_bytes = {text.encode() for text in texts}, _MAX_SEARCHED_BYTES
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):  # shared strings come before worksheets
                if name == "xl/sharedStrings.xml" or name.startswith("xl/worksheets/sheet"):
                    with archive.open(name) as part:
                        content = part.read(remaining_bytes)
                    remaining_bytes -= len(content)
                    missing = {text for text in missing if text not in content}
    except (OSError, ValueError, NotImplementedError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    return not missing


FORMATS = (
    TableFormat(".csv", _write_csv, _has_csv_columns, is_guarded=True),
    TableFormat(".parquet", _write_parquet, _has_parquet_columns),
    TableFormat(".xlsx", _write_workbook, _has_workbook_columns, max_rows=1_048_575, library="xlsxwriter"),
)
"""All formats. `max_rows` excludes the headings."""
