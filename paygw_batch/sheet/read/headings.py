"""Recognises a sender's names of columns, and finds the header row."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache

from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.language import say
from paygw_batch.sheet.columns import ALWAYS_NEEDED, RECONCILED_OF, REJECTS_COLUMNS, columns_of_operation, known_columns
from paygw_batch.sheet.findings import SHOWN_CHARACTERS

NOT_OURS = ""
"""Marks a heading that is ignored although a profile or our own names know it."""
HEADER_ROWS = 20
"""The number of first rows that may be the header, because titles and notes may precede it."""
SAMPLES = 3
"""The number of texts of a column that are shown beside its heading."""
MAX_COLUMNS = 16_384
"""The maximum number of columns of a spreadsheet."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a sheet is read. `sheet_name` names one worksheet of a workbook.

    - `aliases`: a sender's heading -> our column, or `NOT_OURS`. `profiles`: the name of each profile -> its aliases.
      If a sheet is refused for its header, the error names the profile that fits. No profile is used unless somebody
      names it, because a heading decides what is paid.
    - `operation` is the operation of the rows, which determines the known columns.
    - `encoding` (`cp1252`) is tried for a text file without a byte order mark that is not UTF-8.
    - `file` is the sender's name for the file, if the file is stored under another name.
    """

    max_rows: int = 1_000_000
    max_sheet_bytes: int = 1024 * 1024 * 1024
    encoding: str | None = None
    sheet_name: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    operation: str = "payout"
    profiles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    file: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return columns_of_operation(self.operation)


@dataclass(frozen=True, slots=True)
class Headings:
    """The columns of a file. `names` has our name for each, in the file's order.

    `sender` maps each of these names to the heading in the file. `unknown` has the columns that we do not know.
    `nameless` has those without a heading, which are dropped if empty. `ours` has the columns of a rejects file, which
    are dropped.
    """

    names: tuple[str, ...]
    sender: Mapping[str, str]
    unknown: tuple[str, ...]
    nameless: frozenset[str]
    ours: frozenset[str]


@dataclass(frozen=True, slots=True)
class SeenHeading:
    """A heading of a file, the known column that it means, if any, and the first texts below it."""

    heading: str
    column: str | None
    samples: tuple[str, ...] = ()


class HeadingError(SheetError):
    """A file has no header with the columns that every sheet needs, or its header names a column twice.

    `headings` are those of the most similar row. `how_of` ends the hint with a command about a sheet.
    """

    def __init__(
        self,
        message: str,
        hint: str,
        headings: Sequence[SeenHeading],
        *,
        option: str = "",
        file: str = "",
        how_of: Callable[[str], str] | None = None,
    ) -> None:
        self._hint, self._how_of = hint, how_of
        super().__init__(message, hint=self.hint_about(file), option=option)
        self.headings = headings

    def hint_about(self, sheet: str) -> str:
        return self._hint if self._how_of is None else f"{self._hint} {self._how_of(sheet)}"


def _how_to_map(sheet: str) -> str:
    return say(
        "`paygw-batch validate {file} --map FILE.toml` writes its headings to a file where you say what each means.",
        file=sheet,
    )


class MissingColumns(SheetError):
    """A sheet lacks `columns` that its countries need, unless another heading of it means them."""

    def __init__(self, columns: Sequence[str], message: str, *, hint: str, option: str) -> None:
        super().__init__(message, hint=hint, option=option)
        self.columns = columns


class UnknownHeadings(HeadingError):
    """No row of a file names the columns that every sheet needs: its headings are unknown."""


@lru_cache(maxsize=4096)
def fold(heading: str) -> str:
    """Return a heading in lower case, without blanks, invisible characters, hyphens and underscores."""
    text = unicodedata.normalize("NFKC", heading).casefold()
    return "".join(c for c in text if unicodedata.category(c)[0] not in "CZ" and c not in "-_")


def known_names(cells: Sequence[str], options: ReadOptions) -> list[str | None]:
    """Return the known column that each heading means, or None."""
    return _names(cells, options.columns, options.aliases)


def _fitting_profiles(cells: Sequence[str], options: ReadOptions) -> list[str]:
    """Return the profiles in which a row names the columns that every sheet needs."""
    profiles = options.profiles.items()
    return [name for name, aliases in profiles if _has_needed(_names(cells, options.columns, aliases))]


def _has_needed(names: Sequence[str | None]) -> bool:
    return set(ALWAYS_NEEDED) <= set(names)


def _names(cells: Sequence[str], columns: Sequence[str], aliases: Mapping[str, str]) -> list[str | None]:
    targets = ((heading, _alias_target(heading, column)) for heading, column in aliases.items())
    ours = {fold(name): name for name in columns}
    # A heading that means a column of another operation has no meaning here.
    ours |= {fold(heading): column for heading, column in targets if column in columns or column == NOT_OURS}
    return [ours.get(fold(cell)) or None for cell in cells]


def _alias_target(heading: str, column: str) -> str:
    if column in known_columns() or column == NOT_OURS:
        return column
    near = get_close_matches(column, known_columns(), n=1)
    hint = (
        say("Did you mean {near}?", near=near[0])
        if near
        else say("The columns are {known_columns}.", known_columns=", ".join(known_columns()))
    )
    raise ConfigurationError(
        say("The heading {heading!r} is mapped to {column!r}, which is not a column.", heading=heading, column=column),
        hint=hint,
    )


def is_header(cells: Sequence[str], options: ReadOptions) -> bool:
    """Whether a row names the columns that every sheet needs."""
    return _has_needed(known_names(cells, options))


def no_header(rows: Sequence[Sequence[str]], options: ReadOptions, *, worksheet: str | None = None) -> UnknownHeadings:
    """Return the error for a file whose first `rows` contain no header. It names the missing columns.

    It also names the profiles that fit. `worksheet` is the worksheet of the rows, if the file has several.
    """
    file = options.file
    place = file if worksheet is None else say("{file}, worksheet {worksheet!r}", file=file, worksheet=worksheet)
    best = max(rows, key=lambda cells: _likeness(cells, options), default=[])
    names = known_names(best, options)
    row = list(rows).index(best) + 1 if best else 0
    headings = [
        SeenHeading(" ".join(cell.split()), name, texts_at(at, rows[row:]))
        for at, (cell, name) in enumerate(zip(best, names, strict=True))
        if cell.strip()
    ]
    if fitting := _fitting_profiles(best, options):
        return _of_profiles(place, row, fitting, headings)
    if any(names):
        sentence, hint = _lacking(place, row, names, headings), say("Add the column, or correct its heading.")
    else:
        sentence = say("{place} has no known header in its first {rows} rows.", place=place, rows=HEADER_ROWS)
        hint = say("The first row must name the columns: {columns}.", columns=", ".join(options.columns[:7]))
    return UnknownHeadings(sentence, hint, headings, option="--column-profile", file=file, how_of=_how_to_map)


def _lacking(place: str, row: int, names: Sequence[str | None], headings: Sequence[SeenHeading]) -> str:
    """Return the sentence about a header that lacks a needed column, with the heading that is most like the column."""
    missing = [name for name in ALWAYS_NEEDED if name not in names]
    unknown = [heading.heading for heading in headings if heading.column is None]
    close = {name: get_close_matches(name, unknown, n=1) for name in missing}
    parts = [
        say("{name} (is it the column {near!r}?)", name=name, near=near[0]) if near else name
        for name, near in close.items()
    ]
    columns = say(" and no column ").join(parts)
    return say("{place}, row {row}: the header has no column {columns}.", place=place, row=row, columns=columns)


def _of_profiles(place: str, row: int, fitting: Sequence[str], headings: Sequence[SeenHeading]) -> UnknownHeadings:
    """Return the error for a header that some profiles know, if nobody has named a profile."""
    return UnknownHeadings(
        say(
            "{place}, row {row}: these are headings of the profile {profiles}.",
            place=place,
            row=row,
            profiles=say(" and of ").join(fitting),
        ),
        say(
            "Name the profile: --column-profile {fitting}, or column_profile under [sheet] in the configuration.",
            fitting=fitting[0],
        ),
        headings,
        option="--column-profile",
    )


def texts_at(place: int, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the texts of one column in some rows, cut for display and without empty ones."""
    cells = (row[place].strip() for row in rows if place < len(row))
    return tuple(cell[:SHOWN_CHARACTERS] for cell in cells if cell)


def header_likeness(rows: Sequence[Sequence[str]], options: ReadOptions) -> tuple[bool, int, int]:
    """Return how much the best row resembles a header. The worksheet with the highest value is read."""
    return max((_likeness(cells, options) for cells in rows), default=(False, 0, 0))


def _likeness(cells: Sequence[str], options: ReadOptions) -> tuple[bool, int, int]:
    """Return how much a row resembles a header: by a profile, by known columns, and by texts without digits."""
    known = sum(name is not None for name in known_names(cells, options))
    texts = {cell.strip() for cell in cells if cell.strip() and not any(c.isdigit() for c in cell)}
    return bool(_fitting_profiles(cells, options)), known, len(texts)


def require_columns(cells: Sequence[str], options: ReadOptions) -> None:
    """Raise `SheetError` for a row with more cells than a spreadsheet has columns. Checking it would take minutes."""
    if len(cells) > MAX_COLUMNS:
        raise SheetError(
            say(
                "{file} has {columns} columns, and a sheet can have {most}.",
                file=options.file,
                columns=f"{len(cells):,}",
                most=f"{MAX_COLUMNS:,}",
            ),
            hint=say("Save the sheet again with the columns that it needs."),
        )


def match_headings(cells: Sequence[str], options: ReadOptions, *, row: int) -> Headings:
    """Return the columns that the cells of the header mean. `row` is its number.

    Raises `SheetError` for a heading that occurs twice, in any spelling, because one of the two columns would silently
    replace the other.
    """
    require_columns(cells, options)
    trimmed = [" ".join(cell.split()) for cell in cells]
    columns = known_names(trimmed, options)
    is_rejects = set(REJECTS_COLUMNS) <= set(trimmed)
    reserved = {*options.columns, *RECONCILED_OF[options.operation], *REJECTS_COLUMNS, "valid"}
    names: list[str] = []
    sender: dict[str, str] = {}
    nameless: set[str] = set()
    for position, (heading, name) in enumerate(zip(trimmed, columns, strict=True), start=1):
        if not heading:
            nameless.add(f"column {position}")
        label = name or heading or f"column {position}"
        if name is None and label in reserved:
            label = f"{label} (ours)" if is_rejects and label in REJECTS_COLUMNS else f"{label} (sheet)"
        if label in sender:
            raise HeadingError(
                say(
                    "{file}, row {row}: the headings {seen!r} and {heading!r} name the same column.",
                    file=options.file,
                    row=row,
                    seen=sender[label],
                    heading=heading,
                ),
                say("Remove or rename one of the two columns."),
                [SeenHeading(text, column) for text, column in zip(trimmed, columns, strict=True) if text],
            )
        sender[label] = heading
        names.append(label)
    ours = frozenset(f"{name} (ours)" for name in REJECTS_COLUMNS if is_rejects)
    unknown = tuple(label for label, name in zip(names, columns, strict=True) if name is None and label not in ours)
    return Headings(tuple(names), sender, unknown, frozenset(nameless), ours)
