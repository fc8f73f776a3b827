"""Converts the rows of a file to a `Sheet`, using the same steps for every format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import polars as pl

from paygw_batch.countries.form_columns import sheet_columns
from paygw_batch.countries.kinds import Cleaning
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.sheet.amounts import amount_correction
from paygw_batch.sheet.clean import CLEANERS, apply_where, trim, unguard_formulas
from paygw_batch.sheet.columns import CONTROL, REJECTS_COLUMNS
from paygw_batch.sheet.findings import build_findings, empty_findings
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.headings import Headings, ReadOptions

_SCRIPTS = ("٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹")
"""Arabic digits, and those of Persian and Urdu."""
_ANY_DIGIT = r"\p{Nd}"
_DECIMAL_SIGN = "\N{ARABIC DECIMAL SEPARATOR}"


def convert_digits(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Convert digits of other scripts to ASCII, with warnings. Mixed scripts are unchanged, so checks reject them."""
    warnings, cleanings = [build_findings(())], sheet_columns().cleanings
    for name in frame.columns:
        if cleanings.get(name) not in {Cleaning.AMOUNT, Cleaning.NUMBER}:
            continue
        text = frame[name]
        indices = _has_non_ascii_digits(text).arg_true()
        if not indices.len():
            continue
        changed = text.gather(indices)
        for digits in _SCRIPTS:
            has_one_script = changed.str.contains(f"[{digits}]") & ~changed.str.contains(f"[{_ANY_DIGIT}--[{digits}]]")
            converted = changed.str.replace_many([*digits, _DECIMAL_SIGN], [*"0123456789", "."])
            changed = changed.zip_with(~has_one_script, converted)
        lines = zip(frame["row"].gather(indices), text.gather(indices), changed, strict=True)
        warnings.append(
            build_findings(
                (row, name, old, f"{name}.other_digits", say("{old} was read as {new}.", old=old, new=new))
                for row, old, new in lines
                if old != new
            )
        )
        frame = frame.with_columns(text.scatter(indices, changed))
    return frame, pl.concat(warnings)


def clean_rows(columns: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Clean columns, and return them as rows with empty strings for missing values.

    In each row, `meant` is the plain amount that `amount` means in its `currency`, or empty if that is unclear.
    """
    cleanings = sheet_columns().cleanings
    texts = (unguard_formulas(pl.Series(name, cells, pl.String)) for name, cells in columns.items())
    cleaned_columns = [CLEANERS[cleanings.get(text.name, Cleaning.TRIMMED)](text) for text in texts]
    frame, _ = convert_digits(pl.DataFrame(cleaned_columns).with_row_index("row"))
    currency = pl.col("currency")
    codes = frame["currency"].drop_nulls().unique()
    amounts = [pl.when(currency == code).then(amount_correction("amount", code)) for code in codes]
    frame = frame.with_columns(meant=pl.coalesce(*amounts, amount_correction("amount", None)))
    return frame.drop("row").fill_null("").to_dicts()


def _has_non_ascii_digits(text: pl.Series) -> pl.Series:
    """Return a mask of values with non-ASCII digits. Comparing lengths excludes ASCII columns cheaply."""
    if text.str.len_bytes().sum() == text.str.len_chars().sum():
        return pl.Series([False]).new_from_index(0, text.len())
    return text.str.contains(f"[{''.join(_SCRIPTS)}]").fill_null(value=False)


VISIBLE = r"[^\p{C}\p{Z}]"
TYPED_MESSAGE = mark(
    "{value} is stored as a date, or as true or false, which programs display differently. If it should be something "
    "else, format the cell as text, then enter the value again."
)
LINE_BREAK = "\N{LINE SEPARATOR}"
"""Replaces a line break inside a cell. Every check rejects it."""
_LINE_BREAKS = r"[\x00-\x08\x0a-\x1f\x7f\x{85}\x{2028}\x{2029}]"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file below its header. `frame` has `row` (UInt32), then `headings.names` as String.

    `worksheet`, `other_worksheets` and `encoding` are as in `Sheet`. If `may_have_empty_cells` is false, the frame has
    no empty strings.
    """

    frame: pl.DataFrame
    headings: Headings
    notes: tuple[str, ...] = ()
    defects: pl.DataFrame = field(default_factory=empty_findings)
    warnings: pl.DataFrame = field(default_factory=empty_findings)
    worksheet: str = ""
    other_worksheets: tuple[tuple[str, int | None], ...] = ()
    may_have_empty_cells: bool = True
    encoding: str = ""


def to_sheet(table: Table, options: ReadOptions, sha256: str) -> Sheet:
    """Convert a table to a sheet. Cells become single lines, empty cells become null, and blank rows are dropped.

    Rows keep their numbers. Raises `SheetError` for a sheet without rows, or with more than `max_rows`.
    """
    headings, file, max_rows = table.headings, options.file, options.max_rows
    frame = join_cell_lines(table).frame.drop(headings.rejects_columns)
    if table.may_have_empty_cells:
        frame = frame.with_columns(_empty_to_null(frame, name) for name in frame.columns[1:])
    if (is_blank := _blank_rows(frame)).any():  # needless filtering would copy all texts
        frame = filter_rows(frame, ~is_blank)
    if not frame.height:
        raise SheetError(
            say("{file} has a header but no rows below it.", file=file),
            hint=say("Nothing was sent: there is no one to pay."),
        )
    if frame.height > max_rows:
        raise SheetError(
            say(
                "{file} has {height} rows, but at most {max_rows} are allowed.",
                file=file,
                height=frame.height,
                max_rows=max_rows,
            ),
            hint=say("Split the sheet, or have the limit raised in the configuration."),
        )
    empty_columns = {name for name in headings.nameless if frame[name].null_count() == frame.height}
    frame, digit_warnings = convert_digits(frame.drop(empty_columns))
    frame, notes = frame.rechunk(), table.notes
    if headings.rejects_columns:
        names = say(" and ").join(REJECTS_COLUMNS)
        notes += (say("The columns {names} come from a rejects file, and are ignored.", names=names),)
    has_similar = any(rows is not None for _, rows in table.other_worksheets)
    return Sheet(
        name=f"{file} [{table.worksheet}]" if has_similar else file,
        sha256=sha256,
        frame=frame,
        headers={name: headings.sender_headings[name] for name in frame.columns[1:]},
        unknown=tuple(name for name in headings.unknown if name not in empty_columns),
        notes=notes,
        defects=findings_in_frame(table.defects, frame),
        warnings=pl.concat([findings_in_frame(table.warnings, frame), digit_warnings]),
        operation=options.operation,
        encoding=table.encoding,
        worksheet=table.worksheet,
        other_worksheets=table.other_worksheets,
    )


def findings_in_frame(findings: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the findings about rows of the frame, or about the whole sheet (row 0)."""
    is_in_frame = (pl.col("row") == 0) | pl.col("row").is_in(frame["row"].implode())
    return findings.filter(is_in_frame) if findings.height else findings


def filter_rows(frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """Filter and rechunk rows. polars 2.1 may leave an empty first chunk, which makes `pl.format` panic."""
    return frame.filter(mask).rechunk()


def _empty_to_null(frame: pl.DataFrame, name: str) -> pl.Series:
    text = frame[name]
    is_empty = text == ""
    return text.set(is_empty, None) if is_empty.any() else text


def join_cell_lines(table: Table) -> Table:
    """Put every cell on one line, and trim cells with several lines.

    In unknown columns, line breaks become spaces. In known columns, line breaks and ASCII control characters become
    U+2028, which every check rejects.
    """
    frame = table.frame
    for name in frame.columns[1:]:
        pattern, sep = (CONTROL, " ") if name in table.headings.unknown else (_LINE_BREAKS, LINE_BREAK)
        has_break = frame[name].str.contains(pattern)
        if has_break.any():
            frame = frame.with_columns(apply_where(frame[name], has_break, partial(_join, pattern=pattern, sep=sep)))
    return replace(table, frame=frame)


def _join(text: pl.Series, pattern: str, sep: str) -> pl.Series:
    return trim(text).str.replace_all(rf"\p{{Z}}*{pattern}[\p{{Z}}{pattern}]*", sep)


def _blank_rows(frame: pl.DataFrame) -> pl.Series:
    """Return a mask of blank rows. For speed, only rows without a country are searched for other values."""
    country = frame["country"]
    if country.unique().str.contains(VISIBLE).fill_null(value=False).all():
        return pl.Series([False]).new_from_index(0, frame.height)
    is_blank = ~country.str.contains(VISIBLE).fill_null(value=False)
    has_text = frame.filter(is_blank).select(pl.exclude("row").str.contains(VISIBLE).fill_null(value=False))
    return is_blank.scatter(is_blank.arg_true(), ~has_text.select(pl.any_horizontal(pl.all())).to_series())
