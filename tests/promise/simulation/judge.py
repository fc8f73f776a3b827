"""The judge: invariants, checked by the gateway's own record, the sheets and the files that a person gets.

It never asks the program. In the journal it reads the bytes on stable storage (I2) and their age (I10). The states of
rows come from the reconciliation and the summary.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from paygw_batch.core.lifecycle import Resolution
from paygw_batch.gateway.message import PreparedRequest
from tests.promise.simulation.gateway import DEPARTS_WITHIN_S, AnswerMeaning, Behaviour
from tests.promise.simulation.sheets import SHEETS, amount_of, parse_order_id, wanted

if TYPE_CHECKING:
    from tests.promise.simulation.process import Process

SHOWN_AS = {
    AnswerMeaning.NOT_SENT: "ready",
    AnswerMeaning.NOTHING: "in_doubt",
    AnswerMeaning.YES: "paid",
    AnswerMeaning.NO: "rejected",
    AnswerMeaning.PENDING: "accepted",
}
PERSON_NEEDED, STOPPED_EARLY, SOME_REJECTED = 5, 6, 4


class Violation(Exception):
    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def row_of(order_id: str) -> int:
    return int(order_id.split("-")[1])


@dataclass(slots=True)
class Request:
    """One request as the gateway knows it, with its answer and whether the answer arrived."""

    order_id: str
    amount: Decimal
    nonce: str
    process: "Process"
    meaning: AnswerMeaning = AnswerMeaning.NOT_SENT
    left: bool = False
    is_answered: bool = False
    answered_at_s: float = 0.0


@dataclass(slots=True)
class Row:
    """The scenario's knowledge of a row: its requests, the statements about it, and its shown state."""

    requests: list[Request] = field(default_factory=list)
    stated: set[str] = field(default_factory=set)
    releases: int = 0
    payments: int = 0
    final: str | None = None  # its last shown state, if only a person's release may change it

    @property
    def left(self) -> int:
        return sum(request.left for request in self.requests)

    @property
    def nonce(self) -> str | None:
        return next((request.nonce for request in reversed(self.requests) if request.left), None)


@dataclass(frozen=True, slots=True)
class ShownBatch:
    """The reconciliation, the summary and the sheet of a batch, as a person gets them."""

    sheet: str
    count: int
    lines: Sequence[Mapping[str, str]]
    summary: Mapping[str, object]


class Judge:
    """Knows the gateway's outcome of every order and people's statements, and checks the program by them."""

    def __init__(self) -> None:
        self.rows: defaultdict[int, Row] = defaultdict(Row)
        self.paid_nonces: set[str] = set()
        self.executed_orders: Counter[str] = Counter()
        self.executed_at_s: dict[str, float] = {}
        self.lied: set[int] = set()
        self.called_early: set[int] = set()
        """Rows that a person rejected before the gateway had finished. They are shown as rejected in any case."""
        self.held: set[int] = set()  # rows that the gateway reported, without a person's decision since
        self.requests: dict[str, Request] = {}
        self.amended: dict[int, Decimal] = {}  # the amounts of rows that an amended sheet replaced
        self.approved: dict[str, set[str]] = {}
        """The approvers of exactly each sheet, other than its maker, if approval is required."""
        self.needs_approval = False
        self.told_anything = False
        self.doubts_in_a_row: defaultdict[Process, int] = defaultdict(int)
        self.violations: list[Violation] = []

    def found(self, invariant: str, what: str) -> Violation:
        """Record a violation, even if the error is caught, and return it to be raised."""
        self.violations.append(Violation(invariant, what))
        return self.violations[-1]

    # The gateway's side.

    def check_request(self, process: "Process", request: PreparedRequest) -> None:
        if process not in process.scenario.disk.holders:
            raise self.found("I6", "a process that does not hold the journal sends")
        if request.nonce in self.requests:
            raise self.found("I1", "a nonce is used again")
        row = self.rows[row_of(request.expected.order_id)]
        order = request.expected
        self.requests[request.nonce] = made = Request(order.order_id, order.amount, request.nonce, process)
        row.requests.append(made)
        row.stated.clear()
        row.final = None

    def check_flight(self, process: "Process", in_flight: int) -> None:
        if in_flight > process.pace.concurrency:
            raise self.found("I9", f"{in_flight} requests in flight where {process.pace.concurrency} are allowed")
        if process.heard_of_failure:
            raise self.found("I2", "a request leaves after the journal could not be written")

    def first_byte(self, process: "Process", request: PreparedRequest, behaviour: Behaviour) -> None:
        expected = request.expected
        number = row_of(expected.order_id)
        row, made = self.rows[number], self.requests[request.nonce]
        made.left, made.meaning, made.answered_at_s = True, behaviour.meaning, process.scenario.clock.now_s
        if behaviour.lies:
            self.lied.add(number)
        if number in self.held:
            raise self.found("I1", f"row {number} leaves although the gateway said that it has it")
        if row.left > 1 + row.releases:
            raise self.found("I1", f"row {number} leaves for the {row.left}. time, unreleased")
        if not process.scenario.disk.has_intent(request.nonce):
            raise self.found("I2", f"row {number} leaves before its intent is on stable storage")
        age_s = process.scenario.clock.now_s - process.intended_at_s[request.nonce]
        if age_s >= DEPARTS_WITHIN_S:
            raise self.found("I2", f"row {number} leaves {age_s:.0f} s after its intent")
        asked_for = [
            sheet
            for sheet in SHEETS
            if f"{expected.order_id}-".startswith(f"{parse_order_id(sheet, number)}-")
            and Decimal(amount_of(sheet, number)) == expected.amount
        ]
        if not asked_for:
            raise self.found("I12", f"row {number} leaves with {expected.amount}, which no one asked for")
        if number in self.amended and self.amended[number] != expected.amount:
            raise self.found("I12", f"row {number} leaves with {expected.amount}, which an amended sheet replaced")
        if self.needs_approval and not any(self.approved.get(sheet) for sheet in asked_for):
            raise self.found("I12", f"row {number} leaves, and nobody but its maker approved it")

    def answered(self, process: "Process", request: PreparedRequest) -> None:
        made = self.requests[request.nonce]
        made.is_answered = True
        if made.meaning is AnswerMeaning.NOTHING:
            self.doubts_in_a_row[process] += 1
        elif made.meaning is not AnswerMeaning.NOT_SENT:
            self.doubts_in_a_row[process] = 0
        limit = process.pace.stop_after_in_doubt
        if limit and self.doubts_in_a_row[process] > limit + process.pace.concurrency:
            raise self.found("I9", f"{self.doubts_in_a_row[process]} rows in a row ended in doubt")

    def executed(self, request: PreparedRequest, at_s: float) -> None:
        order_id = request.expected.order_id
        number = row_of(order_id)
        row = self.rows[number]
        row.payments += 1
        self.paid_nonces.add(request.nonce)
        self.executed_orders[order_id] += 1
        self.executed_at_s[order_id] = at_s
        if row.payments > 1 and number not in self.lied:
            raise self.found("I1", f"row {number} is paid twice")

    # People's and messages' statements.

    def tell(self, number: int, state: str) -> None:
        """Record a statement to the program that a row is in `state`, which may be shown from then on."""
        self.rows[number].stated.add(state)
        self.told_anything = True

    def release(self, number: int) -> None:
        """Record a person's decision that a row may be sent again."""
        row = self.rows[number]
        row.releases += 1
        row.final = None
        row.stated.add("ready")

    def settle(self, number: int, resolution: Resolution, *, was_ready: bool) -> None:
        """Record a person's settlement. A ready row may have left as well, in a journal that was lost."""
        if resolution is not Resolution.NOT_RECEIVED:
            self.tell(number, resolution.value)
        elif not was_ready or self.rows[number].left > self.rows[number].releases:
            self.release(number)

    def amend(self, sheet: str, number: int, *, was_rejected: bool) -> None:
        """Record that a sheet replaced a payment. From now on only the sheet's amount may be sent."""
        self.amended[number] = Decimal(amount_of(sheet, number))
        if was_rejected:
            self.release(number)

    # The program's side.

    def check_write(self, process: "Process") -> None:
        disk = process.scenario.disk
        if process not in disk.holders or len(disk.holders) > 1:
            raise self.found("I6", "two processes write the journal")
        if process.heard_of_failure:
            raise self.found("I2", "the journal is written after it could not be written")

    def check_report(self, shown: ShownBatch, ended: "Process | None" = None) -> None:
        """Check a reconciliation and its summary as a person does, after the run `ended`.

        I3, I4: one line for each row of the sheet, in order, with its amount, and the sheet's sums. I5, I11: each row
        in a state that somebody has stated, and no final state changed. I16: the exit code.
        """
        lines = shown.lines
        asked = wanted(shown.sheet, shown.count)
        if [line["client_orderid"] for line in lines] != list(asked):
            raise self.found("I3", f"{shown.sheet} has {len(asked)} rows, and other {len(lines)} are shown")
        if any(Decimal(line["amount"]) != asked[line["client_orderid"]] for line in lines):
            raise self.found("I4", f"an amount of {shown.sheet} is not the sheet's")
        self._check_summary(shown, lines, Counter(line["state"] for line in lines))
        for line in lines:
            if line["state"] != "invalid":
                self._check_row(row_of(line["client_orderid"]), line["state"], ended)

    def _check_summary(self, shown: ShownBatch, lines: Sequence[Mapping[str, str]], states: Counter[str]) -> None:
        summary = shown.summary
        if summary["states"] != dict(states):
            raise self.found("I3", f"the summary tells of {summary['states']}, the reconciliation of {dict(states)}")
        sums: defaultdict[str, Decimal] = defaultdict(Decimal)
        for line in lines:
            sums[line["state"]] += Decimal(line["amount"])
        totals = summary["totals"]
        shown_sums = {state: Decimal(text) for state, text in totals["KES"].items()} if isinstance(totals, dict) else {}
        if shown_sums != sums:
            raise self.found("I4", f"the summary's sums are {shown_sums}, the reconciliation's {dict(sums)}")
        self._check_exit_code(summary["exit_code"], states)

    def _check_exit_code(self, code: object, states: Counter[str]) -> None:
        """I16: the exit code agrees with the reconciliation."""
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

    def _check_row(self, number: int, state: str, ended: "Process | None") -> None:
        row = self.rows[number]
        latest = row.requests[-1] if row.requests else None
        spoken_for = {"in_doubt", *row.stated, "ready" if latest is None else SHOWN_AS[latest.meaning]}
        if state not in spoken_for:
            description = "nothing left" if latest is None else f"the gateway said {latest.meaning.name}"
            raise self.found(
                "I5", f"row {number} is shown {state}: {description}, and it was told {sorted(row.stated)}"
            )
        if row.final is not None and state != row.final:
            raise self.found("I11", f"row {number} was {row.final}, and is shown {state}")
        heard = latest is not None and latest.is_answered and latest.process is ended and not ended.had_mishap
        if heard and latest is not None and not row.stated and state != SHOWN_AS[latest.meaning]:
            raise self.found("I5", f"the gateway said {latest.meaning.name} of row {number}, and it is shown {state}")
        if state in {"paid", "rejected"}:
            row.final = state

    # The end.

    def check_inbox(self, answered: int, kept: int) -> None:
        """I11: the journal has every notification that was answered with 200, once."""
        if answered != kept:
            raise self.found("I11", f"{answered} notifications were answered with 200, and {kept} are in the journal")

    def check_end(self, everything: Sequence[ShownBatch]) -> None:
        """No row was lost: at the end, the shown states are the gateway's."""
        for shown in everything:
            self.check_report(shown)
            for line in shown.lines:
                number, state = row_of(line["client_orderid"]), line["state"]
                if state == "invalid":
                    continue
                if state not in {"paid", "rejected", "accepted"}:
                    raise self.found("I3", f"row {number} is {state} at the end: it is lost")
                payments = self.rows[number].payments
                if number in self.lied:
                    continue
                if state == "paid" and payments != 1:
                    raise self.found("I5", f"row {number} is shown paid, and was paid {payments} times")
                if state == "rejected" and payments and number not in self.called_early:
                    raise self.found("I5", f"row {number} is shown rejected, and was paid")
