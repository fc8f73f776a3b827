"""Decodes text files strictly, by byte order mark or encoding. Nothing is guessed, and no character is lost."""

import codecs
import re
from dataclasses import dataclass

from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.language import say

UTF8_MARK = codecs.BOM_UTF8
_CHUNK_BYTES = 1 << 17
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it starts with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_END_OF_FILE = b"\x1a"  # the last byte of a DOS text file
_ALL_BYTES = bytes(range(0x100))
_MAX_SAMPLE_CHARACTERS = 60
_LONE_RETURN = re.compile(rb"\r(?!\n)")


class NotUtf8(SheetError):
    """The text is not UTF-8, and its encoding was not specified."""


def to_utf8(data: bytes, *, encoding: str | None, file: str) -> bytes:
    """Convert a text file to UTF-8 without a byte order mark. Lines end with LF or CR LF.

    Text without a byte order mark must be UTF-8 or in `encoding`. Raises `NotUtf8` if it is neither, and `SheetError`
    if it contains NUL.
    """
    text = _normalise_line_ends(_decode(data, encoding, file))
    if (position := text.find(b"\0")) >= 0:
        raise SheetError(
            say(
                "{file}, line {line}: the text contains a NUL byte. The file is damaged, or is UTF-16 without a byte "
                "order mark.",
                file=file,
                line=text.count(b"\n", 0, position) + 1,
            ),
            hint=say('Save it again as "CSV UTF-8".'),
        )
    unterminated = text.rstrip(b"\r\n")
    return unterminated.rstrip(_END_OF_FILE) if unterminated.endswith(_END_OF_FILE) else text


@dataclass(frozen=True, slots=True)
class LineMarks:
    """The bytes that separate a text's lines and fields.

    `marks` holds all delimiters, quotation marks and line ends, in order. `line_count` includes a last line that has no
    line end.
    """

    delimiter: bytes
    marks: bytes
    line_count: int

    @classmethod
    def scan(cls, text: bytes, delimiter: bytes, offset: int) -> "LineMarks":
        other_bytes = _ALL_BYTES.translate(None, delimiter + b'"\r\n')
        starts = range(offset, len(text), _CHUNK_BYTES)
        marks = b"".join(text[start : start + _CHUNK_BYTES].translate(None, other_bytes) for start in starts)
        lacks_line_end = len(text) > offset and not text.endswith(b"\n")
        return cls(delimiter, marks, marks.count(b"\n") + lacks_line_end)

    def are_uniform(self, delimiter_count: int) -> bool:
        """Return whether each line has exactly this many delimiters and no quotation mark."""
        line_end = b"\r\n" if self.marks[delimiter_count : delimiter_count + 1] == b"\r" else b"\n"
        expected = (self.delimiter * delimiter_count + line_end) * self.line_count
        return self.marks in (expected, expected.removesuffix(line_end))


def _decode(data: bytes, encoding: str | None, file: str) -> bytes:
    for mark, mark_encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _transcode(data, mark_encoding, file)
    data = data.removeprefix(UTF8_MARK)
    invalid_at = _find_invalid_byte(data)
    if invalid_at is None:
        return data
    if encoding is not None:
        return _transcode(data, encoding, file)
    line = data.count(b"\n", 0, invalid_at) + 1
    raise NotUtf8(
        say("{file}, line {line}: the text is not UTF-8.", file=file, line=line),
        hint=say('Save it as "CSV UTF-8", or specify its encoding.'),
    )


def needs_encoding(data: bytes) -> bool:
    """Return whether a text is not UTF-8 and has no byte order mark, so that its encoding must be specified."""
    has_mark = any(data.startswith(mark) for mark, _ in _BYTE_ORDER_MARKS)
    return not has_mark and _find_invalid_byte(data.removeprefix(UTF8_MARK)) is not None


def sample_fields(data: bytes, encoding: str, *, max_fields: int) -> list[str]:
    """Return a few non-ASCII fields from a text in `encoding`, or an empty list if decoding fails."""
    try:
        lines = data.decode(encoding).splitlines()
    except UnicodeError:
        return []
    samples: dict[str, None] = {}
    for line in (*lines[1:], *lines[:1]):  # the first line probably has headings, and names are better samples
        if len(samples) >= max_fields:
            break
        if line.isascii():
            continue
        delimiter = max(";,\t|", key=line.count)
        fields = (field.strip(' "') for field in line.split(delimiter))
        samples |= {field: None for field in fields if not field.isascii() and len(field) <= _MAX_SAMPLE_CHARACTERS}
    return list(samples)[:max_fields]


def _find_invalid_byte(data: bytes) -> int | None:
    """Return the offset of the first byte that is not UTF-8, or None. Decoding in chunks saves memory."""
    if data.isascii():
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    end = 0
    try:
        while end < len(data):
            start, end = end, min(end + _CHUNK_BYTES, len(data))
            decoder.decode(data[start:end], final=end == len(data))
    except UnicodeDecodeError as error:
        # `error.object` begins before this chunk if the previous one ended within a character.
        return end - len(error.object) + error.start
    return None


def _transcode(data: bytes, encoding: str, file: str) -> bytes:
    try:
        return data.decode(encoding).encode()
    except LookupError as error:
        raise ConfigurationError(
            say("{encoding!r} is not a text encoding.", encoding=encoding),
            hint=say('Use an encoding such as "cp1252" or "cp1256".'),
        ) from error
    except UnicodeError as error:
        position = error.start if isinstance(error, UnicodeDecodeError) else 0
        raise SheetError(
            say(
                "{file}: the text is not valid {encoding} (at byte {start}).",
                file=file,
                encoding=encoding.upper(),
                start=position + 1,
            ),
            hint=say('Save it as "CSV UTF-8".'),
        ) from error


def _normalise_line_ends(text: bytes) -> bytes:
    if text.find(b"\r") < 0:
        return text
    if text.find(b"\n") < 0:
        return text.replace(b"\r", b"\n")
    return text if text.count(b"\r") == text.count(b"\r\n") else _LONE_RETURN.sub(b"\n", text)
