"""Recognises a sender's headings and finds the header row."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache

from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.language import say
from paygw_batch.sheet.columns import (
    RECONCILIATION_COLUMNS_OF,
    REJECTS_COLUMNS,
    REQUIRED_COLUMNS,
    known_columns,
    operation_columns,
)
from paygw_batch.sheet.findings import MAX_SHOWN_CHARACTERS

IGNORED_HEADING = ""
"""The value for a heading that should be ignored."""
HEADER_ROWS = 20
"""The header must be within this many rows from the top. Titles and notes may precede it."""
MAX_SAMPLES = 3
MAX_COLUMNS = 16_384


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a sheet. `sheet_name` selects a worksheet in a workbook.

    - `aliases`: a sender's heading -> our column, or `IGNORED_HEADING`.
    - `profiles`: a profile's name -> its aliases. If the header is not recognised, the error suggests a profile.
      Profiles are never applied here, because headings determine who is paid and how much.
    - `operation`: the operation of the rows, which determines the known columns.
    - `encoding` (`cp1252`): used for a text file that is not UTF-8 and has no byte order mark.
    - `file`: the sender's name for the file, if it is stored under another name.
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
        return operation_columns(self.operation)


@dataclass(frozen=True, slots=True)
class Headings:
    """A file's columns. `names` holds our name for each, in the file's order.

    `sender_headings` maps these names to the file's headings. `unknown` columns are kept. `nameless` columns have no
    heading, and are dropped if empty. `rejects_columns`, which we add to rejects files, are always dropped.
    """

    names: tuple[str, ...]
    sender_headings: Mapping[str, str]
    unknown: tuple[str, ...]
    nameless: frozenset[str]
    rejects_columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class FileHeading:
    """A file's heading, the known column that it means (if any), and the first values below it."""

    heading: str
    column: str | None
    samples: tuple[str, ...] = ()


class HeadingError(SheetError):
    """The header is missing, lacks required columns, or has a duplicate column.

    `headings` are from the row most like a header. `describe_command` returns the hint's last sentence for a sheet.
    """

    def __init__(
        self,
        message: str,
        hint: str,
        headings: Sequence[FileHeading],
        *,
        option: str = "",
        file: str = "",
        describe_command: Callable[[str], str] | None = None,
    ) -> None:
        self._hint, self._describe_command = hint, describe_command
        super().__init__(message, hint=self.hint_for(file), option=option)
        self.headings = headings

    def hint_for(self, sheet: str) -> str:
        return self._hint if self._describe_command is None else f"{self._hint} {self._describe_command(sheet)}"


def _map_hint(sheet: str) -> str:
    return say(
        "To map each heading to a column, run `paygw-batch validate {file} --map FILE.toml` and edit the file that it "
        "writes.",
        file=sheet,
    )


class MissingColumns(SheetError):
    """A sheet does not have `columns` that its countries need, perhaps because their headings are unknown."""

    def __init__(self, columns: Sequence[str], message: str, *, hint: str, option: str) -> None:
        super().__init__(message, hint=hint, option=option)
        self.columns = columns


class UnknownHeadings(HeadingError):
    """No row in a file has the headings that every sheet needs."""


@lru_cache(maxsize=4096)
def fold_heading(heading: str) -> str:
    """Normalise a heading to lower case, without spaces, invisible characters, hyphens and underscores."""
    text = unicodedata.normalize("NFKC", heading).casefold()
    return "".join(c for c in text if unicodedata.category(c)[0] not in "CZ" and c not in "-_")


def match_names(cells: Sequence[str], options: ReadOptions) -> list[str | None]:
    """Return the known column for each heading, or None."""
    return _match_columns(cells, options.columns, options.aliases)


def _fitting_profiles(cells: Sequence[str], options: ReadOptions) -> list[str]:
    profiles = options.profiles.items()
    return [name for name, aliases in profiles if _has_required(_match_columns(cells, options.columns, aliases))]


def _has_required(names: Sequence[str | None]) -> bool:
    return set(REQUIRED_COLUMNS) <= set(names)


def _match_columns(cells: Sequence[str], columns: Sequence[str], aliases: Mapping[str, str]) -> list[str | None]:
    meanings = ((alias, _require_known_column(alias, column)) for alias, column in aliases.items())
    lookup = {fold_heading(name): name for name in columns}
    known = {*columns, IGNORED_HEADING}  # columns of other operations are unknown here
    lookup |= {fold_heading(alias): column for alias, column in meanings if column in known}
    return [lookup.get(fold_heading(cell)) or None for cell in cells]


def _require_known_column(heading: str, column: str) -> str:
    if column in known_columns() or column == IGNORED_HEADING:
        return column
    matches = get_close_matches(column, known_columns(), n=1)
    hint = (
        say("Did you mean {near}?", near=matches[0])
        if matches
        else say("The columns are {known_columns}.", known_columns=", ".join(known_columns()))
    )
    raise ConfigurationError(
        say("The heading {heading!r} is mapped to {column!r}, which is not a column.", heading=heading, column=column),
        hint=hint,
    )


def is_header(cells: Sequence[str], options: ReadOptions) -> bool:
    """Return whether a row has the headings of all required columns."""
    return _has_required(match_names(cells, options))


def no_header_error(
    rows: Sequence[Sequence[str]], options: ReadOptions, *, worksheet: str | None = None
) -> UnknownHeadings:
    """Return the error for a file whose first `rows` contain no header. It suggests columns to add, or profiles."""
    file = options.file
    label = file if worksheet is None else say("{file}, worksheet {worksheet!r}", file=file, worksheet=worksheet)
    closest = max(rows, key=lambda cells: header_similarity(cells, options), default=[])
    names = match_names(closest, options)
    row = list(rows).index(closest) + 1 if closest else 0
    headings = [
        FileHeading(" ".join(cell.split()), name, column_texts(index, rows[row:]))
        for index, (cell, name) in enumerate(zip(closest, names, strict=True))
        if cell.strip()
    ]
    if profiles := _fitting_profiles(closest, options):
        return _profile_error(label, row, profiles, headings)
    if any(names):
        message = _missing_columns_message(label, row, names, headings)
        hint = say("Add the column, or correct its heading.")
    else:
        message = say("{place} has no recognisable header in its first {rows} rows.", place=label, rows=HEADER_ROWS)
        hint = say("The first row must have the columns: {columns}.", columns=", ".join(options.columns[:7]))
    return UnknownHeadings(message, hint, headings, option="--column-profile", file=file, describe_command=_map_hint)


def _missing_columns_message(label: str, row: int, names: Sequence[str | None], headings: Sequence[FileHeading]) -> str:
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    unknown = [heading.heading for heading in headings if heading.column is None]
    similar = {name: get_close_matches(name, unknown, n=1) for name in missing}
    parts = [
        say("{name} (is it the column {near!r}?)", name=name, near=nearest_names[0]) if nearest_names else name
        for name, nearest_names in similar.items()
    ]
    columns = say(" and no column ").join(parts)
    return say("{place}, row {row}: the header has no column {columns}.", place=label, row=row, columns=columns)


def _profile_error(label: str, row: int, profiles: Sequence[str], headings: Sequence[FileHeading]) -> UnknownHeadings:
    """Return the error for a header that matches only profiles that were not chosen."""
    return UnknownHeadings(
        say(
            "{place}, row {row}: these are headings of the profile {profiles}.",
            place=label,
            row=row,
            profiles=say(" and of ").join(profiles),
        ),
        say(
            "Choose the profile with --column-profile {fitting}, or with column_profile under [sheet] in the "
            "configuration.",
            fitting=profiles[0],
        ),
        headings,
        option="--column-profile",
    )


def column_texts(index: int, rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the non-empty texts in one column, shortened for display."""
    cells = (row[index].strip() for row in rows if index < len(row))
    return tuple(cell[:MAX_SHOWN_CHARACTERS] for cell in cells if cell)


def header_similarity(cells: Sequence[str], options: ReadOptions) -> tuple[bool, int, int]:
    """Return whether a profile fits a row, and how many known columns and texts without digits it has."""
    known_count = sum(name is not None for name in match_names(cells, options))
    texts = {cell.strip() for cell in cells if cell.strip() and not any(c.isdigit() for c in cell)}
    return bool(_fitting_profiles(cells, options)), known_count, len(texts)


def check_column_count(cells: Sequence[str], options: ReadOptions) -> None:
    """Raise `SheetError` if there are more columns than a spreadsheet can have. Matching them would take minutes."""
    if len(cells) > MAX_COLUMNS:
        raise SheetError(
            say(
                "{file} has {columns} columns, but a sheet can have at most {most}.",
                file=options.file,
                columns=f"{len(cells):,}",
                most=f"{MAX_COLUMNS:,}",
            ),
            hint=say("Save the sheet again with only the columns that it needs."),
        )


def match_headings(cells: Sequence[str], options: ReadOptions, *, row: int) -> Headings:
    """Match the headings of a row to columns. Raises `SheetError` if two of them mean the same column."""
    check_column_count(cells, options)
    trimmed = [" ".join(cell.split()) for cell in cells]
    columns = match_names(trimmed, options)
    is_rejects = set(REJECTS_COLUMNS) <= set(trimmed)
    reserved = {*options.columns, *RECONCILIATION_COLUMNS_OF[options.operation], *REJECTS_COLUMNS, "valid"}
    names: list[str] = []
    sender_headings: dict[str, str] = {}
    nameless: set[str] = set()
    for position, (heading, column) in enumerate(zip(trimmed, columns, strict=True), start=1):
        if not heading:
            nameless.add(f"column {position}")
        name = column or heading or f"column {position}"
        if column is None and name in reserved:
            name = f"{name} (ours)" if is_rejects and name in REJECTS_COLUMNS else f"{name} (sheet)"
        if name in sender_headings:
            raise HeadingError(
                say(
                    "{file}, row {row}: the headings {seen!r} and {heading!r} mean the same column.",
                    file=options.file,
                    row=row,
                    seen=sender_headings[name],
                    heading=heading,
                ),
                say("Remove or rename one of the two columns."),
                [FileHeading(text, column) for text, column in zip(trimmed, columns, strict=True) if text],
            )
        sender_headings[name] = heading
        names.append(name)
    ours = frozenset(f"{name} (ours)" for name in REJECTS_COLUMNS if is_rejects)
    unknown = tuple(name for name, column in zip(names, columns, strict=True) if column is None and name not in ours)
    return Headings(tuple(names), sender_headings, unknown, frozenset(nameless), ours)
