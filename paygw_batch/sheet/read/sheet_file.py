"""Reads a sheet from a file. The bytes are read only once, then hashed and parsed."""

import errno
import hashlib
import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.errors import QuestionKind, SheetError, SheetQuestion
from paygw_batch.language import say
from paygw_batch.sheet.columns import operation_columns
from paygw_batch.sheet.findings import MAX_SHOWN_CHARACTERS
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.delimited import read_delimited
from paygw_batch.sheet.read.format import FileKind, check_first_bytes, file_kind
from paygw_batch.sheet.read.frame import Table, to_sheet
from paygw_batch.sheet.read.headings import HEADER_ROWS, FileHeading, HeadingError, ReadOptions, fold_heading
from paygw_batch.sheet.read.parquet import build_table, read_parquet
from paygw_batch.sheet.read.text import NotUtf8, needs_encoding, sample_fields, to_utf8
from paygw_batch.sheet.read.xlsx import read_workbook
from paygw_batch.sheet.read.xlsx_cells import Workbook

_OFFICE_ENCODING = "cp1252"
"""The encoding that spreadsheets in Western Europe and French-speaking Africa use for CSV."""


def read_sheet(path: Path, options: ReadOptions) -> Sheet:
    """Read a sheet from a .csv, .txt, .tsv, .parquet or .xlsx file, with every value as text.

    Raises `SheetError` if the file is missing, not regular, empty, too large or damaged, or has the wrong extension, a
    missing, incomplete or ambiguous header, no rows, or too many.
    """
    file = options.file or path.name
    options = replace(options, file=file)
    if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises for a name that is too long)
        raise SheetError(
            say("{file} is a folder.", file=file or path), hint=say("Specify the path of the sheet itself.")
        )
    kind = file_kind(file)
    data = _read_bytes(path, options.max_sheet_bytes)
    check_first_bytes(data, kind, file)
    if options.sheet_name is not None and kind is not FileKind.WORKBOOK:
        raise SheetError(
            say(
                "{file} is {kind} and has no worksheets, so there is no {sheet_name!r}.",
                file=file,
                kind=kind,
                sheet_name=options.sheet_name,
            ),
            hint=say("Run the command without --worksheet."),
            option="--worksheet",
        )
    sha256 = hashlib.sha256(data).hexdigest()
    match kind:
        case FileKind.DELIMITED:
            table = _read_delimited_file(data, options)
        case FileKind.PARQUET:
            table = read_parquet(data, options)
        case FileKind.WORKBOOK:
            table = read_workbook(data, options)
    del data
    return to_sheet(table, options, sha256)


def read_headings(path: Path, options: ReadOptions) -> Sequence[FileHeading]:
    """Read a file's headings and the columns that they mean, even if the header is not recognised."""
    try:
        sheet = read_sheet(path, options)
    except HeadingError as error:
        return error.headings
    return sheet_headings(sheet.headers, sheet.unknown, sheet.frame.head(HEADER_ROWS))


def list_worksheets(path: Path, options: ReadOptions) -> Sequence[str]:
    """Return the names of a workbook's worksheets. Raises `SheetError` if the workbook is unreadable."""
    workbook = Workbook(_read_bytes(path, options.max_sheet_bytes), file=path.name, max_bytes=options.max_sheet_bytes)
    return [part.name for part in workbook.worksheets()]


def sheet_headings(headers: Mapping[str, str], unknown: Collection[str], rows: pl.DataFrame) -> list[FileHeading]:
    texts = {name: [text[:MAX_SHOWN_CHARACTERS] for text in rows[name].drop_nulls()] for name in rows.columns[1:]}
    return [
        FileHeading(heading, None if name in unknown else name, tuple(texts.get(name, ())))
        for name, heading in headers.items()
        if heading
    ]


def reread_bytes(path: Path, sheet: Sheet, options: ReadOptions) -> bytes:
    """Read the bytes of `sheet` again. Raises `SheetError` if the file has changed."""
    data = _read_bytes(path, options.max_sheet_bytes)
    if hashlib.sha256(data).hexdigest() != sheet.sha256:
        raise SheetError(
            say("{name} has changed since it was read.", name=path.name), hint=say("Run the command again.")
        )
    return data


def sheet_from_frame(frame: pl.DataFrame, options: ReadOptions, *, name: str) -> Sheet:
    """Convert a frame to a sheet called `name`.

    The first row is row 2, and types are converted as in a Parquet file. The sheet's digest is that of its text as CSV.
    Raises `SheetError` like `read_sheet`.
    """
    options = replace(options, file=name)
    table = build_table(frame.lazy(), options)
    sha256 = hashlib.sha256(table.frame.drop("row").write_csv().encode()).hexdigest()
    return to_sheet(table, options, sha256)


def _read_delimited_file(data: bytes, options: ReadOptions) -> Table:
    try:
        text = to_utf8(data, encoding=options.encoding, file=options.file)
    except NotUtf8 as error:
        raise _encoding_question(data, error) from None
    table = read_delimited(text, options)
    if options.encoding is not None and needs_encoding(data):
        table = replace(table, encoding=options.encoding)
    return table


def _encoding_question(data: bytes, error: NotUtf8) -> SheetError:
    """Return a question about the encoding, or `error` if no samples can be shown.

    Most text is valid in many encodings, so only a person can tell whether names are spelled correctly.
    """
    samples = sample_fields(data, _OFFICE_ENCODING, max_fields=3)
    if not samples:
        return error
    text = ", ".join(samples)
    return SheetQuestion(
        QuestionKind.ENCODING,
        say(
            "{wrong} Read as {encoding}, it says: {shown}.", wrong=error.message, encoding=_OFFICE_ENCODING, shown=text
        ),
        hint=say(
            'If this is correct, use --encoding {encoding}. If not, save the sheet as "CSV UTF-8".',
            encoding=_OFFICE_ENCODING,
        ),
        question=say("Are these spelled correctly: {shown}?", shown=text),
        choices=(_OFFICE_ENCODING,),
        samples=samples,
    )


def _read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a file. Raises `SheetError` if it is empty, too large or not regular, or if it changes while being read."""
    try:
        # Without O_NONBLOCK, opening a FIFO would block until there is a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 (a descriptor)
            old_status = os.fstat(descriptor)
            if not stat.S_ISREG(old_status.st_mode):
                raise SheetError(
                    say("{name} is not a regular file.", name=path.name),
                    hint=say("Specify the path of the sheet itself."),
                )
            if old_status.st_size > max_bytes:
                raise SheetError(
                    say(
                        "{name} is {size:.1f} MiB, but at most {max_bytes:.0f} MiB are allowed.",
                        name=path.name,
                        size=old_status.st_size / 2**20,
                        max_bytes=max_bytes / 2**20,
                    ),
                    hint=say("Split the sheet, or have the limit raised in the configuration."),
                )
            data = file.readall()
            new_status = os.fstat(descriptor)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise SheetError(
                say("The file's name is too long for this computer."),
                hint=say("Choose a shorter name, with at most 200 characters."),
            ) from error
        raise SheetError(
            say("{path} cannot be read: {reason}.", path=path, reason=say(str(error.strerror))),
            hint=say("Check the path."),
        ) from error
    if (len(data), new_status.st_mtime_ns) != (old_status.st_size, old_status.st_mtime_ns):
        raise SheetError(
            say("{name} changed while it was being read.", name=path.name),
            hint=say("Wait until the file is complete, and try again."),
        )
    if not data:
        raise SheetError(say("{name} is empty.", name=path.name), hint=say("Save the sheet again."))
    return data


def check_operation(sheet: Sheet, commands: Mapping[str, str]) -> None:
    """Raise `SheetError` if a sheet is meant for another operation. `commands` maps operations to commands."""
    own_columns = set(operation_columns(sheet.operation))
    headings = {fold_heading(heading) for heading in sheet.headers.values()}
    for operation, columns in sheet_columns().by_operation.items():
        other_columns = [name for name in columns if name not in own_columns and fold_heading(name) in headings]
        has_own = any(name in sheet.headers for name in own_columns.difference(columns))
        if operation != sheet.operation and not has_own and other_columns:
            raise SheetError(
                say(
                    "{name} looks like a sheet for `{command}` (it has {alien}), not for `{own}`.",
                    name=sheet.name,
                    command=commands[operation],
                    alien=", ".join(other_columns),
                    own=commands[sheet.operation],
                ),
                hint=say(
                    "Nothing was sent. Use `{command}` for this sheet. `--collect` is for collections.",
                    command=commands[operation],
                ),
                for_terminal=True,
            )
