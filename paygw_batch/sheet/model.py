"""Holds the results of reading and validating a sheet as frames: no Python object per row."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from paygw_batch.core.batch import ControlTotals
from paygw_batch.sheet.columns import PAYMENT_COLUMNS
from paygw_batch.sheet.findings import BuiltOnUse, Findings, no_defects

LINE_COLUMNS = ("row", "valid", *PAYMENT_COLUMNS)
"""A row's own columns in the reconciliation."""

COUNT_KEYS = ("country", "currency", "valid")


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet as received. `frame`: `row` (UInt32, as a spreadsheet numbers it), then every column as String.

    `name` is the file's; where a workbook has several worksheets like a sheet of payees, the one that was read follows
    in brackets: `pay.xlsx [October]`. Known columns have our names; `headers` maps each back to the sender's heading.
    `unknown` names the others, in the sheet's order, under their own headings. `sha256` is the digest of exactly the
    parsed bytes.
    `notes` are sentences about the file as a whole that a person should read and that refuse nothing. `defects`
    (`DEFECT_SCHEMA`) are those that only the file itself can show: a row with a field too many, a number that the
    spreadsheet has already cut; `warnings` (`DEFECT_SCHEMA`) are what it shows of rows that may well be good.
    `operation` is that of its rows: the known columns are those of its sheets. `encoding` is the one that somebody
    had to name for a text that says none; empty: nobody had to.
    """

    name: str
    sha256: str
    frame: pl.DataFrame
    headers: Mapping[str, str]
    unknown: tuple[str, ...]
    notes: tuple[str, ...] = ()
    defects: pl.DataFrame = field(default_factory=no_defects)
    warnings: pl.DataFrame = field(default_factory=no_defects)
    operation: str = "payout"
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class ValidatedPart:
    """Some rows of a sheet: `raw` as received (`Sheet.frame`), `rows` and `instructions` as in `Validated`."""

    raw: pl.DataFrame
    rows: pl.DataFrame
    instructions: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Validated:
    """A sheet checked against the rules.

    - `rows`: one line for every row of the sheet, in its order: `row` (UInt32), `valid` (Boolean), then as String
      `client_orderid, country, currency, amount, account_name, account_number, phone, purpose, error_code, message` as
      the reconciliation shows them (the last two only for invalid rows), then the sheet's columns that it shows under
      their own names (`columns.reconciled_columns`), then the unknown ones. Invalid rows show the sheet's own text,
      trimmed; a currency that is left out is the country's for them too.
    - `instructions`: one line for every valid row, with the columns of `journal.values.NewInstruction`, in that order
      (`row` UInt32, `minor` Int64, the rest String).
    - `defects_found` and `warnings_found`: counted, and the first of them. All of them are `defects` and `warnings`:
      `row` (UInt32), then as String `column, value, code, message, correction`; ordered by row.
    - `totals`: every row, and per currency the sum of every readable amount, valid or not.
    - `counts`: `COUNT_KEYS` and, as of all rows that share them, `count` and `sum` (Decimal) of every readable amount.
    - `held`: the columns of the sheet in which any row has a value.
    - `read`: cells that were read otherwise than written (`spelling.readings`): the sheet has their meaning.

    `rows` and `instructions` are made when they are first asked for, and `height` without them. `parts` goes through
    both together: of a sheet of several pieces (`streamed`) that judges each piece once more, and no more than a few
    of them are in memory.
    """

    sheet: Sheet
    batch: str
    lines: BuiltOnUse
    made: BuiltOnUse
    defects_found: Findings
    warnings_found: Findings
    totals: ControlTotals
    counts: pl.DataFrame
    held: frozenset[str] = frozenset()
    streamed: Callable[[], Iterator[ValidatedPart]] | None = None
    read: pl.DataFrame = field(default_factory=no_defects)

    def parts(self) -> Iterator[ValidatedPart]:
        """Yield all rows of the sheet, in its order, part by part."""
        if self.streamed is not None:
            return self.streamed()
        return iter((ValidatedPart(self.sheet.frame, self.rows, self.instructions),))

    @property
    def defects(self) -> pl.DataFrame:
        """Every defect. For a large sheet with very many, this judges the sheet again."""
        return self.defects_found.every.frame

    @property
    def warnings(self) -> pl.DataFrame:
        """Every warning, as `defects`."""
        return self.warnings_found.every.frame

    @property
    def payable(self) -> int:
        """The number of rows with an instruction."""
        return int(self.counts.filter("valid")["count"].sum())

    @property
    def height(self) -> int:
        """The number of rows of the sheet."""
        return int(self.counts["count"].sum())

    @property
    def rows(self) -> pl.DataFrame:
        """One line for every row of the sheet: how it is shown."""
        return self.lines.frame

    @property
    def instructions(self) -> pl.DataFrame:
        """One line for every valid row: its instruction."""
        return self.made.frame
