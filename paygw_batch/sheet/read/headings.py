"""Recognises a sender's column names, and finds the header row."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.sheet.columns import (
    ALWAYS_NEEDED,
    REJECTS_COLUMNS,
    columns_of_operation,
    known_columns,
    reserved_names,
)

HEADER_ROWS = 20
"""The number of first rows that may hold the header, with titles and notes above it."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Translates headings in a sheet of `operation`. `aliases`: a sender's heading -> our column."""

    operation: str
    aliases: Mapping[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that such a sheet may have."""
        return columns_of_operation(self.operation)


@dataclass(frozen=True, slots=True)
class Headings:
    """The columns of a file. `names` has our name for each, in the file's order.

    `sender` maps each of them back to the heading in the file; `unknown` names those that mean nothing to us,
    `nameless` those without a heading (dropped when they hold nothing), `ours` the columns of a rejects file (dropped).
    """

    names: tuple[str, ...]
    sender: Mapping[str, str]
    unknown: tuple[str, ...]
    nameless: frozenset[str]
    ours: frozenset[str]


def fold(heading: str) -> str:
    """Return a heading without case, blanks, invisible characters, hyphens and underscores."""
    text = unicodedata.normalize("NFKC", heading).casefold()
    return "".join(c for c in text if unicodedata.category(c)[0] not in "CZ" and c not in "-_")


def known_names(cells: Sequence[str], vocabulary: Vocabulary) -> list[str | None]:
    """Return for each heading the known column that it means, or None."""
    columns = vocabulary.columns
    targets = ((heading, _alias_target(heading, column)) for heading, column in vocabulary.aliases.items())
    ours = {fold(name): name for name in columns}
    # A heading can stand for a column of another operation's sheets: here it then means nothing.
    ours |= {fold(heading): column for heading, column in targets if column in columns}
    return [ours.get(fold(cell)) for cell in cells]


def _alias_target(heading: str, column: str) -> str:
    if column in known_columns():
        return column
    near = get_close_matches(column, known_columns(), n=1)
    hint = f"Did you mean {near[0]}?" if near else f"The columns are {', '.join(known_columns())}."
    raise ConfigurationError(f"The heading {heading!r} is to stand for {column!r}, which is no column.", hint=hint)


def is_header(cells: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Return whether a row names the columns that every sheet needs."""
    return set(ALWAYS_NEEDED) <= set(known_names(cells, vocabulary))


def no_header(file: str, rows: Sequence[Sequence[str]], vocabulary: Vocabulary) -> SheetError:
    """Return the error for a file whose first `rows` hold no header; it names the columns that are missing."""
    best = max(rows, key=lambda cells: sum(name is not None for name in known_names(cells, vocabulary)), default=[])
    names = known_names(best, vocabulary)
    if not any(names):
        return SheetError(
            f"{file} has no header that we know among its first {HEADER_ROWS} rows.",
            hint=f"The first row must name the columns: {', '.join(vocabulary.columns[:7])}.",
        )
    missing = [name for name in ALWAYS_NEEDED if name not in names]
    close = {name: get_close_matches(name, [cell.strip() for cell in best], n=1) for name in missing}
    said = [f"{name} (is it the column {near[0]!r}?)" if near else name for name, near in close.items()]
    return SheetError(
        f"{file}, row {list(rows).index(best) + 1}: the header has no column {' and no column '.join(said)}.",
        hint="Add the column, or correct its heading.",
    )


def match_headings(cells: Sequence[str], vocabulary: Vocabulary, *, file: str, row: int) -> Headings:
    """Return the columns that the cells of the header row `row` of `file` mean.

    Raises `SheetError` for a heading that occurs twice, in any spelling: one of the two columns would win
    silently.
    """
    trimmed = [" ".join(cell.split()) for cell in cells]
    known = known_names(trimmed, vocabulary)
    is_rejects = set(REJECTS_COLUMNS) <= set(trimmed)
    names: list[str] = []
    seen: dict[str, str] = {}
    nameless: set[str] = set()
    for position, (heading, name) in enumerate(zip(trimmed, known, strict=True), start=1):
        if not heading:
            nameless.add(f"column {position}")
        own = name or heading or f"column {position}"
        if name is None and own in reserved_names(vocabulary.operation):
            own = f"{own} (ours)" if is_rejects and own in REJECTS_COLUMNS else f"{own} (sheet)"
        if own in seen:
            raise SheetError(
                f"{file}, row {row}: the headings {seen[own]!r} and {heading!r} name the same column.",
                hint="Remove or rename one of the two columns.",
            )
        seen[own] = heading
        names.append(own)
    ours = frozenset(f"{name} (ours)" for name in REJECTS_COLUMNS if is_rejects)
    unknown = tuple(own for own, name in zip(names, known, strict=True) if name is None and own not in ours)
    return Headings(tuple(names), seen, unknown, frozenset(nameless), ours)
