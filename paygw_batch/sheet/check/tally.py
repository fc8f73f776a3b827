"""Judges the rows of a sheet in pieces, several at a time, and adds up the results without keeping any row.

Rows that concern each other (the same order id twice, payments that look alike) are found by 64-bit hashes of all rows.
Only the few rows whose hashes occur twice are then compared.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl

from paygw_batch.language import say
from paygw_batch.sheet.amounts import readable_amount
from paygw_batch.sheet.check.contract import NO_COUNTRY
from paygw_batch.sheet.check.judge import Failed, FailedTally, Judged, rows_failed
from paygw_batch.sheet.check.repeats import in_one_spelling, occurring_twice, payee_hashes, worth_comparing
from paygw_batch.sheet.findings import Findings, defects_of
from paygw_batch.sheet.instructions import BatchDigest
from paygw_batch.sheet.model import COUNT_KEYS, Sheet

_TOTAL = r"(?i)^[\p{C}\p{Z}]*(?:grand[ -]|sub[ -]?)?(?:total|totals|totaux|sum|somme|montant total)[\p{C}\p{Z}.:]*$"

ROWS_AT_ONCE = 250_000
_CORES_A_PIECE = 2  # which polars keeps busy; more pieces in parallel cost memory
_MAX_AT_ONCE = 4

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a sheet as in its `frame`, with those of its `defects` that are about them."""

    frame: pl.DataFrame
    defects: pl.DataFrame


def pieces_of(sheet: Sheet) -> Iterator[Piece]:
    for frame in sheet.frame.iter_slices(ROWS_AT_ONCE):
        of_piece = pl.col("row").is_between(frame["row"][0], frame["row"][-1])
        yield Piece(frame, sheet.defects.filter(of_piece))


def each(sheet: Sheet, work: Callable[[Piece], _Made]) -> Iterator[_Made]:
    """Apply `work` to each piece of a sheet, and yield the results in the order of the pieces.

    A few pieces are processed at once, because polars releases the interpreter's lock. No other piece is begun before.
    """
    threads = max(1, min(pl.thread_pool_size() // _CORES_A_PIECE, _MAX_AT_ONCE))
    begun: deque[Future[_Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for piece in pieces_of(sheet):
            begun.append(pool.submit(copy_context().run, work, piece))  # the context has the chosen language
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


@dataclass(frozen=True, slots=True)
class _PieceTally:
    """The sums of a piece of a sheet. `ids`: `row` and `hash` of each order id; `payees`: the `payee_hashes`.

    Order ids that differ only in spelling have the same hash. `defects` are those found outside the checks. `wrong` are
    the rows with a defect, and `doubted` those with a warning.
    """

    frame: pl.DataFrame
    lines: pl.DataFrame
    invalid: pl.Series
    ids: pl.DataFrame
    payees: pl.DataFrame
    counts: pl.DataFrame
    defects: pl.DataFrame
    failed: Sequence[Failed]
    doubtful: Sequence[Failed]
    wrong: pl.Series
    doubted: pl.Series

    @classmethod
    def of(cls, piece: Piece, judged: Judged) -> "_PieceTally":
        lines = judged.lines
        order_ids = lines["client_orderid"]
        ids = lines.select("row", hash=in_one_spelling(order_ids).hash()).filter(order_ids.is_not_null())
        defects = pl.concat([piece.defects, _total_rows(piece.frame, judged.failed)])
        return cls(
            frame=piece.frame,
            lines=lines,
            invalid=lines["row"].filter(~lines["valid"]),
            ids=ids,
            payees=payee_hashes(lines),
            counts=counted(lines),
            defects=defects,
            failed=judged.failed,
            doubtful=judged.doubtful,
            wrong=pl.concat([defects["row"], rows_failed(judged.failed)]),
            doubted=rows_failed(judged.doubtful),
        )


class SheetTally:
    """The sums of all pieces of a sheet. `held`: the columns with any value, from which the batch id is computed."""

    def __init__(self, sheet: Sheet) -> None:
        self.held = frozenset(column.name for column in sheet.frame if column.null_count() < len(column))
        self._digest = BatchDigest(sheet.operation, sheet.unknown, self.held)
        self._pieces: list[_PieceTally] = []
        self._failures, self._doubts = FailedTally(), FailedTally()
        self.lines: pl.DataFrame | None = None
        """The lines (`Judged.lines`) if there is only one piece, otherwise None."""

    def add(self, piece: _PieceTally) -> None:
        self._digest.add(piece.lines, piece.frame)
        self._failures.add(piece.failed)
        self._doubts.add(piece.doubtful)
        self.lines = None if self._pieces else piece.lines
        rowless = replace(piece, frame=piece.frame.clear(), lines=piece.lines.clear(), failed=(), doubtful=())
        self._pieces.append(rowless)

    @property
    def batch(self) -> str:
        return self._digest.batch

    @property
    def counts(self) -> pl.DataFrame:
        """`COUNT_KEYS`, the `count` of rows, and the `sum` of their readable amounts."""
        return pl.concat(piece.counts for piece in self._pieces).group_by(COUNT_KEYS).sum()

    @property
    def invalid(self) -> pl.Series:
        """The numbers of the invalid rows, in order."""
        return pl.concat(piece.invalid for piece in self._pieces)

    def take_same_ids(self) -> pl.Series:
        """Return the numbers of all rows whose order ids may occur twice, in any spelling, and drop the ids' hashes."""
        ids = pl.concat(piece.ids for piece in self._pieces)
        self._pieces = [replace(piece, ids=piece.ids.clear()) for piece in self._pieces]
        return occurring_twice(ids)

    @property
    def same_payees(self) -> pl.Series:
        """The numbers of all valid rows that may repeat a payment, or name a payee in another way."""
        return worth_comparing(pl.concat(piece.payees for piece in self._pieces))

    def defects(self) -> Findings:
        """Return the defects that the file, single values and rows of totals have."""
        wrong = pl.concat(piece.wrong for piece in self._pieces).unique()
        findings = self._failures.findings(wrong)
        return findings.joined(pl.concat(piece.defects for piece in self._pieces))

    def warnings(self) -> Findings:
        return self._doubts.findings(pl.concat(piece.doubted for piece in self._pieces))


def tallied(sheet: Sheet, judge: Callable[[Piece], Judged]) -> SheetTally:
    tally = SheetTally(sheet)
    for piece in each(sheet, lambda piece: _PieceTally.of(piece, judge(piece))):
        tally.add(piece)
    return tally


def counted(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the number of lines that share `COUNT_KEYS`, and the sum of readable amounts, as in `Validated`."""
    is_valid = lines["valid"]
    # The amounts of valid rows are readable, so they are not checked again.
    value = pl.col("amount").cast(pl.Decimal(38, 4)) if is_valid.all() else readable_amount("amount")
    return lines.select(*COUNT_KEYS, value=value).group_by(COUNT_KEYS).agg(count=pl.len(), sum=pl.col("value").sum())


def _total_rows(frame: pl.DataFrame, failed: Sequence[Failed]) -> pl.DataFrame:
    without = [
        failure.rows["row"] for failure in failed if failure.country == NO_COUNTRY and failure.check.column == "country"
    ]
    suspects = frame.filter(pl.col("row").is_in(without[0].implode())) if without else frame.clear()
    text = pl.exclude("row")
    totals = suspects.select("row", value=pl.coalesce(pl.when(text.str.contains(_TOTAL)).then(text))).drop_nulls()
    message = pl.lit(say("This looks like a total, not a payment. Delete the row."))
    return defects_of(totals, "row", "row.total", message, pl.col("value"))
