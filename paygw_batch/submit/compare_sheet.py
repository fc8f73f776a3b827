"""Compares a sheet's rows with the journal, holding one part of the sheet in memory at a time."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import polars as pl

from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import HELD, state_label
from paygw_batch.journal import Clash, JournalReader, KnownRow, LookAlike, UsedSpelling
from paygw_batch.language import say
from paygw_batch.sheet.check.repeats import normalise_ids
from paygw_batch.sheet.findings import build_findings
from paygw_batch.sheet.model import Validated
from paygw_batch.submit.open_questions import WHOLE_SHEET, OpenQuestion

MAX_LISTED_ROWS = 20
"""The maximum number of rows listed in a warning about one batch."""
_COMPARED_COLUMNS = ("row", "client_orderid", "content", "payee", "currency", "minor")
"""The columns of an instruction that are compared with the journal."""


@dataclass(slots=True)
class SheetComparison:
    """The result of comparing a sheet's rows with the journal.

    - `known`: rows already in the journal. `respelled`: rows whose order id is in the journal in another spelling.
    - `amended`: clashing rows that may replace a payment. `conflicts`: all other clashing rows.
    - `look_alikes`: new rows that resemble rows of another batch. `rewritten`: other such rows, whose order ids look
      like damaged copies of that batch's ids.
    - `own_ids`: the order ids of the rows in `respelled`, `look_alikes` and `rewritten`.
    """

    known: list[KnownRow] = field(default_factory=list)
    amended: list[Clash] = field(default_factory=list)
    conflicts: list[Clash] = field(default_factory=list)
    respelled: list[UsedSpelling] = field(default_factory=list)
    look_alikes: list[LookAlike] = field(default_factory=list)
    rewritten: list[LookAlike] = field(default_factory=list)
    own_ids: dict[int, str] = field(default_factory=dict)

    @property
    def results(self) -> tuple[list[Any], ...]:
        return self.known, self.amended, self.conflicts, self.respelled, self.look_alikes, self.rewritten

    def for_rows(self, rows: Collection[int], since: str) -> "SheetComparison":
        """Return the results for `rows`, without look-alikes in batches opened before `since`."""
        return SheetComparison(
            [entry for entry in self.known if entry.row in rows],
            [entry for entry in self.amended if entry.row in rows],
            [entry for entry in self.conflicts if entry.row in rows],
            [entry for entry in self.respelled if entry.row in rows],
            [entry for entry in self.look_alikes if entry.row in rows and entry.opened_at > since],
            [entry for entry in self.rewritten if entry.row in rows],
            {row: own_id for row, own_id in self.own_ids.items() if row in rows},
        )

    def sort(self) -> None:
        for entries in self.results:
            entries.sort(key=attrgetter("row"))

    def add(
        self,
        instructions: pl.DataFrame,
        journal: JournalReader,
        operation: str,
        may_replace: Callable[[Clash], bool],
        since: str,
    ) -> None:
        """Compare more instructions with the journal, and add the results."""
        order_ids = instructions["client_orderid"]
        known, clashes = journal.compare(operation, instructions.select("row", "client_orderid", "content").iter_rows())
        amended = [clash for clash in clashes if may_replace(clash)]
        conflicts = [clash for clash in clashes if not may_replace(clash)]
        respelled = journal.used_spellings(
            operation, zip(instructions["row"], order_ids, normalise_ids(order_ids), strict=True)
        )
        new = exclude_rows(instructions, (entry.row for entries in (known, conflicts, respelled) for entry in entries))
        rows = new.select("row", "client_orderid", "payee", "currency", "minor").iter_rows()
        look_alikes = journal.look_alikes(operation, rows, since=since)
        self.known += known
        self.amended += amended
        self.conflicts += conflicts
        self.respelled += respelled
        self.look_alikes += [entry for entry in look_alikes if not entry.is_rewritten]
        self.rewritten += [entry for entry in look_alikes if entry.is_rewritten]
        if numbers := [entry.row for entries in (respelled, look_alikes) for entry in entries]:
            self.own_ids |= dict(select_rows(instructions, numbers).select("row", "client_orderid").iter_rows())


def compare_sheet(
    validated: Validated,
    journal: JournalReader,
    may_replace: Callable[[Clash], bool],
    since: str,
    memory: "ComparisonMemory | None" = None,
) -> SheetComparison:
    """Compare every valid row of a sheet with all batches of its operation.

    `may_replace` returns whether a clashing row may replace the earlier payment. Look-alikes come from batches opened
    after `since`. With `memory`, no row may replace a payment, and only rows changed since the last call are compared.
    """
    comparison, operation = SheetComparison(), validated.sheet.operation
    if any(record.operation == operation for record in journal.batches()):
        if memory is not None:
            return memory.compare(validated, journal, since)
        for part in validated.parts():
            comparison.add(part.instructions, journal, operation, may_replace, since)
    return comparison


class ComparisonMemory:
    """Caches a comparison until something is written to the journal."""

    def __init__(self) -> None:
        self._key: object = None
        self._since = ""
        self._instructions = pl.DataFrame()
        self._comparison = SheetComparison()

    def compare(self, validated: Validated, journal: JournalReader, since: str) -> SheetComparison:
        """Compare a sheet with the journal. Its rows must not replace earlier payments."""
        operation = validated.sheet.operation
        key = (operation, journal.head())  # read before the rows, so a later write invalidates the cache
        instructions = pl.concat(part.instructions.select(_COMPARED_COLUMNS) for part in validated.parts())
        comparison, changed = SheetComparison(), instructions
        if key == self._key and since >= self._since:
            changed = instructions.join(self._instructions, on=_COMPARED_COLUMNS, how="anti", maintain_order="left")
            unchanged_rows = set(instructions["row"]) - set(changed["row"]) if any(self._comparison.results) else set()
            comparison = self._comparison.for_rows(unchanged_rows, since)
        comparison.add(changed, journal, operation, lambda _clash: False, since)
        comparison.sort()
        self._key, self._since, self._instructions, self._comparison = key, since, instructions, comparison
        return comparison


def select_rows(frame: pl.DataFrame, numbers: Sequence[int]) -> pl.DataFrame:
    return frame.filter(pl.col("row").is_in(pl.Series(numbers, dtype=pl.UInt32).implode()))


def exclude_rows(frame: pl.DataFrame, numbers: Iterable[int]) -> pl.DataFrame:
    excluded = pl.Series(list(numbers), dtype=pl.UInt32)
    return frame.filter(~pl.col("row").is_in(excluded.implode())) if excluded.len() else frame


def split_look_alikes(
    look_alikes: Sequence[LookAlike], repeat: OpenQuestion | None
) -> tuple[Sequence[LookAlike], Sequence[LookAlike]]:
    """Separate look-alikes that are the only ones in their batch from the others. Omits the batch of `repeat`."""
    remaining = [row for row in look_alikes if repeat is None or row.batch != repeat.subject]
    counts = Counter(row.batch for row in remaining)
    return [row for row in remaining if counts[row.batch] == 1], [row for row in remaining if counts[row.batch] > 1]


def unpaid_state(look_alike: LookAlike) -> str:
    """Return the label of the other payment's state. Empty if it is paid, accepted, being sent or not sent yet.

    These change while its batch is sent, which must not make a plan with this warning out of date.
    """
    if look_alike.is_held:
        return state_label(HELD)
    is_changing = look_alike.state in {State.READY, State.IN_FLIGHT, State.ACCEPTED, State.PAID}
    return "" if is_changing else state_label(look_alike.state.value)


def warnings_by_batch(look_alikes: Sequence[LookAlike], sheet_names: Mapping[str, str]) -> pl.DataFrame:
    """Return one warning (`DEFECT_SCHEMA`) for each batch, at row 0, with the rows that resemble its rows."""
    by_batch: dict[str, list[LookAlike]] = defaultdict(list)
    for look_alike in look_alikes:
        by_batch[look_alike.batch].append(look_alike)
    lines = []
    for batch, rows in by_batch.items():
        states = {look_alike.row: unpaid_state(look_alike) for look_alike in rows[:MAX_LISTED_ROWS]}
        listed = ", ".join(f"{row} ({state})" if state else str(row) for row, state in states.items())
        more = say(" and {count:,} more", count=len(rows) - MAX_LISTED_ROWS) if len(rows) > MAX_LISTED_ROWS else ""
        message = say(
            "{count:,} rows have the same account and amount as rows of {sheet_name} ({opened_at}), under other order "
            "ids. Make sure that you want to pay all of them (rows {named}{more}).",
            count=len(rows),
            sheet_name=sheet_names[batch],
            opened_at=rows[0].opened_at[:10],
            named=listed,
            more=more,
        )
        lines.append((WHOLE_SHEET, "client_orderid", batch, "row.look_alike", message))
    return build_findings(lines)
