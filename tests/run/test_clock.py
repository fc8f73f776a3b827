"""Our clock, held against the journal's newest time and the `Date` of the gateway's replies."""

from datetime import UTC, datetime, timedelta

import pytest

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.errors import UsageError
from paygw_batch.gateway.message import FaultKind, RawReply, TransportFault
from paygw_batch.journal.opening.in_memory import in_memory_journal
from paygw_batch.journal.opening.open import SqliteJournal
from paygw_batch.journal.values import ClockSeen
from paygw_batch.run.quarantine_clock import DateWatch, ahead_sentence, behind_sentence, require_sound_clock
from paygw_batch.run.resolve import needs_second_person

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND = timedelta(seconds=1)


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
def test_what_a_reply_says_of_our_clock(came_back: RawReply | TransportFault, ahead_s: int | None) -> None:
    watch = DateWatch(lambda: NOW)
    watch.see(came_back)
    assert (watch.seen.ahead_s if watch.seen else None) == ahead_s


def test_the_difference_is_written_once_and_only_when_it_changes_by_more_than_a_minute() -> None:
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
    assert journal.verify()["evidence"] == 3


@pytest.mark.parametrize(("ahead_s", "is_wrong"), [(-99_999, False), (600, False), (601, True)])
def test_a_clock_more_than_ten_minutes_ahead_settles_nothing(ahead_s: int, is_wrong: bool) -> None:
    journal = noted(ahead_s)
    assert (ahead_sentence(journal) is not None) == is_wrong
    if is_wrong:
        with pytest.raises(UsageError, match="ahead of the gateway's"):
            require_sound_clock(journal, NOW)
    else:
        require_sound_clock(journal, NOW)


def test_a_clock_behind_the_newest_time_of_the_journal_settles_nothing() -> None:
    journal = noted(0)
    require_sound_clock(journal, NOW)
    with pytest.raises(UsageError, match="the clock was set back"):
        require_sound_clock(journal, NOW - timedelta(milliseconds=1))
    assert behind_sentence(journal, NOW - 600 * SECOND, at_most_s=600) is None
    assert behind_sentence(journal, NOW - 601 * SECOND, at_most_s=600) is not None


@pytest.mark.parametrize("state", [State.IN_DOUBT, State.IN_FLIGHT, State.ACCEPTED, State.READY])
def test_every_word_by_which_a_row_could_be_sent_again_needs_two_people(state: State) -> None:
    assert needs_second_person(state, Resolution.REJECTED)
    assert needs_second_person(state, Resolution.NOT_RECEIVED)
    assert not needs_second_person(state, Resolution.PAID)
