"""Reads a sheet from one file. The file is read once, and the same bytes are hashed and parsed, as exact text."""

import errno
import hashlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.errors import Asked, SheetError, SheetQuestion
from paygw_batch.language import say
from paygw_batch.sheet.columns import columns_of_operation
from paygw_batch.sheet.findings import SHOWN_CHARACTERS
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.delimited import read_delimited
from paygw_batch.sheet.read.format import Kind, check_first_bytes, kind_of
from paygw_batch.sheet.read.frame import Table, to_sheet
from paygw_batch.sheet.read.headings import HEADER_ROWS, HeadingError, ReadOptions, SeenHeading, fold
from paygw_batch.sheet.read.parquet import read_parquet, table_of
from paygw_batch.sheet.read.text import NotUtf8, needs_encoding, samples_of, to_utf8
from paygw_batch.sheet.read.xlsx import read_workbook
from paygw_batch.sheet.read.xlsx_cells import Workbook

_OFFICE_ENCODING = "cp1252"
"""The encoding of CSV files from spreadsheets in Western Europe and French-speaking Africa."""


def read_sheet(path: Path, options: ReadOptions) -> Sheet:
    """Return the sheet in a .csv, .txt, .tsv, .parquet or .xlsx file, with every value as the text in the file.

    Raises `SheetError` if the file is missing, not regular, empty, too large, damaged, or not of the format that its
    name says; if it has no header, or lacks a column or has one twice; and if it has no row, or too many.
    """
    file = options.file or path.name
    options = replace(options, file=file)
    if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise SheetError(say("{file} is a folder.", file=file or path), hint=say("Name the sheet's file itself."))
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
            hint=say("Leave --worksheet out."),
            option="--worksheet",
        )
    sha256 = hashlib.sha256(data).hexdigest()
    match kind:
        case Kind.DELIMITED:
            table = _delimited(data, options)
        case Kind.PARQUET:
            table = read_parquet(data, options)
        case Kind.WORKBOOK:
            table = read_workbook(data, options)
    del data
    return to_sheet(table, options, sha256)


def headings_in(path: Path, options: ReadOptions) -> Sequence[SeenHeading]:
    """Return the headings of a file with the column of each, even if no row is a known header.

    Raises `SheetError` for a file that cannot be read for another reason.
    """
    try:
        sheet = read_sheet(path, options)
    except HeadingError as error:
        return error.headings
    return seen_headings(sheet.headers, sheet.unknown, sheet.frame.head(HEADER_ROWS))


def worksheets_in(path: Path, options: ReadOptions) -> Sequence[str]:
    """Return the names of a workbook's worksheets. Raises `SheetError` for a file that is no readable workbook."""
    workbook = Workbook(_bytes_of(path, options.max_sheet_bytes), file=path.name, max_bytes=options.max_sheet_bytes)
    return [part.name for part in workbook.worksheets()]


def seen_headings(headers: Mapping[str, str], unknown: Collection[str], rows: pl.DataFrame) -> list[SeenHeading]:
    texts = {name: [text[:SHOWN_CHARACTERS] for text in rows[name].drop_nulls()] for name in rows.columns[1:]}
    return [
        SeenHeading(heading, None if name in unknown else name, tuple(texts.get(name, ())))
        for name, heading in headers.items()
        if heading
    ]


def read_again(path: Path, sheet: Sheet, options: ReadOptions) -> bytes:
    """Return the bytes from which `sheet` was read. Raises `SheetError` when the file has changed since."""
    data = _bytes_of(path, options.max_sheet_bytes)
    if hashlib.sha256(data).hexdigest() != sheet.sha256:
        raise SheetError(
            say("{name} was changed since it was read.", name=path.name), hint=say("Run the command again.")
        )
    return data


def sheet_of(frame: pl.DataFrame, options: ReadOptions, *, name: str) -> Sheet:
    """Return a frame as a sheet called `name`.

    Its first row is row 2, and its types are read like those of a Parquet file. The digest of the sheet is that of the
    frame's text as CSV. Raises `SheetError` as `read_sheet` does.
    """
    options = replace(options, file=name)
    table = table_of(frame.lazy(), options)
    sha256 = hashlib.sha256(table.frame.drop("row").write_csv().encode()).hexdigest()
    return to_sheet(table, options, sha256)


def _delimited(data: bytes, options: ReadOptions) -> Table:
    try:
        text = to_utf8(data, encoding=options.encoding, file=options.file)
    except NotUtf8 as error:
        raise _which_encoding(data, error) from None
    table = read_delimited(text, options)
    if options.encoding is not None and needs_encoding(data):
        table = replace(table, encoding=options.encoding)
    return table


def _which_encoding(data: bytes, error: NotUtf8) -> SheetError:
    """Return the question which encoding a text has, with names as they read in the likeliest encoding.

    The encoding is not guessed: a text can be read in many code pages, and only a person sees whether the names are
    right.
    """
    samples = samples_of(data, _OFFICE_ENCODING, most=3)
    if not samples:
        return error
    shown = ", ".join(samples)
    return SheetQuestion(
        Asked.ENCODING,
        say(
            "{wrong} Read as {encoding}, it says: {shown}.", wrong=error.message, encoding=_OFFICE_ENCODING, shown=shown
        ),
        hint=say(
            'If that is right: --encoding {encoding}. If not, save the sheet as "CSV UTF-8".', encoding=_OFFICE_ENCODING
        ),
        question=say("Are these spelled right: {shown}?", shown=shown),
        choices=(_OFFICE_ENCODING,),
        samples=samples,
    )


def _bytes_of(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file, read once.

    Raises `SheetError` unless the file is regular, not empty, not too large, and unchanged while it is read.
    """
    try:
        # The file is opened non-blocking, because opening a FIFO would wait until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 (a descriptor)
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise SheetError(
                    say("{name} is not a regular file.", name=path.name), hint=say("Name the sheet's file itself.")
                )
            if before.st_size > max_bytes:
                raise SheetError(
                    say(
                        "{name} is {size:.1f} MiB; at most {max_bytes:.0f} MiB are allowed.",
                        name=path.name,
                        size=before.st_size / 2**20,
                        max_bytes=max_bytes / 2**20,
                    ),
                    hint=say("Split the sheet, or have the limit raised in the configuration."),
                )
            data = file.readall()
            after = os.fstat(descriptor)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise SheetError(
                say("The file's name is too long for this computer."),
                hint=say("Give it a shorter name, of at most 200 characters."),
            ) from error
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


def refuse_misdirected(sheet: Sheet, commands: Mapping[str, str]) -> None:
    """Raise `SheetError` for a sheet with the columns of another operation. `commands`: operation -> its command."""
    own = set(columns_of_operation(sheet.operation))
    headings = {fold(heading) for heading in sheet.headers.values()}
    for operation, columns in sheet_columns().of_operation.items():
        alien = [name for name in columns if name not in own and fold(name) in headings]
        has_own = any(name in sheet.headers for name in own.difference(columns))
        if operation != sheet.operation and not has_own and alien:
            raise SheetError(
                say(
                    "{name} has columns of a sheet for `{command}` ({alien}), and none that only a sheet for "
                    "`{own}` has.",
                    name=sheet.name,
                    command=commands[operation],
                    alien=", ".join(alien),
                    own=commands[sheet.operation],
                ),
                hint=say(
                    "Nothing was sent. `{command}` runs such a sheet; `--collect` is for collections.",
                    command=commands[operation],
                ),
                for_terminal=True,
            )
