"""Checks this machine's clock, on which the quarantine depends.

This machine's clock ("our clock") is compared with the newest time in the journal, and with the `Date` of the gateway's
replies. If either contradicts it, nothing is settled, released or amended. A slow clock dates attempts too early, so it
stops the run, and the quarantine is extended by the difference.
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

CLOCK_TOLERANCE_S = 600
"""The largest tolerated difference between our clock and the gateway's, or the newest time in the journal."""
COMPARISON_INTERVAL = timedelta(seconds=1)
MIN_RECORDED_CHANGE_S = 60
"""A clock difference is recorded again only if it has changed by more than this."""
MAX_EXTENSION = timedelta(days=3650)
"""The maximum extension of a quarantine, because a `Date` may be in any year."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """How long after an attempt a row must not be sent again: `hours` plus `extension`.

    The extension covers attempts that were dated too early because our clock was behind the gateway's.
    """

    hours: float
    extension: timedelta = timedelta()

    def ends_at(self, intended_at: str) -> datetime:
        """Return when the quarantine ends for an attempt whose intent was recorded at `intended_at`."""
        return datetime.fromisoformat(intended_at) + timedelta(hours=self.hours) + self.extension

    def cutoff(self, now: datetime) -> str:
        """Return the cutoff: attempts up to this time are no longer in quarantine at `now`."""
        return timestamp(now - timedelta(hours=self.hours) - self.extension)

    def __str__(self) -> str:
        minutes = self.extension // timedelta(minutes=1)
        if not minutes:
            return say("a quarantine of {hours:g} h", hours=self.hours)
        return say(
            "a quarantine of {hours:g} h, and the clock was up to {minutes:,} minutes behind the gateway's clock",
            hours=self.hours,
            minutes=minutes,
        )


@dataclass(frozen=True, slots=True)
class JournalClock:
    """The time by our clock (`now`), and two values in the journal that may contradict it."""

    now: datetime
    newest_time: str
    """The time of the newest fact or evidence in the journal."""
    last_comparison: ClockComparison | None
    """The last recorded comparison of our clock with the gateway's."""

    @classmethod
    def read(cls, journal: JournalReader, now: datetime) -> "JournalClock":
        return cls(now, *journal.clock())

    def quarantine(self, hours: float) -> Quarantine:
        """Return the quarantine, extended if recent attempts may have been dated too early."""
        if self.last_comparison is None:
            return Quarantine(hours)
        behind_s = _behind_s(self.last_comparison)
        if self.last_comparison.behind_until > timestamp(self.now - timedelta(hours=hours)):
            behind_s = max(behind_s, self.last_comparison.was_behind_s)
        return Quarantine(hours, min(timedelta(seconds=behind_s), MAX_EXTENSION))

    def days_ago(self, days: int) -> str:
        """Return the time `days` days ago, or an earlier time if our clock may have been slow.

        A batch opened within those days by the gateway's clock is not dated earlier in the journal (decision 0141).
        """
        return self.quarantine(24.0 * days).cutoff(self.now) if days else timestamp(self.now)

    def behind_message(self, *, tolerance_s: float = 0) -> str | None:
        """Return a message if our clock is more than `tolerance_s` behind the newest time in the journal."""
        if timestamp(self.now + timedelta(seconds=tolerance_s)) >= self.newest_time:
            return None
        return say(
            "The clock shows {now}, which is before the newest time in the journal, {newest}. The clock was set back.",
            now=timestamp(self.now),
            newest=self.newest_time,
        )

    def ahead_message(self) -> str | None:
        """Return a message if our clock was too far ahead of the gateway's when they were last compared."""
        comparison = self.last_comparison
        if comparison is None or comparison.ahead_s <= CLOCK_TOLERANCE_S:
            return None
        return say(
            "The clock was {minutes:,} minutes ahead of the gateway's clock: it showed {our_time} when a reply was "
            "dated {gateway_date}.",
            minutes=comparison.ahead_s // 60,
            our_time=comparison.our_time,
            gateway_date=comparison.gateway_date,
        )

    def messages(self) -> list[str]:
        return [message for message in (self.behind_message(), self.ahead_message()) if message is not None]

    def require_plausible(self) -> None:
        """Raise `UsageError` if the journal contradicts our clock, on which the quarantine depends."""
        if texts := self.messages():
            raise UsageError(
                say("{wrong} Nothing can be settled, released or replaced until it is correct.", wrong=" ".join(texts)),
                hint=say(
                    "Correct the clock, then run the command again. If the clock was ahead, it will be trusted again "
                    "after the gateway's next reply (`submit`, `resume` or `refresh`), once the newest time in the "
                    "journal has passed."
                ),
                for_terminal=True,
            )


def latest_send_time(comparison: ClockComparison | None, intended_at: str) -> str:
    """Return the latest time, by the gateway's clock, at which an attempt may have been sent."""
    if comparison is None or intended_at < comparison.behind_from:
        return intended_at
    behind_s = max(_behind_s(comparison), comparison.was_behind_s if intended_at <= comparison.behind_until else 0)
    extension = min(timedelta(seconds=behind_s), MAX_EXTENSION)
    return timestamp(datetime.fromisoformat(intended_at) + extension) if extension else intended_at


def _behind_s(comparison: ClockComparison) -> int:
    """Return by how many seconds our clock was behind, or 0 if that is tolerated."""
    return -comparison.ahead_s if comparison.ahead_s < -CLOCK_TOLERANCE_S else 0


def _merge_comparison(new: ClockComparison, old: ClockComparison | None) -> ClockComparison:
    """Return `new`, with the largest lag of our clock that earlier comparisons recorded (`was_behind_s`).

    Attempts from `behind_from` (when our clock was last correct) to `behind_until` (the gateway's time at the next
    comparison) may be dated too early by up to that lag.
    """
    if old is None:
        return new
    if behind_s := _behind_s(old):
        max_behind_s = max(behind_s, old.was_behind_s)
        return replace(new, was_behind_s=max_behind_s, behind_from=old.behind_from, behind_until=new.gateway_date)
    has_become_slow = _behind_s(new) and not old.was_behind_s
    return replace(
        new,
        was_behind_s=old.was_behind_s,
        behind_from=old.our_time if has_become_slow else old.behind_from,
        behind_until=old.behind_until,
    )


class ClockComparer:
    """Compares our clock with the `Date` of replies, and stores the latest comparison."""

    def __init__(self, now: Now) -> None:
        self.comparison: ClockComparison | None = None
        self._now = now
        self._next_comparison_at: datetime | None = None

    def observe_reply(self, reply: RawReply | TransportFault) -> None:
        """Compare our clock with the `Date` of a reply, at most once a second."""
        now, next_at = self._now(), self._next_comparison_at
        is_too_soon = next_at is not None and next_at - COMPARISON_INTERVAL <= now < next_at
        if is_too_soon or isinstance(reply, TransportFault) or (date := reply_date(reply)) is None:
            return
        self._next_comparison_at = now + COMPARISON_INTERVAL
        self.comparison = ClockComparison(timestamp(now), timestamp(date), round((now - date).total_seconds()))

    def with_clock_advice(self, verdict: Verdict) -> Verdict:
        """Return the verdict, changed to stop the run if our clock is too far behind."""
        comparison = self.comparison
        if comparison is None or isinstance(verdict.advice, RetrySoon) or not (behind_s := _behind_s(comparison)):
            return verdict
        reason = say(
            "The clock is {minutes:,} minutes behind the gateway's clock: it showed {our_time} when a reply was dated "
            "{gateway_date}. Correct the clock.",
            minutes=behind_s // 60,
            our_time=comparison.our_time,
            gateway_date=comparison.gateway_date,
        )
        if isinstance(verdict.advice, StopRun):
            reason = f"{verdict.advice.reason} {reason}"  # old timestamps may be why a gateway refuses credentials
        return replace(verdict, advice=StopRun(reason))

    def record_in(self, journal: Journal) -> None:
        """Record the comparison in the journal if it is the first, or if the difference has changed noticeably."""
        if self.comparison is None:
            return
        _, previous = journal.clock()
        if previous is None or abs(self.comparison.ahead_s - previous.ahead_s) > MIN_RECORDED_CHANGE_S:
            journal.settle([], note=_merge_comparison(self.comparison, previous))
