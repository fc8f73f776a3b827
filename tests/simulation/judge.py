"""The judge: what may never be seen, by the gateway's own record. Looked at after every request and every write."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from paygw_batch.core.lifecycle import Concluded, Intended, Resolved, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.gateway.message import PreparedRequest
from paygw_batch.journal.port import BatchRecord, Entry, Tally
from paygw_batch.journal.progress import Progress

from .gateway import Behaviour, Said

if TYPE_CHECKING:
    from .disk import Disk
    from .process import Process

FIRST_ROW = 2
SHEETS = ("payroll", "longer", "edited")
MAY_BECOME = {
    Said.NOT_SENT: {OutcomeKind.NOT_SENT},
    Said.NOTHING: {OutcomeKind.UNKNOWN},
    Said.YES: {OutcomeKind.PAID},
    Said.NO: {OutcomeKind.REJECTED},
    Said.PENDING: {OutcomeKind.ACCEPTED},
}
STAYS = {
    State.READY: {State.READY, State.IN_FLIGHT},
    State.IN_FLIGHT: set(State),
    State.IN_DOUBT: {State.IN_DOUBT, State.ACCEPTED, State.PAID, State.REJECTED},
    State.ACCEPTED: {State.ACCEPTED, State.PAID, State.REJECTED},
    State.PAID: {State.PAID},
    State.REJECTED: {State.REJECTED},
}
"""Where an instruction may be after a write in which no person spoke."""


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def row_of(order_id: str) -> int:
    """Return the row of the sheet that an order id of the simulated sheets belongs to."""
    return int(order_id.split("-")[1])


@cache
def amount_of(sheet: str, row: int) -> str:
    """Return what a simulated sheet pays in a row. In the edited one the first row pays another amount."""
    return "77777.77" if (sheet, row) == ("edited", FIRST_ROW) else f"{row * 137 % 9973}.{row * 29 % 100:02}"


@cache
def minor_of(sheet: str, row: int) -> int:
    """Return what a simulated sheet pays in a row, in cents."""
    return int(Decimal(amount_of(sheet, row)) * 100)


def shown(state: State) -> str:
    """Return the state as a person is told it."""
    return "in_doubt" if state is State.IN_FLIGHT else state.value


class Judge:
    """Knows what every order came to at the gateway, and what people said; holds the program against it."""

    def __init__(self) -> None:
        self.first_bytes: Counter[int] = Counter()
        self.payments: Counter[int] = Counter()
        self.paid_nonces: set[str] = set()
        self.lied: set[int] = set()
        self.releases: Counter[int] = Counter()
        self.held: set[int] = set()
        """The rows that the gateway said it has, and that no person has spoken of since."""
        self.said: dict[str, Said] = {}
        self.nonces: dict[tuple[int, int], str] = {}
        self.states: dict[int, State] = {}
        self._looked_at: dict[int, Progress] = {}
        self.doubts_in_a_row: defaultdict[Process, int] = defaultdict(int)

        self.violations: list[Violation] = []

    def found(self, invariant: str, what: str) -> Violation:
        """Take note of a violation, whoever may catch it on its way, and return it to be raised."""
        self.violations.append(Violation(invariant, what))
        return self.violations[-1]

    # The gateway's side.

    def look_at_request(self, process: "Process", request: PreparedRequest) -> None:
        """A request is handed to the transport."""
        if process not in process.world.disk.holders:
            raise self.found("I6", "a process that does not hold the journal sends")
        if request.nonce in self.said:
            raise self.found("I1", "a nonce is used again")
        self.said[request.nonce] = Said.NOT_SENT

    def look_at_flight(self, process: "Process", in_flight: int) -> None:
        """So many requests of a process are under way."""
        if in_flight > process.pace.concurrency:
            raise self.found("I9", f"{in_flight} requests in flight where {process.pace.concurrency} are allowed")
        if process.heard_of_failure:
            raise self.found("I2", "a request leaves after the journal could not be written")

    def first_byte(self, process: "Process", request: PreparedRequest, behaviour: Behaviour) -> None:
        """The first byte of a request leaves."""
        expected = request.expected
        row = row_of(expected.order_id)
        self.first_bytes[row] += 1
        self.said[request.nonce] = behaviour.said
        if behaviour.lies:
            self.lied.add(row)
        if row in self.held:
            raise self.found("I1", f"row {row} leaves although the gateway said that it has it")
        if self.first_bytes[row] > 1 + self.releases[row]:
            raise self.found("I1", f"row {row} leaves for the {self.first_bytes[row]}. time, unreleased")
        if request.nonce not in process.world.disk.durable_nonces:
            raise self.found("I2", f"row {row} leaves before its intent is on stable storage")
        if expected.amount not in {Decimal(amount_of(sheet, row)) for sheet in SHEETS}:
            raise self.found("I12", f"row {row} leaves with {expected.amount}, which no one asked for")

    def executed(self, request: PreparedRequest) -> None:
        """Money moves."""
        row = row_of(request.expected.order_id)
        self.payments[row] += 1
        self.paid_nonces.add(request.nonce)
        if self.payments[row] > 1 and row not in self.lied:
            raise self.found("I1", f"row {row} is paid twice")

    # The program's side.

    def look_at_write(self, process: "Process", entries: Sequence[Entry]) -> None:
        """A transaction was committed."""
        disk = process.world.disk
        if process not in disk.holders or len(disk.holders) > 1:
            raise self.found("I6", "two processes write the journal")
        spoken = {entry.instruction for entry in entries if isinstance(entry.fact, Resolved)}
        for entry in entries:
            self._look_at_fact(process, entry)
        self.look_at_states(disk, spoken)

    def _look_at_fact(self, process: "Process", entry: Entry) -> None:
        key = (entry.instruction, entry.attempt)
        match entry.fact:
            case Intended(nonce=nonce):
                self.nonces.setdefault(key, nonce)
            case Concluded(outcome) if process.is_run:
                self._look_at_outcome(self.said.get(self.nonces[key], Said.NOT_SENT), outcome.kind)
                self._look_at_doubts(process, outcome.kind)
            case _:
                pass

    def _look_at_outcome(self, said: Said, kind: OutcomeKind) -> None:
        """I5: what no one knows is neither a no nor unsent; what was said is what is kept."""
        if kind in MAY_BECOME[said]:
            return
        raise self.found("I5", f"the gateway said {said.name}, and the journal holds {kind.name}")

    def _look_at_doubts(self, process: "Process", kind: OutcomeKind) -> None:
        if kind is OutcomeKind.UNKNOWN:
            self.doubts_in_a_row[process] += 1
        elif kind is not OutcomeKind.NOT_SENT:
            self.doubts_in_a_row[process] = 0
        limit = process.pace.stop_after_in_doubt
        if limit and self.doubts_in_a_row[process] > limit + process.pace.concurrency:
            raise self.found("I9", f"{self.doubts_in_a_row[process]} rows in a row came into doubt")

    def look_at_states(self, disk: "Disk", spoken: set[int]) -> None:
        """I3, I4, I11: every row stands once, sums tie, and nothing moves that may not."""
        journal, looked_at = disk.journal, self._looked_at
        for number, progress in journal._progress.items():
            if looked_at.get(number) is progress:  # nothing of it can have changed
                continue
            looked_at[number] = progress
            state, before = progress.standing.state, self.states.get(number)
            may = STAYS[before] if before is not None else {State.READY, State.IN_FLIGHT}
            if state not in may and number not in spoken:
                raise self.found("I11", f"instruction {number} went from {before} to {state}")
            self.states[number] = state
        for batch in journal._batches:
            covered = journal._covered[batch.number]
            if len(covered) != batch.rows:
                raise self.found("I3", f"batch {batch.number} holds not all of its {batch.rows} rows")
            held = sum([journal._instructions[number].new.minor for number in covered.values()])
            if held != sum([minor_of(batch.batch, row) for row in covered]):
                raise self.found("I4", f"the sums of batch {batch.number} are not the sheet's")

    def look_at_tallies(self, batch: BatchRecord, tallies: Sequence[Tally], rows: Iterable[int]) -> None:
        """I3, I4: what is shown of a batch, over all states, is the sheet's count and the sheet's sum."""
        if sum(tally.count for tally in tallies) != batch.rows:
            raise self.found("I3", f"batch {batch.number} shows not all of its {batch.rows} rows")
        if sum(tally.minor for tally in tallies) != sum(minor_of(batch.batch, row) for row in rows):
            raise self.found("I4", f"the sums of batch {batch.number} are not the sheet's")

    # The end.

    def look_at_exit(self, process: "Process", exit_code: int) -> None:
        """I16: the exit code says what a person would find."""
        journal = process.world.disk.journal
        record = journal._batches[process.batch - 1]
        self.look_at_tallies(record, journal.tallies(record.number), journal._covered[record.number])
        states = Counter(shown(one.state) for one in journal.standings(process.batch))
        contradictions = len(journal.contradictions(process.batch))
        if exit_code == 0 and set(states) - {"paid", "accepted"}:
            raise self.found("I16", f"0 although rows are {dict(states)}")
        if (exit_code == 5) != bool(states["in_doubt"] or contradictions):
            raise self.found("I16", f"{exit_code} although {states['in_doubt']} rows are in doubt")
        if exit_code == 6 and not states["ready"]:
            raise self.found("I16", "6 although no row is ready")

    def look_at_the_end(self, disk: "Disk") -> None:
        """No row was lost: where everyone has spoken, what the journal says is what the gateway did."""
        disk.journal.verify()
        for batch in disk.journal.batches():
            self.look_at_tallies(batch, disk.journal.tallies(batch.number), disk.journal._covered[batch.number])
        for number, progress in disk.journal._progress.items():
            row, state = row_of(disk.journal._instructions[number].new.client_orderid), progress.standing.state
            if state not in {State.PAID, State.REJECTED, State.ACCEPTED}:
                raise self.found("I3", f"row {row} is {state} at the end: it is lost")
            if row in self.lied:
                continue
            if state is State.PAID and self.payments[row] != 1:
                raise self.found("I5", f"row {row} is shown paid, and was paid {self.payments[row]} times")
            if state is State.REJECTED and self.payments[row]:
                raise self.found("I5", f"row {row} is shown rejected, and was paid")
