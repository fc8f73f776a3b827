"""Keeps the sandbox's record, a CSV file with one line for every order received.

It contains what a real gateway would know, so it shows whether the client works. The gateway does not promise
idempotency, so an order that arrives twice is paid and recorded twice.
"""

import csv
import fcntl
import io
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from paygw_batch.errors import ConfigurationError, OutputError
from paygw_batch.files import create_if_missing
from paygw_batch.language import say


@dataclass(frozen=True, slots=True)
class RecordLine:
    """An order that reached the sandbox, with every value as text.

    `received_at` is UTC in ISO 8601, with `Z`. `amount` has the digits that were sent. `account_number` is the
    receiver's phone in the receiver form. `answer` is the reply's status word or fault. `committed` is `yes`
    if the money moved, otherwise `no`. `reference` is the sandbox's own id for the payout.
    """

    received_at: str
    client_orderid: str
    country: str
    currency: str
    amount: str
    account_number: str = field(repr=False)
    purpose: str
    answer: str
    committed: str
    reference: str


RECORD_COLUMNS = tuple(column.name for column in fields(RecordLine))


class Record:
    """The record, open for appending. Several processes can append at the same time.

    Each line is a single `write` to a file opened with O_APPEND. So lines are never mixed, and a line survives if the
    process is killed after `append` returns. A power cut can lose lines, because the file is not synced.
    """

    def __init__(self, path: Path) -> None:
        """Open the record, or create it (mode 0600). Raises `ConfigurationError` if that fails."""
        self._path = path
        self._is_broken = False
        try:
            create_if_missing(path, _csv_line(RECORD_COLUMNS))
            _require_complete_record(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            reason = say(str(error.strerror))
            raise ConfigurationError(
                say("The sandbox's record {path} cannot be opened: {reason}.", path=path, reason=reason)
            ) from None

    def append(self, line: RecordLine) -> None:
        """Append a line. After an `OutputError`, every later call fails too, because the line may be incomplete."""
        if self._is_broken:
            raise OutputError(say("An earlier write to the sandbox's record failed."))
        encoded_line = _csv_line(tuple(getattr(line, column) for column in RECORD_COLUMNS))
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                written_bytes = os.write(self._descriptor, encoded_line)
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError as error:
            self._is_broken = True
            raise OutputError(
                say("The sandbox's record cannot be written: {reason}.", reason=say(str(error.strerror)))
            ) from None
        if written_bytes != len(encoded_line):
            self._is_broken = True
            raise OutputError(say("The sandbox's record cannot be written: the disk is full."))

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_record(path: Path) -> list[RecordLine]:
    """Return a record's lines, oldest first. Raises `ConfigurationError` if the file is not a record."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except OSError as error:
        raise ConfigurationError(
            say("The sandbox's record {path} cannot be read: {reason}.", path=path, reason=say(str(error.strerror)))
        ) from None
    except (csv.Error, UnicodeDecodeError):
        raise ConfigurationError(say("{path} is not a sandbox record.", path=path)) from None
    if not rows or tuple(rows[0]) != RECORD_COLUMNS or any(len(row) != len(RECORD_COLUMNS) for row in rows):
        raise ConfigurationError(say("{path} is not a sandbox record.", path=path))
    return [RecordLine(*map(strip_formula_guard, row)) for row in rows[1:]]


def strip_formula_guard(text: str) -> str:
    """Remove the leading `'` that keeps a spreadsheet from reading a CSV value as a formula."""
    return text[1:] if text[:1] == "'" and _looks_like_formula(text[1:]) else text


def _looks_like_formula(text: str) -> bool:
    return text[:1] in {"=", "@", "\t", "\r"} or (text[:1] in {"+", "-"} and not text[1:].isdecimal())


def _csv_line(values: tuple[str, ...]) -> bytes:
    line = io.StringIO(newline="")
    guarded_values = [f"'{value}" if _looks_like_formula(value) else value for value in values]
    csv.writer(line, lineterminator="\n").writerow(guarded_values)
    return line.getvalue().encode("utf-8")


def _require_complete_record(path: Path) -> None:
    header = _csv_line(RECORD_COLUMNS)
    hint = say("Move it to another folder. The sandbox then creates a new one.")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # a line being appended may be partly visible
        if file.read(len(header)) != header:
            raise ConfigurationError(say("{path} is not a sandbox record.", path=path), hint=hint)
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            message = say("The sandbox's record {path} ends with an incomplete line.", path=path)
            raise ConfigurationError(message, hint=hint)
