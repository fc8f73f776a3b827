"""`python -m tests.sheet.hostile --sheets N`: thousands of hostile sheets, each of which must get a clean verdict.

Each sheet has a seed, which picks a format (CSV, Parquet, .xlsx), and either damages a sample (bytes replaced,
inserted, deleted, lines swapped, other encodings and line ends) or makes a table of nasty cells. A clean verdict is a
sheet, or a `SheetError`. Anything else, such as a panic of polars, is a failure. Validation must return every row that
was read, and reading must not lose rows of the file, which are counted independently.
"""

import argparse
import codecs
import csv
import io
import os
import re
import sys
import tempfile
import time
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal

import openpyxl
import polars as pl
from openpyxl.worksheet.worksheet import Worksheet

from paygw_batch.countries.rules import Rules
from paygw_batch.errors import SheetError
from paygw_batch.sheet.check.validate import validate
from paygw_batch.sheet.model import Sheet
from paygw_batch.sheet.read.headings import ReadOptions
from paygw_batch.sheet.read.sheet_file import read_sheet
from tests.support.checkout import versioned_files
from tests.support.long_runs import run_pieces, stop_on_sigterm
from tests.support.operator_terms import complete_rules

ROWS = 12
"""The maximum number of rows in a sheet: enough to merge, few enough to be quick."""
AT_ONCE = 100
"""The number of seeds that a worker gets at a time."""
NASTY_XML = (b"<", b">", b'"', b"/", b"<c/>", b"<row/>", b"<v>1", b"</row>", b"&#1;", b"\xc3\xa9", b"\x00")
WHEN_SAVED = re.compile(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")
WHEN = b"2026-01-01T00:00:00Z"
FORMATS = (".csv",) * 8 + (".xlsx",) * 3 + (".parquet",)
"""Parquet is rare, because each file is first tried in its own process."""
NASTY_BYTES = b'"""\',;\t\r\n\n\x00\x1f\x7f\xff\xe2\xc3=+-@ |\\' + codecs.BOM_UTF8
QUOTING: tuple[Literal[0, 1], ...] = (csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
DTYPES: tuple[type[pl.DataType] | pl.DataType, ...] = (
    *(pl.String, pl.String, pl.String, pl.Float64, pl.Int64),
    *(pl.Decimal(38, 4), pl.Categorical),
)
NASTY_CELLS = (
    *("", " ", "-", '"', "'", '""', "=A1", "+1", "@x", "\t", "a,b", 'a"b', "'=1", '="0712"', "#N/A", "OK", "Total"),
    *("0", "1,000.00", "1.000,50", "1e3", "2.54712E+11", "٣٤٥", "\uff11\uff12", "-5", "(100)", "100.105", "9" * 40),
    *("1/2", "12-Jan", "NaN", "0712345678", "+254 712-345 678", "00254712345678", "254712345678.0", "712345678"),
    *("\u200b254712345678", "\u202e123", "KE", "ke", "BJ", "Kenya", "ZZ", "KES", "XOF", "José", "名前", "محمد"),
    *("e\u0301", "\ufeff", "\u00a0", "a" * 300, "<x>&amp;"),
)


@dataclass(frozen=True, slots=True)
class HostileSheet:
    """A file, and the number of non-blank rows below its header, or None if it is unknown."""

    ending: str
    content: bytes
    rows: int | None


@cache
def rules() -> Rules:
    return complete_rules("W")


@cache
def samples() -> list[list[list[str]]]:
    results = []
    for path in versioned_files("samples", "*.csv"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
        if "country" in rows[0]:
            results.append(rows)
    return results


def hostile_sheet(seed: int) -> HostileSheet:
    chance = Random(seed)  # noqa: S311 (it must be repeatable)
    header, *body = chance.choice(samples())
    rows = chance.sample(body, min(len(body), chance.randint(1, ROWS)))
    if chance.random() < 0.4:
        rows = [[chance.choice(NASTY_CELLS) if chance.random() < 0.3 else cell for cell in row] for row in rows]
    ending = chance.choice(FORMATS)
    match ending:
        case ".csv":
            return _hostile_csv(chance, header, rows)
        case ".xlsx":
            return _hostile_workbook(chance, header, rows)
        case _:
            return _hostile_parquet(chance, header, rows)


def has_visible_text(row: list[str]) -> bool:
    return any(unicodedata.category(c)[0] not in "CZ" for cell in row for c in cell)


def _hostile_csv(chance: Random, header: list[str], rows: list[list[str]]) -> HostileSheet:
    delimiter, end = chance.choice(",,,;\t|"), chance.choice(["\n", "\n", "\r\n", "\r"])
    text = io.StringIO()
    quoting = chance.choice(QUOTING)
    csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows([header, *rows])
    lines = text.getvalue()
    below = len(lines.partition(end)[0]) + len(end)
    encoding = chance.choice(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"])
    how = chance.random()
    if how < 0.15:
        return HostileSheet(".csv", lines.encode(encoding), sum(map(has_visible_text, rows)))
    if how < 0.3:
        return HostileSheet(".csv", _damage_bytes(chance, lines.encode(encoding), 0), None)
    content = _damage_bytes(chance, lines.encode(), below)
    try:
        text_after = content.decode()
    except UnicodeDecodeError:
        return HostileSheet(".csv", content, None)
    # Count the lines below the header that have more than delimiters and quotation marks.
    signs = str.maketrans("", "", f'"{delimiter}')
    below_header = records(text_after, delimiter, len(header))
    return HostileSheet(".csv", content, sum(has_visible_text([line.translate(signs)]) for line in below_header))


def records(text: str, delimiter: str, columns: int) -> list[str]:
    """Split the text below the header into records, with the lines of a quoted field as one record.

    If two of its lines could be rows, the sheet is refused, and each line is a record.
    """
    results: list[str] = []
    waiting: list[str] = []
    for line in re.split("\r\n|\r|\n", text)[1:]:
        waiting.append(line)
        if "".join(waiting).count('"') % 2 == 0:
            is_single_row = sum(part.count(delimiter) >= columns - 2 for part in waiting) <= 1
            results += [" ".join(waiting)] if is_single_row else waiting
            waiting = []
    return [*results, *waiting]


def _damage_bytes(chance: Random, content: bytes, start: int) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        at = chance.randint(min(start, len(changed)), len(changed))
        byte = chance.choice(NASTY_BYTES) if chance.random() < 0.8 else chance.randrange(256)
        match chance.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([byte])
            case 1:
                changed[at:at] = bytes([byte]) * chance.choice([1, 1, 2, 40])
            case 2:
                del changed[at : at + chance.randint(1, 60)]
            case 3:
                piece = changed[at : at + chance.randint(1, 80)]
                changed[at:at] = piece
            case _:
                changed[at:at] = chance.choice(NASTY_CELLS).encode()
    return bytes(changed)


def _hostile_workbook(chance: Random, header: list[str], rows: list[list[str]]) -> HostileSheet:
    book = openpyxl.Workbook()
    sheet = book.active
    if not isinstance(sheet, Worksheet):
        raise TypeError("a new workbook has a worksheet")
    for at, row in enumerate([header, *rows], start=1):
        for column, cell in enumerate(row, start=1):
            written = sheet.cell(at, column)
            numeric = cell.replace(".", "", 1).isdigit() and chance.random() < 0.3
            written.value = float(cell) if numeric else "".join(c for c in cell if c.isprintable())
            written.data_type = "n" if numeric else "s"
    saved = io.BytesIO()
    book.save(saved)
    with zipfile.ZipFile(saved) as parts:
        content = _archive({part: WHEN_SAVED.sub(WHEN, parts.read(part)) for part in parts.namelist()})
    how = chance.random()
    if how < 0.3:
        printable = [["".join(c for c in cell if c.isprintable()) for cell in row] for row in rows]
        return HostileSheet(".xlsx", content, sum(map(has_visible_text, printable)))
    if how < 0.6:
        return HostileSheet(".xlsx", _flip_bits(chance, content), None)
    return HostileSheet(".xlsx", _damage_part(chance, content), None)


def _archive(parts: Mapping[str, bytes]) -> bytes:
    """Return an archive of these parts. Its bytes are reproducible, so that a seed always gives the same sheet."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for part, data in parts.items():
            archive.writestr(zipfile.ZipInfo(part), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _damage_part(chance: Random, content: bytes) -> bytes:
    """Damage one part of a workbook, but not the archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as old:
        parts = {part: old.read(part) for part in old.namelist()}
    chosen = chance.choice([part for part in parts if "sheet1" in part or "workbook" in part or "styles" in part])
    data = parts[chosen]
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        data = data[:at] + chance.choice(NASTY_XML) + data[at + chance.randrange(3) :]
    return _archive({**parts, chosen: data})


def _flip_bits(chance: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed[: chance.randint(1, len(changed))] if chance.random() < 0.1 else changed)


def _hostile_parquet(chance: Random, header: list[str], rows: list[list[str]]) -> HostileSheet:
    columns = []
    for at, name in enumerate(header):
        text = pl.Series(name, [row[at] if at < len(row) else None for row in rows], pl.String)
        columns.append(text.cast(chance.choice(DTYPES), strict=False))
    frame = pl.DataFrame(columns)
    file = io.BytesIO()
    frame.write_parquet(file, compression=chance.choice(["uncompressed", "zstd", "snappy"]))
    if chance.random() < 0.4:
        kept = frame.select(pl.all().cast(pl.String).fill_null("")).rows()
        return HostileSheet(".parquet", file.getvalue(), sum(has_visible_text(list(row)) for row in kept))
    return HostileSheet(".parquet", _flip_bits(chance, file.getvalue()), None)


def read_hostile(path: Path, sheet: HostileSheet) -> Sheet | None:
    """Read and validate a sheet, or return None if it is refused. Raises `AssertionError` if a row is lost."""
    path.write_bytes(sheet.content)
    try:
        read = read_sheet(path, ReadOptions())
        validated = validate(read, rules())
    except SheetError as error:
        if not error.message or "\n" in error.message:
            raise AssertionError("the refusal is no sentence") from error
        return None
    if not validated.rows["row"].equals(read.frame["row"]):
        raise AssertionError("validation lost a row")
    if validated.rows.filter("valid").height != validated.instructions.height:
        raise AssertionError("the valid rows are not the instructions")
    if sheet.rows is not None and read.frame.height < sheet.rows:
        raise AssertionError(f"{sheet.rows} rows went in, {read.frame.height} came out")
    return read


def play(seeds: range) -> tuple[Counter[str], list[str]]:
    """Play some seeds, and return the verdicts by format and a message for each failure."""
    verdicts: Counter[str] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in seeds:
            sheet = hostile_sheet(seed)
            try:
                read = read_hostile(Path(directory) / f"pay{sheet.ending}", sheet)
                verdicts[f"{sheet.ending} {'refused' if read is None else 'read'}"] += 1
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 (a panic of polars is not an Exception)
                failures.append(f"seed {seed} ({sheet.ending}): {type(error).__name__}: {str(error)[:300]}")
    return verdicts, failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sheet.hostile", description=__doc__)
    parser.add_argument("--sheets", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    options = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = "1"  # for the workers, which already share the cores
    began_s = time.monotonic()
    end = options.start + options.sheets
    pieces = [range(at, min(at + AT_ONCE, end)) for at in range(options.start, end, AT_ONCE)]
    verdicts: Counter[str] = Counter()
    failures: list[str] = []
    stop = stop_on_sigterm()
    for results, wrong in run_pieces(play, pieces, workers=options.workers, start_method="spawn", stop=stop):
        verdicts += results
        failures += wrong
        for failure in wrong:
            print(failure, flush=True)  # noqa: T201 (a script's output)
        if verdicts.total() % 1000 < AT_ONCE:
            print(f"{verdicts.total():,} sheets", file=sys.stderr, flush=True)  # noqa: T201 (as above)
    verdict_counts = ", ".join(f"{what}: {count:,}" for what, count in sorted(verdicts.items()))
    played = f"{verdicts.total() + len(failures):,} sheets from seed {options.start:,}"
    took = f"{time.monotonic() - began_s:,.0f} s"
    print(f"{played} in {took}: {verdict_counts}; {len(failures)} failures")  # noqa: T201 (as above)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
