"""Pure counters that limit the rows in flight and the size of commits, and decide when a run stops.

They limit the damage of an error. A run starts with one request in flight, so that a wrong setting costs one row. A row
in doubt resets the limit to one. Several rows in doubt in succession stop the run, so that a dead gateway leaves only a
handful of rows in doubt, not a whole payroll. Several rows rejected for the same reason in succession stop it too, so
that an empty balance rejects only a handful.
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
    """The maximum number of due rows to send, in the sheet's order; None: all."""


TRIES = 3
"""The number of tries of a request that was provably not sent, before the run stops."""
FIRST_WAIT_S = 0.5
"""The wait before the second try. Each later wait is four times as long."""


def retry_delay_s(number: int, chance: float) -> float:
    """Return the delay before try `number` (2, 3, ...), in seconds. It grows, with a jitter of up to half of it."""
    return FIRST_WAIT_S * 4.0 ** (number - 2) * (0.5 + chance)


@dataclass(slots=True)
class Window:
    """The number of requests that may be in flight: one at first, doubled by every answer, at most `limit`."""

    limit: int
    size: int = 1

    def observe(self, outcome: OutcomeKind) -> None:
        if outcome in ANSWERS:
            self.size = max(1, min(self.limit, self.size * 2))
        elif outcome is OutcomeKind.UNKNOWN:
            self.size = 1


@dataclass(slots=True)
class Breaker:
    """Stops a run after `limit` rows in doubt in succession. A limit of 0 disables it."""

    limit: int
    successive: int = 0

    def observe(self, outcome: OutcomeKind) -> bool:
        """Count the outcome of an attempt, and return whether the run must stop."""
        if outcome in ANSWERS:
            self.successive = 0
        elif outcome is OutcomeKind.UNKNOWN:
            self.successive += 1
        return 0 < self.limit <= self.successive


@dataclass(slots=True)
class RejectionBreaker:
    """Stops a run after `limit` rows rejected for the same reason in succession. A limit of 0 disables it.

    The reason is the error code, the message or the status word, in this order of preference. An empty balance, for
    example, rejects every row for the same reason.
    """

    limit: int
    reason: str | None = None
    successive: int = 0

    def observe(self, outcome: Outcome) -> bool:
        """Count the outcome of an attempt, and return whether the run must stop."""
        match outcome.kind:
            case OutcomeKind.REJECTED:
                reason = outcome.error_code or outcome.message or outcome.gateway_status
                self.successive = self.successive + 1 if reason == self.reason else 1
                self.reason = reason
            case OutcomeKind.ACCEPTED | OutcomeKind.PAID:
                self.successive, self.reason = 0, None
            case OutcomeKind.UNKNOWN | OutcomeKind.NOT_SENT:
                pass
        return 0 < self.limit <= self.successive


@dataclass(slots=True)
class RateLimiter:
    """Spaces requests by the rate limit and by the pauses that the gateway asks for. Times are monotonic seconds."""

    rate_per_s: float
    next_start_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self.next_start_s - now_s)

    def start(self, now_s: float) -> None:
        if self.rate_per_s > 0:
            self.next_start_s = max(self.next_start_s, now_s) + 1.0 / self.rate_per_s

    def pause(self, now_s: float, pause_s: float) -> None:
        self.next_start_s = max(self.next_start_s, now_s + pause_s)


def doubt_sentence(rows: int) -> str:
    """Return the reason for stopping after `rows` rows in doubt in succession."""
    return say_count(rows, "{count} row ended in doubt.", "{count} consecutive rows ended in doubt.")


def rejection_sentence(count: int, reason: str) -> str:
    """Return the reason for stopping after `count` rows were rejected for the same reason in succession."""
    return say_count(
        count,
        "{count} row was rejected: {reason}.",
        "{count} consecutive rows were rejected for the same reason: {reason}.",
        reason=reason or say("the gateway gives none"),
    )


class LocalPacing:
    """Decides how many rows of a run are in flight, when the next row starts, and when the run must stop.

    It assumes that no other process uses the endpoint. Times are those of the event loop. No call waits.
    """

    def __init__(self, pace: Pace) -> None:
        self._window = Window(pace.concurrency)
        self._breaker = Breaker(pace.stop_after_in_doubt)
        self._rejections = RejectionBreaker(pace.stop_after_rejected)
        self._rate_limiter = RateLimiter(pace.rate_per_s)
        self.wait_s = self._rate_limiter.wait_s
        self.start = self._rate_limiter.start

    def begin(self, on_change: Callable[[], None], stop: Callable[[str], None]) -> None:
        """Begin a run inside its event loop. `on_change` is called when another row may start.

        `stop` is called with a reason if the run must stop for a cause other than its own outcomes.
        """

    async def end(self) -> None:
        """End the run. Nothing is in flight any longer."""

    def has_slot(self, in_flight: int) -> bool:
        """Return whether another row may be in flight besides `in_flight` rows."""
        return in_flight < min(self._window.size, self._window.limit)

    def observe(self, outcome: Outcome) -> str | None:
        """Count the outcome of an attempt. Returns the reason if the run must stop, or otherwise None."""
        kind = outcome.kind
        self._window.observe(kind)
        is_doubtful = self._breaker.observe(kind)
        if self._rejections.observe(outcome) and not is_doubtful:
            return rejection_sentence(self._rejections.successive, self._rejections.reason or "")
        return doubt_sentence(self._breaker.successive) if is_doubtful else None

    def pause(self, now_s: float, pause_s: float) -> None:
        """Start no row until the pause that the gateway asked for is over."""
        self._rate_limiter.pause(now_s, pause_s)

    def stop_all_workers(self, reason: str) -> None:
        """Stop every other worker too, because the gateway's answer stopped this run."""


MIN_GROUP_FACTS = 16
MAX_GROUP_FACTS = 128
"""The size above which a larger commit hardly makes each fact cheaper."""
_AVERAGED_WAITS = 64
"""The number of rows over which `GroupLimit` averages."""


@dataclass(slots=True)
class GroupLimit:
    """Limits the facts of a commit while requests wait for a slot.

    A row waits for the journal until its intent is durable, and then for the gateway's answer. If the gateway is slow,
    commits are kept small, because the rows of a large commit leave together, are answered together, and wait for each
    other again. If the wait for the journal exceeds a quarter of the wait for the gateway, the processor or the disk is
    the bottleneck. Commits are then large, because a fact in a large commit costs less.
    """

    slots: int
    """The number of rows that may be in flight."""
    journal_s: float = 0.0
    gateway_s: float = 0.0

    def observe(self, journal_s: float, gateway_s: float) -> None:
        """Average the seconds that a row waited for the journal and for the gateway."""
        self.journal_s += (journal_s - self.journal_s) / _AVERAGED_WAITS
        self.gateway_s += (gateway_s - self.gateway_s) / _AVERAGED_WAITS

    @property
    def max_facts(self) -> int:
        is_gateway_slow = 4 * self.journal_s <= self.gateway_s
        return max(MIN_GROUP_FACTS if is_gateway_slow else MAX_GROUP_FACTS, self.slots // 4)


def stop_sentence(stop: GateStop) -> str:
    match stop.kind:
        case GateStopKind.IN_DOUBT:
            return doubt_sentence(stop.count)
        case GateStopKind.REJECTED:
            return rejection_sentence(stop.count, stop.text)
        case GateStopKind.REQUESTED:
            return stop.text
