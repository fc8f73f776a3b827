"""Declares how the parts of the journal that every store shares ask its tables: by the names of statements."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from paygw_batch.core.lifecycle import MOVES
from paygw_batch.journal.values import Identity


class Tables(Protocol):
    """The tables of one journal: its named SQL, and the further duties of a store."""

    @property
    def identity(self) -> Identity:
        """Which journal it is."""
        ...

    def run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return all it finds. A list is never empty."""
        ...

    def stream(self, name: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Run a statement, and yield its rows without holding all of them."""
        ...

    def each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Run a statement for each of many rows, whose values `columns` name, and yield the results in order."""
        ...

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Write an order id that no instruction of the operation has."""
        ...

    def lock_rows(self, numbers: Sequence[int]) -> bool:
        """Let nobody move these instructions until the open transaction ends; return whether somebody may have."""
        ...

    def withdraw_in_turn(self) -> None:
        """Let no other transaction withdraw a document, or use one, until the open one ends."""
        ...


MOVE_LINES = [(move.before.value, move.kind.value, move.after.value, *move[3:]) for move in MOVES.values()]
"""The table `move`."""
_HEAD = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
VALUE = re.compile(r"(?<!:):([a-z][a-z0-9_]*)")
"""The place of a value in a statement."""


FILES = ("state.sql", "evidence.sql", "journal.sql", "replay.sql", "forget.sql")
"""The files of statements about the journal itself; a store's own may lack some."""
ON_SQLITE = ((r"= ANY \(:(\w+)\)", r"IN (SELECT value FROM carray(:\1))"), (r"\bstrpos\(", "instr("))
ON_POSTGRES = (
    (r"\s+INDEXED BY \w+", ""),
    (r"CROSS JOIN (?=\w+ (?:\w+ )?ON\b)", "JOIN "),
    (r"\bjson_array\(", "json_build_array("),
)
"""A store's replacements in the statements that all stores share: patterns, and their texts.

SQLite is given the order of joins and some indexes, because it does not know how many rows there are.
"""


def named_sql(
    package: str,
    files: Sequence[str],
    parts: Mapping[str, str],
    otherwise: Sequence[tuple[str, str]],
    *,
    is_psycopg: bool = False,
) -> dict[str, str]:
    """Return the statements and parts of a store's files and the shared ones, by name, for psycopg in its notation."""
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
    # psycopg looks for its own values only where there are any: then alone a per cent sign is written twice.
    return {
        name: VALUE.sub(r"%(\1)s", text.replace("%", "%%")) if VALUE.search(text) else text
        for name, text in statements.items()
    }


def with_triggers(script: str) -> str:
    """Return a script that makes tables, with the bodies of the triggers that move rows."""
    for name, body in named_sql(__package__, ("moves.sql",), {}, ()).items():
        script = script.replace(f"{{{name}}}", body)
    return script
