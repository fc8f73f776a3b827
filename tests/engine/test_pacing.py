"""Pacing: the speed of a run, and the conditions that stop it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.engine.pacing import (
    MAX_GROUP_FACTS,
    MIN_GROUP_FACTS,
    TRIES,
    Breaker,
    GroupLimit,
    RateLimiter,
    RejectionBreaker,
    Window,
    retry_delay_s,
)

ANSWERS = (OutcomeKind.ACCEPTED, OutcomeKind.PAID, OutcomeKind.REJECTED)


def test_window_doubles_from_single_row_to_limit() -> None:
    window = Window(limit=10)
    sizes = [window.size]
    for _ in range(5):
        window.learn(OutcomeKind.PAID)
        sizes.append(window.size)
    assert sizes == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("kind", "size"), [(OutcomeKind.UNKNOWN, 1), (OutcomeKind.NOT_SENT, 4)])
def test_window_shrinks_only_after_unknown_outcome(kind: OutcomeKind, size: int) -> None:
    window = Window(limit=16, size=4)
    window.learn(kind)
    assert window.size == size


@given(limit=st.integers(1, 1024), outcomes=st.lists(st.sampled_from(OutcomeKind)))
def test_window_stays_within_limits(limit: int, outcomes: list[OutcomeKind]) -> None:
    window = Window(limit)
    for outcome in outcomes:
        window.learn(outcome)
        assert 1 <= window.size <= limit


UNKNOWN, NOT_SENT = OutcomeKind.UNKNOWN, OutcomeKind.NOT_SENT


@pytest.mark.parametrize(
    ("limit", "kinds", "trips"),
    [
        (3, [UNKNOWN] * 3, True),
        (2, [UNKNOWN, NOT_SENT, UNKNOWN], True),
        *((2, [UNKNOWN, answer, UNKNOWN], False) for answer in ANSWERS),
        (0, [UNKNOWN] * 1000, False),
    ],
)
def test_breaker_trips_only_at_limit_of_doubts(limit: int, kinds: list[OutcomeKind], trips: bool) -> None:
    breaker = Breaker(limit)
    *before, last = [breaker.learn(kind) for kind in kinds]
    assert (any(before), last) == (False, trips)


def rejected(code: str | None = None, message: str | None = None) -> Outcome:
    return Outcome(OutcomeKind.REJECTED, gateway_status="declined", error_code=code, message=message)


def test_rejection_breaker_compares_code_message_and_status() -> None:
    for first, second in [
        (rejected("51", "No funds for Jane"), rejected("51", "No funds for Ann")),
        (rejected(None, "No funds"), rejected(None, "No funds")),
        (rejected(), rejected()),
        (Outcome(OutcomeKind.REJECTED), Outcome(OutcomeKind.REJECTED)),
    ]:
        breaker = RejectionBreaker(2)
        assert [breaker.learn(outcome) for outcome in (first, second)] == [False, True]


@pytest.mark.parametrize(
    ("between", "trips"),
    [
        *((other, False) for other in (rejected("14"), rejected("14", "No funds"))),
        *((Outcome(kind), False) for kind in (OutcomeKind.PAID, OutcomeKind.ACCEPTED)),
        *((Outcome(kind), True) for kind in (UNKNOWN, NOT_SENT)),
    ],
)
def test_other_reason_or_success_restarts_rejection_count(between: Outcome, trips: bool) -> None:
    breaker = RejectionBreaker(2)
    assert [breaker.learn(outcome) for outcome in (rejected("51"), between, rejected("51"))] == [False, False, trips]


def test_rejection_breaker_of_zero_never_trips() -> None:
    breaker = RejectionBreaker(0)
    assert not any(breaker.learn(rejected("51")) for _ in range(1000))


def test_rate_limit_spaces_starts_evenly() -> None:
    rhythm = RateLimiter(rate_per_s=4)
    waits = []
    for _ in range(3):
        waits.append(rhythm.wait_s(10.0))
        rhythm.start(10.0)
    assert waits == [0.0, 0.25, 0.5]


def test_idle_time_is_not_saved_for_burst() -> None:
    rhythm = RateLimiter(rate_per_s=1)
    rhythm.start(0.0)
    rhythm.start(100.0)
    assert rhythm.wait_s(100.0) == 1.0


def test_without_rate_only_longest_pause_delays() -> None:
    rhythm = RateLimiter(rate_per_s=0)
    rhythm.start(5.0)
    assert rhythm.wait_s(5.0) == 0.0
    rhythm.pause(5.0, 60.0)
    rhythm.pause(6.0, 10.0)
    assert rhythm.wait_s(6.0) == 59.0


@given(chance=st.floats(0, 1, exclude_max=True))
def test_retry_waits_always_grow(chance: float) -> None:
    waits = [retry_delay_s(number, chance) for number in range(2, TRIES + 1)]
    assert all(wait > 0 for wait in waits)
    assert waits == sorted(waits)


def after_waits(places: int, *waits: tuple[float, float]) -> int:
    """Return the group size after 500 rows with each pair of waits for the journal and the gateway."""
    size = GroupLimit(places)
    for journal_s, gateway_s in waits:
        for _ in range(500):
            size.learn(journal_s, gateway_s)
    return size.max_facts


SLOW_GATEWAY = (0.003, 0.05)
SLOW_PROCESSOR = (0.008, 0.004)
SLOW_DISK = (0.03, 0.05)


def test_groups_are_small_before_first_wait() -> None:
    assert GroupLimit(slots=64).max_facts == MIN_GROUP_FACTS


def test_slow_gateway_keeps_groups_small() -> None:
    assert after_waits(64, SLOW_GATEWAY) == MIN_GROUP_FACTS


@pytest.mark.parametrize("waits", [SLOW_PROCESSOR, SLOW_DISK])
def test_slow_journal_makes_groups_large(waits: tuple[float, float]) -> None:
    assert after_waits(64, waits) == MAX_GROUP_FACTS


def test_group_size_adapts_to_changing_bottleneck() -> None:
    assert after_waits(64, SLOW_GATEWAY, SLOW_PROCESSOR) == MAX_GROUP_FACTS
    assert after_waits(64, SLOW_GATEWAY, SLOW_PROCESSOR, SLOW_GATEWAY) == MIN_GROUP_FACTS


def test_one_slow_row_keeps_group_size() -> None:
    size = GroupLimit(slots=64)
    for _ in range(500):
        size.learn(*SLOW_GATEWAY)
    size.learn(0.5, 0.05)
    assert size.max_facts == MIN_GROUP_FACTS


@pytest.mark.parametrize("waits", [SLOW_GATEWAY, SLOW_PROCESSOR])
def test_group_size_is_at_least_quarter_of_slots(waits: tuple[float, float]) -> None:
    assert after_waits(1000, waits) == 250
