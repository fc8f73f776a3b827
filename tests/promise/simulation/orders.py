"""Orders of two people in a scenario: settle or release rows; approved or not, late, or twice."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from paygw_batch.approval.signed_document import ApprovalPolicy, approve, sign_document
from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Basis, State
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord, RowState
from paygw_batch.settle.match_statement import StatementMatcher
from paygw_batch.settle.resolve import Settlement, check_releasable, check_settlements, settle
from paygw_batch.settle.row_order import Decision, RowAct, RowOrder, order_in_force, row_content, unsigned_order
from paygw_batch.settle.statement import Statement, read_statement
from tests.promise.simulation.approvals import EXPIRES_H, MAKER, key_of
from tests.promise.simulation.disk import ENDPOINT
from tests.promise.simulation.gateway import QUARANTINE_H, WORDS
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.people import tell
from tests.promise.simulation.sheets import MINOR_UNITS

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario

BOTH = ("brian", "carol")
_HERE: dict[str, Any] = {"endpoint": ENDPOINT.name}


@dataclass(frozen=True, slots=True)
class MadeOrder:
    """An order as a file, with its approvals and their times."""

    order: RowOrder
    said_yes: tuple[tuple[str, datetime], ...]


class Orders:
    """The orders of a scenario. Each may be carried out at once, much later, or again."""

    def __init__(self, scenario: "Scenario", policy: ApprovalPolicy) -> None:
        self._scenario = scenario
        self._policy = policy
        self._made: list[MadeOrder] = []

    def settle(self, journal: SqliteJournal, record: BatchRecord, words: list[tuple[int, Settlement]]) -> None:
        settlements = [settlement for _, settlement in words]
        now = self._scenario.now()
        try:
            check_settlements(journal, record, settlements, quarantine_h=QUARANTINE_H, now=self._scenario.now)
        except UsageError:
            return
        if settlements:
            content = row_content(journal, record, [Decision.from_settlement(one) for one in settlements], **_HERE)
            self._make(sign_document(unsigned_order(content, key_of(MAKER).public, now), key_of(MAKER)))
            self._carry_out(journal)

    def settle_forged(self, journal: SqliteJournal, record: BatchRecord, settlements: list[Settlement]) -> bool:
        """Make an order with a forged statement of the gateway, carry it out, and return whether that worked.

        The maker names an existing statement or none. The approvers check nothing.
        """
        typing, now = self._scenario.typing, self._scenario.now()
        statement = None
        if self._scenario.statements and typing.random() < 0.5:
            statement = read_statement(self._scenario.statements[-1].path, {}, encoding=None)
        content = row_content(
            journal,
            record,
            [Decision.from_settlement(settlement) for settlement in settlements],
            statement=statement,
            **_HERE,
        )
        is_untrue = int(content.rows[0].client_orderid.encode().hex(), 16) % 3 == len(settlements) % 3
        if is_untrue:  # a person's statement about attempts that were sent long before
            early = timestamp(now - timedelta(days=30))
            rows = [row.model_copy(update={"sent_at": early, "basis": Basis.PERSON}) for row in content.rows]
            content = content.model_copy(update={"rows": rows})
        order = sign_document(unsigned_order(content, key_of(MAKER).public, now), key_of(MAKER))
        said_yes = []
        for person in BOTH:
            order = approve(order, key_of(person), self._policy, now)
            said_yes.append((person, now))
        try:
            self._settle(journal, MadeOrder(order, tuple(said_yes)), order)
        except (ApprovalError, UsageError):
            return False
        if is_untrue:
            raise self._scenario.judge.found("I17", "an order was carried out that gives its rows another time")
        return True

    def release(self, journal: SqliteJournal, record: BatchRecord) -> None:
        rejected = [one.row for one in journal.rows(record.number, states={State.REJECTED}) if self._is_sure(one)]
        if rejected:
            decisions = [Decision(row, RowAct.RELEASE, "looked at") for row in rejected]
            content = row_content(journal, record, decisions, **_HERE)
            unsigned = unsigned_order(content, key_of(MAKER).public, self._scenario.now())
            self._make(sign_document(unsigned, key_of(MAKER)))
            self._carry_out(journal)

    def _is_sure(self, one: RowState) -> bool:
        """Return whether the gateway's record agrees with a person's early statement."""
        number, judge = row_of(one.client_orderid), self._scenario.judge
        return number not in judge.called_early or judge.rows[number].nonce not in judge.paid_nonces

    def _make(self, order: RowOrder) -> None:
        scenario, said_yes = self._scenario, []
        for person in scenario.rng.choice(((), (MAKER,), ("brian",), BOTH, BOTH, BOTH)):
            try:
                order = approve(order, key_of(person), self._policy, scenario.now())
            except ApprovalError:
                continue
            said_yes.append((person, scenario.now()))
        self._made.append(MadeOrder(order, tuple(said_yes)))

    def _carry_out(self, journal: SqliteJournal) -> None:
        """Carry out the newest order, an older one, or none."""
        if self._scenario.rng.random() < 0.2:
            return
        made = self._made[-1] if self._scenario.rng.random() < 0.7 else self._scenario.rng.choice(self._made)
        try:
            if made.order.is_release:
                self._release(journal, made, made.order)
            else:
                self._settle(journal, made, made.order)
        except (ApprovalError, UsageError):
            return

    def _settle(self, journal: SqliteJournal, made: MadeOrder, order: RowOrder) -> None:
        scenario = self._scenario
        accepted = order_in_force(order, journal, self._policy, scenario.now(), by="amina", **_HERE)
        if order.cites_gateway:
            order.require_confirmed_by(
                self._statement(order), lambda one: self._reader(journal, accepted.batch).match(one)
            )
        check_settlements(journal, accepted.batch, order.settlements, quarantine_h=QUARANTINE_H, now=scenario.now)
        self._check_approval(made)
        states = {row.row: row for row in journal.rows(accepted.batch.number)}
        numbers = {settlement.row: row_of(states[settlement.row].client_orderid) for settlement in order.settlements}
        for settlement in order.settlements:
            tell(
                scenario,
                numbers[settlement.row],
                settlement.resolution,
                was_ready=states[settlement.row].state is State.READY,
            )
        settle(
            journal, accepted.batch, order.settlements, by=accepted.by, now=scenario.now, order=accepted.signed_order
        )
        scenario.judge.held -= set(numbers.values())

    def _statement(self, order: RowOrder) -> Statement | None:
        """Return the statement that an order names, read and verified again."""
        for file in self._scenario.statements:
            one = read_statement(file.path, {}, encoding=None, rule=self._scenario.statement_rule)
            if one.sha256 == order.content.statement_sha256:
                return one
        return None

    def _reader(self, journal: SqliteJournal, batch: BatchRecord) -> StatementMatcher:
        return StatementMatcher(
            journal, batch, words=WORDS, minor_units=MINOR_UNITS, quarantine_h=QUARANTINE_H, now=self._scenario.now
        )

    def _release(self, journal: SqliteJournal, made: MadeOrder, order: RowOrder) -> None:
        scenario = self._scenario
        accepted = order_in_force(order, journal, self._policy, scenario.now(), by="amina", **_HERE)
        check_releasable(journal, accepted.batch, order.numbers, quarantine_h=QUARANTINE_H, now=scenario.now)
        self._check_approval(made)
        rows = {
            row.row: row_of(row.client_orderid) for row in journal.rows(accepted.batch.number, numbers=order.numbers)
        }
        until = JournalClock.read(journal, scenario.now()).quarantine(QUARANTINE_H).cutoff(scenario.now())
        released = partial(
            journal.release, accepted.batch.number, list(order.numbers), suffix=scenario.rng.random() < 0.7
        )
        released(by=accepted.by, at=scenario.at(), cutoff=until, order=accepted.signed_order)
        for number in rows.values():
            scenario.judge.release(number)

    def _check_approval(self, made: MadeOrder) -> None:
        """I12: an order is valid only with recent approvals of enough people other than its maker."""
        now = self._scenario.now()
        people = {person for person, at in made.said_yes if (now - at).total_seconds() < EXPIRES_H * 3600} - {MAKER}
        if len(people) < self._policy.needed:
            raise self._scenario.judge.found("I12", f"an order is carried out by the word of {sorted(people)}")
