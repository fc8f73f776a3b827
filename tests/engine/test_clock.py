"""Our clock, held against the journal's newest time and the `Date` of the gateway's replies."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import Advice, GoOn, Outcome, OutcomeKind, PauseRun, StopRun, TryAgain, Verdict
from paygw_batch.engine.quarantine import DateWatch, JournalClock, Quarantine, latest_start
from paygw_batch.errors import UsageError
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from paygw_batch.journal.file_place import in_memory_journal
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import ClockSeen
from paygw_batch.settle.resolve import needs_second_person

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def reply(*dates: str) -> RawReply:
    return RawReply(200, tuple(("date", date) for date in dates), b"{}")


def noted(ahead_s: int) -> SqliteJournal:
    journal = in_memory_journal()
    journal.settle([], note=ClockSeen(timestamp(NOW), timestamp(NOW), ahead_s))
    return journal


@pytest.mark.parametrize(
    ("came_back", "ahead_s"),
    [
        (reply("Fri, 20 Nov 2026 10:00:00 GMT"), 0),
        (reply("Fri, 20 Nov 2026 09:49:00 GMT"), 660),
        (reply("Fri, 20 Nov 2026 10:30:00 GMT"), -1800),
        (reply("Fri, 20 Nov 2026 09:49:00 GMT", "Fri, 20 Nov 2026 10:00:00 GMT"), None),
        (reply("yesterday"), None),
        (reply("Fri, 31 Dec 9999 23:59:59 -2300"), None),
        (reply("Fri, 20 Nov 2026 13:00:00 +0300"), 0),
        (reply("Fri, 20 Nov 2026 10:00:00 +9999"), None),
        (reply(), None),
        (TransportFault(FaultKind.READ_TIMEOUT, first_byte_left=True), None),
    ],
)
def test_reply_date_shows_clock_difference(came_back: RawReply | TransportFault, ahead_s: int | None) -> None:
    watch = DateWatch(lambda: NOW)
    watch.see(came_back)
    assert (watch.seen.ahead_s if watch.seen else None) == ahead_s


def test_clock_difference_is_noted_after_minute_change() -> None:
    journal = in_memory_journal()
    DateWatch(lambda: NOW).note_in(journal)
    assert journal.head().clock is None
    for seconds, kept in ((0, 0), (60, 0), (61, 61), (30, 61), (0, 0)):
        watch = DateWatch(lambda: NOW + seconds * SECOND)  # noqa: B023 - used at once
        watch.see(reply("Fri, 20 Nov 2026 10:00:00 GMT"))
        watch.note_in(journal)
        seen = journal.head().clock
        assert seen is not None
        assert seen.ahead_s == kept
    assert journal.verify()["facts"] == 3


@pytest.mark.parametrize(("ahead_s", "is_wrong"), [(-99_999, False), (600, False), (601, True)])
def test_fast_clock_over_ten_minutes_settles_nothing(ahead_s: int, is_wrong: bool) -> None:
    journal = noted(ahead_s)
    assert (JournalClock.read(journal, NOW).ahead_sentence() is not None) == is_wrong
    if is_wrong:
        with pytest.raises(UsageError, match="ahead of the gateway's"):
            JournalClock.read(journal, NOW).require_sound()
    else:
        JournalClock.read(journal, NOW).require_sound()


def test_clock_behind_journal_settles_nothing() -> None:
    journal = noted(0)
    JournalClock.read(journal, NOW).require_sound()
    with pytest.raises(UsageError, match=r"^The clock says .* the clock was set back\. Nothing is settled") as found:
        JournalClock.read(journal, NOW - timedelta(milliseconds=1)).require_sound()
    assert found.value.hint.startswith("Set the clock right, and run the command again.")
    assert JournalClock.read(journal, NOW - 600 * SECOND).behind_sentence(at_most_s=600) is None
    assert JournalClock.read(journal, NOW - 601 * SECOND).behind_sentence(at_most_s=600) is not None


def noted_at(journal: SqliteJournal, now: datetime, gateway: datetime) -> None:
    """Hear a reply that was dated `gateway` when our clock said `now`, and note it as a run does at its end."""
    watch = DateWatch(lambda: now)
    watch.see(reply(format_datetime(gateway, usegmt=True)))
    watch.note_in(journal)


def test_quarantine_includes_past_clock_lag() -> None:
    journal = in_memory_journal()
    assert JournalClock.read(journal, NOW).quarantine(24) == Quarantine(24)
    noted_at(journal, NOW, NOW)
    noted_at(journal, NOW + HOUR, NOW + 25 * HOUR)  # a day behind
    assert JournalClock.read(journal, NOW + HOUR).quarantine(24).longer == 24 * HOUR
    right_at = NOW + 26 * HOUR
    noted_at(journal, right_at, right_at)
    noted_at(journal, right_at + HOUR, right_at + HOUR - 120 * SECOND)  # ahead by little: another note
    for hours, longer in ((1, 24), (23.9, 24), (24, 0), (90, 0)):
        found = JournalClock.read(journal, right_at + hours * HOUR).quarantine(24)
        assert found.longer == longer * HOUR
    left = timestamp(NOW + HOUR)  # as it was noted: by the gateway's clock a day later
    held = JournalClock.read(journal, right_at).quarantine(24)
    assert held.opens(left) == NOW + 49 * HOUR
    assert held.cutoff(NOW + 49 * HOUR) == left
    assert str(held) == "a quarantine of 24 h, and the clock was up to 1,440 minutes behind the gateway's"
    assert str(Quarantine(0.5)) == "a quarantine of 0.5 h"


def test_largest_clock_difference_lengthens_quarantine() -> None:
    journal = in_memory_journal()
    for behind_h in (5, 9, 2, 0):
        noted_at(journal, NOW, NOW + behind_h * HOUR)
    assert JournalClock.read(journal, NOW).quarantine(24).longer == 9 * HOUR
    assert latest_start(journal.head().clock, timestamp(NOW)) == timestamp(NOW + 9 * HOUR)
    noted_at(journal, NOW + HOUR, NOW + 12 * HOUR)
    noted_at(journal, NOW + 2 * HOUR, NOW + 2 * HOUR)
    assert JournalClock.read(journal, NOW + 2 * HOUR).quarantine(24).longer == 11 * HOUR


@pytest.mark.parametrize(("ahead_s", "longer_s"), [(0, 0), (600, 0), (-600, 0), (-601, 601), (-(10**12), 315_360_000)])
def test_clock_lag_lengthens_quarantine_within_limits(ahead_s: int, longer_s: int) -> None:
    journal = noted(ahead_s)
    assert JournalClock.read(journal, NOW).quarantine(1) == Quarantine(1, timedelta(seconds=longer_s))
    assert latest_start(journal.head().clock, timestamp(NOW)) == timestamp(NOW + timedelta(seconds=longer_s))


def test_departure_before_clock_lag_keeps_its_time() -> None:
    journal = in_memory_journal()
    noted_at(journal, NOW, NOW)
    noted_at(journal, NOW + HOUR, NOW + 3 * HOUR)
    for right in (False, True):
        if right:
            noted_at(journal, NOW + 4 * HOUR, NOW + 4 * HOUR)
        clock = journal.head().clock
        before, meanwhile = timestamp(NOW - SECOND), timestamp(NOW + HOUR)
        assert latest_start(clock, before) == before
        assert latest_start(clock, meanwhile) == timestamp(NOW + 3 * HOUR)
    after = timestamp(NOW + 4 * HOUR + SECOND)
    assert latest_start(journal.head().clock, after) == after
    noted_at(journal, NOW + 5 * HOUR, NOW + 5 * HOUR - 120 * SECOND)  # what was known before goes on being known
    assert latest_start(journal.head().clock, meanwhile) == timestamp(NOW + 3 * HOUR)


@pytest.mark.parametrize("advice", [GoOn(), PauseRun(5), StopRun("no"), TryAgain()])
@pytest.mark.parametrize(("behind_s", "stops"), [(0, False), (600, False), (601, True)])
def test_run_stops_when_reply_reveals_slow_clock(advice: Advice, behind_s: int, stops: bool) -> None:
    watch = DateWatch(lambda: NOW)
    verdict = Verdict(Outcome(OutcomeKind.PAID), advice)
    assert watch.judged(verdict) == verdict
    watch.see(reply(format_datetime(NOW + behind_s * SECOND, usegmt=True)))
    judged = watch.judged(verdict)
    assert judged.outcome == verdict.outcome
    if stops and not isinstance(advice, TryAgain):
        assert isinstance(judged.advice, StopRun)
        assert "The clock is 10 minutes behind the gateway's" in judged.advice.reason
        assert judged.advice.reason.startswith("no ") == isinstance(advice, StopRun)
    else:
        assert judged.advice == advice


@pytest.mark.parametrize("state", [State.IN_DOUBT, State.IN_FLIGHT, State.ACCEPTED, State.READY])
def test_settlement_permitting_resend_needs_second_person(state: State) -> None:
    assert needs_second_person(state, Resolution.REJECTED)
    assert needs_second_person(state, Resolution.NOT_RECEIVED)
    assert not needs_second_person(state, Resolution.PAID)


def test_days_ago_adds_clock_lag() -> None:
    behind = noted(-86_400)
    assert JournalClock.read(behind, NOW).days_ago(5) == timestamp(NOW - 6 * 24 * HOUR)
    assert JournalClock.read(behind, NOW).days_ago(0) == timestamp(NOW)
    assert JournalClock.read(noted(0), NOW).days_ago(5) == timestamp(NOW - 5 * 24 * HOUR)
