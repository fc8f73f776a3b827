"""Finds how a workbook displays its cells: as dates, other numbers, struck-through or invisible text, or not at all.

People expect to pay what they saw in the spreadsheet. Styles determine how a value is displayed (ECMA-376 part 1,
18.8). Number formats are evaluated only to find the displayed number (18.8.31). Of merged cells, only the first is
displayed, but the others keep their values (18.3.1.55). For rules (conditional formatting, 18.3.1.18), the effect is
computed, but not whether it applies to a cell.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from itertools import accumulate
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType
from unicodedata import category

from paygw_batch.sheet.read.workbook_limits import Budget

GENERAL = "General"
UNKNOWN_FORMAT = "\x00"  # the displayed text of a date or of TRUE, whose format we don't know
_BUILT_IN: Mapping[int, str] = MappingProxyType(
    {
        0: GENERAL,
        1: "0",
        2: "0.00",
        3: "#,##0",
        4: "#,##0.00",
        9: "0%",
        10: "0.00%",
        11: "0.00E+00",
        12: "# ?/?",
        13: "# ??/??",
        48: "##0.0E+0",
        49: "@",
        **dict.fromkeys((5, 6, 37, 38, 41, 42), "#,##0"),
        **dict.fromkeys((7, 8, 39, 40, 43, 44), "#,##0.00"),
    }
)
"""The formats that workbooks refer to by number, without currency symbols."""
_DATE_FORMATS = frozenset({*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)})
_NOT_DATE_LETTERS = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
_PIECE = re.compile(r'"(?P<quoted>[^"]*)"?|\\(?P<escaped>.?)|[_*].?|\[(?P<bracket>[^\]]*)\]?|(?P<plain>.)', re.DOTALL)
_CONDITION = re.compile(r"(?P<sign>[<>=]{1,2})(?P<bound>-?[0-9.]+)")
_COMPARE = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "<>": ne}
_PLACEHOLDERS = re.compile(r"[0#?]")
_DIGIT_PLACES = "\x00\x01"
"""The placeholders in a layout, for a required digit and an optional one."""
_POINT = "\x02"
_TO_LAYOUT = str.maketrans({"0": "\x00", "#": "\x01", "?": "\x01", ",": "", ".": _POINT})
_NUMBER = re.compile(f"[{_DIGIT_PLACES}{_POINT}@]|{GENERAL}", re.IGNORECASE)
_SCALE = re.compile(r"[0#?](,+)(?![,0#?])")
_EXPONENT = re.compile(r"[eE][+-]")
_WHITES = frozenset({"white", "color2"})
"""Names for white in a format. They are English in every file."""
_MIN_CONTRAST = 1.3
"""The minimum contrast of visible text (WCAG 2.2). Black on white has 21, and readable text at least 1.5."""
_MIN_POINTS = 3.0
_MAX_DIGITS = 18
_LAST_BUILT_IN = 163
_WORD_SEPARATORS = " \u00a0\u202f()+-=/:'"
_SAMPLE_AMOUNT = "1234567"
"""If a rule's format displays another number for this one, the rule changes amounts."""
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)
_THEME = (_WHITE, _BLACK)
"""A theme's first two colours, light and dark. All other colours are visible on both."""
_INDEXED: Mapping[int, tuple[int, int, int]] = MappingProxyType(
    {0: _BLACK, 1: _WHITE, 8: _BLACK, 9: _WHITE, 64: _BLACK, 65: _WHITE}
)
Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CellStyle:
    """How cells with a style are displayed. `code` is their number format."""

    code: str = GENERAL
    is_date: bool = False
    is_struck: bool = False
    is_invisible: bool = False
    background: Colour | None = _WHITE

    @property
    def shows_white(self) -> bool:
        return self.background is None or not _is_low_contrast(_WHITE, self.background)

    def displayed_text(self, text: str) -> str | None:
        """Return the displayed text (empty if nothing is visible), or None if `text` is displayed unchanged."""
        sections = _parse_sections(self.code)
        text_section = next((section for section in reversed(sections) if "@" in section.pattern), None)
        if len(sections) > 3 and "@" not in sections[3].pattern:  # noqa: PLR2004 (the fourth section is for text)
            return ""
        if text_section is None:
            return None
        if text_section.is_white and not self.shows_white:
            return ""
        displayed = text_section.layout.replace("@", text).replace(_POINT, ".").strip()
        return None if displayed == text.strip() else displayed

    def displayed_number(self, text: str, *, is_exact: bool) -> str | None:
        """Return the displayed number (empty if nothing is visible), or None if `text` is displayed unchanged.

        The format may add leading zeros, or text between the digits. Decimals and digit grouping count as a difference
        only if `is_exact`.
        """
        if is_displayed_white(self.code, text) and not self.shows_white:
            return ""
        number = displayed_number(self.code, text)
        formatted = format_displayed_number(self.code, text, is_exact=is_exact)
        if number is not None and number != Decimal(text):
            return format(number, "f")
        if number is None and not formatted:
            return ""
        return None if formatted == text else formatted


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """The effect of conditional formatting: to strike text through, or to hide or change values (`obscures`)."""

    strikes: bool = False
    obscures: bool = False


FONT_TAGS = frozenset({"strike", "color", "sz"})


@dataclass(slots=True)
class Font:
    """The font properties that can strike text through or make it invisible."""

    is_struck: bool = False
    colour: Colour | None = _BLACK
    points: float = 11.0

    def set_property(self, name: str, attributes: Mapping[str, str]) -> None:
        if name == "strike":
            self.is_struck = is_true(attributes.get("val", "1"))
        elif name == "sz":
            self.points = float(attributes.get("val", "11"))
        elif name == "color":
            self.colour = _parse_colour(attributes)

    def is_unreadable(self, background: Colour | None) -> bool:
        return self.points < _MIN_POINTS or _is_low_contrast(self.colour, background)


@dataclass(slots=True)
class _RuleStyle:
    """The font, background and number format that a rule sets."""

    _font: Font = field(default_factory=Font)
    _background: Colour | None = _WHITE
    _code: str = GENERAL

    def start_element(self, name: str, attributes: Mapping[str, str]) -> None:
        match name:
            case _ if name in FONT_TAGS:
                self._font.set_property(name, attributes)
            case "bgColor":  # in a rule, this is the colour of a solid background (18.8.32)
                self._background = _parse_colour(attributes)
            case "numFmt":
                self._code = attributes.get("formatCode", GENERAL)
            case _:
                pass

    def effect(self) -> RuleEffect:
        is_unreadable = self._font.is_unreadable(self._background)
        is_date = _is_date_format(-1, self._code)
        changes_number = not is_date and (
            is_displayed_white(self._code, _SAMPLE_AMOUNT)
            or displayed_number(self._code, _SAMPLE_AMOUNT) != Decimal(_SAMPLE_AMOUNT)
        )
        return RuleEffect(strikes=self._font.is_struck, obscures=is_unreadable or is_date or changes_number)


@dataclass(slots=True)
class StyleReader:
    """Reads cell and rule styles from the tags of `xl/styles.xml`."""

    styles: list[CellStyle] = field(default_factory=list)
    effects: list[RuleEffect] = field(default_factory=list)
    """The effects of rules, which refer to them by index."""
    _formats: dict[int, str] = field(default_factory=dict)
    _fonts: list[Font] = field(default_factory=list)
    _fills: list[Colour | None] = field(default_factory=list)
    _open_tags: list[str] = field(default_factory=list)
    _rule_style: _RuleStyle = field(default_factory=_RuleStyle)

    def start_element(self, name: str, attributes: Mapping[str, str]) -> None:
        self._open_tags.append(name)
        parents = self._open_tags
        if "dxfs" in parents:
            self._rule_style.start_element(name, attributes)
            return
        match name:
            case "numFmt" if "numFmts" in parents:
                self._formats[parse_index(attributes.get("numFmtId", "0"))] = attributes.get("formatCode", "")
            case "font" if "fonts" in parents:
                self._fonts.append(Font())
            case _ if name in FONT_TAGS and "fonts" in parents and self._fonts:
                self._fonts[-1].set_property(name, attributes)
            case "patternFill" if "fills" in parents:
                self._fills.append(_WHITE if attributes.get("patternType", "none") == "none" else None)
            case "gradientFill" if "fills" in parents:
                self._fills.append(None)
            case "fgColor" if "fills" in parents and self._fills and self._fills[-1] is None:
                self._fills[-1] = _parse_colour(attributes)
            case "xf" if "cellXfs" in parents:
                self.styles.append(self._build_style(attributes))

    def end_element(self, name: str) -> None:
        self._open_tags.pop()
        if name == "dxf":
            self.effects.append(self._rule_style.effect())
            self._rule_style = _RuleStyle()

    def _build_style(self, attributes: Mapping[str, str]) -> CellStyle:
        """Build a style from attributes. Raises `IndexError` for a missing font, fill or format."""
        format_id, font_index, fill_index = (
            parse_index(attributes.get(name, "0")) for name in ("numFmtId", "fontId", "fillId")
        )
        if format_id > _LAST_BUILT_IN and format_id not in self._formats:
            raise IndexError(format_id)
        font, fill = (self._fonts or [Font()])[font_index], (self._fills or [_WHITE])[fill_index]
        return CellStyle(
            self._formats.get(format_id, _BUILT_IN.get(format_id, GENERAL)),
            is_date=_is_date_format(format_id, self._formats.get(format_id, "")),
            is_struck=font.is_struck,
            is_invisible=font.is_unreadable(fill),
            background=fill,
        )


def parse_index(text: str) -> int:
    """Parse a non-negative number. Raises `ValueError` for other strings."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def is_true(text: str | None) -> bool:
    return text in {"1", "true", "on"}


def _parse_colour(attributes: Mapping[str, str]) -> Colour | None:
    if (rgb := attributes.get("rgb")) is not None:
        colour: Colour | None = (int(rgb[-6:-4], 16), int(rgb[-4:-2], 16), int(rgb[-2:], 16))
    elif (theme := attributes.get("theme")) is not None:
        colour = _THEME[int(theme)] if int(theme) < len(_THEME) else None
    else:
        colour = _INDEXED.get(int(attributes.get("indexed", "64")))
    tint = float(attributes.get("tint", "0"))
    if colour is None or not tint:
        return colour
    red, green, blue = (round(part * (1 + tint) if tint < 0 else part * (1 - tint) + 255 * tint) for part in colour)
    return red, green, blue


@lru_cache(maxsize=1 << 10)
def _is_low_contrast(text: Colour | None, background: Colour | None) -> bool:
    if text is None or background is None:
        return False
    darker, lighter = sorted((_luminance(text), _luminance(background)))
    return (lighter + 0.05) / (darker + 0.05) < _MIN_CONTRAST


def _luminance(colour: Colour) -> float:
    red, green, blue = (
        channel / 255 / 12.92 if channel <= 10 else ((channel / 255 + 0.055) / 1.055) ** 2.4  # noqa: PLR2004 (of sRGB)
        for channel in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _is_date_format(format_id: int, code: str) -> bool:
    return format_id in _DATE_FORMATS or any(letter in "ymdhs" for letter in _NOT_DATE_LETTERS.sub("", code).lower())


def is_displayed_white(code: str, number: str) -> bool:
    """Return whether a format displays a number in white, regardless of the font."""
    if not any(section.is_white for section in _parse_sections(code)):
        return False
    value = Decimal(number)
    return value.adjusted() <= _MAX_DIGITS and _select_section(value, code).is_white


@lru_cache(maxsize=1 << 16)
def displayed_number(code: str, number: str) -> Decimal | None:
    """Return the number that a format displays, or None if it does not display a decimal number."""
    value = Decimal(number)
    if value.adjusted() > _MAX_DIGITS:
        return value  # a number with so many digits is doubtful anyway
    section = _select_section(value, code)
    pattern = section.pattern
    if pattern.strip().lower() == GENERAL.lower() or "@" in pattern:
        return value if not section.has_digits else None
    decimals = pattern.partition(".")[2]
    decimal_places = len(_PLACEHOLDERS.findall(_EXPONENT.split(decimals)[0]))
    if not _PLACEHOLDERS.search(pattern) or section.has_digits:
        return None
    if _EXPONENT.search(pattern):
        exponent = value.adjusted() if value else 0
        return value.quantize(Decimal(1).scaleb(exponent - decimal_places), ROUND_HALF_UP)
    if "/" in pattern:
        return value if value == value.to_integral_value() else None
    thousands = sum(len(commas) for commas in _SCALE.findall(pattern))
    scaled = value.scaleb(2 * pattern.count("%") - 3 * thousands)
    return scaled.quantize(Decimal(1).scaleb(-decimal_places), ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class _Section:
    pattern: str
    condition: tuple[str, Decimal] | None
    has_digits: bool
    is_white: bool
    layout: str
    """The section including literal text, with `_DIGIT_PLACES` for digits."""

    def matches(self, value: Decimal) -> bool:
        operator, bound = self.condition or ("", value)
        return operator in _COMPARE and bool(_COMPARE[operator](value, bound))


def _select_section(value: Decimal, code: str) -> _Section:
    sections = _parse_sections(code)[:3]
    if any(section.condition for section in sections):
        unconditional = [section for section in sections if section.condition is None]
        return next((section for section in sections if section.matches(value)), (unconditional or sections)[-1])
    if value < 0 and len(sections) > 1:
        return sections[1]
    return sections[2] if not value and len(sections) > 2 else sections[0]  # noqa: PLR2004 (the third one is for zero)


@lru_cache(maxsize=1 << 10)
def _parse_sections(code: str) -> tuple[_Section, ...]:
    """Split a number format into sections, whose patterns omit literal text."""
    sections: list[_Section] = []
    pattern, condition, has_digits, is_white, layout = "", None, False, False, ""
    for piece in _PIECE.finditer(code):
        literal = piece["quoted"] or piece["escaped"] or ""
        if piece["bracket"] is not None:
            is_white = is_white or re.sub(r"\s", "", piece["bracket"]).lower() in _WHITES
            comparison = _CONDITION.fullmatch(piece["bracket"])
            condition = (comparison["sign"], Decimal(comparison["bound"])) if comparison else condition
            literal = piece["bracket"].removeprefix("$").partition("-")[0] if piece["bracket"].startswith("$") else ""
        has_digits = has_digits or any(letter.isdigit() for letter in literal)
        layout += literal
        if piece["plain"] == ";":
            sections.append(_Section(pattern, condition, has_digits, is_white, layout))
            pattern, condition, has_digits, is_white, layout = "", None, False, False, ""
        elif piece["plain"] is not None:
            pattern += piece["plain"]
            layout += piece["plain"].translate(_TO_LAYOUT)
            has_digits = has_digits or piece["plain"] in "123456789"
    return (*sections, _Section(pattern, condition, has_digits, is_white, layout))


@lru_cache(maxsize=1 << 16)
def format_displayed_number(code: str, number: str, *, is_exact: bool) -> str | None:
    """Format a number as its cell displays it. Returns None if the format or number is unsupported.

    Decimals and commas between groups of digits are supported only if `is_exact`.
    """
    whole, _, decimals = number.partition(".")
    section = _select_section(Decimal(number), code)
    if not whole.isdigit() or any(char in section.pattern for char in "@/%") or _SCALE.search(section.pattern):
        return None
    is_general, front = section.pattern.strip().lower() == GENERAL.lower(), section.layout
    if not is_exact and (is_general or decimals or _POINT in front or _EXPONENT.search(section.pattern)):
        return None
    if is_general:
        return re.sub(GENERAL, number, front, flags=re.IGNORECASE).strip()
    if _EXPONENT.search(section.pattern):
        return f"{Decimal(number):E}"
    front, point, back = front.partition(_POINT)
    first_place = next((index for index, letter in enumerate(front) if letter in _DIGIT_PLACES), None)
    is_grouped, formatted, remaining, digit_count = is_exact and "," in section.pattern.partition(".")[0], "", whole, 0
    for index in reversed(range(len(front))):
        if front[index] not in _DIGIT_PLACES:
            formatted = front[index] + formatted
            continue
        digits = remaining if index == first_place else remaining[-1:]
        remaining = remaining.removesuffix(digits)
        for digit in reversed(digits or "0" * (front[index] == _DIGIT_PLACES[0])):
            formatted = digit + "," * (is_grouped and digit_count > 0 and digit_count % 3 == 0) + formatted
            digit_count += 1
    for letter in back:
        digit, decimals = (decimals[:1], decimals[1:]) if letter in _DIGIT_PLACES else (letter, decimals)
        point += digit or "0" * (letter == _DIGIT_PLACES[0])
    return (formatted + point.replace(_POINT, ".")).strip()


@lru_cache(maxsize=1 << 10)
def words_in_format(code: str) -> tuple[str, ...]:
    """Return the words and currency symbols, such as "KES" or "$", that a format adds to positive numbers."""
    sections = _parse_sections(code)[:3]
    used_sections = sections if any(section.condition for section in sections) else sections[:1]
    parts = (_NUMBER.split(section.layout) for section in used_sections if not _EXPONENT.search(section.pattern))
    words = (piece.strip(_WORD_SEPARATORS) for pieces in parts if len(pieces) > 1 for piece in pieces)
    return tuple(word for word in words if any(char.isalpha() or category(char) == "Sc" for char in word))


_AREA = re.compile(r"\$?([A-Za-z]*)\$?([0-9]*)(?::\$?([A-Za-z]*)\$?([0-9]*))?")
_LAST_ROW, _LAST_COLUMN = 1_048_576, 16_384


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of cells, with inclusive row and column numbers."""

    first_row: int
    first_column: int
    last_row: int
    last_column: int

    @classmethod
    def parse(cls, reference: str) -> "Area":
        """Parse a reference such as `A2:B3`, `C2` or `C:C`. Raises `ValueError` for other strings."""
        if (match := _AREA.fullmatch(reference)) is None:
            raise ValueError(reference)
        column, row, last_column, last_row = match.groups()
        if last_column is None:
            last_column, last_row = column, row
        right = column_number(last_column) or _LAST_COLUMN
        return cls(int(row or 1), column_number(column) or 1, int(last_row or _LAST_ROW), right)


def column_number(reference: str) -> int:
    """Return the column number (from 1) of a column or cell reference, or 0 if it has no letters."""
    number = 0
    for letter in reference.rstrip("0123456789").upper():
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


@dataclass(slots=True)
class Overlays:
    """Merged cells and rules, read from a worksheet's tags. Rules refer to the workbook's `effects`."""

    effects: Sequence[RuleEffect]
    budget: Budget
    merged: list[Area] = field(default_factory=list)
    rules: list[tuple[Area, RuleEffect]] = field(default_factory=list)
    _areas: list[Area] = field(default_factory=list)

    def start_element(self, name: str, attributes: Mapping[str, str]) -> None:
        match name:
            case "mergeCell":
                self.merged.append(Area.parse(attributes["ref"]))
                self.budget.count_doubts(0, 1)
            case "conditionalFormatting":
                self._areas = [Area.parse(reference) for reference in attributes.get("sqref", "").split()]
            case "cfRule" if (number := int(attributes.get("dxfId", "-1"))) in range(len(self.effects)):
                self._add_rule(self.effects[number])
            case "dataBar" | "iconSet" if not is_true(attributes.get("showValue", "1")):
                self._add_rule(RuleEffect(obscures=True))

    def _add_rule(self, effect: RuleEffect) -> None:
        if effect.strikes or effect.obscures:
            self.rules += [(area, effect) for area in self._areas]
            self.budget.count_doubts(0, len(self._areas))

    def covered_rows(self, column: int, rows: Sequence[int]) -> list[int]:
        """Return the `rows` (sorted) whose cell in this column is hidden by merged cells."""
        changes = [0] * (len(rows) + 1)  # for each row: areas that begin there, minus areas that end just before
        for area in self.merged:
            if area.first_column <= column <= area.last_column:
                first = area.first_row + (column == area.first_column)  # the first cell is displayed
                changes[bisect_left(rows, first)] += 1
                changes[bisect_right(rows, area.last_row)] -= 1
        return [row for row, area_count in zip(rows, accumulate(changes), strict=False) if area_count > 0]

    def rule_effects(self, columns: Collection[int], *, below: int) -> set[tuple[int, RuleEffect]]:
        """Return the effects of rules on `columns` below a row (`below`), as (column, effect)."""
        return {
            (column, effect)
            for area, effect in self.rules
            for column in columns
            if area.first_column <= column <= area.last_column and area.last_row > below
        }
