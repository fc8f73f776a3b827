"""Repairs names that other programs damaged. The results are only suggestions."""

import html
import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote

import polars as pl

from paygw_batch.sheet.clean import apply_where

_CODE_PAGES = (
    ("cp1252", "[\u00c2-\u00f4]"),
    ("mac_roman", "[\u221a\u2248]|\u201a\u00c4"),
    ("cp850", "[\u251c\u253c]|\u00d4\u00c7"),
    ("cp437", "[\u251c\u253c]|\u0393\u00c7"),
)
"""Code pages for which programs mistake UTF-8, each with a pattern for the result."""
_TYPOGRAPHIC = "\u2018\u2019\u201c\u201d\u2013\u2014"


def _undo_code_page(match: re.Match[str]) -> str:
    """Decode UTF-8 that was misread as a code page. Characters that were probably intended are unchanged."""
    damaged, text = match[0], match.string
    context = text[max(0, match.start() - 1) : match.start()] + text[match.end() : match.end() + 1]
    if damaged[0] not in "\u00c2\u00c3\u00c4\u00c5" and damaged[-1] in _TYPOGRAPHIC and context.upper() == context:
        return damaged  # probably a quotation mark or dash after a capital letter
    is_latin = any(letter.isascii() and letter.isalpha() for letter in text)
    for code_page, pattern in _CODE_PAGES:
        encoded = [letter.encode(code_page, "ignore") or letter.encode("latin-1", "ignore") for letter in damaged]
        with suppress(UnicodeDecodeError):
            if (
                re.search(pattern, damaged)
                and all(encoded)
                and not _is_unlikely_name(repaired := b"".join(encoded).decode(), is_latin)
            ):
                return repaired
    return damaged


def _is_unlikely_name(text: str, is_latin: bool) -> bool:
    """Return whether a text is unlikely as a name: control characters, or other scripts in a Latin name."""
    return any(
        unicodedata.category(letter)[0] == "C"
        or (is_latin and letter.isalpha() and "LATIN" not in unicodedata.name(letter, ""))
        for letter in text
    )


_NO_VALUE = r"nan|NaN|NaT|null|undefined|<NA>|#N/A|\(null\)|\\N"
"""Words for a missing value in pandas, JavaScript and databases. None of them is a name."""
DOUBTFUL = r"\pL.*\?|\?.*\pL|\S\s+(?:None|NULL)\b|\b(?:None|NULL)\s+\S"
"""Signs of damage that cannot be repaired, such as `?` for a lost letter."""
_INVISIBLE = "[\u00ad\u200b\u2060\ufeff]|(?<=[A-Za-z])[\u200c\u200d]"
"""Invisible characters that are not part of a name. Joiners may be, except between Latin letters."""
_REPAIRS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"[^\x00-\x7f]{2,}"), _undo_code_page),
    (re.compile("</?[A-Za-z!][^>]*>"), lambda match: " " if match[0].startswith("<br") else ""),
    (re.compile("&#?[A-Za-z0-9]{1,31};"), lambda match: html.unescape(match[0])),
    (re.compile("(?:%[0-9A-Fa-f]{2})+"), lambda match: unquote(match[0])),
    (re.compile(r"(?:\\u|_x)(?![dD][89A-Fa-f])([0-9A-Fa-f]{4})_?"), lambda match: chr(int(match[1], 16))),
    (re.compile(r"\\(?=['\"/\\])|(?<!\S)(?:" + _NO_VALUE + r")(?!\S)|" + _INVISIBLE), lambda _: ""),
)
MAYBE_DAMAGED = (
    rf"[&<%\\\x{{AD}}\x{{200B}}-\x{{200D}}\x{{2060}}\x{{FEFF}}]|_x[0-9A-Fa-f]{{4}}_|(?:^|\s)(?:{_NO_VALUE})(?:\s|$)"
    rf"|[\x{{C2}}-\x{{F4}}][\x{{80}}-\x{{BF}}{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]"
    rf"|{'|'.join(sign for page, sign in _CODE_PAGES if page != 'cp1252')}"
)
"""A pattern for polars that matches all strings that `repair_name` changes, and few others."""


def repair_name(name: str) -> str:
    """Repair a name that software has damaged. Names without signs of damage are unchanged.

    Decodes UTF-8 misread as a code page, HTML entities and escapes of other formats. Removes HTML tags, invisible
    characters and words for a missing value. A person must accept the result.
    """
    previous, text = "", name
    while text != previous:
        previous = text
        for pattern, repair in _REPAIRS:
            text = pattern.sub(repair, text)
    if text != name:
        text = " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in text).split())
    return name if not text or "\ufffd" in text else text


def repair_column(column: str) -> pl.Expr:
    def repair_all(text: pl.Series) -> pl.Series:
        may_be_damaged = text.str.contains(MAYBE_DAMAGED)
        return apply_where(text, may_be_damaged, lambda part: pl.Series(part.name, map(repair_name, part), pl.String))

    return pl.col(column).map_batches(repair_all, return_dtype=pl.String, is_elementwise=True)
