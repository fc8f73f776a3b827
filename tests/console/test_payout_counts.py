"""Tests that polling tabs share one count, and that opened pages are always current."""

from typing import Any

from paygw_batch.console.payout_counts import PayoutCounts


class CountingJournal:
    """A journal with a number of `facts` that records how often it was counted."""

    def __init__(self) -> None:
        self.facts = self.times = 0
        self.hash, self.batch, self.number = "0", "ab" * 8, 1

    def head(self) -> "CountingJournal":
        self.hash = str(self.facts)
        return self

    def tallies(self, number: int) -> list[str]:
        assert number == self.number
        self.times += 1
        return [f"at fact {self.facts}"]


def paid_count(counts: PayoutCounts, journal: Any, *, is_poll: bool) -> str:
    (tally,) = counts.tallies(journal, journal, is_poll=is_poll)
    return str(tally)


def test_polling_tabs_share_count_until_page_is_opened() -> None:
    now_s, journal = [0.0], CountingJournal()
    counts = PayoutCounts(monotonic_s=lambda: now_s[0])
    for tab in range(50):
        now_s[0] = tab / 100
        journal.facts = tab
        assert paid_count(counts, journal, is_poll=True) == "at fact 0"
    assert journal.times == 1
    for second in range(1, 20):
        now_s[0] = float(second)
        assert paid_count(counts, journal, is_poll=True) == "at fact 49"
    assert journal.times == 2  # The journal had not changed since.
    journal.facts = 50
    assert [paid_count(counts, journal, is_poll=False) for _ in range(2)] == ["at fact 50"] * 2
    assert journal.times == 3


def test_rendered_page_is_cached_for_one_second() -> None:
    now_s = [0.0]
    counts = PayoutCounts(monotonic_s=lambda: now_s[0])
    assert counts.version("b", "en") is None
    counts.record_version("b", "en", "x")
    now_s[0] = 0.9
    assert (counts.version("b", "en"), counts.version("b", "fr"), counts.version("c", "en")) == ("x", None, None)
    now_s[0] = 1.0
    assert counts.version("b", "en") is None


def test_payout_rate_covers_last_half_minute() -> None:
    now_s = [0.0]
    counts = PayoutCounts(monotonic_s=lambda: now_s[0])
    assert counts.rate("b", 0) == 0
    now_s[0] = 2.0
    assert counts.rate("b", 200) == 0  # This is too early.
    for second in range(4, 200, 2):
        now_s[0] = float(second)
        assert counts.rate("b", 100 * second) == 100
    for second in range(200, 260, 2):
        now_s[0] = float(second)
        rate = counts.rate("b", 19_800)
    assert rate == 0
