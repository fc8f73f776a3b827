"""Reads sheets as exact text, validates them against the rules, and writes their rows to files.

- `read.read_sheet(path: Path, options: ReadOptions) -> Sheet`. `ReadOptions(max_rows=1_000_000, max_sheet_bytes=2**30,
  encoding=None, sheet_name=None, aliases={})`. Raises `SheetError`.
- `validate.validate(sheet: Sheet, rules: Rules, *, reference: str | None = None) -> Validated`. Raises `SheetError`
  (a column is missing) and `UsageError` (the reference cannot be part of an order id).
- `validate.with_defects(validated, defects) -> Validated`, `validate.with_warnings(validated, warnings) -> Validated`:
  further findings, as frames with the columns `row` (UInt32), `column, value, code, message` (String). With defects,
  their rows are no longer valid and the batch is another one. `validate.warnings_as_defects(validated) -> Validated`
  does so with the warnings that were found.
- `write.write_frame(frame, path)`, `write.check_writable(path)`, `write.rejects(validated) -> DataFrame`,
  `write.write_rejects(validated, path)`. Raise `OutputError`.
- `pages.to_pages(frame) -> Iterator[bytes]`, `pages.from_pages(pages) -> DataFrame`.
- `amounts.readable_amount(column) -> Expr`: the exact value of a text that can be read as an amount, Decimal(38, 4), as
  `Validated.totals` counts it.

`model` describes the shapes (`Sheet`, `Validated`). A country whose rule has `missing_terms` validates like any
other: whether something may be sent to it is the run's question.
"""
