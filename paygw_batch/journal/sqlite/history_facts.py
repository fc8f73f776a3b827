"""Reads what people did from the facts that they caused, by an index over these alone."""

import apsw

from paygw_batch.journal.facts.codec import BATCH_OPENED
from paygw_batch.journal.facts.history import HISTORY_KINDS, history_of
from paygw_batch.journal.sqlite.connect import fetch
from paygw_batch.journal.values import HistoryEntry

_KINDS = ", ".join(f"'{kind}'" for kind in (BATCH_OPENED, *HISTORY_KINDS))
_OF_PEOPLE = f"f.kind IN ({_KINDS})"
"""The condition of the index in `schema-4.sql`, word for word: for no other condition SQLite uses a partial index."""
_HISTORY = f"""SELECT f.seq, f.at, f.kind, f.details, i.row, f.attempt
    FROM fact f INDEXED BY fact_of_people LEFT JOIN instruction i ON i.number = f.instruction
    WHERE f.batch = ?1 AND {_OF_PEOPLE}
    UNION ALL
    SELECT f.seq, f.at, f.kind, f.details, k.row, f.attempt
    FROM fact f INDEXED BY fact_of_people CROSS JOIN known k ON k.batch = ?1 AND k.instruction = f.instruction
    WHERE {_OF_PEOPLE}
    ORDER BY 1"""  # noqa: S608 - constants of ours
"""A fact belongs to the batch that brought its instruction; a batch also covers rows that another one brought."""


def history_in(connection: apsw.Connection, batch: int) -> list[HistoryEntry]:
    """Return what people did to a batch and to the rows it covers, in the order they did it."""
    return [
        deed
        for seq, at, kind, details, row, attempt in fetch(connection, _HISTORY, (batch,))
        for deed in history_of(seq, at, kind, details, row=row, attempt=attempt)
    ]
