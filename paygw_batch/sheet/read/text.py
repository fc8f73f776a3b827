"""Decodes the bytes of a text file strictly, by byte order mark or encoding. Nothing is guessed or lost."""

import codecs
import re
from dataclasses import dataclass

from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.language import say

UTF8_MARK = codecs.BOM_UTF8
_CHUNK_BYTES = 1 << 17
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it starts with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_END_OF_FILE = b"\x1a"  # the last byte of a text file of DOS
_EVERY_BYTE = bytes(range(0x100))
_SAMPLE_CHARACTERS = 60
_LONE_RETURN = re.compile(rb"\r(?!\n)")


class NotUtf8(SheetError):
    """A text states no encoding, is not UTF-8, and nobody has named its encoding."""


def to_utf8(data: bytes, *, encoding: str | None, file: str) -> bytes:
    """Return the bytes of a text file as UTF-8 without mark and NUL, with LF or CR LF as line ends.

    The encoding is that of a byte order mark, or else strict UTF-8, or else `encoding`, if a person or the
    configuration names one. Raises `NotUtf8` if nobody does, and `SheetError` for a NUL, with its line.
    """
    text = _line_ends(_decoded(data, encoding, file))
    if (at := text.find(b"\0")) >= 0:
        raise SheetError(
            say(
                "{file}, line {line}: the text holds a NUL byte; it is damaged, or UTF-16 without its mark.",
                file=file,
                line=text.count(b"\n", 0, at) + 1,
            ),
            hint=say('Save it again as "CSV UTF-8".'),
        )
    end = text.rstrip(b"\r\n")
    return end.rstrip(_END_OF_FILE) if end.endswith(_END_OF_FILE) else text


@dataclass(frozen=True, slots=True)
class Marks:
    """The bytes that divide the whole lines of a text, in their order, found in one pass.

    `found` has every `delimiter`, quotation mark and line end. `lines` counts the lines, also a last one without an
    end.
    """

    delimiter: bytes
    found: bytes
    lines: int

    @classmethod
    def of(cls, text: bytes, delimiter: bytes, begin: int = 0) -> "Marks":
        unmarked = _EVERY_BYTE.translate(None, delimiter + b'"\r\n')
        places = range(begin, len(text), _CHUNK_BYTES)
        marks = b"".join(text[at : at + _CHUNK_BYTES].translate(None, unmarked) for at in places)
        has_open_line = len(text) > begin and not text.endswith(b"\n")
        return cls(delimiter, marks, marks.count(b"\n") + has_open_line)

    def are_alike(self, delimiters: int) -> bool:
        """Whether each line has that number of delimiters, and no quotation mark."""
        line_end = b"\r\n" if self.found[delimiters : delimiters + 1] == b"\r" else b"\n"
        alike = (self.delimiter * delimiters + line_end) * self.lines
        return self.found in (alike, alike.removesuffix(line_end))


def _decoded(data: bytes, encoding: str | None, file: str) -> bytes:
    for mark, marked in _MARKS:
        if data.startswith(mark):
            return _recoded(data, marked, file)
    data = data.removeprefix(UTF8_MARK)
    wrong_at = _not_utf8_at(data)
    if wrong_at is None:
        return data
    if encoding is not None:
        return _recoded(data, encoding, file)
    line = data.count(b"\n", 0, wrong_at) + 1
    raise NotUtf8(
        say("{file}, line {line}: the text is not UTF-8.", file=file, line=line),
        hint=say('Save it as "CSV UTF-8", or name its encoding.'),
    )


def needs_encoding(data: bytes) -> bool:
    """Whether a text is not UTF-8 and has no byte order mark, so that a person must name its encoding."""
    has_mark = any(data.startswith(mark) for mark, _ in _MARKS)
    return not has_mark and _not_utf8_at(data.removeprefix(UTF8_MARK)) is not None


def samples_of(data: bytes, encoding: str, *, most: int) -> list[str]:
    """Return a few fields of a text that are not ASCII, as read in `encoding`; none if the text cannot be read in it.

    Fields of the first line come last, because they are likely to be headings, and names show more.
    """
    try:
        lines = data.decode(encoding).splitlines()
    except UnicodeError:
        return []
    samples: dict[str, None] = {}
    for line in (*lines[1:], *lines[:1]):
        if len(samples) >= most:
            break
        if line.isascii():
            continue
        delimiter = max(";,\t|", key=line.count)
        fields = (field.strip(' "') for field in line.split(delimiter))
        samples |= {field: None for field in fields if not field.isascii() and len(field) <= _SAMPLE_CHARACTERS}
    return list(samples)[:most]


def _not_utf8_at(data: bytes) -> int | None:
    """Return the place where strict UTF-8 ends, or None. Decoding in chunks limits the memory."""
    if data.isascii():
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    at = 0
    try:
        for at in range(0, len(data), _CHUNK_BYTES):
            decoder.decode(data[at : at + _CHUNK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return min(at + error.start, len(data))
    return None


def _recoded(data: bytes, encoding: str, file: str) -> bytes:
    try:
        return data.decode(encoding).encode()
    except LookupError as error:
        raise ConfigurationError(
            say("{encoding!r} is not a text encoding.", encoding=encoding),
            hint=say('For example "cp1252" or "cp1256".'),
        ) from error
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        raise SheetError(
            say(
                "{file}: the text is not {encoding} (at byte {start}).",
                file=file,
                encoding=encoding.upper(),
                start=start + 1,
            ),
            hint=say('Save it as "CSV UTF-8".'),
        ) from error


def _line_ends(text: bytes) -> bytes:
    if text.find(b"\r") < 0:
        return text
    if text.find(b"\n") < 0:
        return text.replace(b"\r", b"\n")
    return text if text.count(b"\r") == text.count(b"\r\n") else _LONE_RETURN.sub(b"\n", text)
