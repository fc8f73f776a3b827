"""Statements that carry many lines in one step.

SQLite lets go of the interpreter for every step of a statement. Beside a busy event loop, getting it back takes far
longer than the step, so that a commit with a step for each line spends most of its time waiting. Here one step takes or
brings a whole group of lines.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import apsw

from paygw_batch.journal.sqlite.connect import fetch

_LINES_A_STEP = (64, 32, 16, 8, 4, 2, 1)
"""How many lines a step may take. So few sizes, because each is a statement of its own, and SQLite takes longer to
compile one than to run it; the largest is well under its limit of bound values for the widest table."""


def write_lines(connection: apsw.Connection, statement: str, lines: Sequence[Sequence[Any]]) -> None:
    """Run `statement`, in which `{lines}` stands for a table of values, over all `lines`, a group at a time."""
    start = 0
    while start < len(lines):
        size = next(size for size in _LINES_A_STEP if size <= len(lines) - start)
        group = lines[start : start + size]
        connection.execute(_with_lines(statement, size, len(group[0])), list(chain.from_iterable(group)))
        start += size


@lru_cache(maxsize=64)
def _with_lines(statement: str, lines: int, columns: int) -> str:
    places = f"({', '.join('?' * columns)})"
    return statement.format(lines=f"VALUES {', '.join([places] * lines)}")


def fetch_lines(connection: apsw.Connection, columns: str, source: str, bindings: Sequence[Any]) -> list[Sequence[Any]]:
    """Return `columns` (texts, whole numbers and nulls) of every line of `source`, what stands behind FROM."""
    query = f"SELECT json_group_array(json_array({columns})) FROM {source}"  # noqa: S608 - constants of our own
    ((found,),) = fetch(connection, query, bindings)
    lines: list[Sequence[Any]] = json.loads(found)
    return lines
