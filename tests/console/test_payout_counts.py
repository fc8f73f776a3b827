"""Fifty tabs that ask for one payout cost one count; a page that a person opens is never old."""

from typing import Any

import pytest

from paygw_batch.console.payout_counts import PayoutCounts


class Counted:
    """A journal that says how often it was counted; `facts` is how far it has come."""

    def __init__(self) -> None:
        self.facts = self.times = 0
        self.hash, self.batch, self.number = "0", "ab" * 8, 1

    def head(self) -> "Counted":
        self.hash = str(self.facts)
        return self

    def tallies(self, number: int) -> list[str]:
        assert number == self.number
        self.times += 1
        return [f"at fact {self.facts}"]


@pytest.fixture
def journal() -> Any:
    return Counted()


def counted(counts: PayoutCounts, journal: Any, *, is_poll: bool) -> str:
    (found,) = counts.tallies(journal, journal, is_poll=is_poll)
    return str(found)


def test_opened_page_shows_current_journal_counts(journal: Any) -> None:
    counts = PayoutCounts(monotonic_s=lambda: 5.0)
    assert counted(counts, journal, is_poll=False) == "at fact 0"
    journal.facts = 1
    assert counted(counts, journal, is_poll=False) == "at fact 1"
    assert counted(counts, journal, is_poll=False) == "at fact 1"
    assert journal.times == 2  # nothing had moved


def test_polling_tabs_share_one_count_per_second(journal: Any) -> None:
    now_s = [0.0]
    counts = PayoutCounts(monotonic_s=lambda: now_s[0])
    for tab in range(50):
        now_s[0] = tab / 100
        journal.facts = tab
        assert counted(counts, journal, is_poll=True) == "at fact 0"
    assert journal.times == 1
    now_s[0] = 1.0
    assert counted(counts, journal, is_poll=True) == "at fact 49"
    assert journal.times == 2


def test_unchanged_journal_is_counted_once(journal: Any) -> None:
    now_s = [0.0]
    counts = PayoutCounts(monotonic_s=lambda: now_s[0])
    for second in range(20):
        now_s[0] = float(second)
        assert counted(counts, journal, is_poll=True) == "at fact 0"
    assert journal.times == 1


def test_rendered_page_is_cached_for_one_second() -> None:
    now_s = [0.0]
    counts = PayoutCounts(monotonic_s=lambda: now_s[0])
    assert counts.seen("b", "en") is None
    counts.note_seen("b", "en", "x")
    now_s[0] = 0.9
    assert (counts.seen("b", "en"), counts.seen("b", "fr"), counts.seen("c", "en")) == ("x", None, None)
    now_s[0] = 1.0
    assert counts.seen("b", "en") is None


def test_payout_rate_covers_last_half_minute() -> None:
    now_s = [0.0]
    counts = PayoutCounts(monotonic_s=lambda: now_s[0])
    assert counts.rate("b", 0) == 0
    now_s[0] = 2.0
    assert counts.rate("b", 200) == 0  # too early
    for second in range(4, 200, 2):
        now_s[0] = float(second)
        rate = counts.rate("b", 100 * second)
        assert rate == 100
    for second in range(200, 260, 2):
        now_s[0] = float(second)
        rate = counts.rate("b", 19_800)
    assert rate == 0
