"""Repairs names that programs damaged before they reached the sheet. The result is a proposal, and changes nothing."""

import html
import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote

import polars as pl

from paygw_batch.sheet.clean import changed

_PAGES = (
    ("cp1252", "[\u00c2-\u00f4]"),
    ("mac_roman", "[\u221a\u2248]|\u201a\u00c4"),
    ("cp850", "[\u251c\u253c]|\u00d4\u00c7"),
    ("cp437", "[\u251c\u253c]|\u0393\u00c7"),
)
"""Code pages in which programs read UTF-8 by mistake, each with a pattern that such a text matches."""
_TYPOGRAPHIC = "\u2018\u2019\u201c\u201d\u2013\u2014"


def _reread(match: re.Match[str]) -> str:
    """Return the letters that were UTF-8 before a code page was used, or the match if it is more likely meant."""
    run, text = match[0], match.string
    beside = text[max(0, match.start() - 1) : match.start()] + text[match.end() : match.end() + 1]
    if run[0] not in "\u00c2\u00c3\u00c4\u00c5" and run[-1] in _TYPOGRAPHIC and beside.upper() == beside:
        return run  # likely a quotation mark or a dash after a capital letter
    is_latin = any(letter.isascii() and letter.isalpha() for letter in text)
    for page, sign in _PAGES:
        read = [letter.encode(page, "ignore") or letter.encode("latin-1", "ignore") for letter in run]
        with suppress(UnicodeDecodeError):
            if re.search(sign, run) and all(read) and not _is_strange(letters := b"".join(read).decode(), is_latin):
                return letters
    return run


def _is_strange(text: str, is_latin: bool) -> bool:
    """Whether letters can hardly be meant: controls, or other than Latin letters in a Latin name."""
    return any(
        unicodedata.category(letter)[0] == "C"
        or (is_latin and letter.isalpha() and "LATIN" not in unicodedata.name(letter, ""))
        for letter in text
    )


_NO_VALUE = r"nan|NaN|NaT|null|undefined|<NA>|#N/A|\(null\)|\\N"
"""Words that pandas, JavaScript and databases write for a missing value. None of them is a name."""
DOUBTFUL = r"\pL.*\?|\?.*\pL|\S\s+(?:None|NULL)\b|\b(?:None|NULL)\s+\S"
"""Signs of damage (such as a `?` for a lost letter) that do not show the original text."""
_INVISIBLE = "[\u00ad\u200b\u2060\ufeff]|(?<=[A-Za-z])[\u200c\u200d]"
"""Characters that are invisible and not part of a name. Joiners can be, but not between Latin letters."""
_DAMAGE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"[^\x00-\x7f]{2,}"), _reread),
    (re.compile("</?[A-Za-z!][^>]*>"), lambda match: " " if match[0].startswith("<br") else ""),
    (re.compile("&#?[A-Za-z0-9]{1,31};"), lambda match: html.unescape(match[0])),
    (re.compile("(?:%[0-9A-Fa-f]{2})+"), lambda match: unquote(match[0])),
    (re.compile(r"(?:\\u|_x)(?![dD][89A-Fa-f])([0-9A-Fa-f]{4})_?"), lambda match: chr(int(match[1], 16))),
    (re.compile(r"\\(?=['\"/\\])|(?<!\S)(?:" + _NO_VALUE + r")(?!\S)|" + _INVISIBLE), lambda _: ""),
)
"""Signs of damage, and functions that return the original text."""
MAYBE_DAMAGED = (
    rf"[&<%\\\x{{AD}}\x{{200B}}-\x{{200D}}\x{{2060}}\x{{FEFF}}]|_x[0-9A-Fa-f]{{4}}_|(?:^|\s)(?:{_NO_VALUE})(?:\s|$)"
    rf"|[\x{{C2}}-\x{{F4}}][\x{{80}}-\x{{BF}}{bytes(range(0x80, 0xA0)).decode('cp1252', 'ignore')}]"
    rf"|{'|'.join(sign for page, sign in _PAGES if page != 'cp1252')}"
)
"""A pattern (for polars) of all texts that `repaired` changes, and of few others."""


def repaired(name: str) -> str:
    """Return a name as it was before programs damaged it, or the name itself if there is no sign of damage.

    It repairs UTF-8 that was read in a code page, entities and tags of HTML, escapes of other formats, invisible
    characters, and words for a missing value. The result is a proposal, and is never sent without a person.
    """
    before, text = "", name
    while text != before:
        before = text
        for pattern, before_damage in _DAMAGE:
            text = pattern.sub(before_damage, text)
    if text != name:
        text = " ".join("".join(" " if unicodedata.category(c) == "Cc" else c for c in text).split())
    return name if not text or "\ufffd" in text else text


def undamaged(column: str) -> pl.Expr:
    def of_all(text: pl.Series) -> pl.Series:
        maybe = text.str.contains(MAYBE_DAMAGED)
        return changed(text, maybe, lambda part: pl.Series(part.name, map(repaired, part), pl.String))

    return pl.col(column).map_batches(of_all, return_dtype=pl.String, is_elementwise=True)
