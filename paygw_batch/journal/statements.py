"""Statements that carry many lines in one step.

SQLite lets go of the interpreter for every step of a statement. Beside a busy event loop, getting it back takes far
longer than the step, so that a commit with a step for each line spends most of its time waiting. Here one step takes or
brings a whole group of lines.
"""

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import apsw

from paygw_batch.journal.connection import fetch

_LINES_A_STEP = 64
"""So many lines of the widest table are well under SQLite's limit of bound values, and one group of a busy run."""


def write_lines(connection: apsw.Connection, statement: str, lines: Sequence[Sequence[object]]) -> None:
    """Run `statement`, in which `{lines}` stands for a table of values, over all `lines`, a group at a time."""
    for start in range(0, len(lines), _LINES_A_STEP):
        group = lines[start : start + _LINES_A_STEP]
        places = f"({', '.join('?' * len(group[0]))})"
        wanted = statement.format(lines=f"VALUES {', '.join([places] * len(group))}")
        connection.execute(wanted, list(chain.from_iterable(group)))


def fetch_lines(connection: apsw.Connection, columns: str, source: str, bindings: Sequence[Any]) -> list[Sequence[Any]]:
    """Return `columns` (texts, whole numbers and nulls) of every line of `source`, what stands behind FROM."""
    query = f"SELECT json_group_array(json_array({columns})) FROM {source}"  # noqa: S608 - constants of our own
    ((found,),) = fetch(connection, query, bindings)
    lines: list[Sequence[Any]] = json.loads(found)
    return lines
