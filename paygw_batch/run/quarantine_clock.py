"""Checks our clock, because the quarantine is counted by it.

It is held against two others: the newest time in the journal, which it cannot be behind unless it was set back, and the
`Date` of the gateway's replies. What the quarantine guards is stopped while one of them speaks against it.
"""

from datetime import datetime, timedelta

from paygw_batch.clock import Now, timestamp
from paygw_batch.errors import UsageError
from paygw_batch.gateway.classify import date_of
from paygw_batch.gateway.message import RawReply, TransportFault
from paygw_batch.journal import ClockSeen, Journal, JournalReader
from paygw_batch.language import say

AHEAD_AT_MOST_S = 600
"""So far our clock may be ahead of the gateway's, or behind the journal's newest time while rows are sent."""
LOOK_EVERY = timedelta(seconds=1)
NOTED_FROM_S = 60
"""A difference is noted in the journal when it has changed by more."""


class DateWatch:
    """Holds the newest difference between our clock and the `Date` of a reply. It writes nothing."""

    def __init__(self, now: Now) -> None:
        self.seen: ClockSeen | None = None
        self._now = now
        self._next_look: datetime | None = None

    def see(self, came_back: RawReply | TransportFault) -> None:
        """Take the time of a reply, where it states one: of one reply a second, because a run can have thousands."""
        now = self._now()
        is_too_soon = self._next_look is not None and self._next_look - LOOK_EVERY <= now < self._next_look
        if is_too_soon or isinstance(came_back, TransportFault) or (date := date_of(came_back)) is None:
            return
        self._next_look = now + LOOK_EVERY
        self.seen = ClockSeen(timestamp(now), timestamp(date), round((now - date).total_seconds()))

    def note_in(self, journal: Journal) -> None:
        """Keep the difference in the journal, where none was kept yet or it has changed."""
        if self.seen is None:
            return
        known = journal.head().clock
        if known is None or abs(self.seen.ahead_s - known.ahead_s) > NOTED_FROM_S:
            journal.settle([], note=self.seen)


def behind_sentence(journal: JournalReader, now: datetime, *, at_most_s: float = 0) -> str | None:
    """Return why our clock is wrong by the journal's newest time, or None. `at_most_s` is how far it may be behind."""
    newest = journal.head().newest_time
    if timestamp(now + timedelta(seconds=at_most_s)) >= newest:
        return None
    return say(
        "The clock says {now}, and the newest time in the journal is {newest}: the clock was set back.",
        now=timestamp(now),
        newest=newest,
    )


def ahead_sentence(journal: JournalReader) -> str | None:
    """Return why our clock is wrong by the gateway's, as it was last noted, or None."""
    seen = journal.head().clock
    if seen is None or seen.ahead_s <= AHEAD_AT_MOST_S:
        return None
    return say(
        "The clock was {minutes:,} minutes ahead of the gateway's: it said {our_time} when a reply was "
        "dated {gateway_date}.",
        minutes=seen.ahead_s // 60,
        our_time=seen.our_time,
        gateway_date=seen.gateway_date,
    )


def clock_sentences(journal: JournalReader, now: datetime) -> list[str]:
    """Return a sentence for each sign that our clock is wrong."""
    return [one for one in (behind_sentence(journal, now), ahead_sentence(journal)) if one is not None]


def require_sound_clock(journal: JournalReader, now: datetime) -> None:
    """Raise `UsageError` where something speaks against our clock: the quarantine cannot be counted by it."""
    if wrong := clock_sentences(journal, now):
        raise UsageError(
            say("{wrong} Nothing is settled, released or amended by such a clock.", wrong=" ".join(wrong)),
            hint=say(
                "Set the clock right, and run the command again. A clock that was ahead is believed again after the "
                "next reply of the gateway (`submit`, `resume` or `refresh`), and after the newest time in the journal."
            ),
        )
