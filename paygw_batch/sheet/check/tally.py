"""Checks the rows of a sheet in pieces, several at a time, and adds up the results without keeping rows.

Rows that may repeat each other (the same order id, or similar payments) are found by 64-bit hashes. Only the few rows
whose hashes occur twice are then compared.
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
from paygw_batch.sheet.check.repeats import normalise_ids, payee_hashes, rows_to_compare, rows_with_repeated_hash
from paygw_batch.sheet.check.row_checker import CheckedRows, CheckFailure, FailureTally, failed_rows
from paygw_batch.sheet.findings import Findings, findings_for_rows
from paygw_batch.sheet.instructions import BatchDigest
from paygw_batch.sheet.model import COUNT_KEYS, Sheet

_TOTAL = r"(?i)^[\p{C}\p{Z}]*(?:grand[ -]|sub[ -]?)?(?:total|totals|totaux|sum|somme|montant total)[\p{C}\p{Z}.:]*$"
ROWS_AT_ONCE = 250_000
_CORES_PER_PIECE = 2  # polars keeps about two cores busy, and more pieces need more memory
_MAX_PIECES_AT_ONCE = 4
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a sheet, with the sheet's own defects in these rows."""

    frame: pl.DataFrame
    defects: pl.DataFrame


def split_sheet(sheet: Sheet) -> Iterator[Piece]:
    for frame in sheet.frame.iter_slices(ROWS_AT_ONCE):
        is_in_piece = pl.col("row").is_between(frame["row"][0], frame["row"][-1])
        yield Piece(frame, sheet.defects.filter(is_in_piece))


def map_pieces(sheet: Sheet, process: Callable[[Piece], _Result]) -> Iterator[_Result]:
    """Process the pieces of a sheet in threads, and yield the results in order. polars releases the GIL."""
    thread_count = max(1, min(pl.thread_pool_size() // _CORES_PER_PIECE, _MAX_PIECES_AT_ONCE))
    pending: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(thread_count) as pool:
        for piece in split_sheet(sheet):
            pending.append(pool.submit(copy_context().run, process, piece))  # the context holds the chosen language
            if len(pending) > thread_count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@dataclass(frozen=True, slots=True)
class _PieceTally:
    """The results of one piece. `ids` holds the `row` and `hash` of each order id, and `payees` the `payee_hashes`.

    Order ids that differ only in spelling have the same hash. `defects` holds defects found outside the checks.
    """

    frame: pl.DataFrame
    lines: pl.DataFrame
    invalid_rows: pl.Series
    ids: pl.DataFrame
    payees: pl.DataFrame
    counts: pl.DataFrame
    defects: pl.DataFrame
    failures: Sequence[CheckFailure]
    warnings: Sequence[CheckFailure]
    rows_with_defects: pl.Series
    rows_with_warnings: pl.Series

    @classmethod
    def for_piece(cls, piece: Piece, checked_rows: CheckedRows) -> "_PieceTally":
        lines = checked_rows.lines
        order_ids = lines["client_orderid"]
        ids = lines.select("row", hash=normalise_ids(order_ids).hash()).filter(order_ids.is_not_null())
        defects = pl.concat([piece.defects, _total_row_defects(piece.frame, checked_rows.failures)])
        return cls(
            frame=piece.frame,
            lines=lines,
            invalid_rows=lines["row"].filter(~lines["valid"]),
            ids=ids,
            payees=payee_hashes(lines),
            counts=count_lines(lines),
            defects=defects,
            failures=checked_rows.failures,
            warnings=checked_rows.warnings,
            rows_with_defects=pl.concat([defects["row"], failed_rows(checked_rows.failures)]),
            rows_with_warnings=failed_rows(checked_rows.warnings),
        )


class SheetTally:
    """Adds up the results of a sheet's pieces. `filled_columns` have a value in at least one row."""

    def __init__(self, sheet: Sheet) -> None:
        self.filled_columns = frozenset(column.name for column in sheet.frame if column.null_count() < len(column))
        self._digest = BatchDigest(sheet.operation, sheet.unknown, self.filled_columns)
        self._pieces: list[_PieceTally] = []
        self._failures, self._warnings = FailureTally(), FailureTally()
        self.lines: pl.DataFrame | None = None
        """The lines (`CheckedRows.lines`) if the sheet is a single piece, otherwise None."""

    def add(self, piece: _PieceTally) -> None:
        self._digest.add(piece.lines, piece.frame)
        self._failures.add(piece.failures)
        self._warnings.add(piece.warnings)
        self.lines = None if self._pieces else piece.lines
        summary = replace(piece, frame=piece.frame.clear(), lines=piece.lines.clear(), failures=(), warnings=())
        self._pieces.append(summary)

    @property
    def batch(self) -> str:
        return self._digest.batch

    @property
    def counts(self) -> pl.DataFrame:
        """The `count` of rows and the `sum` of their readable amounts, by `COUNT_KEYS`."""
        return pl.concat(piece.counts for piece in self._pieces).group_by(COUNT_KEYS).sum()

    @property
    def invalid_rows(self) -> pl.Series:
        """The numbers of the invalid rows, in order."""
        return pl.concat(piece.invalid_rows for piece in self._pieces)

    def pop_repeated_id_rows(self) -> pl.Series:
        """Return the rows whose order ids may repeat others, and discard the hashes of all order ids."""
        ids = pl.concat(piece.ids for piece in self._pieces)
        self._pieces = [replace(piece, ids=piece.ids.clear()) for piece in self._pieces]
        return rows_with_repeated_hash(ids)

    @property
    def repeated_payee_rows(self) -> pl.Series:
        """The valid rows that may repeat another row's payment, or name its payee differently."""
        return rows_to_compare(pl.concat(piece.payees for piece in self._pieces))

    def defects(self) -> Findings:
        """Return the defects in the file, in single values, and in rows that look like totals."""
        rows = pl.concat(piece.rows_with_defects for piece in self._pieces).unique()
        findings = self._failures.findings(rows)
        return findings.with_findings(pl.concat(piece.defects for piece in self._pieces))

    def warnings(self) -> Findings:
        return self._warnings.findings(pl.concat(piece.rows_with_warnings for piece in self._pieces))


def tally_sheet(sheet: Sheet, check_piece: Callable[[Piece], CheckedRows]) -> SheetTally:
    tally = SheetTally(sheet)
    for piece in map_pieces(sheet, lambda piece: _PieceTally.for_piece(piece, check_piece(piece))):
        tally.add(piece)
    return tally


def count_lines(lines: pl.DataFrame) -> pl.DataFrame:
    """Count lines and add up their amounts, as in `Validated.counts`."""
    is_valid = lines["valid"]
    # The amounts of valid rows are readable, so they are not checked again.
    value = pl.col("amount").cast(pl.Decimal(38, 4)) if is_valid.all() else readable_amount("amount")
    return lines.select(*COUNT_KEYS, value=value).group_by(COUNT_KEYS).agg(count=pl.len(), sum=pl.col("value").sum())


def _total_row_defects(frame: pl.DataFrame, failures: Sequence[CheckFailure]) -> pl.DataFrame:
    without_country = [
        failure.rows["row"]
        for failure in failures
        if failure.country == NO_COUNTRY and failure.check.column == "country"
    ]
    rows = frame.filter(pl.col("row").is_in(without_country[0].implode())) if without_country else frame.clear()
    text = pl.exclude("row")
    total_rows = rows.select("row", value=pl.coalesce(pl.when(text.str.contains(_TOTAL)).then(text))).drop_nulls()
    message = pl.lit(say("This looks like a total, not a payment. Delete the row."))
    return findings_for_rows(total_rows, "row", "row.total", message, pl.col("value"))
