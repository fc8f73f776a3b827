"""The formats in which tables are written.

A file's extension selects one of `FORMATS`. A format's library is loaded only when a table is written, because every
command uses this module to check which files it may overwrite.
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
_MAX_STRINGS_BYTES = 64 * 1024 * 1024
"""The number of bytes of a workbook's strings that are searched for ours."""
_FOOTER_BYTES = 8
"""The end of a Parquet file: the size of the metadata, and a magic number."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A format of tables.

    `write` takes a frame in pieces. `recognise` detects our files by their first columns. Sheets can be read in the
    format if it `is_readable`. If it `is_guarded`, strings that a spreadsheet would run as formulas are guarded.
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
    """Return the format for a file's extension. Raises `OutputError` if there is none."""
    extensions = [entry.extension for entry in FORMATS if entry.is_readable or not must_be_readable]
    extension = path.suffix.lower()
    if extension not in extensions:
        raise OutputError(
            say("{name} does not have one of the extensions {endings}.", name=path.name, endings=", ".join(extensions)),
            hint=say("The extension determines the format."),
        )
    output_format = next(entry for entry in FORMATS if entry.extension == extension)
    if output_format.library and importlib.util.find_spec(output_format.library) is None:
        raise OutputError(
            say("{name}: writing .xlsx needs the extra `excel`.", name=path.name),
            hint=say("Install it: {command}. Or write .csv or .parquet.", command=install_command("excel")),
        )
    return output_format


def workbook_options() -> dict[str, Any]:
    """Return options that keep text as text and payees' data out of temporary files."""
    return {"strings_to_formulas": False, "strings_to_numbers": False, "strings_to_urls": False, "in_memory": True}


def _write_csv(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    for position, piece in enumerate(pieces):
        piece.write_csv(file, include_header=position == 0)


def _write_parquet(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    from polars.io.plugins import register_io_source  # noqa: PLC0415 (`status` reads no table)

    other_pieces = iter(pieces)
    if (first := next(other_pieces, None)) is None:
        return
    raised: list[BaseException] = []

    def stream_pieces(*_: object) -> "Iterator[DataFrame]":
        try:
            yield first
            yield from other_pieces
        except BaseException as error:
            raised.append(error)
            raise

    try:
        register_io_source(stream_pieces, schema=first.schema).sink_parquet(file)
    finally:
        if raised:  # polars raised a different exception
            raise raised[0] from None


def _write_workbook(pieces: "Iterable[DataFrame]", file: IO[bytes]) -> None:
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    with Workbook(file, workbook_options()) as workbook:
        whole = reduce(lambda frame, piece: frame.vstack(piece), pieces)
        integers = [name for name, kind in whole.schema.items() if kind.is_integer()]
        whole.write_excel(workbook, autofilter=False, column_formats=dict.fromkeys(integers, "0"))


def _has_heading(path: Path, names: Sequence[str]) -> bool:
    """Return whether a text table starts with these columns, even if a spreadsheet has resaved it."""
    line = read_head(path, _MAX_HEADING_BYTES).decode("utf-8-sig", "replace").partition("\n")[0].rstrip("\r")
    tables = ([cell.strip().strip('"') for cell in line.split(delimiter)] for delimiter in ",;\t")
    return any(cells[: len(names)] == [*names] for cells in tables)


def _has_parquet_columns(path: Path, names: Sequence[str]) -> bool:
    """Return whether a Parquet file's metadata has these columns, in this order. No row is decoded."""
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


def _has_workbook_columns(path: Path, names: Sequence[str]) -> bool:
    return contains_texts(path, [f">{name}</t>" for name in names])


def contains_texts(path: Path, texts: Sequence[str]) -> bool:
    """Return whether a workbook contains all these strings, in its shared strings or its cells."""
    missing, other_pieces = {text.encode() for text in texts}, _MAX_STRINGS_BYTES
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):  # the shared strings come before the worksheets
                if name == "xl/sharedStrings.xml" or name.startswith("xl/worksheets/sheet"):
                    with archive.open(name) as part:
                        content = part.read(other_pieces)
                    other_pieces -= len(content)
                    missing = {text for text in missing if text not in content}
    except (OSError, ValueError, NotImplementedError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    return not missing


FORMATS = (
    TableFormat(".csv", _write_csv, _has_heading, is_guarded=True),
    TableFormat(".parquet", _write_parquet, _has_parquet_columns),
    TableFormat(".xlsx", _write_workbook, _has_workbook_columns, max_rows=1_048_575, library="xlsxwriter"),
)
"""All formats. `max_rows` does not count the row of headings."""
