"""Writes to standard output and standard error without failing a run."""

import io
import os
import sys
from typing import TextIO, cast

from paygw_batch.core.text import escape_except_layout
from paygw_batch.language import say


class Stream(io.TextIOBase):
    """Forwards text to standard output or standard error, and discards it after the first failure.

    A run prints its results after money has moved, so `write` never raises. The error is kept in `failure`.
    """

    def __init__(self, target: TextIO) -> None:
        self.failure: str | None = None
        """The reason for the first failure, or None."""
        self.is_pipe_closed = False
        """Whether the reader closed the pipe (`| head -1`)."""
        self._target = target

    @property
    def file(self) -> TextIO:
        """This stream as a `TextIO`, whose methods it implements."""
        return cast("TextIO", self)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the base class
        return self._target.encoding or "utf-8"

    def write(self, text: str) -> int:
        """Write and flush text, escaping control characters and unencodable characters."""
        if self.failure is None:
            printable = escape_except_layout(text)
            try:
                self._target.write(_escape_unencodable(printable, self.encoding))
                self._target.flush()
            except OSError as error:
                self.failure = say(error.strerror or "unknown reason").lower()
                self.is_pipe_closed = isinstance(error, BrokenPipeError)
                _discard_output(self._target)
        return len(text)

    def failure_message(self) -> str:
        return say("Error: cannot write to standard output: {failure}.", failure=self.failure)

    def flush(self) -> None:
        """Do nothing, because each write is flushed."""

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()


def _escape_unencodable(text: str, encoding: str) -> str:
    """Replace narrow no-break spaces with normal ones, and escape other characters missing from the encoding."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        normal_text = text.replace("\N{NARROW NO-BREAK SPACE}", "\N{NO-BREAK SPACE}")
        return normal_text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _discard_output(target: TextIO) -> None:
    """Redirect the descriptor to /dev/null. Otherwise the flush at exit would fail with exit code 120."""
    try:
        descriptor = target.fileno()
    except (OSError, ValueError):
        return
    null_device = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null_device, descriptor)
    os.close(null_device)


def open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed, as by `>&-` or a service manager.

    Otherwise the next file to be opened, such as the journal, would get the stream's descriptor and output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null_device = os.open(os.devnull, os.O_RDWR)
            os.dup2(null_device, number)
            os.set_inheritable(number, True)
            if null_device != number:
                os.close(null_device)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def standard_output() -> Stream:
    return Stream(sys.stdout)


def standard_error() -> Stream:
    return Stream(sys.stderr)
