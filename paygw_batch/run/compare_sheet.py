"""Compares the rows of a sheet with the journal, part by part: no more than a part is in memory."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import polars as pl

from paygw_batch.journal import Clash, JournalReader, Known, LookAlike, UsedSpelling
from paygw_batch.sheet.check.same_spelling import in_one_spelling
from paygw_batch.sheet.model import Validated


@dataclass(slots=True)
class SheetComparison:
    """The results of comparing a sheet's rows with the journal.

    `amended` are the clashes of rows that may replace a payment, `conflicts` all others. `paid_before` are rows to pay
    that pay like rows of another batch. `own_ids` has the order ids of all rows that the journal found something about.
    """

    known: list[Known] = field(default_factory=list)
    amended: list[Clash] = field(default_factory=list)
    conflicts: list[Clash] = field(default_factory=list)
    spelled: list[UsedSpelling] = field(default_factory=list)
    paid_before: list[LookAlike] = field(default_factory=list)
    own_ids: dict[int, str] = field(default_factory=dict)

    def add(
        self,
        instructions: pl.DataFrame,
        journal: JournalReader,
        operation: str,
        may_replace: Callable[[Clash], bool],
        since: str,
    ) -> None:
        """Compare the next instructions with the journal."""
        order_ids = instructions["client_orderid"]
        known, clashes = journal.compare(operation, instructions.select("row", "client_orderid", "content").iter_rows())
        amended = [clash for clash in clashes if may_replace(clash)]
        conflicts = [clash for clash in clashes if not may_replace(clash)]
        spelled = journal.used_spellings(
            operation, zip(instructions["row"], order_ids, in_one_spelling(order_ids), strict=True)
        )
        new = without_rows(instructions, (one.row for found in (known, conflicts, spelled) for one in found))
        rows = new.select("row", "client_orderid", "payee", "currency", "minor").iter_rows()
        paid_before = journal.look_alikes(operation, rows, since=since)
        self.known += known
        self.amended += amended
        self.conflicts += conflicts
        self.spelled += spelled
        self.paid_before += paid_before
        if told := [one.row for found in (spelled, paid_before) for one in found]:
            self.own_ids |= dict(with_rows(instructions, told).select("row", "client_orderid").iter_rows())


def compare_sheet(
    validated: Validated, journal: JournalReader, operation: str, may_replace: Callable[[Clash], bool], since: str
) -> SheetComparison:
    """Hold every valid row against all batches of the operation; against none, the sheet is not even read again.

    `may_replace` says of a clash whether its row may replace the payment. Payments that look alike are of batches
    opened after `since`.
    """
    found = SheetComparison()
    if any(record.operation == operation for record in journal.batches()):
        for part in validated.parts():
            found.add(part.instructions, journal, operation, may_replace, since)
    return found


def with_rows(frame: pl.DataFrame, rows: Sequence[int]) -> pl.DataFrame:
    """Return the rows of a frame that have these numbers."""
    return frame.filter(pl.col("row").is_in(pl.Series(rows, dtype=pl.UInt32).implode()))


def without_rows(frame: pl.DataFrame, rows: Iterable[int]) -> pl.DataFrame:
    """Return the rows of a frame that do not have these numbers."""
    left_out = pl.Series(list(rows), dtype=pl.UInt32)
    return frame.filter(~pl.col("row").is_in(left_out.implode())) if left_out.len() else frame
