"""Writing frames to files: whole or not at all, readable by their owner alone, safe to open in a spreadsheet."""

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import polars as pl

from paygw_batch.errors import OutputError
from paygw_batch.sheet.columns import REJECTS_COLUMNS
from paygw_batch.sheet.formulas import guarded, guarded_names
from paygw_batch.sheet.result import Validated

_ENDINGS = (".csv", ".parquet", ".xlsx")
_WORKBOOK_ROWS = 1_048_575
"""What a sheet of a workbook holds below its header."""


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write `frame` to `path` as its ending says: .csv, .parquet or .xlsx (with the `excel` extra).

    The file appears whole, with mode 0600, or not at all, and is on stable storage on return; an older file of that
    name stays until then. CSV is UTF-8 with formulas guarded; in .xlsx text is typed as text. Raises `OutputError`.
    """
    ending = _ending(path)
    if ending == ".xlsx" and frame.height > _WORKBOOK_ROWS:
        raise OutputError(
            f"{path.name}: a workbook holds at most {_WORKBOOK_ROWS} rows.", hint="Write .csv or .parquet."
        )
    with _appearing(path) as file:
        if ending == ".csv":
            _write_csv(frame, file)
        elif ending == ".parquet":
            frame.write_parquet(file)
        else:
            _write_workbook(frame, file)


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` to `path`: whole, with `mode`, or not at all. Raises `OutputError`."""
    with _appearing(path) as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)


def check_writable(path: Path) -> None:
    """Raise `OutputError` when `write_frame` could not write `path`: to be found out before anything is sent."""
    _ending(path)
    try:
        _refuse_special(path)
        with tempfile.TemporaryFile(dir=path.parent, prefix=".paygw-"):
            pass
    except OSError as error:
        raise _cannot(path, error) from error


def rejects(validated: Validated) -> pl.DataFrame:
    """Return the rows that are not valid, to be mended and submitted again.

    `row` (UInt32) and `problems` (every sentence about the row) come first, then the sender's columns under the
    sender's headings, with the sender's texts. Reading such a file drops our two columns again.
    """
    sheet = validated.sheet
    refused = validated.rows.filter(~pl.col("valid")).select("row", problems="message")
    names = {
        name: heading if heading and heading not in REJECTS_COLUMNS else name for name, heading in sheet.headers.items()
    }
    return refused.join(sheet.frame, on="row", how="left", maintain_order="left").rename(names)


def write_rejects(validated: Validated, path: Path) -> None:
    """Write `rejects(validated)` to `path`. Raises `OutputError`."""
    write_frame(rejects(validated), path)


def workbook_options() -> dict[str, Any]:
    """Return how every workbook is written: text as text, and no payee's data in temporary files."""
    return {"strings_to_formulas": False, "strings_to_numbers": False, "strings_to_urls": False, "in_memory": True}


def _ending(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise OutputError(f"{path.name} ends in none of {', '.join(_ENDINGS)}.", hint="The ending says the format.")
    if ending == ".xlsx" and importlib.util.find_spec("xlsxwriter") is None:
        raise OutputError(
            f"{path.name}: writing .xlsx needs the extra `excel`.",
            hint="pip install 'paygw-batch[excel]', or write .csv or .parquet.",
        )
    return ending


def _write_csv(frame: pl.DataFrame, file: IO[bytes]) -> None:
    text = [guarded(column) if column.dtype == pl.String else column for column in frame.iter_columns()]
    safe = pl.DataFrame([column.alias(name) for column, name in zip(text, guarded_names(frame.columns), strict=True)])
    safe.write_csv(file)


def _write_workbook(frame: pl.DataFrame, file: IO[bytes]) -> None:
    from xlsxwriter import Workbook  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    with Workbook(file, workbook_options()) as workbook:
        frame.write_excel(workbook, autofilter=False, column_formats={pl.selectors.integer(): "0"})


@contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file that becomes `path` at the end, or disappears when anything goes wrong."""
    temporary: Path | None = None
    try:
        _refuse_special(path)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".paygw-", suffix=".part")
        temporary = Path(name)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor, whose mode is 0600)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        temporary = None
        _sync_directory(path.parent)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _cannot(path, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def _refuse_special(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise OutputError(f"{path} is no regular file.", hint="Name a file of your own.")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot(path: Path, error: Exception) -> OutputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return OutputError(f"{path} cannot be written: {reason}.")
