"""Follows a batch that another process sends, by reading the journal at intervals."""

import time

from rich.live import Live

from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.screen.terminal import plain
from paygw_batch.compose.journal import find_batch, journal_to_read
from paygw_batch.core.lifecycle import State
from paygw_batch.core.shown_states import counted_state
from paygw_batch.language import say
from paygw_batch.report.batch_states import states_of
from paygw_batch.settings.configuration import Settings

LOOK_EVERY_S = 1.0
QUIET_BEYOND_TIMEOUT_S = 30
"""A journal in which nothing moved for a whole request's time and this much more is not being written by a run."""


def follow(settings: Settings, batch: str, screen: Screen) -> None:
    """Show the states of a batch until nothing is left to send, nothing has moved for long, or Ctrl-C."""
    give_up_s = settings.gateway.total_timeout_s + QUIET_BEYOND_TIMEOUT_S
    head, moved_s = -1, time.monotonic()
    told = ""
    try:
        with Live(console=screen.err, refresh_per_second=4, transient=True) as live:
            while True:
                with journal_to_read(settings) as journal:
                    record = find_batch(journal, batch)
                    tallies = journal.tallies(record.number)
                    seq = journal.head().seq
                if seq != head:
                    head, moved_s = seq, time.monotonic()
                states = states_of(record, tallies)
                now = ", ".join(counted_state(count, state) for state, count in states.items())
                if screen.err.is_terminal:
                    live.update(plain(say("{sheet}: {states}", sheet=record.sheet_name, states=now)))
                elif now != told:
                    screen.err.print(say("{sheet}: {states}", sheet=record.sheet_name, states=now), soft_wrap=True)
                told = now
                if not any(tally.state in {State.READY, State.IN_FLIGHT} for tally in tallies):
                    return
                if time.monotonic() - moved_s > give_up_s:
                    screen.err.print(
                        say("Nothing has moved for {seconds:.0f} seconds: no run seems to be on.", seconds=give_up_s)
                    )
                    return
                time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        screen.err.print(say("No longer watching; the run goes on."))
