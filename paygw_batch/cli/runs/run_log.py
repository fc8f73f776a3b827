"""Writes the log: one JSON object a line, for machines. It names runs, batches and orders, and no people."""

import json
import re
import secrets
from pathlib import Path

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.files import append_line

_LONG_NUMBER = re.compile(r"[0-9]{4,}(?=[0-9]{3})")
"""The digits before the last three of a number that could be a phone or an account."""


_DATE = r"(?<![0-9])20[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?![0-9])"
_REST_OF_NAME = r"(?=[^\s/]*\.(?:csv|txt|tsv|xlsx|parquet|json|html|toml)\b)"
_OWN_NAME = re.compile(rf"([0-9]{{8}}T[0-9]{{12}}Z(?=-)|\b(?=[0-9]*[a-f])[0-9a-f]{{16}}\b|{_DATE}{_REST_OF_NAME})")
"""The time that `run-folder` puts before the name of a sheet, the id of a batch, and a date in the name of a file."""


def masked(sentence: str) -> str:
    """Return a sentence with long numbers cut to their last three digits: phones, accounts, and the like.

    Names that this program made stay whole: without them a person cannot find the file.
    """
    parts = _OWN_NAME.split(sentence)
    return "".join(part if place % 2 else _LONG_NUMBER.sub("***", part) for place, part in enumerate(parts))


class RunLog:
    """Writes the log lines of one run, each with its id. A log that cannot be written stops no payroll."""

    def __init__(self, path: Path | None, command: str) -> None:
        self.run = secrets.token_hex(8)
        self.failure: str | None = None
        """Why the log could not be written, once that has happened."""
        self._path = path
        self._command = command

    def write(self, event: str, **details: object) -> None:
        """Append one line: `at`, `run`, `command`, `event`, and the details of the event."""
        if self._path is None or self.failure is not None:
            return
        line = {"at": timestamp(utc_now()), "run": self.run, "command": self._command, "event": event, **details}
        try:
            append_line(self._path, (json.dumps(line) + "\n").encode())
        except OSError as error:
            self.failure = f"The log {self._path} cannot be written: {(error.strerror or 'unknown reason').lower()}."
