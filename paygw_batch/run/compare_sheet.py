"""Compares a sheet's rows with the journal, with only one part in memory at a time.

Finds a sheet that repeats a recent batch under other order ids: October's list sent as November's.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import polars as pl

from paygw_batch.errors import SheetRepeatsBatch
from paygw_batch.journal import Clash, JournalReader, Known, LookAlike, RepeatedBatch, UsedSpelling
from paygw_batch.language import say
from paygw_batch.sheet.check.repeats import in_one_spelling
from paygw_batch.sheet.findings import as_defects
from paygw_batch.sheet.model import Validated


@dataclass(slots=True)
class SheetComparison:
    """The results of comparing a sheet's rows with the journal.

    `amended` are clashing rows that may replace a payment, `conflicts` all other clashes. `paid_before` are rows to pay
    that resemble rows of another batch, `rewritten` those whose order id only a program's damage sets apart. `own_ids`
    has the order ids of all rows with a result.
    """

    known: list[Known] = field(default_factory=list)
    amended: list[Clash] = field(default_factory=list)
    conflicts: list[Clash] = field(default_factory=list)
    spelled: list[UsedSpelling] = field(default_factory=list)
    paid_before: list[LookAlike] = field(default_factory=list)
    rewritten: list[LookAlike] = field(default_factory=list)
    own_ids: dict[int, str] = field(default_factory=dict)

    @property
    def is_any(self) -> bool:
        """Whether the journal knows anything about these rows."""
        return any(self._findings)

    @property
    def _findings(self) -> tuple[list[Any], ...]:
        return self.known, self.amended, self.conflicts, self.spelled, self.paid_before, self.rewritten

    def of_rows(self, rows: Collection[int], since: str) -> "SheetComparison":
        """Return the results for some rows, with look-alikes only from batches opened after `since`."""
        return SheetComparison(
            [one for one in self.known if one.row in rows],
            [one for one in self.amended if one.row in rows],
            [one for one in self.conflicts if one.row in rows],
            [one for one in self.spelled if one.row in rows],
            [one for one in self.paid_before if one.row in rows and one.opened_at > since],
            [one for one in self.rewritten if one.row in rows],
            {row: own_id for row, own_id in self.own_ids.items() if row in rows},
        )

    def sort(self) -> None:
        """Sort all results by row."""
        for found in self._findings:
            found.sort(key=attrgetter("row"))

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
        self.paid_before += [one for one in paid_before if not one.is_rewritten]
        self.rewritten += [one for one in paid_before if one.is_rewritten]
        if told := [one.row for found in (spelled, paid_before) for one in found]:
            self.own_ids |= dict(with_rows(instructions, told).select("row", "client_orderid").iter_rows())


def compare_sheet(
    validated: Validated,
    journal: JournalReader,
    operation: str,
    may_replace: Callable[[Clash], bool],
    since: str,
    memory: "ComparisonMemory | None" = None,
) -> SheetComparison:
    """Compare every valid row with all batches of the operation; if there are none, the sheet is not read again.

    `may_replace` says whether a clashing row may replace the payment. Look-alikes come from batches opened after
    `since`. With the `memory` of an earlier comparison, in which nothing may be replaced, the journal is only asked
    about rows that have changed since.
    """
    found = SheetComparison()
    if any(record.operation == operation for record in journal.batches()):
        if memory is not None:
            return memory.compared(validated, journal, operation, since)
        for part in validated.parts():
            found.add(part.instructions, journal, operation, may_replace, since)
    return found


_ASKED = ("row", "client_orderid", "content", "payee", "currency", "minor")
"""The values of an instruction used to query the journal."""


class ComparisonMemory:
    """Keeps the journal's answers about a sheet's rows until something is written to the journal."""

    def __init__(self) -> None:
        self._head: object = None
        self._since = ""
        self._asked = pl.DataFrame()
        self._found = SheetComparison()

    def compared(self, validated: Validated, journal: JournalReader, operation: str, since: str) -> SheetComparison:
        """Return the comparison of a sheet whose rows may not replace a payment."""
        head = (operation, journal.head())  # before the rows, so that later writes cause a new query
        asked = pl.concat(part.instructions.select(_ASKED) for part in validated.parts())
        kept = SheetComparison()
        changed = asked
        if head == self._head and since >= self._since:
            changed = asked.join(self._asked, on=_ASKED, how="anti", maintain_order="left")
            same = set(asked["row"]) - set(changed["row"]) if self._found.is_any else set()
            kept = self._found.of_rows(same, since)
        kept.add(changed, journal, operation, lambda _clash: False, since)
        kept.sort()
        self._head, self._since, self._asked, self._found = head, since, asked, kept
        return kept


def with_rows(frame: pl.DataFrame, rows: Sequence[int]) -> pl.DataFrame:
    """Return the rows of a frame with these numbers."""
    return frame.filter(pl.col("row").is_in(pl.Series(rows, dtype=pl.UInt32).implode()))


def without_rows(frame: pl.DataFrame, rows: Iterable[int]) -> pl.DataFrame:
    """Return the rows of a frame without these numbers."""
    left_out = pl.Series(list(rows), dtype=pl.UInt32)
    return frame.filter(~pl.col("row").is_in(left_out.implode())) if left_out.len() else frame


WHOLE_SHEET = 0
"""The row number of a finding about the whole sheet."""
ROWS_NAMED = 20
"""The maximum number of rows that a sentence about one batch names."""


@dataclass(frozen=True, slots=True)
class SheetRepeat:
    """The batch that a sheet repeats, and the number of the sheet's `of_rows` rows that do so."""

    batch: str
    sheet_name: str
    opened_at: str
    rows: int
    of_rows: int

    @property
    def message(self) -> str:
        """The sentence about the repeat: the number of rows, and the batch."""
        return say(
            "{rows:,} of {of_rows:,} rows have the same account and amount as rows of batch {batch} "
            "({sheet_name}, {opened_at}), under other order ids.",
            rows=self.rows,
            of_rows=self.of_rows,
            batch=self.batch,
            sheet_name=self.sheet_name,
            opened_at=self.opened_at[:10],
        )

    @property
    def question(self) -> str:
        """The question whether the repeat is intended."""
        return say(
            "Is this sheet meant to repeat batch {batch} of {opened_at}?",
            batch=self.batch,
            opened_at=self.opened_at[:10],
        )

    def as_warning(self) -> pl.DataFrame:
        """Return the repeat as a frame of warnings (`DEFECT_SCHEMA`) at row 0, the whole sheet."""
        return as_defects([(WHOLE_SHEET, "client_orderid", self.batch, SheetRepeatsBatch.code, self.message)])

    def refusal(self) -> SheetRepeatsBatch:
        """Return the error for a sheet after a person said no, or if nobody could be asked."""
        return SheetRepeatsBatch(
            say("The sheet repeats a batch: {message} Nothing was sent.", message=self.message),
            hint=say("If every row is meant to be paid again, run the command again with --repeats-meant."),
            option="--repeats-meant",
        )


def repeated_by(batches: Iterable[RepeatedBatch], of_rows: int) -> SheetRepeat | None:
    """Return the batch that more than half of a sheet's rows repeat: the most repeated one, or the first of equals."""
    repeated = max(batches, key=lambda one: one.rows, default=None)
    if repeated is None or repeated.rows * 2 <= of_rows:
        return None
    return SheetRepeat(repeated.batch, repeated.sheet_name, repeated.opened_at, repeated.rows, of_rows)


def outside_repeat(look_alikes: Sequence[LookAlike], repeat: SheetRepeat | None) -> Sequence[LookAlike]:
    """Return the look-alikes that the finding about the whole sheet does not cover."""
    return look_alikes if repeat is None else [found for found in look_alikes if found.batch != repeat.batch]


def repeated_within_a_batch(look_alikes: Sequence[LookAlike]) -> Sequence[LookAlike]:
    """Return the look-alikes from batches that have at least two of them."""
    of_batch = Counter(found.batch for found in look_alikes)
    return [found for found in look_alikes if of_batch[found.batch] > 1]


def one_warning_per_batch(look_alikes: Sequence[LookAlike], sheet_names: Mapping[str, str]) -> pl.DataFrame:
    """Return a warning (`DEFECT_SCHEMA`) for each batch at row 0: the rows that resemble its own, and their number.

    `sheet_names` has the name of each batch's sheet.
    """
    of_batch: dict[str, list[LookAlike]] = defaultdict(list)
    for found in look_alikes:
        of_batch[found.batch].append(found)
    lines = []
    for batch, alike in of_batch.items():
        named = ", ".join(str(found.row) for found in alike[:ROWS_NAMED])
        more = say(" and {count:,} more", count=len(alike) - ROWS_NAMED) if len(alike) > ROWS_NAMED else ""
        sentence = say(
            "{count:,} rows have the same account and amount as rows of {sheet_name} ({opened_at}), under "
            "other order ids: make sure that all are meant (rows {named}{more}).",
            count=len(alike),
            sheet_name=sheet_names[batch],
            opened_at=alike[0].opened_at[:10],
            named=named,
            more=more,
        )
        lines.append((WHOLE_SHEET, "client_orderid", batch, "row.look_alike", sentence))
    return as_defects(lines)
