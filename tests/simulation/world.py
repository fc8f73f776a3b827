"""The simulated machine: one seed's dice, clock, disk, gateway's mood, and the parts that a planted bug may replace."""

import heapq
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Any

from paygw_batch.core.outcome import OutcomeKind, Verdict
from paygw_batch.errors import JournalError, JournalWentBack
from paygw_batch.gateway.classify import classify
from paygw_batch.gateway.message import Attempt, Expected, PreparedRequest, RawReply, TransportFault
from paygw_batch.journal.port import Clash, Known
from paygw_batch.run.engine import Engine, Pace
from paygw_batch.run.ports import timestamp
from paygw_batch.run.summary import of_states

from .disk import Disk, HeldJournal
from .gateway import HONEST, OPERATIONS, USUAL, SimGateway
from .judge import FIRST_ROW, Judge, minor_of
from .loop import Clock
from .process import Process, SlowAway, prepare

EVERYTHING = (*HONEST, *USUAL * (len(HONEST) // len(USUAL)))
"""Every behaviour of the gateway but lies; the usual ones as often as all others together."""
EPOCH = datetime(2026, 11, 20, 10, tzinfo=UTC)
WORDS = {
    "approved": OutcomeKind.PAID,
    "processing": OutcomeKind.ACCEPTED,
    "declined": OutcomeKind.REJECTED,
    "error": OutcomeKind.REJECTED,
}


class SimWorld:
    """Everything that one seed decides."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)  # noqa: S311 (dice, not secrets)
        self.operation = "payin" if seed % 2 else "payout"
        self.clock = Clock()
        self.disk = Disk()
        self.rows = list(range(FIRST_ROW, FIRST_ROW + rng.randrange(1, 9)))
        self.pace = Pace(
            concurrency=rng.choice((1, 2, 3, 8)),
            rate_per_s=rng.choice((0.0, 0.0, 5.0)),
            stop_after_in_doubt=rng.choice((0, 1, 2, 5)),
        )
        self.mood: Sequence[str] = USUAL
        self.judge = Judge()
        self.unhandled: list[str] = []
        self.refused: JournalError | None = None
        self.restored_older = False
        self._nonces = count(1)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._aways: dict[Process, SlowAway] = {}
        self.newcomers: list[str] = []
        """Sheets that someone submits meanwhile."""
        self.skew = timedelta()
        self._now_of, self._now = (0.0, self.skew), EPOCH
        # What a planted bug may replace.
        self.engine_type: type[Engine] = Engine
        self.journal_type: type[HeldJournal] = HeldJournal
        self.classify: Callable[[RawReply | TransportFault, Expected], Verdict] = partial(
            classify, words=WORDS, operation=OPERATIONS[self.operation]
        )
        self.gateway_type: type[SimGateway] = SimGateway
        self.prepare: Callable[[Attempt], PreparedRequest] = prepare
        self.exit_code: Callable[..., Any] = of_states

    def now(self) -> datetime:
        """Return the wall clock's time, which a person may have set wrong."""
        if self._now_of != (of := (self.clock.now_s, self.skew)):
            self._now_of, self._now = of, EPOCH + self.skew + timedelta(seconds=self.clock.now_s)
        return self._now

    def at(self) -> str:
        """Return the wall clock's time as facts show it."""
        return timestamp(self.now())

    def nonce(self) -> str:
        """Return a nonce that was never used."""
        return f"{next(self._nonces):032x}"

    def away_of(self, process: Process) -> SlowAway:
        """Return the threads of a process."""
        return self._aways.setdefault(process, SlowAway(process))

    # What happens at the gateway by itself.

    def later(self, delay_s: float, happening: Callable[[], None]) -> None:
        """Let something happen at the gateway in `delay_s` seconds."""
        heapq.heappush(self._later, (self.clock.now_s + delay_s, next(self._nonces), happening))

    def next_happening_s(self) -> float | None:
        """Return when something next happens at the gateway."""
        return self._later[0][0] if self._later else None

    def let_pass(self, until_s: float) -> None:
        """Move the clock on; what is due at the gateway happens."""
        while self._later and self._later[0][0] <= until_s:
            at_s, _, happening = heapq.heappop(self._later)
            self.clock.now_s = max(self.clock.now_s, at_s)
            happening()
        self.clock.now_s = max(self.clock.now_s, until_s)

    # Sheets.

    def compare(
        self, journal: HeldJournal, lines: Sequence[tuple[int, str, str]]
    ) -> tuple[Sequence[Known], Sequence[Clash]]:
        """Hold a sheet against every order id ever used."""
        found: tuple[Sequence[Known], Sequence[Clash]] = journal.compare(self.operation, lines)
        return found

    def look_at_comparison(self, name: str, clashing: set[int]) -> None:
        """I7: a row whose content changed is found, and no other."""
        paid = {one.new.row: one.new.minor for one in self.disk.journal._instructions.values()}
        changed = {row for row in self.rows if row in paid and paid[row] != minor_of(name, row)}
        if clashing != changed:
            raise self.judge.found("I7", f"rows {sorted(clashing)} are told to have changed, and {sorted(changed)} did")

    # Opening a journal.

    def look_at_opening(self) -> None:
        """I6: one process at a time holds the journal."""
        if len(self.disk.holders) > 1:
            raise self.judge.found("I6", "two processes hold the journal")
        self.refused = None

    def look_at_opened(self) -> None:
        """I10: a journal that went back in time is found."""
        if self.restored_older:
            raise self.judge.found("I10", "an older copy of the journal was taken for the journal")

    def was_refused_as_older(self) -> bool:
        """Whether the last opening was refused because the journal went back in time."""
        return isinstance(self.refused, JournalWentBack)
