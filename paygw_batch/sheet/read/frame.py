"""Holds the rows of a file as text and turns them into a `Sheet`, in steps that all formats share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.sheet.amounts import amount_correction
from paygw_batch.sheet.clean import CLEANERS, changed, trimmed, unguarded
from paygw_batch.sheet.columns import CONTROL, REJECTS_COLUMNS
from paygw_batch.sheet.findings import as_defects, no_defects
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.headings import Headings, ReadOptions

_SCRIPTS = ("٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹")
"""The digits of Arabic, and those of Persian and Urdu."""
_EVERY_DIGIT = r"\p{Nd}"
_DECIMAL_SIGN = "\N{ARABIC DECIMAL SEPARATOR}"


def with_our_digits(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame with our digits in amounts and numbers, and a warning that shows both for each changed value.

    A value with digits of several scripts is left unchanged. Nothing is guessed, and the checks refuse such a value.
    """
    warnings, cleanings = [as_defects(())], sheet_columns().cleanings
    for name in frame.columns:
        if cleanings.get(name) not in {Cleaning.AMOUNT, Cleaning.NUMBER}:
            continue
        text = frame[name]
        at = _is_written_in(text).arg_true()
        if not at.len():
            continue
        read = text.gather(at)
        for digits in _SCRIPTS:
            is_alone = read.str.contains(f"[{digits}]") & ~read.str.contains(f"[{_EVERY_DIGIT}--[{digits}]]")
            ours = read.str.replace_many([*digits, _DECIMAL_SIGN], [*"0123456789", "."])
            read = read.zip_with(~is_alone, ours)
        lines = zip(frame["row"].gather(at), text.gather(at), read, strict=True)
        warnings.append(
            as_defects(
                (row, name, old, f"{name}.other_digits", say("{old} was read as {new}.", old=old, new=new))
                for row, old, new in lines
                if old != new
            )
        )
        frame = frame.with_columns(text.scatter(at, read))
    return frame, pl.concat(warnings)


def cleaned_rows(columns: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return rows with a text for each of these columns, cleaned like those of a sheet. A missing text is empty.

    `meant` is the amount that `amount` means in its `currency`, or empty if it means none or several.
    """
    cleanings = sheet_columns().cleanings
    texts = (unguarded(pl.Series(name, cells, pl.String)) for name, cells in columns.items())
    cleaned = [CLEANERS[cleanings.get(text.name, Cleaning.TRIMMED)](text) for text in texts]
    frame, _ = with_our_digits(pl.DataFrame(cleaned).with_row_index("row"))
    currency = pl.col("currency")
    codes = frame["currency"].drop_nulls().unique()
    amounts = [pl.when(currency == code).then(amount_correction("amount", code)) for code in codes]
    frame = frame.with_columns(meant=pl.coalesce(*amounts, amount_correction("amount", None)))
    return frame.drop("row").fill_null("").to_dicts()


def _is_written_in(text: pl.Series) -> pl.Series:
    """Return a mask of values with such digits. Most columns have only ASCII, which their lengths show quickly."""
    if text.str.len_bytes().sum() == text.str.len_chars().sum():
        return pl.Series([False]).new_from_index(0, text.len())
    return text.str.contains(f"[{''.join(_SCRIPTS)}]").fill_null(value=False)


SEEN = r"[^\p{C}\p{Z}]"
TYPED_SENTENCE = mark(
    "{value} is a date, or true or false, which programs show in different ways. If it is not meant to be one, make it "
    "text and enter it again."
)
LINE_BREAK = "\N{LINE SEPARATOR}"
"""Replaces a line break inside a cell. It ends no line of a file, and no check accepts it."""
_BREAK = r"[\x00-\x08\x0a-\x1f\x7f\x{85}\x{2028}\x{2029}]"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file below its header. `frame`: `row` (UInt32), then the columns `headings.names`, all String.

    `worksheet` is the name of the worksheet that was read, if several could have been meant. `encoding` is set if a
    person had to name it. Without `has_empty`, no text in the frame is empty.
    """

    frame: pl.DataFrame
    headings: Headings
    notes: tuple[str, ...] = ()
    defects: pl.DataFrame = field(default_factory=no_defects)
    warnings: pl.DataFrame = field(default_factory=no_defects)
    worksheet: str | None = None
    has_empty: bool = True
    encoding: str = ""


def to_sheet(table: Table, options: ReadOptions, sha256: str) -> Sheet:
    """Return the table as a sheet: `on_one_line`, with nulls for blank texts, and without blank rows. Row numbers stay.

    Raises `SheetError` for a sheet without a row, or with more than `max_rows`.
    """
    headings, file, max_rows = table.headings, options.file, options.max_rows
    frame = on_one_line(table).frame.drop(headings.ours)
    if table.has_empty:
        frame = frame.with_columns(_empty_as_null(frame, name) for name in frame.columns[1:])
    if (blank := _blank_rows(frame)).any():  # copies every text, so only if necessary
        frame = rows_of(frame, ~blank)
    if not frame.height:
        raise SheetError(
            say("{file} has a header and no row below it.", file=file),
            hint=say("Nothing was sent: there is no one to pay."),
        )
    if frame.height > max_rows:
        raise SheetError(
            say(
                "{file} has {height} rows; at most {max_rows} are allowed.",
                file=file,
                height=frame.height,
                max_rows=max_rows,
            ),
            hint=say("Split the sheet, or have the limit raised in the configuration."),
        )
    hollow = {name for name in headings.nameless if frame[name].null_count() == frame.height}
    frame, read_in_other_digits = with_our_digits(frame.drop(hollow))
    frame, notes = frame.rechunk(), table.notes
    if headings.ours:
        names = say(" and ").join(REJECTS_COLUMNS)
        notes += (say("The columns {names} are those of a rejects file, and are left out.", names=names),)
    return Sheet(
        name=file if table.worksheet is None else f"{file} [{table.worksheet}]",
        sha256=sha256,
        frame=frame,
        headers={name: headings.sender[name] for name in frame.columns[1:]},
        unknown=tuple(name for name in headings.unknown if name not in hollow),
        notes=notes,
        defects=found_in(table.defects, frame),
        warnings=pl.concat([found_in(table.warnings, frame), read_in_other_digits]),
        operation=options.operation,
        encoding=table.encoding,
    )


def found_in(findings: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    """Return those `findings` that are about a row of the frame or about the whole sheet (row 0)."""
    is_here = (pl.col("row") == 0) | pl.col("row").is_in(frame["row"].implode())
    return findings.filter(is_here) if findings.height else findings


def rows_of(frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """Return the rows that `mask` selects, in one chunk.

    polars 2.1 may leave an empty first chunk, which makes `pl.format` panic.
    """
    return frame.filter(mask).rechunk()


def _empty_as_null(frame: pl.DataFrame, name: str) -> pl.Series:
    text = frame[name]
    empty = text == ""
    return text.set(empty, None) if empty.any() else text


def on_one_line(table: Table) -> Table:
    """Return the table with every cell on one line. Cells that were not on one line are also trimmed.

    In an unknown column, a line break becomes a blank. In the others it becomes U+2028, which no check accepts, and so
    does every other control character of ASCII.
    """
    frame = table.frame
    for name in frame.columns[1:]:
        pattern, mark = (CONTROL, " ") if name in table.headings.unknown else (_BREAK, LINE_BREAK)
        broken = frame[name].str.contains(pattern)
        if broken.any():
            frame = frame.with_columns(changed(frame[name], broken, partial(_joined, pattern=pattern, mark=mark)))
    return replace(table, frame=frame)


def _joined(text: pl.Series, pattern: str, mark: str) -> pl.Series:
    return trimmed(text).str.replace_all(rf"\p{{Z}}*{pattern}[\p{{Z}}{pattern}]*", mark)


def _blank_rows(frame: pl.DataFrame) -> pl.Series:
    """Return a mask of rows without any visible text. Only rows without a country are checked in detail."""
    country = frame["country"]
    if country.unique().str.contains(SEEN).fill_null(value=False).all():
        return pl.Series([False]).new_from_index(0, frame.height)
    blank = ~country.str.contains(SEEN).fill_null(value=False)
    suspects = frame.filter(blank).select(pl.exclude("row").str.contains(SEEN).fill_null(value=False))
    return blank.scatter(blank.arg_true(), ~suspects.select(pl.any_horizontal(pl.all())).to_series())
