"""Writes to standard output and standard error. If that fails (a full disk, no reader), the run continues."""

import io
import os
import sys
from typing import TextIO, cast

from paygw_batch.core.text import fit_in_print
from paygw_batch.language import say


class Stream(io.TextIOBase):
    """Passes text on to standard output or standard error. After the first failure it drops the text.

    When a run prints something, money has already moved. A write therefore never raises; `failure` has the reason.
    """

    def __init__(self, target: TextIO) -> None:
        self.failure: str | None = None
        """The reason why the text could not be written, once that has happened."""
        self.is_unread = False
        """Whether the failure was that the reader has left (`| head -1`)."""
        self._target = target

    @property
    def file(self) -> TextIO:
        """This stream, typed for printing. A `TextIOBase` is a `TextIO` in all but name."""
        return cast("TextIO", self)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the base class
        return self._target.encoding or "utf-8"

    def write(self, text: str) -> int:
        """Write `text` at once. Control characters, and characters that the encoding lacks, are escaped."""
        if self.failure is None:
            fit = fit_in_print(text)
            try:
                self._target.write(_encodable(fit, self.encoding))
                self._target.flush()
            except OSError as error:
                self.failure = say(error.strerror or "unknown reason").lower()
                self.is_unread = isinstance(error, BrokenPipeError)
                _drop_the_rest(self._target)
        return len(text)

    def flush(self) -> None:
        """Do nothing, because writes are not buffered."""

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()


def _encodable(text: str, encoding: str) -> str:
    """Return the text in characters of an encoding: plain no-break spaces for narrow ones, escapes for the rest."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        narrow = text.replace("\N{NARROW NO-BREAK SPACE}", "\N{NO-BREAK SPACE}")
        return narrow.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _drop_the_rest(target: TextIO) -> None:
    """Point the descriptor at /dev/null, because buffered text would fail again when the process ends (exit 120)."""
    try:
        descriptor = target.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def standard_output() -> Stream:
    return Stream(sys.stdout)


def standard_error() -> Stream:
    return Stream(sys.stderr)
