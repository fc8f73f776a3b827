"""Handles the signals that stop a command, from the start of the command to its end."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from paygw_batch.clock import HEED_EVERY_S
from paygw_batch.language import mark, say

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

HEEDED = (signal.SIGINT, signal.SIGTERM)

EXIT_CODE = 130

AGAIN = mark("Run the same command again to continue.")


_TAKE_A_VALUE = frozenset({"--config", "--journal", "--lang"})
"""The program's options that take a value. A test compares them with the real options."""


def command_in(words: Iterable[str]) -> str:
    """Return the command in the words of a command line, or an empty text if there is none."""
    rest = iter(words)
    for word in rest:
        if word in _TAKE_A_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


class Interruption:
    """Whether a signal came, and whether rows may have been sent before it."""

    def __init__(self) -> None:
        self.came = False
        self.has_sent = False
        """Whether rows may have been sent."""
        self._is_heeded = False

    def heed(self) -> None:
        """Raise `KeyboardInterrupt` at every signal from now on. A signal that this process ignores remains ignored."""
        self._is_heeded = True
        sys.unraisablehook = self._hear_again
        self.heed_again()

    def heed_again(self) -> None:
        """Handle signals here again, after a run that had its own handlers."""
        self._take_back(self._raise)

    def heed_within(self, loop: "AbstractEventLoop", heed: Callable[[], None]) -> None:
        """Call `heed` in an event loop at each signal. Keep a signal that arrives just after the loop has ended.

        The loop would remove its own handlers at its end, and for an instant a signal would kill the process.
        """
        came = self.came

        def pass_on(_number: int, _frame: FrameType | None) -> None:
            self.came = True
            if loop.is_running():
                loop.call_soon_threadsafe(hear)
            else:
                self.heed_again()

        def hear() -> None:
            self.came = came  # the signal was not lost: the loop had another turn
            heed()

        def turn() -> None:
            loop.call_later(HEED_EVERY_S, turn)

        for each in HEEDED:
            signal.signal(each, pass_on)
        turn()

    def raise_on_second_signal(self) -> None:
        """Handle signals here again after a run. The first is only noted; the next raises `KeyboardInterrupt`.

        The run's results are known by then. Its exit code must report them: rows in doubt come before an interruption.
        """
        self._take_back(self._keep)

    def _take_back(self, handler: Callable[[int, FrameType | None], None]) -> None:
        if self._is_heeded:
            for each in HEEDED:
                if signal.getsignal(each) is not signal.SIG_IGN:
                    signal.signal(each, handler)

    def ignore(self) -> None:
        """Ignore signals from now on, because the command has ended."""
        if self._is_heeded:
            for each in HEEDED:
                signal.signal(each, signal.SIG_IGN)

    def sentence(self) -> str:
        return say("Interrupted.") if self.has_sent else say("Interrupted: nothing was sent.")

    def _keep(self, _signal: int, _frame: FrameType | None) -> None:
        self.came = True
        self.heed_again()

    def _raise(self, _signal: int, _frame: FrameType | None) -> None:
        # The signal is noted too: an exception is lost where it cannot propagate (in a callback of the interpreter).
        self.came = True
        raise KeyboardInterrupt

    def _hear_again(self, lost: "sys.UnraisableHookArgs") -> None:
        """Repeat a signal whose exception was lost, a moment later. A command that waits would never notice it.

        It is repeated as SIGTERM, because the background processes of a shell ignore SIGINT.
        """
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(lost)
            return
        signal.signal(signal.SIGALRM, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, HEED_EVERY_S / 10)


interruption = Interruption()


def leave(sentence: str, hint: str) -> NoReturn:
    """Print the end of a command that was interrupted, and end the process."""
    interruption.ignore()
    os.write(2, f"{say('Error: ')}{sentence}\n{hint}\n".encode())
    if "--json" in sys.argv[1:]:
        import json  # noqa: PLC0415 (not before a signal is heard)

        from paygw_batch.show.summary import ExitCode, Summary  # noqa: PLC0415 (as above)

        os.write(1, (json.dumps(Summary(ExitCode.INTERRUPTED, sentence).as_json()) + "\n").encode())
    os._exit(EXIT_CODE)
