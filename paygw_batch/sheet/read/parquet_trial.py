"""Decodes Parquet on trial, in a separate process with limited memory.

A damaged or malicious Parquet file can make the decoder allocate so much memory that its process is aborted without an
exception. So a child process decodes the bytes first. It imports only this module and polars.
"""

import io
import os
import resource
import subprocess
import sys
from enum import IntEnum

import polars as pl

from paygw_batch.errors import SheetError
from paygw_batch.language import say
from paygw_batch.processes import child_environment, python_command

_GIB = 1 << 30
_MAX_CPU_S = 600
_TEXT_TYPES = (pl.String, pl.Categorical, pl.Enum)
_NOT_TEXT = (pl.Binary, pl.Object, pl.Unknown, pl.Duration)
MAX_DIGITS = 38
"""The maximum number of digits in a decimal that polars can decode. 256-bit decimals can have more."""
_CHILD_CODE = "from paygw_batch.sheet.read.parquet_trial import run_trial; run_trial({limits})"


class TrialResult(IntEnum):
    """The result of decoding in a child process, as its exit status. Any other status means a damaged file."""

    SOUND = 0
    TOO_MANY_ROWS = 10
    TOO_LARGE = 11
    DAMAGED = 12


def try_parquet(data: bytes, *, max_rows: int, max_bytes: int) -> TrialResult:
    """Decode `data` in a child process. `max_bytes` limits the decoded text."""
    command = python_command(_CHILD_CODE.format(limits=f"{max_rows}, {max_bytes}"))
    if command is None:
        raise SheetError(
            say("Parquet files cannot be read here, because no Python interpreter was found to test them with.")
        )
    environ = child_environment(os.environ)
    child = subprocess.run(  # noqa: S603 (our own program, with our own arguments)
        command, input=data, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    try:
        return TrialResult(child.returncode)
    except ValueError:  # a signal or the interpreter ended the child
        return TrialResult.DAMAGED


def run_trial(max_rows: int, max_bytes: int) -> None:
    """Decode standard input and exit with the `TrialResult`."""
    _set_limit(resource.RLIMIT_CPU, _MAX_CPU_S)
    _set_limit(resource.RLIMIT_AS, 4 * _GIB + 4 * max_bytes)
    try:
        result = _decode(sys.stdin.buffer.read(), max_rows, max_bytes)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, MemoryError, OSError):
        result = TrialResult.DAMAGED
    sys.exit(result)


def _set_limit(kind: int, value: int) -> None:
    hard_limit = resource.getrlimit(kind)[1]
    value = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
    resource.setrlimit(kind, (value, value))


def text_columns(schema: pl.Schema) -> list[str]:
    """Return the columns that can be converted to text. Other columns are never decoded."""
    long = (name for name, dtype in schema.items() if isinstance(dtype, pl.Decimal) and dtype.precision > MAX_DIGITS)
    unsupported = {name for name, dtype in schema.items() if dtype.is_nested() or dtype in _NOT_TEXT}.union(long)
    return [name for name in schema if name not in unsupported]


def _decode(data: bytes, max_rows: int, max_bytes: int) -> TrialResult:
    scan = pl.scan_parquet(io.BytesIO(data))
    if scan.select(pl.len()).collect().item() > max_rows:
        return TrialResult.TOO_MANY_ROWS
    frame = scan.select(text_columns(scan.collect_schema())).collect()
    # A string counts for each row that has it, although it is stored once, because all rows will be read.
    texts = [column.cast(pl.String) for column in frame.iter_columns() if column.dtype in _TEXT_TYPES]
    text_bytes = sum(int(text.str.len_bytes().sum()) for text in texts)
    return TrialResult.TOO_LARGE if text_bytes > max_bytes else TrialResult.SOUND
