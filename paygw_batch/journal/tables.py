"""The interface to a store's tables, and the SQL statements that are run on them by name."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from paygw_batch.core.lifecycle import MOVES
from paygw_batch.journal.values import Identity


class Tables(Protocol):
    """One journal's tables: runs named SQL statements, and hides the differences between stores."""

    @property
    def identity(self) -> Identity:
        """The identity of the journal."""

    def run(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows. A list among the values must not be empty."""

    def stream(self, name: str, **values: Any) -> Iterator[tuple[Any, ...]]:
        """Run a statement and stream its rows."""

    def run_for_each(
        self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], **values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Run a statement for each row, with the row's values named by `columns`. Yields all results in order."""

    def add_order_id(self, operation: str, order_id: str, instruction: int) -> None:
        """Store a new order id of an operation."""

    def lock_rows(self, numbers: Sequence[int]) -> bool:
        """Lock instructions until the transaction ends. Returns whether one may have moved before it was locked."""

    def lock_documents(self) -> None:
        """Keep other transactions from withdrawing or carrying out documents until this one ends."""


MOVE_LINES = [(move.before.value, move.kind.value, move.after.value, *move[3:]) for move in MOVES.values()]
_HEAD = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
VALUE = re.compile(r"(?<!:):([a-z][a-z0-9_]*)")
"""Matches a value's placeholder in a statement: `:name`."""
FILES = ("state.sql", "evidence.sql", "journal.sql", "replay.sql", "forget.sql")
"""The files that contain the journal's statements. A store's own folder may lack some of them."""
ON_SQLITE = ((r"= ANY \(:(\w+)\)", r"IN (SELECT value FROM carray(:\1))"), (r"\bstrpos\(", "instr("))
ON_POSTGRES = (
    (r"\s+INDEXED BY \w+", ""),
    (r"CROSS JOIN (?=\w+ (?:\w+ )?ON\b)", "JOIN "),
    (r"\bjson_array\(", "json_build_array("),
)
"""Each store's replacements in the shared statements, as (pattern, replacement).

The shared statements fix the join order and some indexes for SQLite, which does not know the sizes of tables.
"""


def named_sql(
    package: str,
    files: Sequence[str],
    parts: Mapping[str, str],
    replacements: Sequence[tuple[str, str]],
    *,
    is_psycopg: bool = False,
) -> dict[str, str]:
    """Return the statements from a store's own files and the shared files, by name.

    `parts` maps names in braces to their text. `replacements` (pattern, replacement) adapt the shared statements.
    """
    texts = []
    for source in (package, package.rpartition(".")[0]):
        for file in files:
            resource = resources.files(source).joinpath(file)
            text = resource.read_text(encoding="utf-8") if resource.is_file() else ""
            for pattern, replacement in replacements if source != package else ():
                text = re.sub(pattern, replacement, text)
            texts.append(text)
    _, *sections = _HEAD.split("\n".join(texts))
    statements: dict[str, str] = {}
    part_texts = dict(parts)
    named_sections = zip(sections[::3], sections[1::3], sections[2::3], strict=True)
    for kind, name, body in sorted(named_sections, key=lambda piece: piece[0] != "part"):
        text = _COMMENT.sub("", body).strip()
        for part, part_text in part_texts.items():
            text = text.replace(f"{{{part}}}", part_text)
        statements[name] = text
        part_texts |= {name: text} if kind == "part" else {}
    if not is_psycopg:
        return statements
    # Percent signs must be doubled in statements with values, because psycopg parses only these.
    return {
        name: VALUE.sub(r"%(\1)s", text.replace("%", "%%")) if VALUE.search(text) else text
        for name, text in statements.items()
    }


def insert_triggers(script: str) -> str:
    """Insert the shared triggers' bodies into a script that creates a store's tables."""
    for name, body in named_sql(__package__, ("moves.sql",), {}, ()).items():
        script = script.replace(f"{{{name}}}", body)
    return script
