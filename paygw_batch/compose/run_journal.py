"""Holds the configured journal for a run, and takes in the notifications that wait for it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paygw_batch.clock import timestamp, utc_now
from paygw_batch.compose.journal import Tell, open_to_write
from paygw_batch.core.shown_states import counted_finding
from paygw_batch.errors import HolderKind, InboxDamaged, JournalHeld
from paygw_batch.journal import Journal, SqliteJournal
from paygw_batch.language import say, say_count
from paygw_batch.run.quarantine_clock import clock_sentences
from paygw_batch.settings.configuration import Settings

if TYPE_CHECKING:
    from paygw_batch.journal import PostgresJournal

WAIT_EVERY_S = 0.5
"""How often a run that waits for another one looks whether it has ended."""

_FOR_A_MOMENT = frozenset({HolderKind.LISTENER, HolderKind.STARTING, HolderKind.WORKER})
"""The holders that a command waits for by itself: a listener lets the journal go soon; a new process may be one."""

LISTENER_LIMIT_S = 30.0
"""How long a command waits for such a holder. A listener that needs longer is stuck."""


@contextmanager
def run_journal(settings: Settings, command: str, tell: Tell, *, wait: bool = False) -> Iterator[Journal]:
    """Hold the journal for a run: one at a time, and nothing left in flight by the one before.

    Raises `JournalHeld` when another run has it, unless asked to `wait`.
    """
    journal = _opened(settings, command, tell, wait=wait)
    try:
        for note in journal.notes:
            tell(say("Note: {sentence}", sentence=note))
        for sentence in clock_sentences(journal, utc_now()):
            tell(say("Note: {sentence}", sentence=sentence))
        if interrupted := journal.conclude_dead(timestamp(utc_now())):
            tell(
                say_count(
                    interrupted,
                    "{count:,} row was in flight when the run before this one ended: it is in doubt now.",
                    "{count:,} rows were in flight when the run before this one ended: they are in doubt now.",
                )
            )
        take_in_waiting(settings, journal, tell)
        yield journal
    finally:
        journal.close()


def take_in_waiting(settings: Settings, journal: Journal, tell: Tell, *, is_quiet: bool = False) -> None:
    """Take in the notifications that wait. A damaged inbox is reported, and stops nothing: payouts do not need it."""
    try:
        findings = journal.take_in_waiting(settings.words(), at=timestamp(utc_now()))
    except InboxDamaged as error:
        tell(say("Note: {sentence}", sentence=f"{error.message} {error.hint}"))
        return
    if findings and not is_quiet:
        told = ", ".join(counted_finding(count, finding) for finding, count in sorted(findings.items()))
        tell(
            say_count(
                findings.total(),
                "{count:,} notification was taken in: {findings}.",
                "{count:,} notifications were taken in: {findings}.",
                findings=told,
            )
        )


def _opened(settings: Settings, command: str, tell: Tell, *, wait: bool) -> "SqliteJournal | PostgresJournal":
    has_told = False
    give_up_s = time.monotonic() + LISTENER_LIMIT_S
    while True:
        try:
            return open_to_write(settings, command)
        except JournalHeld as held:
            is_moment = held.holder in _FOR_A_MOMENT and time.monotonic() < give_up_s
            if not wait and not is_moment:
                raise
            if not has_told and not is_moment:
                tell(say("Waiting: {message}", message=held.message))
                has_told = True
            time.sleep(WAIT_EVERY_S / 10 if is_moment else WAIT_EVERY_S)
