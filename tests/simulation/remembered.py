"""What a sheet's rows alone decide, computed once in a process: worlds ask the same of their few sheets very often.

Only pure functions are here, and what they were given is compared by its whole content. Nothing that a journal, a clock
or the gateway has a part in is remembered: each world does that anew.
"""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from functools import lru_cache
from types import ModuleType
from typing import Any, Self, TypeVar

import polars as pl

from paygw_batch.report import reconcile
from paygw_batch.run import approval, compare_sheet, submit
from paygw_batch.sheet.check.same_spelling import in_one_spelling
from paygw_batch.sheet.check.validate import with_defects
from paygw_batch.sheet.instructions import pages
from paygw_batch.sheet.instructions.pages import from_pages, to_pages
from paygw_batch.sheet.model import Validated

KEPT = 4_096
"""How many results of one function are kept: a long run must not fill the memory."""

T = TypeVar("T")


class _Asked:
    """What a function was given, compared by its content."""

    __slots__ = ("_content", "given")

    def __init__(self, given: tuple[Any, ...]) -> None:
        self._content = tuple(_content(value) for value in given)
        self.given = given

    def __hash__(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self._content == other._content


def _content(value: object) -> Hashable:
    """Return all that a value says."""
    if isinstance(value, pl.DataFrame):
        return (*value.columns, *value.rows())
    if isinstance(value, pl.Series):
        return tuple(value)
    if isinstance(value, Validated):
        return value.sheet.operation, value.sheet.sha256, value.batch, *map(_content, (value.defects, value.warnings))
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


def _once(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function, computed once for what it is given."""
    computed = lru_cache(maxsize=KEPT)(lambda asked: function(*asked.given))
    return lambda *given: computed(_Asked(given))


_PAGES = _once(lambda rows: list(to_pages(rows)))


def _pages(rows: pl.DataFrame) -> Iterator[bytes]:
    return iter(_PAGES(rows))


class AtOnce:
    """The thread beside the journal's work, in a world without threads: what it shall do is done at once."""

    def __init__(self, workers: int) -> None:
        """Take note of nothing: there are no workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for nothing."""

    def submit(self, function: Callable[..., T], *given: object) -> Future[T]:
        """Do it, and return what became of it."""
        done = Future[T]()
        try:
            done.set_result(function(*given))
        except Exception as error:  # noqa: BLE001 (as an executor: whoever asks for the result hears of it)
            done.set_exception(error)
        return done


REMEMBERED: tuple[tuple[ModuleType, str, object], ...] = (
    (submit, "ThreadPoolExecutor", AtOnce),
    (pages, "to_pages", _pages),
    (compare_sheet, "in_one_spelling", _once(in_one_spelling)),
    (submit, "with_defects", _once(with_defects)),
    (reconcile, "from_pages", _once(from_pages)),
    (approval, "_digest_and_totals", _once(approval._digest_and_totals)),
)
"""What a world replaces in the program, and with what."""
