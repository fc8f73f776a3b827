"""Limits the rows in flight and the size of commits, and decides when a run stops.

These limits contain the damage from an error. A run starts with one request in flight, so that a wrong setting affects
only one row. A row in doubt resets the limit to one. Several consecutive rows in doubt stop the run, so that a dead
gateway leaves only a handful of rows in doubt, not a whole payroll. Several consecutive rejections for the same reason
stop it too, so that an empty balance rejects only a handful.
"""

from collections.abc import Callable
from dataclasses import dataclass

from paygw_batch.core.outcome import ANSWERS, Outcome, OutcomeKind
from paygw_batch.journal import GateStop, GateStopKind
from paygw_batch.language import say, say_count


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed limits of a run, and the outcomes that stop it."""

    concurrency: int
    rate_per_s: float = 0.0
    stop_after_in_doubt: int = 5
    stop_after_rejected: int = 10
    first: int | None = None
    """The number of due rows to send, in the sheet's order, or None for all."""


TRIES = 3
"""The number of tries after which a request that cannot be sent stops the run."""
FIRST_WAIT_S = 0.5
"""The average wait before the second try. Each later wait is four times as long as the one before."""


def retry_delay_s(try_number: int, jitter: float) -> float:
    """Return the seconds to wait before try `try_number` (2, 3, ...), varied by up to 50 % (`jitter` from 0 to 1)."""
    return FIRST_WAIT_S * 4.0 ** (try_number - 2) * (0.5 + jitter)


@dataclass(slots=True)
class Window:
    """The number of requests that may be in flight: one at first, doubled after each answer, up to `limit`."""

    limit: int
    size: int = 1

    def observe(self, kind: OutcomeKind) -> None:
        if kind in ANSWERS:
            self.size = max(1, min(self.limit, self.size * 2))
        elif kind is OutcomeKind.UNKNOWN:
            self.size = 1


@dataclass(slots=True)
class Breaker:
    """Counts consecutive rows in doubt, and stops the run at `limit`. A limit of 0 disables it."""

    limit: int
    streak: int = 0

    def observe(self, kind: OutcomeKind) -> bool:
        """Count the outcome of an attempt. Returns whether the run must stop."""
        if kind in ANSWERS:
            self.streak = 0
        elif kind is OutcomeKind.UNKNOWN:
            self.streak += 1
        return 0 < self.limit <= self.streak


@dataclass(slots=True)
class RejectionBreaker:
    """Counts consecutive rejections for the same reason, and stops the run at `limit`. A limit of 0 disables it."""

    limit: int
    reason: str | None = None
    streak: int = 0

    def observe(self, outcome: Outcome) -> bool:
        """Count the outcome of an attempt. Returns whether the run must stop."""
        match outcome.kind:
            case OutcomeKind.REJECTED:
                reason = outcome.error_code or outcome.message or outcome.gateway_status
                self.streak = self.streak + 1 if reason == self.reason else 1
                self.reason = reason
            case OutcomeKind.ACCEPTED | OutcomeKind.PAID:
                self.streak, self.reason = 0, None
            case OutcomeKind.UNKNOWN | OutcomeKind.NOT_SENT:
                pass
        return 0 < self.limit <= self.streak


@dataclass(slots=True)
class RateLimiter:
    """Spaces out requests to respect the rate limit and the pauses that the gateway asks for."""

    rate_per_s: float
    next_start_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self.next_start_s - now_s)

    def start(self, now_s: float) -> None:
        if self.rate_per_s > 0:
            self.next_start_s = max(self.next_start_s, now_s) + 1.0 / self.rate_per_s

    def pause(self, now_s: float, pause_s: float) -> None:
        self.next_start_s = max(self.next_start_s, now_s + pause_s)


def in_doubt_message(count: int) -> str:
    return say_count(count, "{count} row ended in doubt.", "{count} consecutive rows ended in doubt.")


def rejections_message(count: int, reason: str) -> str:
    return say_count(
        count,
        "{count} row was rejected: {reason}.",
        "{count} consecutive rows were rejected for the same reason: {reason}.",
        reason=reason or say("the gateway did not give a reason"),
    )


class LocalPacing:
    """Decides how many rows may be in flight, when the next one may start, and when the run must stop.

    It assumes that no other process uses the endpoint. Times are from the event loop's clock. No method blocks.
    """

    def __init__(self, pace: Pace) -> None:
        self._window = Window(pace.concurrency)
        self._doubt_breaker = Breaker(pace.stop_after_in_doubt)
        self._rejection_breaker = RejectionBreaker(pace.stop_after_rejected)
        self._rate_limiter = RateLimiter(pace.rate_per_s)
        self.wait_s = self._rate_limiter.wait_s
        self.start = self._rate_limiter.start

    def begin(self, on_change: Callable[[], None], stop: Callable[[str], None]) -> None:
        """Begin a run inside its event loop. `on_change` is called when another row may start.

        `stop` is called with a reason if something other than the run's own outcomes must stop it.
        """

    async def end(self) -> None:
        """End the run. Call this when nothing is in flight."""

    def has_slot(self, in_flight: int) -> bool:
        """Return whether another row may start while `in_flight` rows are in flight."""
        return in_flight < min(self._window.size, self._window.limit)

    def observe(self, outcome: Outcome) -> str | None:
        """Count the outcome of an attempt. Returns the reason if the run must stop, otherwise None."""
        kind = outcome.kind
        self._window.observe(kind)
        is_tripped = self._doubt_breaker.observe(kind)
        if self._rejection_breaker.observe(outcome) and not is_tripped:
            return rejections_message(self._rejection_breaker.streak, self._rejection_breaker.reason or "")
        return in_doubt_message(self._doubt_breaker.streak) if is_tripped else None

    def pause(self, now_s: float, pause_s: float) -> None:
        """Start no row for `pause_s` seconds, because the gateway asked for a pause."""
        self._rate_limiter.pause(now_s, pause_s)

    def stop_all_workers(self, reason: str) -> None:
        """Stop the workers in other processes. There are none here."""


MIN_GROUP_FACTS = 16
MAX_GROUP_FACTS = 128
"""Larger commits would hardly be cheaper per fact."""
_AVERAGED_ROWS = 64
"""The number of rows over which `GroupLimit` averages waiting times."""


@dataclass(slots=True)
class GroupLimit:
    """Limits the number of facts in a commit while requests wait for a slot.

    A row waits for the journal until its intent is durable, and then for the gateway's answer. If the gateway is slow,
    commits are kept small, because the rows of a large commit are sent and answered together, and so queue up for the
    next commit together. If the wait for the journal exceeds a quarter of the wait for the gateway, the processor or
    the disk is the bottleneck. Commits are then large, because those cost less per fact.
    """

    slots: int
    """The number of rows that may be in flight."""
    journal_wait_s: float = 0.0
    gateway_wait_s: float = 0.0

    def observe(self, journal_wait_s: float, gateway_wait_s: float) -> None:
        """Update the averages with how long a row waited for the journal and for the gateway."""
        self.journal_wait_s += (journal_wait_s - self.journal_wait_s) / _AVERAGED_ROWS
        self.gateway_wait_s += (gateway_wait_s - self.gateway_wait_s) / _AVERAGED_ROWS

    @property
    def max_facts(self) -> int:
        is_gateway_slow = 4 * self.journal_wait_s <= self.gateway_wait_s
        return max(MIN_GROUP_FACTS if is_gateway_slow else MAX_GROUP_FACTS, self.slots // 4)


def stop_message(stop: GateStop) -> str:
    match stop.kind:
        case GateStopKind.IN_DOUBT:
            return in_doubt_message(stop.count)
        case GateStopKind.REJECTED:
            return rejections_message(stop.count, stop.text)
        case GateStopKind.REQUESTED:
            return stop.text
