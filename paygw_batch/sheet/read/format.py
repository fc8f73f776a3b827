"""Recognises the format of a file by its name and first bytes."""

from enum import StrEnum
from pathlib import Path

from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say


class Kind(StrEnum):
    """A format of sheets. The value is its name in messages."""

    DELIMITED = mark("delimited text")
    PARQUET = mark("Parquet")
    WORKBOOK = mark("a workbook (.xlsx)")


_KINDS = {
    ".csv": Kind.DELIMITED,
    ".txt": Kind.DELIMITED,
    ".tsv": Kind.DELIMITED,
    ".parquet": Kind.PARQUET,
    ".xlsx": Kind.WORKBOOK,
}
SHEET_EXTENSIONS = tuple(_KINDS)
"""The extensions of sheets, in lower case."""
_COMPOUND = b"\xd0\xcf\x11\xe0"
"""The first bytes of a compound file: an .xls, or a workbook with a password."""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
"""The part of a compound file with an encrypted workbook (MS-OFFCRYPTO)."""
_UNSUPPORTED_SPREADSHEETS = (".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_PICTURE = "a picture"
_FIRST_BYTES = (
    (b"PAR1", Kind.PARQUET),
    (b"PK\x03\x04", Kind.WORKBOOK),
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
"""The first bytes of files that are mistaken for sheets. No delimited text begins with them."""


def file_format(file: str) -> Kind:
    """Return the format for a file's extension. Raises `SheetError` for an unknown one."""
    extension = Path(file).suffix.lower()
    if extension in _UNSUPPORTED_SPREADSHEETS:
        raise SheetError(
            say("{file} is in an unsupported spreadsheet format ({ending}).", file=file, ending=extension),
            hint=say('Open it in the spreadsheet, and save it as .xlsx, or as "CSV UTF-8".'),
        )
    if extension not in _KINDS:
        raise SheetError(
            say("{file} does not have one of the extensions {kinds}.", file=file, kinds=", ".join(_KINDS)),
            hint=say('Save it from the spreadsheet as .xlsx, or as "CSV UTF-8".'),
        )
    return _KINDS[extension]


def check_first_bytes(data: bytes, kind: Kind, file: str) -> None:
    """Raise `SheetError` for a file whose first bytes contradict its name, or that has a password."""
    if data.startswith(_COMPOUND) and _ENCRYPTED in data:
        raise SheetError(
            say("{file} is protected by a password.", file=file),
            hint=say("Open it in the spreadsheet with the password, and save a copy without one."),
        )
    start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    actual = next((name for first, name in _FIRST_BYTES if start.startswith(first)), Kind.DELIMITED)
    if actual == _PICTURE:
        raise SheetError(
            say("{file} is actually a picture.", file=file),
            hint=say("Ask the sender for the sheet itself. Figures retyped from a picture can't be checked."),
        )
    if actual is not kind:
        hint = (
            say("Rename it.")
            if actual in set(_KINDS.values())
            else say("Save it as .csv or .xlsx from the spreadsheet.")
        )
        raise SheetError(
            say("{file} is named like {kind}, but is {found}.", file=file, kind=say(kind), found=say(actual)), hint=hint
        )
