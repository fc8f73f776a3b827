"""Recognises a file's format by its name and first bytes."""

from enum import StrEnum
from pathlib import Path

from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say


class FileKind(StrEnum):
    """A file format for sheets. Its value is its name in messages."""

    DELIMITED = mark("delimited text")
    PARQUET = mark("Parquet")
    WORKBOOK = mark("a workbook (.xlsx)")


_KINDS = {
    ".csv": FileKind.DELIMITED,
    ".txt": FileKind.DELIMITED,
    ".tsv": FileKind.DELIMITED,
    ".parquet": FileKind.PARQUET,
    ".xlsx": FileKind.WORKBOOK,
}
SHEET_EXTENSIONS = tuple(_KINDS)
_COMPOUND = b"\xd0\xcf\x11\xe0"
"""The first bytes of a compound file: an .xls, or a workbook protected by a password."""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
"""The part of a compound file that holds an encrypted workbook (MS-OFFCRYPTO)."""
_UNSUPPORTED_SPREADSHEETS = (".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_PICTURE = "a picture"
_FIRST_BYTES = (
    (b"PAR1", FileKind.PARQUET),
    (b"PK\x03\x04", FileKind.WORKBOOK),
    (_COMPOUND, mark("an old workbook (.xls)")),
    ((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"II*\x00", b"MM\x00*"), _PICTURE),
    ((b"PK\x05\x06", b"PK\x07\x08"), mark("a zip archive")),
    (b"\x1f\x8b", mark("compressed (gzip)")),
    (b"BZh", mark("compressed (bzip2)")),
    (b"\xfd7zXZ", mark("compressed (xz)")),
    (b"(\xb5/\xfd", mark("compressed (zstd)")),
    (b"7z\xbc\xaf", mark("a 7z archive")),
    (b"%PDF", mark("a PDF")),
    (b"{\\rtf", mark("a text document (RTF)")),
    (b"SQLite format 3", mark("a database")),
    (b"ARROW1", mark("an Arrow file")),
    (b"<", mark("HTML or XML")),
)
"""The first bytes of formats other than delimited text, some of which people mistake for sheets."""


def file_kind(file: str) -> FileKind:
    """Return the format for a file's extension. Raises `SheetError` if it is unknown."""
    extension = Path(file).suffix.lower()
    if extension in _UNSUPPORTED_SPREADSHEETS:
        raise SheetError(
            say("{file} is in an unsupported spreadsheet format ({ending}).", file=file, ending=extension),
            hint=say('Open it in your spreadsheet program and save it as .xlsx or "CSV UTF-8".'),
        )
    if extension not in _KINDS:
        raise SheetError(
            say("{file} must have one of these extensions: {kinds}.", file=file, kinds=", ".join(_KINDS)),
            hint=say('Save it as .xlsx or "CSV UTF-8" in your spreadsheet program.'),
        )
    return _KINDS[extension]


def check_first_bytes(data: bytes, kind: FileKind, file: str) -> None:
    """Raise `SheetError` if a file's first bytes contradict its extension, or if it is protected by a password."""
    if data.startswith(_COMPOUND) and _ENCRYPTED in data:
        raise SheetError(
            say("{file} is protected by a password.", file=file),
            hint=say("Open it with the password in your spreadsheet program, and save a copy without a password."),
        )
    start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    found = next((name for first_bytes, name in _FIRST_BYTES if start.startswith(first_bytes)), FileKind.DELIMITED)
    if found == _PICTURE:
        raise SheetError(
            say("{file} is actually a picture.", file=file),
            hint=say("Ask the sender for the sheet itself. Figures copied from a picture cannot be checked."),
        )
    if found is not kind:
        hint = (
            say("Rename it.")
            if found in set(_KINDS.values())
            else say("Save it as .csv or .xlsx in your spreadsheet program.")
        )
        raise SheetError(
            say("{file} is named like {kind}, but is actually {found}.", file=file, kind=say(kind), found=say(found)),
            hint=hint,
        )
