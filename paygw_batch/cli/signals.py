"""Handles the signals that stop a command."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from paygw_batch.clock import SIGNAL_CHECK_INTERVAL_S
from paygw_batch.language import mark, say

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM)

INTERRUPT_EXIT_CODE = 130

RETRY_HINT = mark("Run the same command again to continue.")

_OPTIONS_WITH_VALUE = frozenset({"--config", "--journal", "--lang"})
"""The program's options that take a value. A test compares them with the actual options."""


def parse_command_name(words: Iterable[str]) -> str:
    """Return the command's name from a command line, or an empty string if there is none."""
    remaining = iter(words)
    for word in remaining:
        if word in _OPTIONS_WITH_VALUE:
            next(remaining, None)
        elif not word.startswith("-"):
            return word
    return ""


class Interruption:
    """Handles the signals that stop a command, and records whether rows may have been sent."""

    def __init__(self) -> None:
        self.is_signalled = False
        self.may_have_sent = False
        self._handles_signals = False

    def handle_signals(self) -> None:
        """Raise `KeyboardInterrupt` on each signal from now on, unless the signal is ignored."""
        self._handles_signals = True
        sys.unraisablehook = self._resend_lost_signal
        self.restore_handlers()

    def restore_handlers(self) -> None:
        """Reinstall this object's handlers after a run has installed its own."""
        self._set_handlers(self._raise_interrupt)

    def handle_in_loop(self, loop: "AbstractEventLoop", on_signal: Callable[[], None]) -> None:
        """Call `on_signal` in the event loop for each signal. Signals that arrive as the loop ends are recorded.

        With `loop.add_signal_handler`, a signal that arrives as the loop ends could kill the process.
        """
        was_signalled = self.is_signalled

        def forward(_number: int, _frame: FrameType | None) -> None:
            self.is_signalled = True
            if loop.is_running():
                loop.call_soon_threadsafe(call_in_loop)
            else:
                self.restore_handlers()

        def call_in_loop() -> None:
            self.is_signalled = was_signalled  # the loop received the signal, so it need not be recorded
            on_signal()

        def keep_loop_awake() -> None:
            loop.call_later(SIGNAL_CHECK_INTERVAL_S, keep_loop_awake)

        for number in HANDLED_SIGNALS:
            signal.signal(number, forward)
        keep_loop_awake()

    def raise_on_second_signal(self) -> None:
        """Record the first signal after a run, and raise `KeyboardInterrupt` on the next.

        The exit code must report the run's results, because rows in doubt matter more than an interruption.
        """
        self._set_handlers(self._record_signal)

    def _set_handlers(self, handler: Callable[[int, FrameType | None], None]) -> None:
        if self._handles_signals:
            for number in HANDLED_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, handler)

    def ignore_signals(self) -> None:
        """Ignore signals from now on, because the command has ended."""
        if self._handles_signals:
            for number in HANDLED_SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def message(self) -> str:
        return say("Interrupted.") if self.may_have_sent else say("Interrupted: nothing was sent.")

    def _record_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_signalled = True
        self.restore_handlers()

    def _raise_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        # The signal is also recorded, because an exception raised in an interpreter callback does not propagate.
        self.is_signalled = True
        raise KeyboardInterrupt

    def _resend_lost_signal(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Resend a signal whose exception was lost. Sends SIGTERM, because background processes ignore SIGINT."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
            return
        signal.signal(signal.SIGALRM, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_CHECK_INTERVAL_S / 10)


interruption = Interruption()


def exit_interrupted(message: str, hint: str, **values: Any) -> NoReturn:
    """Print a message and exit immediately. With --json, `values` become part of the summary."""
    interruption.ignore_signals()
    with suppress(OSError):
        os.write(2, f"{say('Error: ')}{message}\n{hint}\n".encode())
    if "--json" in sys.argv[1:]:
        import json  # noqa: PLC0415 (only if a signal arrives)

        from paygw_batch.show.summary import ExitCode, Summary  # noqa: PLC0415 (as above)

        with suppress(OSError):
            os.write(1, (json.dumps(Summary(ExitCode.INTERRUPTED, message, **values).as_json()) + "\n").encode())
    os._exit(INTERRUPT_EXIT_CODE)
