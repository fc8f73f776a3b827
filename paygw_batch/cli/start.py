"""Starts the program. Signals are handled before anything heavy is imported, and until the end of the command.

Until a run sends its first row, SIGINT and SIGTERM raise `KeyboardInterrupt`, so that files are closed and the journal
is released. The run then has its own handlers (`cli/send_batch.py`). Nothing heavy may be imported here.
"""

import sys

from paygw_batch.cli.signals import AGAIN, command_in, interruption, leave
from paygw_batch.language import say


def main() -> None:
    interruption.heed()
    if command_in(sys.argv[1:]) == "work":  # for a worker a signal is a normal end, even before the worker is ready
        interruption.raise_on_second_signal()
    try:
        from paygw_batch.cli.main import run  # noqa: PLC0415 (heavy: signals must be handled first)

        run()
    except KeyboardInterrupt:
        leave(interruption.sentence(), say(AGAIN))
