"""Results that depend only on a sheet's rows, computed once per process, because scenarios repeat them often.

Only pure functions are cached, by the whole content of their arguments. Results that depend on a journal, a clock or
the gateway are computed in each scenario.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import lru_cache
from types import ModuleType
from typing import Any, Self, TypeVar

import polars as pl

from paygw_batch.core.batch import InstructionTotals
from paygw_batch.journal import new_batch
from paygw_batch.sheet import instructions
from paygw_batch.sheet.check.contract import payable_rows
from paygw_batch.sheet.check.repeats import normalise_ids
from paygw_batch.sheet.check.validate import with_defects
from paygw_batch.sheet.instructions import InstructionColumns, from_pages, to_pages
from paygw_batch.sheet.model import Validated, ValidatedPart
from paygw_batch.show import reconcile
from paygw_batch.submit import changes, compare_sheet
from paygw_batch.submit import plan as submit
from paygw_batch.submit.compare_sheet import exclude_rows, select_rows

KEPT = 4_096
"""The maximum number of cached results of a function, to limit memory."""

T = TypeVar("T")


class _ArgumentKey:
    __slots__ = ("_content", "given")

    def __init__(self, given: tuple[Any, ...]) -> None:
        self._content = tuple(_content(value) for value in given)
        self.given = given

    def __hash__(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ArgumentKey) and self._content == other._content


def _content(value: object) -> Hashable:
    if isinstance(value, pl.DataFrame):
        return (*value.columns, *value.rows())
    if isinstance(value, pl.Series):
        return tuple(value)
    if isinstance(value, Validated):
        return value.sheet.operation, value.sheet.sha256, value.batch, *map(_content, (value.defects, value.warnings))
    if isinstance(value, ValidatedPart):
        return _content(value.raw), _content(value.rows)
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


def _cached(function: Callable[..., T]) -> Callable[..., T]:
    computed = lru_cache(maxsize=KEPT)(lambda asked: function(*asked.given))
    return lambda *given: computed(_ArgumentKey(given))


_PAGES = _cached(lambda rows: list(to_pages(rows)))
_CANONICAL = _cached(lambda frame, first, replaced: list(InstructionColumns(frame).canonical(first, replaced)))
_TOTALS = _cached(lambda frame: InstructionColumns(frame).totals())
_PAYEE_WORDS = _cached(lambda frame: list(InstructionColumns(frame).payee_words()))
_WITHOUT_ROWS = _cached(exclude_rows)
_PAYABLE = _cached(lambda counts: int(counts.filter("valid")["count"].sum()))


def _pages(rows: pl.DataFrame) -> Iterator[bytes]:
    return iter(_PAGES(rows))


class _CachedColumns(InstructionColumns):
    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        return iter(_CANONICAL(self._frame, first, dict(replaced)))

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        return _TOTALS(self._frame)

    def payee_words(self) -> Iterable[str]:
        return _PAYEE_WORDS(self._frame)


class ImmediateExecutor:
    """A thread pool that runs each call at once, because scenarios have no threads."""

    def __init__(self, workers: int) -> None:
        """Ignore the number of workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for nothing."""

    def submit(self, function: Callable[..., T], *given: object) -> Future[T]:
        done = Future[T]()
        try:
            done.set_result(function(*given))
        except Exception as error:  # noqa: BLE001 (as an executor: whoever asks for the result hears of it)
            done.set_exception(error)
        return done


REMEMBERED: tuple[tuple[ModuleType | type, str, object], ...] = (
    (Validated, "payable_count", property(lambda validated: _PAYABLE(validated.counts))),
    (submit, "InstructionColumns", _CachedColumns),
    (submit, "payable_rows", _cached(payable_rows)),
    (compare_sheet, "exclude_rows", lambda frame, rows: _WITHOUT_ROWS(frame, list(rows))),
    (submit, "exclude_rows", lambda frame, rows: _WITHOUT_ROWS(frame, list(rows))),
    (submit, "select_rows", _cached(select_rows)),
    (new_batch, "ThreadPoolExecutor", ImmediateExecutor),
    (instructions, "to_pages", _pages),
    (compare_sheet, "normalise_ids", _cached(normalise_ids)),
    (submit, "with_defects", _cached(with_defects)),
    (changes, "payment_rows", _cached(changes.payment_rows)),
    (reconcile, "from_pages", _cached(from_pages)),
)
"""The parts of the program that a scenario replaces with cached ones."""
