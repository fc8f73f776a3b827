"""What a sheet's rows alone decide, computed once in a process: worlds ask the same of their few sheets very often.

Only pure functions are here, and what they were given is compared by its whole content. Nothing that a journal, a clock
or the gateway has a part in is remembered: each world does that anew.
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
from paygw_batch.sheet.check.contract import good_rows
from paygw_batch.sheet.check.repeats import in_one_spelling
from paygw_batch.sheet.check.validate import with_defects
from paygw_batch.sheet.instructions import InstructionColumns, from_pages, to_pages
from paygw_batch.sheet.model import Validated, ValidatedPart
from paygw_batch.show import reconcile
from paygw_batch.submit import changes, compare_sheet
from paygw_batch.submit import plan as submit
from paygw_batch.submit.compare_sheet import with_rows, without_rows

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
    if isinstance(value, ValidatedPart):
        return _content(value.raw), _content(value.rows)
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


def _once(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function, computed once for what it is given."""
    computed = lru_cache(maxsize=KEPT)(lambda asked: function(*asked.given))
    return lambda *given: computed(_Asked(given))


_PAGES = _once(lambda rows: list(to_pages(rows)))
_CANONICAL = _once(lambda frame, first, replaced: list(InstructionColumns(frame).canonical(first, replaced)))
_TOTALS = _once(lambda frame: InstructionColumns(frame).totals())
_PAYEE_WORDS = _once(lambda frame: list(InstructionColumns(frame).payee_words()))
_WITHOUT_ROWS = _once(without_rows)
_PAYABLE = _once(lambda counts: int(counts.filter("valid")["count"].sum()))


def _pages(rows: pl.DataFrame) -> Iterator[bytes]:
    return iter(_PAGES(rows))


class _ColumnsOnce(InstructionColumns):
    """Instructions whose text and sums are made once for the same rows."""

    def canonical(self, first: int, replaced: Mapping[int, int]) -> Iterator[bytes]:
        return iter(_CANONICAL(self._frame, first, dict(replaced)))

    def totals(self) -> Mapping[tuple[str, str], InstructionTotals]:
        return _TOTALS(self._frame)

    def payee_words(self) -> Iterable[str]:
        return _PAYEE_WORDS(self._frame)


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


REMEMBERED: tuple[tuple[ModuleType | type, str, object], ...] = (
    (Validated, "payable", property(lambda validated: _PAYABLE(validated.counts))),
    (submit, "InstructionColumns", _ColumnsOnce),
    (submit, "good_rows", _once(good_rows)),
    (compare_sheet, "without_rows", lambda frame, rows: _WITHOUT_ROWS(frame, list(rows))),
    (submit, "without_rows", lambda frame, rows: _WITHOUT_ROWS(frame, list(rows))),
    (submit, "with_rows", _once(with_rows)),
    (new_batch, "ThreadPoolExecutor", AtOnce),
    (instructions, "to_pages", _pages),
    (compare_sheet, "in_one_spelling", _once(in_one_spelling)),
    (submit, "with_defects", _once(with_defects)),
    (changes, "accounts", _once(changes.accounts)),
    (reconcile, "from_pages", _once(from_pages)),
)
"""What a world replaces in the program, and with what."""
