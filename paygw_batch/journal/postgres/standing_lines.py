"""Turns values into lines of the tables in PostgreSQL, and lines into values."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from paygw_batch.core.lifecycle import Standing, State
from paygw_batch.errors import InternalError, JournalCorrupt
from paygw_batch.journal.facts.progress import RowProgress
from paygw_batch.journal.postgres.session import Row, fetch

COLUMNS = (
    "state",
    "attempt",
    "generation",
    "possible_duplicate_of",
    "inherited_attempts",
    "order_id",
    "sent_orderid",
    "purpose",
    "gateway_status",
    "gateway_reference",
    "http_status",
    "error_code",
    "message",
    "intended_at",
    "first_sent_at",
    "updated_at",
)
"""The columns of `standing` and of the view `progress` that a `RowProgress` is stored in."""
PROGRESS = ", ".join(f"p.{column}" for column in COLUMNS)
_WORD = re.compile(r"[^\W_]+")


class _StateWords(dict[str, State]):
    def __missing__(self, word: str) -> State:
        """Refuse a word that we never write."""
        raise JournalCorrupt(f"An instruction stands in a state that there is not: {word[:20]!r}.")


STATE_OF: Mapping[str, State] = _StateWords({state.value: state for state in State})


def text_of(value: str | None) -> str | None:
    """Return a text as PostgreSQL can hold it: it has no NUL, which a gateway may send."""
    return None if value is None else value.replace("\0", "?")


def progress_from(columns: Sequence[Any]) -> RowProgress:
    """Return the progress that the columns `PROGRESS` hold."""
    return RowProgress(columns[5], Standing(STATE_OF[columns[0]], *columns[1:4]), columns[4], *columns[6:16])


def columns_of(progress: RowProgress) -> tuple[Any, ...]:
    """Return a progress as it is stored, in the order of `COLUMNS`."""
    standing = progress.standing
    fields = (getattr(progress, name) for name in COLUMNS[6:])
    rest = (text_of(one) if isinstance(one, str) else one for one in fields)
    return (
        standing.state.value,
        standing.attempt,
        standing.generation,
        standing.possible_duplicate_of,
        progress.inherited_attempts,
        progress.order_id,
        *rest,
    )


def words_of(texts: Iterable[str]) -> list[str]:
    """Return the words of some texts as they are looked up: in lower case, without accents, each once."""
    folded = unicodedata.normalize("NFKD", " ".join(texts).casefold())
    plain = "".join(character for character in folded if not unicodedata.combining(character))
    return sorted(set(_WORD.findall(plain)))


@dataclass(frozen=True, slots=True)
class Loaded:
    """An instruction about to move, as it was read: its progress, and how many facts it had."""

    number: int
    client_orderid: str
    batch: int
    chunk: int
    country: str
    currency: str
    minor: int
    facts: int
    is_new: bool
    """Whether it has no line in `standing` yet."""
    progress: RowProgress


LOADED = f"p.number, p.client_orderid, p.batch, c.number, p.country, p.currency, p.minor, p.facts, p.is_new, {PROGRESS}"
CHUNK_OF_ROW = "JOIN chunk c ON c.first = (SELECT max(first) FROM chunk WHERE first <= p.number)"
"""The one chunk of an instruction `p`: the ranges leave no gap and do not overlap."""


def loaded_from(columns: Sequence[Any]) -> Loaded:
    """Return the instruction that the columns `LOADED` hold."""
    number, client_orderid, batch, chunk, country, currency, minor, facts, is_new, *progress = columns
    return Loaded(
        number, client_orderid, batch, chunk, country, currency, minor, facts, is_new, progress_from(progress)
    )


def load_instructions(connection: Connection[Row], numbers: Iterable[int]) -> dict[int, Loaded]:
    """Read instructions that are about to move, by number."""
    wanted = sorted(set(numbers))
    if not wanted:
        return {}
    query = f"SELECT {LOADED} FROM progress p {CHUNK_OF_ROW} WHERE p.number = ANY (%s)"  # noqa: S608 - constants of ours
    found = {line[0]: loaded_from(line) for line in fetch(connection, query, (wanted,))}
    if len(found) != len(wanted):
        raise InternalError("a fact speaks of an instruction that the journal does not have")
    return found


def pieces(items: Iterable[Row], at_once: int) -> Iterator[list[Row]]:
    """Yield items in groups of `at_once`."""
    group: list[Row] = []
    for item in items:
        group.append(item)
        if len(group) == at_once:
            yield group
            group = []
    if group:
        yield group


def arrays(lines: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return lines as one array for each of their columns."""
    return [list(column) for column in zip(*lines, strict=True)] if lines else [[] for _ in range(width)]
