"""Comparing our clock with the journal's newest time and the `Date` of the gateway's replies."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from paygw_batch.clock import timestamp
from paygw_batch.core.outcome import Advice, ContinueRun, Outcome, OutcomeKind, PauseRun, RetrySoon, StopRun, Verdict
from paygw_batch.engine.quarantine import ClockComparer, JournalClock, Quarantine, latest_send_time
from paygw_batch.errors import UsageError
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from paygw_batch.journal.file_location import in_memory_journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import ClockComparison

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def dated_reply(*dates: str) -> RawReply:
    return RawReply(200, tuple(("date", date) for date in dates), b"{}")


def recorded_clock(ahead_s: int) -> SqliteJournal:
    journal = in_memory_journal()
    journal.settle([], note=ClockComparison(timestamp(NOW), timestamp(NOW), ahead_s))
    return journal


# How a date is read is tested with the gateway's `reply_date`.
@pytest.mark.parametrize(
    ("came_back", "ahead_s"),
    [
        (dated_reply("Fri, 20 Nov 2026 10:00:00 GMT"), 0),
        (dated_reply("Fri, 20 Nov 2026 09:49:00 GMT"), 660),
        (dated_reply("Fri, 20 Nov 2026 10:30:00 GMT"), -1800),
        (dated_reply("yesterday"), None),
        (TransportFault(FaultKind.READ_TIMEOUT, first_byte_sent=True), None),
    ],
)
def test_reply_date_shows_clock_difference(came_back: RawReply | TransportFault, ahead_s: int | None) -> None:
    watch = ClockComparer(lambda: NOW)
    watch.observe_reply(came_back)
    assert (watch.comparison.ahead_s if watch.comparison else None) == ahead_s


def test_clock_difference_is_recorded_after_minute_change() -> None:
    journal = in_memory_journal()
    ClockComparer(lambda: NOW).record_in(journal)
    assert journal.head().clock is None
    for seconds, kept in ((0, 0), (60, 0), (61, 61), (30, 61), (0, 0)):
        watch = ClockComparer(lambda: NOW + seconds * SECOND)  # noqa: B023 - used at once
        watch.observe_reply(dated_reply("Fri, 20 Nov 2026 10:00:00 GMT"))
        watch.record_in(journal)
        seen = journal.head().clock
        assert seen is not None
        assert seen.ahead_s == kept
    assert journal.verify()["facts"] == 3


@pytest.mark.parametrize(("ahead_s", "is_wrong"), [(-99_999, False), (600, False), (601, True)])
def test_fast_clock_prevents_settlement(ahead_s: int, is_wrong: bool) -> None:
    clock = JournalClock.read(recorded_clock(ahead_s), NOW)
    assert (clock.ahead_message() is not None) == is_wrong
    with pytest.raises(UsageError, match="ahead of the gateway's") if is_wrong else nullcontext():
        clock.require_plausible()


def test_clock_behind_journal_prevents_settlement() -> None:
    journal = recorded_clock(0)
    JournalClock.read(journal, NOW).require_plausible()
    with pytest.raises(UsageError, match=r"^The clock shows .* The clock was set back\. Nothing can be settled"):
        JournalClock.read(journal, NOW - timedelta(milliseconds=1)).require_plausible()
    assert JournalClock.read(journal, NOW - 600 * SECOND).behind_message(tolerance_s=600) is None
    assert JournalClock.read(journal, NOW - 601 * SECOND).behind_message(tolerance_s=600) is not None


def record_difference(journal: SqliteJournal, now: datetime, gateway: datetime) -> None:
    """Observe a reply dated `gateway` while our clock says `now`, and record it as a run does at its end."""
    watch = ClockComparer(lambda: now)
    watch.observe_reply(dated_reply(format_datetime(gateway, usegmt=True)))
    watch.record_in(journal)


def test_quarantine_includes_past_clock_lag() -> None:
    journal = in_memory_journal()
    assert JournalClock.read(journal, NOW).quarantine(24) == Quarantine(24)
    record_difference(journal, NOW, NOW)
    record_difference(journal, NOW + HOUR, NOW + 25 * HOUR)  # a day behind
    assert JournalClock.read(journal, NOW + HOUR).quarantine(24).extension == 24 * HOUR
    right_at = NOW + 26 * HOUR
    record_difference(journal, right_at, right_at)
    record_difference(journal, right_at + HOUR, right_at + HOUR - 120 * SECOND)  # slightly ahead: another record
    for hours, longer in ((1, 24), (23.9, 24), (24, 0), (90, 0)):
        quarantine = JournalClock.read(journal, right_at + hours * HOUR).quarantine(24)
        assert quarantine.extension == longer * HOUR
    left = timestamp(NOW + HOUR)  # as recorded: a day later by the gateway's clock
    held = JournalClock.read(journal, right_at).quarantine(24)
    assert held.ends_at(left) == NOW + 49 * HOUR
    assert held.cutoff(NOW + 49 * HOUR) == left
    assert str(held) == "a quarantine of 24 h, and the clock was up to 1,440 minutes behind the gateway's clock"
    assert str(Quarantine(0.5)) == "a quarantine of 0.5 h"


def test_largest_clock_lag_lengthens_quarantine() -> None:
    journal = in_memory_journal()
    for behind_h in (5, 9, 2, 0):
        record_difference(journal, NOW, NOW + behind_h * HOUR)
    assert JournalClock.read(journal, NOW).quarantine(24).extension == 9 * HOUR
    assert latest_send_time(journal.head().clock, timestamp(NOW)) == timestamp(NOW + 9 * HOUR)
    record_difference(journal, NOW + HOUR, NOW + 12 * HOUR)
    record_difference(journal, NOW + 2 * HOUR, NOW + 2 * HOUR)
    assert JournalClock.read(journal, NOW + 2 * HOUR).quarantine(24).extension == 11 * HOUR


@pytest.mark.parametrize(("ahead_s", "longer_s"), [(0, 0), (600, 0), (-600, 0), (-601, 601), (-(10**12), 315_360_000)])
def test_clock_lag_lengthens_quarantine_within_limits(ahead_s: int, longer_s: int) -> None:
    journal = recorded_clock(ahead_s)
    assert JournalClock.read(journal, NOW).quarantine(1) == Quarantine(1, timedelta(seconds=longer_s))
    assert latest_send_time(journal.head().clock, timestamp(NOW)) == timestamp(NOW + timedelta(seconds=longer_s))


def test_send_time_before_clock_lag_is_unchanged() -> None:
    journal = in_memory_journal()
    record_difference(journal, NOW, NOW)
    record_difference(journal, NOW + HOUR, NOW + 3 * HOUR)
    for right in (False, True):
        if right:
            record_difference(journal, NOW + 4 * HOUR, NOW + 4 * HOUR)
        clock = journal.head().clock
        before, meanwhile = timestamp(NOW - SECOND), timestamp(NOW + HOUR)
        assert latest_send_time(clock, before) == before
        assert latest_send_time(clock, meanwhile) == timestamp(NOW + 3 * HOUR)
    after = timestamp(NOW + 4 * HOUR + SECOND)
    assert latest_send_time(journal.head().clock, after) == after
    # A later record keeps the delay that was known before.
    record_difference(journal, NOW + 5 * HOUR, NOW + 5 * HOUR - 120 * SECOND)
    assert latest_send_time(journal.head().clock, meanwhile) == timestamp(NOW + 3 * HOUR)


@pytest.mark.parametrize("advice", [ContinueRun(), PauseRun(5), StopRun("no"), RetrySoon()])
@pytest.mark.parametrize(("behind_s", "stops"), [(0, False), (600, False), (601, True)])
def test_run_stops_when_reply_reveals_slow_clock(advice: Advice, behind_s: int, stops: bool) -> None:
    watch = ClockComparer(lambda: NOW)
    verdict = Verdict(Outcome(OutcomeKind.PAID), advice)
    assert watch.with_clock_advice(verdict) == verdict
    watch.observe_reply(dated_reply(format_datetime(NOW + behind_s * SECOND, usegmt=True)))
    seen = watch.with_clock_advice(verdict)
    assert seen.outcome == verdict.outcome
    if stops and not isinstance(advice, RetrySoon):
        assert isinstance(seen.advice, StopRun)
        assert "The clock is 10 minutes behind the gateway's" in seen.advice.reason
        assert seen.advice.reason.startswith("no ") == isinstance(advice, StopRun)
    else:
        assert seen.advice == advice


def test_days_ago_adds_clock_lag() -> None:
    behind = recorded_clock(-86_400)
    assert JournalClock.read(behind, NOW).days_ago(5) == timestamp(NOW - 6 * 24 * HOUR)
    assert JournalClock.read(behind, NOW).days_ago(0) == timestamp(NOW)
    assert JournalClock.read(recorded_clock(0), NOW).days_ago(5) == timestamp(NOW - 5 * 24 * HOUR)
