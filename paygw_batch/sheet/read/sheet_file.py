"""Reading a sheet: one file, read once, hashed and parsed from the very same bytes, as exact text."""

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.pieces import InMemory, NotPlain, SheetSource, changed_since_read
from paygw_batch.sheet.read import parquet, text_stream
from paygw_batch.sheet.read.delimited import read_delimited
from paygw_batch.sheet.read.format import Kind, check_first_bytes, kind_of
from paygw_batch.sheet.read.frame import Table, refuse_control_characters, to_sheet
from paygw_batch.sheet.read.headings import HeadingError, Vocabulary
from paygw_batch.sheet.read.parquet import ParquetStream, read_parquet, table_of
from paygw_batch.sheet.read.text import has_further_controls, to_utf8
from paygw_batch.sheet.read.text_stream import TextStream
from paygw_batch.sheet.read.xlsx import read_workbook


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How sheets are read. `aliases`: a sender's heading -> our column. `sheet_name` names one sheet of a workbook.

    `profiles` are those of the `Vocabulary`.

    `operation` is what its rows are for: that says which columns are known.
    `code_page` (`cp1252`) is what a text file is tried in when it has no byte order mark and is not UTF-8.
    """

    max_rows: int = 1_000_000
    max_sheet_bytes: int = 1024 * 1024 * 1024
    code_page: str | None = None
    sheet_name: str | None = None
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    operation: str = "payout"
    profiles: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def vocabulary(self) -> Vocabulary:
        """The meaning of headings."""
        return Vocabulary(self.operation, self.aliases, self.profiles)


def read_sheet(path: Path, options: ReadOptions) -> Sheet:
    """Return the sheet in a .csv, .txt, .tsv, .parquet or .xlsx file, every value as the text it was written as.

    Raises `SheetError` for each problem of the file as a whole: missing, not a regular file, empty, too large, not
    what its name says, no header, a column missing or there twice, no row, too many rows, damaged.
    """
    file = path.name
    if path.is_dir():
        raise SheetError(say("{file} is a folder.", file=file), hint=say("Name the sheet's file itself."))
    kind = kind_of(file)
    data = _bytes_of(path, options.max_sheet_bytes)
    check_first_bytes(data, kind, file)
    if options.sheet_name is not None and kind is not Kind.WORKBOOK:
        raise SheetError(
            say(
                "{file} is {kind} and has no worksheets, so none is called {sheet_name!r}.",
                file=file,
                kind=kind,
                sheet_name=options.sheet_name,
            ),
            hint=say("Leave --sheet out."),
        )
    sha256 = hashlib.sha256(data).hexdigest()
    match kind:
        case Kind.DELIMITED:
            table = _delimited(data, options, file)
        case Kind.PARQUET:
            table = read_parquet(
                data, options.vocabulary, file=file, max_rows=options.max_rows, max_bytes=options.max_sheet_bytes
            )
        case Kind.WORKBOOK:
            table = read_workbook(
                data,
                options.vocabulary,
                file=file,
                max_bytes=options.max_sheet_bytes,
                sheet_name=options.sheet_name,
            )
    del data
    if kind is not Kind.DELIMITED:  # there, the bytes have been looked at
        refuse_control_characters(table, file)
    return to_sheet(table, operation=options.operation, file=file, sha256=sha256, max_rows=options.max_rows)


def open_sheet(path: Path, options: ReadOptions) -> SheetSource:
    """Return the sheet in a file as something that `validate` goes through: a large one is then read part by part.

    Raises `SheetError` as `read_sheet`; of a large one, what `read_sheet` would refuse is refused in going through it.
    """
    whole = partial(read_sheet, path, options)
    try:
        size = path.stat().st_size
        if options.sheet_name is None and path.is_file() and size <= options.max_sheet_bytes:
            kind = kind_of(path.name)
            if kind is Kind.DELIMITED and size > text_stream.BLOCK_BYTES:
                return TextStream(path, options.vocabulary, max_rows=options.max_rows, whole=whole)
            if kind is Kind.PARQUET and size > parquet.LARGE_BYTES:
                return _parquet_stream(path, options, whole)
    except (OSError, NotPlain):
        pass
    return InMemory(whole())


def _parquet_stream(path: Path, options: ReadOptions, whole: Callable[[], Sheet]) -> ParquetStream:
    data = _bytes_of(path, options.max_sheet_bytes)
    check_first_bytes(data, Kind.PARQUET, path.name)
    return ParquetStream(
        data,
        options.vocabulary,
        file=path.name,
        max_rows=options.max_rows,
        max_bytes=options.max_sheet_bytes,
        whole=whole,
    )


def headings_in(path: Path, options: ReadOptions) -> Sequence[tuple[str, str | None]]:
    """Return the headings of a file, each with the column that it means, also where no row is a known header.

    Raises `SheetError` for a file that cannot be read for another reason.
    """
    try:
        source = open_sheet(path, options)
    except HeadingError as error:
        return error.headings
    meant = {heading: None if name in source.unknown else name for name, heading in source.headers.items()}
    return [(heading, name) for heading, name in meant.items() if heading]


def read_again(path: Path, sheet: Sheet, options: ReadOptions) -> bytes:
    """Return the very bytes that `sheet` was read from. Raises `SheetError` when the file has others by now."""
    data = _bytes_of(path, options.max_sheet_bytes)
    if hashlib.sha256(data).hexdigest() != sheet.sha256:
        raise changed_since_read(path.name)
    return data


def sheet_of(frame: pl.DataFrame, options: ReadOptions, *, name: str) -> Sheet:
    """Return a frame as a sheet called `name`; its first row is row 2, and its types count as those of a Parquet file.

    Its digest is that of its text as CSV. Raises `SheetError` as `read_sheet` does.
    """
    table = table_of(frame, options.vocabulary, file=name)
    refuse_control_characters(table, name)
    sha256 = hashlib.sha256(table.frame.drop("row").write_csv().encode()).hexdigest()
    return to_sheet(table, operation=options.operation, file=name, sha256=sha256, max_rows=options.max_rows)


def _delimited(data: bytes, options: ReadOptions, file: str) -> Table:
    text = to_utf8(data, code_page=options.code_page, file=file)
    table = read_delimited(text, options.vocabulary, file=file)
    if has_further_controls(text):  # to_utf8 has looked for those of ASCII
        refuse_control_characters(table, file)
    return table


def _bytes_of(path: Path, max_bytes: int) -> bytes:
    """Return the file's bytes, read once.

    Raises `SheetError` unless it is a regular file, not empty, not too large, and left alone while it is read.
    """
    try:
        # Non-blocking: opening a FIFO must not wait for someone to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 (a descriptor)
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise SheetError(
                    say("{name} is no regular file.", name=path.name), hint=say("Name the sheet's file itself.")
                )
            if before.st_size > max_bytes:
                raise _too_large(path, before.st_size, max_bytes)
            data = file.readall()
            after = os.fstat(descriptor)
    except OSError as error:
        raise SheetError(
            say("{path} cannot be read: {reason}.", path=path, reason=say(str(error.strerror))),
            hint=say("Check the path."),
        ) from error
    if (len(data), after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise SheetError(
            say("{name} was changed while it was read.", name=path.name),
            hint=say("Wait until it is written, and try again."),
        )
    if not data:
        raise SheetError(say("{name} is empty.", name=path.name), hint=say("Save the sheet again."))
    return data


def _too_large(path: Path, size: int, max_bytes: int) -> SheetError:
    return SheetError(
        say(
            "{name} has {size:.1f} MiB; at most {max_bytes:.0f} are allowed.",
            name=path.name,
            size=size / 2**20,
            max_bytes=max_bytes / 2**20,
        ),
        hint=say("Split the sheet, or raise limits.max_sheet_mib in the configuration."),
    )
