"""Turns values into lines of the tables in PostgreSQL, and lines into values."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_WORD = re.compile(r"[^\W_]+")


def text_of(value: str | None) -> str | None:
    """Return a text as PostgreSQL can hold it: it has no NUL, which a gateway may send."""
    return None if value is None else value.replace("\0", "?")


def words_of(texts: Iterable[str]) -> list[str]:
    """Return the words of some texts as they are looked up: in lower case, without accents, each once."""
    folded = unicodedata.normalize("NFKD", " ".join(texts).casefold())
    plain = "".join(character for character in folded if not unicodedata.combining(character))
    return sorted(set(_WORD.findall(plain)))


def pieces(items: Iterable[Sequence[Any]], at_once: int) -> Iterator[list[Sequence[Any]]]:
    """Yield items in groups of `at_once`."""
    group: list[Sequence[Any]] = []
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
