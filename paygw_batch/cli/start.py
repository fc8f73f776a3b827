"""Starts the program, with signal handlers in place before any slow import.

Until a run sends its first row, SIGINT and SIGTERM raise `KeyboardInterrupt`, so that files are closed and the journal
is released. The run then installs its own handlers (`cli/send_batch.py`).
"""

import sys

from paygw_batch.cli.screen.streams import open_closed_streams
from paygw_batch.cli.signals import RETRY_HINT, exit_interrupted, interruption, parse_command_name
from paygw_batch.language import say


def main() -> None:
    interruption.handle_signals()
    open_closed_streams()
    if parse_command_name(sys.argv[1:]) == "work":  # a signal ends a worker normally, even during startup
        interruption.raise_on_second_signal()
    try:
        from paygw_batch.cli.main import run  # noqa: PLC0415 (slow: signals must be handled first)

        run()
    except KeyboardInterrupt:
        exit_interrupted(interruption.message(), say(RETRY_HINT))
