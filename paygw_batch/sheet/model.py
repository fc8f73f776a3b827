"""Holds a sheet and the results of its validation as frames. Rows never become Python objects."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from paygw_batch.core.batch import ControlTotals
from paygw_batch.sheet.columns import PAYMENT_COLUMNS
from paygw_batch.sheet.findings import DeferredFrame, Findings, empty_findings

LINE_COLUMNS = ("row", "valid", *PAYMENT_COLUMNS)
"""The columns of a line, which is a row as the reconciliation shows it."""
COUNT_KEYS = ("country", "currency", "valid")


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet as received, with every value as text.

    - `name`: the name of the file. If several worksheets of a workbook look like a sheet of payees, the name of the one
      that was read follows in brackets: `pay.xlsx [October]`.
    - `sha256`: the digest of exactly the bytes that were parsed.
    - `frame`: `row` (UInt32, the row's number in a spreadsheet), then all columns as String, known ones under our
      names.
    - `headers`: each column of `frame` -> the sender's heading.
    - `unknown`: the unknown columns, in the sheet's order, under their own headings.
    - `notes`: remarks on the whole file for a person to read. They don't make the sheet invalid.
    - `defects` (`DEFECT_SCHEMA`): defects found while reading the file, such as an extra field, or a number that the
      spreadsheet truncated.
    - `warnings` (`DEFECT_SCHEMA`): warnings found while reading the file.
    - `operation`: the operation of the rows, which determines the known columns.
    - `encoding`: the encoding, if a person had to specify it; otherwise empty.
    - `worksheet`: the worksheet that was read, if the workbook has several; otherwise empty.
    - `other_worksheets`: the other worksheets, each with its number of rows, or None if it doesn't look like a sheet of
      payees. Hidden worksheets that don't look like one are omitted.
    """

    name: str
    sha256: str
    frame: pl.DataFrame
    headers: Mapping[str, str]
    unknown: tuple[str, ...]
    notes: tuple[str, ...] = ()
    defects: pl.DataFrame = field(default_factory=empty_findings)
    warnings: pl.DataFrame = field(default_factory=empty_findings)
    operation: str = "payout"
    encoding: str = ""
    worksheet: str = ""
    other_worksheets: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ValidatedPart:
    """Some rows of a sheet: `raw` as in `Sheet.frame`, and `rows` and `instructions` as in `Validated`."""

    raw: pl.DataFrame
    rows: pl.DataFrame
    instructions: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Validated:
    """A sheet with the results of its validation against the rules.

    - `rows`: one line for every row of the sheet, in the sheet's order: `row` (UInt32), `valid` (Boolean), then as
      String `client_orderid, country, currency, amount, account_name, account_number, phone, purpose, error_code,
      message` as the reconciliation shows them. `error_code` and `message` are null for valid rows. Last are the
      columns that the reconciliation shows under their own names (`columns.reconciled_columns`), and the unknown
      columns. Invalid rows show the sheet's own text, trimmed. A missing currency is filled in from the country in
      all rows.
    - `instructions`: one line for every valid row, with the columns of `journal.values.NewInstruction`, in that order
      (`row` UInt32, `minor` Int64, the rest String).
    - `defects_found` and `warnings_found`: the counts, and the first findings. The properties `defects` and `warnings`
      return all of them (`DEFECT_SCHEMA`), ordered by row.
    - `totals`: the number of rows, and for each currency the sum of all readable amounts, valid or not.
    - `counts`: the `count` of rows and the `sum` (Decimal) of their readable amounts, by `COUNT_KEYS`.
    - `filled_columns`: the columns of the sheet that have a value in any row.
    - `interpreted`: the cells that were replaced with their meaning (`spelling.interpreted_cells`).

    `rows` and `instructions` are computed on first use; `height` does not need them. `parts` yields both together. If
    the sheet has several pieces (`streamed`), `parts` checks each one again and keeps only a few in memory.
    """

    sheet: Sheet
    batch: str
    deferred_rows: DeferredFrame
    deferred_instructions: DeferredFrame
    defects_found: Findings
    warnings_found: Findings
    totals: ControlTotals
    counts: pl.DataFrame
    filled_columns: frozenset[str] = frozenset()
    streamed: Callable[[], Iterator[ValidatedPart]] | None = None
    interpreted: pl.DataFrame = field(default_factory=empty_findings)

    def parts(self) -> Iterator[ValidatedPart]:
        """Yield the rows of the sheet in parts, in order."""
        if self.streamed is not None:
            return self.streamed()
        return iter((ValidatedPart(self.sheet.frame, self.rows, self.instructions),))

    @property
    def defects(self) -> pl.DataFrame:
        """All defects. For a large sheet with many defects, this checks the sheet again."""
        return self.defects_found.all_findings.frame

    @property
    def warnings(self) -> pl.DataFrame:
        """All warnings. For a large sheet with many warnings, this checks the sheet again."""
        return self.warnings_found.all_findings.frame

    @property
    def payable_count(self) -> int:
        """The number of rows with an instruction."""
        return int(self.counts.filter("valid")["count"].sum())

    @property
    def height(self) -> int:
        """The number of rows in the sheet."""
        return int(self.counts["count"].sum())

    @property
    def rows(self) -> pl.DataFrame:
        """One line for each row in the sheet, as the reconciliation shows it."""
        return self.deferred_rows.frame

    @property
    def instructions(self) -> pl.DataFrame:
        """One instruction for each valid row."""
        return self.deferred_instructions.frame
