"""Recognises the format of a file by its name and by its first bytes."""

from enum import StrEnum
from pathlib import Path

from paygw_batch.errors import SheetError


class Kind(StrEnum):
    """Names a format of sheets."""

    DELIMITED = "delimited text"
    PARQUET = "Parquet"
    WORKBOOK = "a workbook (.xlsx)"


_KINDS = {
    ".csv": Kind.DELIMITED,
    ".txt": Kind.DELIMITED,
    ".tsv": Kind.DELIMITED,
    ".parquet": Kind.PARQUET,
    ".xlsx": Kind.WORKBOOK,
}
_FIRST_BYTES = (
    (b"PAR1", Kind.PARQUET),
    (b"PK\x03\x04", Kind.WORKBOOK),
    (b"\xd0\xcf\x11\xe0", "an old or an encrypted workbook"),
    (b"PK\x05\x06", "a zip archive"),
    (b"PK\x07\x08", "a zip archive"),
    (b"\x1f\x8b", "compressed (gzip)"),
    (b"BZh", "compressed (bzip2)"),
    (b"\xfd7zXZ", "compressed (xz)"),
    (b"(\xb5/\xfd", "compressed (zstd)"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"%PDF", "a PDF"),
    (b"{\\rtf", "a text document (RTF)"),
    (b"SQLite format 3", "a database"),
    (b"ARROW1", "an Arrow file"),
    (b"<", "HTML or XML"),
)
"""How the files begin that people take for a sheet, or name like one. Delimited text begins with none of these."""


def kind_of(file: str) -> Kind:
    """Return the format that a file's name says. Raises `SheetError` for a name that says nothing."""
    ending = Path(file).suffix.lower()
    if ending not in _KINDS:
        hint = 'Save it from the spreadsheet as .xlsx, or as "CSV UTF-8".'
        raise SheetError(f"{file} ends in none of {', '.join(_KINDS)}.", hint=hint)
    return _KINDS[ending]


def check_first_bytes(data: bytes, kind: Kind, file: str) -> None:
    """Raise `SheetError` for a file whose first bytes contradict its name."""
    head = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    found = next((what for mark, what in _FIRST_BYTES if head.startswith(mark)), Kind.DELIMITED)
    if found is not kind:
        hint = "Rename it." if found in set(_KINDS.values()) else "Save it as .csv or .xlsx from the spreadsheet."
        raise SheetError(f"{file} is named like {kind}, and is {found}.", hint=hint)
