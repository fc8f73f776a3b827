"""Handles the signals that stop a command."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from paygw_batch.clock import SIGNAL_CHECK_INTERVAL_S
from paygw_batch.language import mark, say

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM)

EXIT_CODE = 130

RETRY_HINT = mark("Run the same command again to continue.")


_OPTIONS_WITH_VALUE = frozenset({"--config", "--journal", "--lang"})
"""The program's options that take a value. A test compares this set with the real options."""


def parse_command_name(words: Iterable[str]) -> str:
    """Return the name of the command in a command line, or an empty string if there is none."""
    remaining = iter(words)
    for word in remaining:
        if word in _OPTIONS_WITH_VALUE:
            next(remaining, None)
        elif not word.startswith("-"):
            return word
    return ""


class Interruption:
    """Records whether a signal arrived, and whether rows may have been sent before it."""

    def __init__(self) -> None:
        self.is_signalled = False
        self.has_sent = False
        """Whether rows may have been sent."""
        self._handles_signals = False

    def handle_signals(self) -> None:
        """Raise `KeyboardInterrupt` at every signal from now on, except for signals that are ignored."""
        self._handles_signals = True
        sys.unraisablehook = self._resend_lost_signal
        self.restore_handlers()

    def restore_handlers(self) -> None:
        """Restore the handlers after a run that had its own."""
        self._set_handlers(self._raise_interrupt)

    def handle_in_loop(self, loop: "AbstractEventLoop", react: Callable[[], None]) -> None:
        """Call `react` in the event loop at each signal and keep signals that arrive just after the loop ends.

        `loop.add_signal_handler` is not used: a loop removes its handlers at its end, and a signal would then kill
        the process.
        """
        was_signalled = self.is_signalled

        def pass_on(_number: int, _frame: FrameType | None) -> None:
            self.is_signalled = True
            if loop.is_running():
                loop.call_soon_threadsafe(react_in_loop)
            else:
                self.restore_handlers()

        def react_in_loop() -> None:
            self.is_signalled = was_signalled  # the loop took another turn, so the signal was not lost
            react()

        def keep_loop_awake() -> None:
            loop.call_later(SIGNAL_CHECK_INTERVAL_S, keep_loop_awake)

        for number in HANDLED_SIGNALS:
            signal.signal(number, pass_on)
        keep_loop_awake()

    def raise_on_second_signal(self) -> None:
        """Note the first signal after a run and raise `KeyboardInterrupt` at the next.

        The results of the run are known by then, and its exit code must report them: rows in doubt matter more than an
        interruption.
        """
        self._set_handlers(self._record_signal)

    def _set_handlers(self, handler: Callable[[int, FrameType | None], None]) -> None:
        if self._handles_signals:
            for number in HANDLED_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, handler)

    def ignore(self) -> None:
        """Ignore signals from now on. Called when the command has ended."""
        if self._handles_signals:
            for number in HANDLED_SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def sentence(self) -> str:
        return say("Interrupted.") if self.has_sent else say("Interrupted: nothing was sent.")

    def _record_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_signalled = True
        self.restore_handlers()

    def _raise_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        # The signal is also recorded, because an exception in an interpreter callback does not propagate.
        self.is_signalled = True
        raise KeyboardInterrupt

    def _resend_lost_signal(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Resend a signal whose exception was lost. Otherwise a waiting command would never notice it.

        It is sent as SIGTERM, because the background processes of a shell ignore SIGINT.
        """
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
            return
        signal.signal(signal.SIGALRM, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_CHECK_INTERVAL_S / 10)


interruption = Interruption()


def exit_interrupted(sentence: str, hint: str) -> NoReturn:
    """Report that the command was interrupted and exit."""
    interruption.ignore()
    os.write(2, f"{say('Error: ')}{sentence}\n{hint}\n".encode())
    if "--json" in sys.argv[1:]:
        import json  # noqa: PLC0415 (only if a signal arrives)

        from paygw_batch.show.summary import ExitCode, Summary  # noqa: PLC0415 (as above)

        os.write(1, (json.dumps(Summary(ExitCode.INTERRUPTED, sentence).as_json()) + "\n").encode())
    os._exit(EXIT_CODE)
