"""The judge: what may never be seen, by the gateway's own record, the sheets and the files that a person is given.

It asks the program for nothing. Of the journal it looks at the bytes on stable storage (I2), and at how far they go
back (I10); where rows are, it reads in the reconciliation and the summary.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from paygw_batch.gateway.message import PreparedRequest
from tests.promise.simulation.gateway import DEPARTS_WITHIN_S, Behaviour, Said
from tests.promise.simulation.sheets import SHEETS, amount_of, order_id_of, wanted

if TYPE_CHECKING:
    from tests.promise.simulation.process import Process

SHOWN_AS = {
    Said.NOT_SENT: "ready",
    Said.NOTHING: "in_doubt",
    Said.YES: "paid",
    Said.NO: "rejected",
    Said.PENDING: "accepted",
}
FINAL = {"paid", "rejected"}
EVERYONE_KNOWS = {"paid", "rejected", "accepted"}
PERSON_NEEDED, STOPPED_EARLY, SOME_REJECTED = 5, 6, 4


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def row_of(order_id: str) -> int:
    """Return the row of the sheet that an order id of the simulated sheets belongs to."""
    return int(order_id.split("-")[1])


@dataclass(slots=True)
class Request:
    """One request as the gateway knows it. `said`: what it will answer, and `is_answered` whether the answer came."""

    order_id: str
    amount: Decimal
    nonce: str
    process: "Process"
    said: Said = Said.NOT_SENT
    left: bool = False
    is_answered: bool = False
    said_at_s: float = 0.0


@dataclass(slots=True)
class Row:
    """What the world knows of a row: its requests, what was told of it since the last one, and how it was shown."""

    requests: list[Request] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    releases: int = 0
    payments: int = 0
    final: str | None = None
    """What it was last shown as, where nothing but a person's release may change that."""

    @property
    def left(self) -> int:
        """How many of its requests left."""
        return sum(one.left for one in self.requests)

    @property
    def nonce(self) -> str | None:
        """The nonce of its latest request that left."""
        return next((one.nonce for one in reversed(self.requests) if one.left), None)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a person was given of a batch: the lines of its reconciliation, its summary; and the sheet."""

    sheet: str
    count: int
    lines: Sequence[Mapping[str, str]]
    summary: Mapping[str, object]


class Judge:
    """Knows what every order came to at the gateway, and what people said; holds the program against it."""

    def __init__(self) -> None:
        self.rows: defaultdict[int, Row] = defaultdict(Row)
        self.paid_nonces: set[str] = set()
        self.executed_orders: Counter[str] = Counter()
        self.executed_at_s: dict[str, float] = {}
        self.lied: set[int] = set()
        self.called_early: set[int] = set()
        """The rows that a person called rejected before the gateway had ended with them: shown so, whatever is true."""
        self.held: set[int] = set()
        """The rows that the gateway said it has, and that no person has spoken of since."""
        self.requests: dict[str, Request] = {}
        self.amended: dict[int, Decimal] = {}
        """The amounts of rows that an amended sheet replaced."""
        self.approved: dict[str, set[str]] = {}
        """Where approval is asked for: by sheet, the people other than its maker who said yes to exactly that."""
        self.needs_approval = False
        self.told_anything = False
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
        if request.nonce in self.requests:
            raise self.found("I1", "a nonce is used again")
        row = self.rows[row_of(request.expected.order_id)]
        self.requests[request.nonce] = made = Request(
            request.expected.order_id, request.expected.amount, request.nonce, process
        )
        row.requests.append(made)
        row.told.clear()
        row.final = None

    def look_at_flight(self, process: "Process", in_flight: int) -> None:
        """So many requests of a process are under way."""
        if in_flight > process.pace.concurrency:
            raise self.found("I9", f"{in_flight} requests in flight where {process.pace.concurrency} are allowed")
        if process.heard_of_failure:
            raise self.found("I2", "a request leaves after the journal could not be written")

    def first_byte(self, process: "Process", request: PreparedRequest, behaviour: Behaviour) -> None:
        """The first byte of a request leaves."""
        expected = request.expected
        number = row_of(expected.order_id)
        row, made = self.rows[number], self.requests[request.nonce]
        made.left, made.said, made.said_at_s = True, behaviour.said, process.world.clock.now_s
        if behaviour.lies:
            self.lied.add(number)
        if number in self.held:
            raise self.found("I1", f"row {number} leaves although the gateway said that it has it")
        if row.left > 1 + row.releases:
            raise self.found("I1", f"row {number} leaves for the {row.left}. time, unreleased")
        if not process.world.disk.has_intent(request.nonce):
            raise self.found("I2", f"row {number} leaves before its intent is on stable storage")
        age_s = process.world.clock.now_s - process.intended_at_s[request.nonce]
        if age_s >= DEPARTS_WITHIN_S:
            raise self.found("I2", f"row {number} leaves {age_s:.0f} s after its intent")
        asked_for = [
            sheet
            for sheet in SHEETS
            if f"{expected.order_id}-".startswith(f"{order_id_of(sheet, number)}-")
            and Decimal(amount_of(sheet, number)) == expected.amount
        ]
        if not asked_for:
            raise self.found("I12", f"row {number} leaves with {expected.amount}, which no one asked for")
        if number in self.amended and self.amended[number] != expected.amount:
            raise self.found("I12", f"row {number} leaves with {expected.amount}, which an amended sheet replaced")
        if self.needs_approval and not any(self.approved.get(sheet) for sheet in asked_for):
            raise self.found("I12", f"row {number} leaves, and nobody but its maker approved it")

    def answered(self, process: "Process", request: PreparedRequest) -> None:
        """The sender hears what came of a request."""
        made = self.requests[request.nonce]
        made.is_answered = True
        if made.said is Said.NOTHING:
            self.doubts_in_a_row[process] += 1
        elif made.said is not Said.NOT_SENT:
            self.doubts_in_a_row[process] = 0
        limit = process.pace.stop_after_in_doubt
        if limit and self.doubts_in_a_row[process] > limit + process.pace.concurrency:
            raise self.found("I9", f"{self.doubts_in_a_row[process]} rows in a row ended in doubt")

    def executed(self, request: PreparedRequest, at_s: float) -> None:
        """Money moves."""
        order_id = request.expected.order_id
        number = row_of(order_id)
        row = self.rows[number]
        row.payments += 1
        self.paid_nonces.add(request.nonce)
        self.executed_orders[order_id] += 1
        self.executed_at_s[order_id] = at_s
        if row.payments > 1 and number not in self.lied:
            raise self.found("I1", f"row {number} is paid twice")

    # What people and messages say.

    def tell(self, number: int, state: str) -> None:
        """Somebody told the program that a row is in `state`: from then on it may be shown so."""
        self.rows[number].told.add(state)
        self.told_anything = True

    def release(self, number: int) -> None:
        """A person said that a row may leave once more."""
        row = self.rows[number]
        row.releases += 1
        row.final = None
        row.told.add("ready")

    def amend(self, sheet: str, number: int, *, was_rejected: bool) -> None:
        """A sheet took the place of a payment that was rejected, or never sent: from now on its amount alone leaves."""
        self.amended[number] = Decimal(amount_of(sheet, number))
        if was_rejected:
            self.release(number)

    # The program's side.

    def look_at_write(self, process: "Process") -> None:
        """A transaction was committed."""
        disk = process.world.disk
        if process not in disk.holders or len(disk.holders) > 1:
            raise self.found("I6", "two processes write the journal")
        if process.heard_of_failure:
            raise self.found("I2", "the journal is written after it could not be written")

    def look_at_shown(self, shown: Shown, ended: "Process | None" = None) -> None:
        """Look at a reconciliation and its summary as a person does, `ended` being the run that brought it about.

        I3, I4: one line for each row of the sheet, in its order, with its amount, and sums that are the sheet's. I5,
        I11: each in a state that somebody has spoken for, and none that was final in another. I16: the exit code.
        """
        lines = shown.lines
        asked = wanted(shown.sheet, shown.count)
        if [line["client_orderid"] for line in lines] != list(asked):
            raise self.found("I3", f"{shown.sheet} has {len(asked)} rows, and other {len(lines)} are shown")
        if any(Decimal(line["amount"]) != asked[line["client_orderid"]] for line in lines):
            raise self.found("I4", f"an amount of {shown.sheet} is not the sheet's")
        states = Counter(line["state"] for line in lines)
        self._look_at_summary(shown, lines, states)
        for line in lines:
            if line["state"] != "invalid":
                self._look_at_row(row_of(line["client_orderid"]), line["state"], ended)

    def _look_at_summary(self, shown: Shown, lines: Sequence[Mapping[str, str]], states: Counter[str]) -> None:
        summary = shown.summary
        if summary["states"] != dict(states):
            raise self.found("I3", f"the summary tells of {summary['states']}, the reconciliation of {dict(states)}")
        sums: defaultdict[str, Decimal] = defaultdict(Decimal)
        for line in lines:
            sums[line["state"]] += Decimal(line["amount"])
        totals = summary["totals"]
        told = {state: Decimal(text) for state, text in totals["KES"].items()} if isinstance(totals, dict) else {}
        if told != sums:
            raise self.found("I4", f"the summary's sums are {told}, the reconciliation's {dict(sums)}")
        self._look_at_exit(summary["exit_code"], states)

    def _look_at_exit(self, code: object, states: Counter[str]) -> None:
        """I16: the exit code says what a person would find."""
        if code == 0 and set(states) - {"paid", "accepted"}:
            raise self.found("I16", f"0 although rows are {dict(states)}")
        if code != PERSON_NEEDED and states["in_doubt"]:
            raise self.found("I16", f"{code} although {states['in_doubt']} rows are in doubt")
        if code == PERSON_NEEDED and not states["in_doubt"] and not self.told_anything:
            raise self.found("I16", f"{code} although no row is in doubt")
        if code == STOPPED_EARLY and not states["ready"]:
            raise self.found("I16", "6 although no row is ready")
        if code == SOME_REJECTED and not states["rejected"] + states["invalid"]:
            raise self.found("I16", "4 although no row is rejected")

    def _look_at_row(self, number: int, state: str, ended: "Process | None") -> None:
        row = self.rows[number]
        latest = row.requests[-1] if row.requests else None
        spoken_for = {"in_doubt", *row.told, "ready" if latest is None else SHOWN_AS[latest.said]}
        if state not in spoken_for:
            said = "nothing left" if latest is None else f"the gateway said {latest.said.name}"
            raise self.found("I5", f"row {number} is shown {state}: {said}, and it was told {sorted(row.told)}")
        if row.final is not None and state != row.final:
            raise self.found("I11", f"row {number} was {row.final}, and is shown {state}")
        heard = latest is not None and latest.is_answered and latest.process is ended and not ended.had_mishap
        if heard and latest is not None and not row.told and state != SHOWN_AS[latest.said]:
            raise self.found("I5", f"the gateway said {latest.said.name} of row {number}, and it is shown {state}")
        if state in FINAL:
            row.final = state

    # The end.

    def look_at_inbox(self, answered: int, kept: int) -> None:
        """I11: every notification that was answered with 200 is in the journal, once."""
        if answered != kept:
            raise self.found("I11", f"{answered} notifications were answered with 200, and {kept} are in the journal")

    def look_at_the_end(self, everything: Sequence[Shown]) -> None:
        """No row was lost: where everyone has spoken, what is shown is what the gateway did."""
        for shown in everything:
            self.look_at_shown(shown)
            for line in shown.lines:
                number, state = row_of(line["client_orderid"]), line["state"]
                if state == "invalid":
                    continue
                if state not in EVERYONE_KNOWS:
                    raise self.found("I3", f"row {number} is {state} at the end: it is lost")
                payments = self.rows[number].payments
                if number in self.lied:
                    continue
                if state == "paid" and payments != 1:
                    raise self.found("I5", f"row {number} is shown paid, and was paid {payments} times")
                if state == "rejected" and payments and number not in self.called_early:
                    raise self.found("I5", f"row {number} is shown rejected, and was paid")
