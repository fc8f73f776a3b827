"""Checks this machine's clock, on which the quarantine depends.

Our clock is compared with the newest time in the journal and with the `Date` of the gateway's replies. It can be behind
the newest time only if it was set back. While either contradicts our clock, nothing is settled, released or amended. A
slow clock dates attempts too early, so the run stops, and the quarantine is extended by the difference.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from paygw_batch.clock import Now, timestamp
from paygw_batch.core.outcome import RetrySoon, StopRun, Verdict
from paygw_batch.errors import UsageError
from paygw_batch.gateway.classify import reply_date
from paygw_batch.gateway.message import RawReply, TransportFault
from paygw_batch.journal import ClockComparison, Journal, JournalReader
from paygw_batch.language import say

MAX_AHEAD_S = 600
"""The maximum by which our clock may be ahead of the gateway's, or behind the journal's newest time."""
OBSERVE_EVERY = timedelta(seconds=1)
RECORDED_FROM_S = 60
"""The change of the difference, in seconds, above which it is recorded again."""
MAX_LONGER = timedelta(days=3650)
"""The maximum that a `Date`, of any year, can add to a quarantine."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The time after its latest attempt during which a row must not be sent again: `hours` plus `longer`.

    `longer` covers attempts dated too early because our clock was behind the gateway's.
    """

    hours: float
    extension: timedelta = timedelta()

    def ends_at(self, intended_at: str) -> datetime:
        """Return the end of the quarantine for an attempt."""
        return datetime.fromisoformat(intended_at) + timedelta(hours=self.hours) + self.extension

    def cutoff(self, now: datetime) -> str:
        """Return the cutoff at `now`: attempts sent at or before it are out of quarantine."""
        return timestamp(now - timedelta(hours=self.hours) - self.extension)

    def __str__(self) -> str:
        minutes = self.extension // timedelta(minutes=1)
        if not minutes:
            return say("a quarantine of {hours:g} h", hours=self.hours)
        return say(
            "a quarantine of {hours:g} h, and the clock was up to {minutes:,} minutes behind the gateway's",
            hours=self.hours,
            minutes=minutes,
        )


@dataclass(frozen=True, slots=True)
class JournalClock:
    """Our clock at `now`, with the journal's two comparisons, read once for each decision by a person."""

    now: datetime
    newest_time: str
    """The newest time in the journal: no fact and no evidence is later."""
    last_comparison: ClockComparison | None
    """The last recorded difference between our clock and the gateway's."""

    @classmethod
    def read(cls, journal: JournalReader, now: datetime) -> "JournalClock":
        return cls(now, *journal.clock())

    def quarantine(self, hours: float) -> Quarantine:
        """Return the current quarantine, extended if an attempt within it may have been dated too early."""
        if self.last_comparison is None:
            return Quarantine(hours)
        behind_s = _behind_s(self.last_comparison)
        if self.last_comparison.behind_until > timestamp(self.now - timedelta(hours=hours)):
            behind_s = max(behind_s, self.last_comparison.was_behind_s)
        return Quarantine(hours, min(timedelta(seconds=behind_s), MAX_LONGER))

    def days_ago(self, days: int) -> str:
        """Return the time `days` ago, or an earlier one if a slow clock may have dated facts since then.

        Any batch opened after that time by the gateway's clock has no earlier time in the journal (decision 0141). With
        0 days the time is `now`, and no batch was opened after it.
        """
        return self.quarantine(24.0 * days).cutoff(self.now) if days else timestamp(self.now)

    def behind_sentence(self, *, at_most_s: float = 0) -> str | None:
        """Return a sentence if our clock is over `at_most_s` behind the journal's newest time, or None."""
        if timestamp(self.now + timedelta(seconds=at_most_s)) >= self.newest_time:
            return None
        return say(
            "The clock shows {now}, but the newest time in the journal is {newest}: the clock was set back.",
            now=timestamp(self.now),
            newest=self.newest_time,
        )

    def ahead_sentence(self) -> str | None:
        """Return a sentence if our clock was too far ahead of the gateway's when last compared, or None."""
        comparison = self.last_comparison
        if comparison is None or comparison.ahead_s <= MAX_AHEAD_S:
            return None
        return say(
            "The clock was {minutes:,} minutes ahead of the gateway's: it showed {our_time} when a reply was "
            "dated {gateway_date}.",
            minutes=comparison.ahead_s // 60,
            our_time=comparison.our_time,
            gateway_date=comparison.gateway_date,
        )

    def sentences(self) -> list[str]:
        return [sentence for sentence in (self.behind_sentence(), self.ahead_sentence()) if sentence is not None]

    def require_sound(self) -> None:
        """Raise `UsageError` if another clock contradicts ours, because the quarantine depends on it."""
        if flaws := self.sentences():
            raise UsageError(
                say("{wrong} Nothing is settled, released or amended while the clock is wrong.", wrong=" ".join(flaws)),
                hint=say(
                    "Correct the clock, and run the command again. A clock that was ahead is trusted again "
                    "after the next reply of the gateway (`submit`, `resume` or `refresh`), and after the "
                    "newest time in the journal."
                ),
                for_terminal=True,
            )


def latest_send_time(clock: ClockComparison | None, intended_at: str) -> str:
    """Return the latest time, by the gateway's clock, at which an attempt dated `intended_at` was sent."""
    if clock is None or intended_at < clock.behind_from:
        return intended_at
    behind_s = max(_behind_s(clock), clock.was_behind_s if intended_at <= clock.behind_until else 0)
    delay = min(timedelta(seconds=behind_s), MAX_LONGER)
    return timestamp(datetime.fromisoformat(intended_at) + delay) if delay else intended_at


def _behind_s(clock: ClockComparison) -> int:
    """Return how far our clock was behind when last compared, or 0 within the tolerance."""
    return -clock.ahead_s if clock.ahead_s < -MAX_AHEAD_S else 0


def _merge_slow_clock(new: ClockComparison, old: ClockComparison | None) -> ClockComparison:
    """Return the record `new`, merged with the slow clock in the previous record `old`.

    `was_behind_s` is the largest recorded delay. Attempts from `behind_from` (our clock's last correct time) to
    `behind_until` (the gateway's next time) may be dated too early by that much.
    """
    if old is None:
        return new
    if behind_s := _behind_s(old):
        max_behind_s = max(behind_s, old.was_behind_s)
        return replace(new, was_behind_s=max_behind_s, behind_from=old.behind_from, behind_until=new.gateway_date)
    becomes_slow = _behind_s(new) and not old.was_behind_s
    return replace(
        new,
        was_behind_s=old.was_behind_s,
        behind_from=old.our_time if becomes_slow else old.behind_from,
        behind_until=old.behind_until,
    )


class DateWatch:
    """Keeps the newest difference between our clock and the `Date` of a reply."""

    def __init__(self, now: Now) -> None:
        self.comparison: ClockComparison | None = None
        self._now = now
        self._next_observation: datetime | None = None

    def observe_reply(self, reply: RawReply | TransportFault) -> None:
        """Compare our clock with the time of a reply, at most once a second."""
        now, next_at = self._now(), self._next_observation
        is_too_soon = next_at is not None and next_at - OBSERVE_EVERY <= now < next_at
        if is_too_soon or isinstance(reply, TransportFault) or (date := reply_date(reply)) is None:
            return
        self._next_observation = now + OBSERVE_EVERY
        self.comparison = ClockComparison(timestamp(now), timestamp(date), round((now - date).total_seconds()))

    def stop_if_clock_is_slow(self, verdict: Verdict) -> Verdict:
        """Return the verdict, or one that stops the run because a slow clock dates attempts too early."""
        if (
            self.comparison is None
            or not (behind_s := _behind_s(self.comparison))
            or isinstance(verdict.advice, RetrySoon)
        ):
            return verdict
        reason = say(
            "The clock is {minutes:,} minutes behind the gateway's: it showed {our_time} when a reply was dated "
            "{gateway_date}. Correct the clock.",
            minutes=behind_s // 60,
            our_time=self.comparison.our_time,
            gateway_date=self.comparison.gateway_date,
        )
        if isinstance(verdict.advice, StopRun):
            reason = f"{verdict.advice.reason} {reason}"  # an old timestamp may be why a gateway refuses credentials
        return replace(verdict, advice=StopRun(reason))

    def record_in(self, journal: Journal) -> None:
        """Record the clock difference in the journal if it is the first or has changed."""
        if self.comparison is None:
            return
        _, recorded = journal.clock()
        if recorded is None or abs(self.comparison.ahead_s - recorded.ahead_s) > RECORDED_FROM_S:
            journal.settle([], note=_merge_slow_clock(self.comparison, recorded))
