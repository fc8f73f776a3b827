"""Finds a sheet that repeats a batch of the last days under other order ids: October's list sent as November's."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from paygw_batch.errors import SheetRepeatsBatch
from paygw_batch.journal import LookAlike, RepeatedBatch
from paygw_batch.language import say
from paygw_batch.sheet.model import as_defects

WHOLE_SHEET = 0
"""The row number of a finding about the sheet as a whole."""
ROWS_NAMED = 20
"""How many rows a sentence about one batch names."""


@dataclass(frozen=True, slots=True)
class SheetRepeat:
    """The batch that a sheet repeats, and how many of the sheet's `of_rows` rows repeat one of it."""

    batch: str
    sheet_name: str
    opened_at: str
    rows: int
    of_rows: int

    @property
    def message(self) -> str:
        """The sentence about the repeat: how many rows, and of which batch."""
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
        """The question whether that is meant."""
        return say(
            "Is this sheet meant to repeat batch {batch} of {opened_at}?",
            batch=self.batch,
            opened_at=self.opened_at[:10],
        )

    def as_warning(self) -> pl.DataFrame:
        """Return it as a frame of warnings (`DEFECT_SCHEMA`) has it, at row 0: the sheet as a whole."""
        return as_defects([(WHOLE_SHEET, "client_orderid", self.batch, SheetRepeatsBatch.code, self.message)])

    def refusal(self) -> SheetRepeatsBatch:
        """Return the error for a sheet about which nobody gave an answer, or a person said no."""
        return SheetRepeatsBatch(
            say("The sheet repeats a batch: {message} Nothing was sent.", message=self.message),
            hint=say("If every row is meant to be paid once more, run the command again with --repeats-meant."),
        )


def repeated_by(batches: Iterable[RepeatedBatch], of_rows: int) -> SheetRepeat | None:
    """Return the batch that more than half of a sheet's rows repeat: the most repeated one, the first of equals."""
    repeated = max(batches, key=lambda one: one.rows, default=None)
    if repeated is None or repeated.rows * 2 <= of_rows:
        return None
    return SheetRepeat(repeated.batch, repeated.sheet_name, repeated.opened_at, repeated.rows, of_rows)


def not_summed_up(look_alikes: Sequence[LookAlike], repeat: SheetRepeat | None) -> Sequence[LookAlike]:
    """Return the look-alikes that the finding about the whole sheet does not speak of."""
    return look_alikes if repeat is None else [found for found in look_alikes if found.batch != repeat.batch]


def at_least_two(look_alikes: Sequence[LookAlike]) -> Sequence[LookAlike]:
    """Return the look-alikes of batches that have two of them or more."""
    of_batch = Counter(found.batch for found in look_alikes)
    return [found for found in look_alikes if of_batch[found.batch] > 1]


def once_a_batch(look_alikes: Sequence[LookAlike]) -> pl.DataFrame:
    """Return a warning (`DEFECT_SCHEMA`) for each batch, at row 0: how many rows pay like rows of it, and which."""
    of_batch: dict[str, list[LookAlike]] = defaultdict(list)
    for found in look_alikes:
        of_batch[found.batch].append(found)
    lines = []
    for batch, alike in of_batch.items():
        named = ", ".join(str(found.row) for found in alike[:ROWS_NAMED])
        more = say(" and {count:,} more", count=len(alike) - ROWS_NAMED) if len(alike) > ROWS_NAMED else ""
        sentence = say(
            "{count:,} rows have the same account and amount as rows of batch {batch} ({opened_at}), under "
            "other order ids: make sure that all are meant (rows {named}{more}).",
            count=len(alike),
            batch=batch,
            opened_at=alike[0].opened_at[:10],
            named=named,
            more=more,
        )
        lines.append((WHOLE_SHEET, "client_orderid", batch, "row.look_alike", sentence))
    return as_defects(lines)
