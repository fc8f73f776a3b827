"""Handles untrusted text: compares text that looks alike, and escapes control characters.

File names, cells, replies from the gateway and environment variables can contain characters that a terminal executes
instead of showing. They can move the cursor, delete lines, set the window title or reverse the text direction.
"""

import re
import unicodedata
from decimal import Decimal
from itertools import permutations

_HYPHENS = frozenset({"Pd"})
"""The Unicode category of hyphens and dashes. The minus sign is in another category."""
_MINUS = "\u2212"
_INVISIBLE = frozenset({"Cf"})
"""The Unicode category of format characters: soft hyphens, joiners, zero-width spaces, direction marks."""
_FURTHER_INVISIBLE = frozenset(
    map(
        chr,
        (
            0x034F,  # combining grapheme joiner
            *(0x115F, 0x1160, 0x3164, 0xFFA0),  # Hangul fillers
            *(0x17B4, 0x17B5),  # Khmer inherent vowels
            *range(0x180B, 0x1810),  # Mongolian selectors and separator
            *range(0xFE00, 0xFE10),  # variation selectors
            *range(0xE0000, 0xE1000),  # tags and more variation selectors
        ),
    )
)
"""Invisible characters in other categories (Default_Ignorable_Code_Point in Unicode)."""


def normalise_spelling(text: str) -> str:
    """Remove differences in case, Unicode form, width, hyphens and invisible characters.

    Applies `str.casefold` and NFKC. Idempotent. Use the result only for comparison.
    """
    if text.isascii():
        return text.lower()
    # A letter that case folding decomposed may combine with the next mark, so repeat until nothing changes.
    while (normalised := _normalise_once(text)) != text:
        text = normalised
    return text


def _normalise_once(text: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFKC", "".join(map(_normalise_character, folded)))


def _normalise_character(character: str) -> str:
    category = unicodedata.category(character)
    if category in _HYPHENS or character == _MINUS:
        return "-"
    return "" if category in _INVISIBLE or character in _FURTHER_INVISIBLE else character


_LOOK_ALIKE_LETTERS = str.maketrans(
    "\u0430\u0432\u0435\u0437\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u044c"  # Cyrillic
    "\u0455\u0456\u0458\u0475\u04af\u04bb\u04cf\u0501\u051b\u051d"  # Cyrillic in other languages
    "\u03b1\u03b2\u03b5\u03b6\u03b7\u03b9\u03ba\u03bc\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03f3"  # Greek
    "\u0131\u0251\u0261i|\u2044\u2215",
    "abe3kmhopctyxbsljvyhldqwabezhlkmnoptyxjlagll//",
)
"""Maps letters to Latin ones whose capitals look alike (Unicode report 39): Greek eta looks like H."""
_DIGIT_LETTERS, _LETTER_DIGITS = str.maketrans("ol", "01"), str.maketrans("01", "ol")
_NUMBER_WITH_LETTERS = re.compile(r"(?<![^\W_])(?=[ol]*[0-9])[0-9ol]+(?![^\W_])")
_GROUPED = re.compile(r"(?<![0-9])[0-9]{1,3}(?:[ ,'\u2019][0-9]{2,3})*[ ,'\u2019][0-9]{3}(?![0-9])")
_GROUPED_BY_POINTS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3})+(?=$|,)")
_END_OF_NUMBER = re.compile(r"(?<=[0-9])(?:[.,]0+)+$|[.]+$")
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_QUICK_REPAIR = str.maketrans("ABCDEFGHIJKLMNPQRSTUVWXYZil|", "abcdefgh1jk1mnpqrstuvwxyz111", "0oO.,' -/_:")
_TO_HYPHEN = str.maketrans("/._", "---")
_SECONDS = re.compile(r"(?<=[0-9]:[0-9]{2}):00$")
_NUMBER = re.compile(r"([0-9]+(?:[.,][0-9]+)?(?:e[+-]?[0-9]{1,2})?)(%?)", re.IGNORECASE)
_MONTHS = {
    name: str(number)
    for number, names in enumerate(
        (
            *("jan janv january janvier", "feb f\u00e9vr february", "mar mars march", "apr avr april avril"),
            *("may mai", "jun juin june", "jul juil july juillet", "aug ao\u00fbt august", "sep sept september"),
            *("oct october octobre", "nov november novembre", "dec d\u00e9c december"),
        ),
        start=1,
    )
    for name in names.split()
}
"""Maps the names that spreadsheets write for months in English and French to their numbers."""
_DATE_PART = rf"(?:(?:[12][0-9]{{3}}|[0-9]{{1,2}})(?![0-9])|{'|'.join(_MONTHS)})"
_DATE = re.compile(rf"({_DATE_PART}(?:[-/. ,]{{0,2}}{_DATE_PART}){{1,2}})(?:\.|[T ]00:00:00)?", re.IGNORECASE)
_DIGITS = re.compile("[0-9]+")
_ROUNDED = re.compile("[0-9]{15}0+")
_TIME_PREFIX = "1899-12-30 "
"""The date that a spreadsheet writes before a time of day."""
_NUMBER_OR_WORD = re.compile(r"[0-9]+|[^\W0-9_]+")


def repair_order_id(order_id: str) -> str:
    """Undo the changes that spreadsheets and retyping make to order ids.

    A spreadsheet drops leading zeros (00001) and adds `.0` or thousands separators. People type `/`, `.` or `_` for
    `-`, and O for 0. Idempotent. Use the result only to compare payments that are otherwise identical.
    """
    while (repaired := _repair_once(order_id)) != order_id:
        order_id = repaired
    return order_id


def are_damaged_variants(first: str, second: str) -> bool:
    """Return whether two order ids are equal after repair, as numbers (12.10, 1E+05, 5%) or as dates (3-1, 3-Jan).

    Numbers of the same length also match if a spreadsheet may have rounded one of them to 15 digits.
    """
    first, second = first.removeprefix(_TIME_PREFIX), second.removeprefix(_TIME_PREFIX)
    if (left := _NUMBER.fullmatch(first)) and (right := _NUMBER.fullmatch(second)) and _value(left) == _value(right):
        return True
    if first[:15] == second[:15] and len(first) == len(second) and any(map(_ROUNDED.fullmatch, (first, second))):
        return first.isdigit() and second.isdigit()
    # A program that rewrites a date changes its layout, so 1-3 and 3-1, which share a layout, are different ids.
    if (left := _DATE.fullmatch(first)) and (right := _DATE.fullmatch(second)) and _layout(first) != _layout(second):
        pairs = ((_possible_dates(left), _possible_dates(right)), (_possible_dates(right), _possible_dates(left)))
        if any(not short.isdisjoint(long | {(0, *rest) for _, *rest in long}) for short, long in pairs):
            return True
    # For speed: most ids differ in a character that no repair changes.
    if first.isascii() and second.isascii() and first.translate(_QUICK_REPAIR) != second.translate(_QUICK_REPAIR):
        return False
    return repair_order_id(first) == repair_order_id(second)


def _value(match: re.Match[str]) -> Decimal:
    return Decimal(match[1].replace(",", ".")).scaleb(-2 if match[2] else 0)


def _layout(date: str) -> str:
    """Return a date's layout: its separators, and the position of a four-digit year."""
    return _DIGITS.sub("0", re.sub("[0-9]{4}", "Y", date))


def _possible_dates(match: re.Match[str]) -> set[tuple[int, ...]]:
    """Return the possible dates as two-digit year (0 if absent), month and day (1 if absent)."""
    parts, dates = _NUMBER_OR_WORD.findall(normalise_spelling(match[1])), set[tuple[int, ...]]()
    for roles in permutations(("year", "month", "day"), len(parts)):
        by_role = dict(zip(roles, parts, strict=True))
        word_roles = [role for role, part in by_role.items() if part in _MONTHS]
        numbers = {role: int(_MONTHS.get(part, part)) for role, part in by_role.items()}
        month, day = numbers.get("month", 0), numbers.get("day", 1)
        if month in range(1, 13) and day in range(32) and set(word_roles) <= {"month"}:
            dates.add((numbers.get("year", 0) % 100, month, day))
    return dates


def _repair_once(text: str) -> str:
    text = normalise_spelling(text).translate(_LOOK_ALIKE_LETTERS)
    text = _NUMBER_WITH_LETTERS.sub(lambda match: match[0].translate(_DIGIT_LETTERS), text)
    text = _GROUPED.sub(_strip_non_digits, text)
    if grouped := _GROUPED_BY_POINTS.match(text):
        text = _strip_non_digits(grouped) + text[grouped.end() :]
    text = _END_OF_NUMBER.sub("", _SECONDS.sub("", text)).translate(_TO_HYPHEN)
    return _LEADING_ZEROS.sub("", text).translate(_LETTER_DIGITS)


def _strip_non_digits(match: re.Match[str]) -> str:
    return re.sub("[^0-9]", "", match[0])


_CONTROL_CHARACTERS = (
    "\x00-\x1f\x7f-\x9f"  # ASCII and C1 controls, including newline and tab
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # text direction
    "\u2028\u2029"  # line and paragraph separators
    "\u00ad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff"  # bytes in a file name that are not text
)
_CONTROL = re.compile(f"[{_CONTROL_CHARACTERS}]")
_LAYOUT_OR_CONTROL = re.compile(rf"(\x1b\[[0-9;?]*[A-Za-z]|[\n\t\r])|([{_CONTROL_CHARACTERS}])")
"""Matches layout (colours, cursor moves, line ends) as group 1, and other control characters as group 2."""


def escape_for_terminal(text: str) -> str:
    r"""Escape every character that a terminal would execute or hide (`\x1b`), including line ends.

    Letters of all scripts, and the joiners that some scripts need, are not changed.
    """
    return _CONTROL.sub(lambda match: escape_character(match[0]), text)


def escape_except_layout(text: str) -> str:
    """Escape control characters in a library's output, except line ends, colours and cursor moves."""
    return _LAYOUT_OR_CONTROL.sub(lambda match: match[1] or escape_character(match[2]), text)


def escape_json(text: str) -> str:
    """Escape the same characters as `escape_for_terminal` in JSON text, without changing its value."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in "\n\t" else _escape_json_character(match[0]), text)


def escape_character(character: str) -> str:
    r"""Return the Python escape of a character: `\x1b`, `\u202e`."""
    return character.encode("unicode_escape").decode("ascii")


def _escape_json_character(character: str) -> str:
    utf16 = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{utf16[index]:02x}{utf16[index + 1]:02x}" for index in range(0, len(utf16), 2))


def is_encoding(name: str) -> bool:
    """Return whether `name` is a text encoding compatible with ASCII letters, digits and separators."""
    try:
        return b"a;1\n".decode(name) == "a;1\n"
    except (LookupError, ValueError):
        return False
