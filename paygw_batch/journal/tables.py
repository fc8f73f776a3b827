"""Declares the interface to a store's tables for the code that all stores share: statements are run by name."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from paygw_batch.core.lifecycle import MOVES
from paygw_batch.journal.values import Identity


class Tables(Protocol):
    """The tables of one journal: its named SQL statements, and locks and writes that differ between stores."""

    @property
    def identity(self) -> Identity:
        """The identity of the journal."""
        ...

    def run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return all its rows. A list among the values is never empty."""
        ...

    def stream(self, name: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Run a statement, and yield its rows without holding all of them in memory."""
        ...

    def each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Run a statement for each of many rows, whose values `columns` name, and yield the results in order."""
        ...

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Add an order id that no instruction of the operation has yet."""
        ...

    def lock_rows(self, numbers: Sequence[int]) -> bool:
        """Let no other process move these instructions until the open transaction ends; return whether one may have."""
        ...

    def withdraw_in_turn(self) -> None:
        """Let no other transaction withdraw a document, or use one, until the open transaction ends."""
        ...


MOVE_LINES = [(move.before.value, move.kind.value, move.after.value, *move[3:]) for move in MOVES.values()]
"""The lines of the table `move`."""
_HEAD = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
VALUE = re.compile(r"(?<!:):([a-z][a-z0-9_]*)")
"""The place of a value in a statement: `:name`."""


FILES = ("state.sql", "evidence.sql", "journal.sql", "replay.sql", "forget.sql")
"""The files of statements about the journal itself. A store's own folder may lack some of them."""
ON_SQLITE = ((r"= ANY \(:(\w+)\)", r"IN (SELECT value FROM carray(:\1))"), (r"\bstrpos\(", "instr("))
ON_POSTGRES = (
    (r"\s+INDEXED BY \w+", ""),
    (r"CROSS JOIN (?=\w+ (?:\w+ )?ON\b)", "JOIN "),
    (r"\bjson_array\(", "json_build_array("),
)
"""Each store's replacements in the shared statements: patterns, and their texts.

For SQLite, the statements name the order of joins and some indexes, because it does not know the sizes of tables.
"""


def named_sql(
    package: str,
    files: Sequence[str],
    parts: Mapping[str, str],
    otherwise: Sequence[tuple[str, str]],
    *,
    is_psycopg: bool = False,
) -> dict[str, str]:
    """Return the statements of a store's own and the shared files, by name; psycopg's notation is an option."""
    texts = []
    for place in (package, package.rpartition(".")[0]):
        for file in files:
            found_file = resources.files(place).joinpath(file)
            text = found_file.read_text(encoding="utf-8") if found_file.is_file() else ""
            for pattern, instead in otherwise if place != package else ():
                text = re.sub(pattern, instead, text)
            texts.append(text)
    _, *pieces = _HEAD.split("\n".join(texts))
    statements: dict[str, str] = {}
    known = dict(parts)
    named = zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    for kind, name, commented in sorted(named, key=lambda piece: piece[0] != "part"):
        text = _COMMENT.sub("", commented).strip()
        for part, inner in known.items():
            text = text.replace(f"{{{part}}}", inner)
        statements[name] = text
        known |= {name: text} if kind == "part" else {}
    if not is_psycopg:
        return statements
    # psycopg looks for placeholders only in statements that get values, so only these write a per cent sign twice.
    return {
        name: VALUE.sub(r"%(\1)s", text.replace("%", "%%")) if VALUE.search(text) else text
        for name, text in statements.items()
    }


def with_triggers(script: str) -> str:
    """Return a script that creates tables, with the bodies of the triggers that move rows filled in."""
    for name, body in named_sql(__package__, ("moves.sql",), {}, ()).items():
        script = script.replace(f"{{{name}}}", body)
    return script
