"""Orders of two people in a simulated world: to settle rows, and to release them; approved or not, late, and twice."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from paygw_batch.approval.signed_document import ApprovalPolicy, approve, signed
from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Basis, State
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord, RowState
from paygw_batch.settle.match_statement import StatementReader
from paygw_batch.settle.resolve import Settlement, check_releasable, check_settlements, settle
from paygw_batch.settle.row_order import Decision, RowAct, RowOrder, order_in_force, row_content, unsigned_order
from paygw_batch.settle.statement import Statement, read_statement
from tests.promise.simulation.approvals import EXPIRES_H, MAKER, key_of
from tests.promise.simulation.disk import ENDPOINT
from tests.promise.simulation.gateway import QUARANTINE_H
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.people import tell
from tests.promise.simulation.sheets import MINOR_UNITS
from tests.promise.simulation.words import WORDS

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld

BOTH = ("brian", "carol")
_HERE: dict[str, Any] = {"endpoint": ENDPOINT.name}


@dataclass(frozen=True, slots=True)
class MadeOrder:
    """An order as its file is, and who said yes to it, and when."""

    order: RowOrder
    said_yes: tuple[tuple[str, datetime], ...]


class Orders:
    """The orders of a world: each may be carried out at once, much later, or again."""

    def __init__(self, world: "SimWorld", policy: ApprovalPolicy) -> None:
        self._world = world
        self._policy = policy
        self._made: list[MadeOrder] = []

    def settle(self, journal: SqliteJournal, record: BatchRecord, words: list[tuple[int, Settlement]]) -> None:
        """Order that rows are settled, and carry that out, or something else."""
        settlements = [settlement for _, settlement in words]
        now = self._world.now()
        try:
            check_settlements(journal, record, settlements, quarantine_h=QUARANTINE_H, now=self._world.now)
        except UsageError:
            return
        if settlements:
            content = row_content(journal, record, [Decision.of(one) for one in settlements], **_HERE)
            self._make(signed(unsigned_order(content, key_of(MAKER).public, now), key_of(MAKER)))
            self._carry_out(journal)

    def settle_forged(self, journal: SqliteJournal, record: BatchRecord, settlements: list[Settlement]) -> bool:
        """Order that rows are settled on the gateway's word, which nobody has, and carry that out; whether it was.

        The maker names a statement that there is, or none. Those who approve look at nothing.
        """
        typing, now = self._world.typing, self._world.now()
        statement = None
        if self._world.statements and typing.random() < 0.5:
            statement = read_statement(self._world.statements[-1].path, {}, encoding=None)
        content = row_content(journal, record, [Decision.of(one) for one in settlements], statement=statement, **_HERE)
        is_untrue = int(content.rows[0].client_orderid.encode().hex(), 16) % 3 == len(settlements) % 3
        if is_untrue:  # a person's word, of attempts that left long before they did
            early = timestamp(now - timedelta(days=30))
            rows = [one.model_copy(update={"sent_at": early, "basis": Basis.PERSON}) for one in content.rows]
            content = content.model_copy(update={"rows": rows})
        order = signed(unsigned_order(content, key_of(MAKER).public, now), key_of(MAKER))
        said_yes = []
        for person in BOTH:
            order = approve(order, key_of(person), self._policy, now)
            said_yes.append((person, now))
        try:
            self._settle(journal, MadeOrder(order, tuple(said_yes)), order)
        except (ApprovalError, UsageError):
            return False
        if is_untrue:
            raise self._world.judge.found("I17", "an order was carried out that gives its rows another time")
        return True

    def release(self, journal: SqliteJournal, record: BatchRecord) -> None:
        """Order that rejected rows are sent again, and carry that out, or something else."""
        rejected = [one.row for one in journal.rows(record.number, states={State.REJECTED}) if self._is_sure(one)]
        if rejected:
            decisions = [Decision(row, RowAct.RELEASE, "looked at") for row in rejected]
            content = row_content(journal, record, decisions, **_HERE)
            unsigned = unsigned_order(content, key_of(MAKER).public, self._world.now())
            self._make(signed(unsigned, key_of(MAKER)))
            self._carry_out(journal)

    def _is_sure(self, one: RowState) -> bool:
        """Whether a look at the gateway's books agrees with the word that a person gave early."""
        number, judge = row_of(one.client_orderid), self._world.judge
        return number not in judge.called_early or judge.rows[number].nonce not in judge.paid_nonces

    def _make(self, order: RowOrder) -> None:
        world, said_yes = self._world, []
        for person in world.rng.choice(((), (MAKER,), ("brian",), BOTH, BOTH, BOTH)):
            try:
                order = approve(order, key_of(person), self._policy, world.now())
            except ApprovalError:
                continue
            said_yes.append((person, world.now()))
        self._made.append(MadeOrder(order, tuple(said_yes)))

    def _carry_out(self, journal: SqliteJournal) -> None:
        """Carry out the newest order, an older one, or none."""
        if self._world.rng.random() < 0.2:
            return
        made = self._made[-1] if self._world.rng.random() < 0.7 else self._world.rng.choice(self._made)
        try:
            if made.order.is_release:
                self._release(journal, made, made.order)
            else:
                self._settle(journal, made, made.order)
        except (ApprovalError, UsageError):
            return

    def _settle(self, journal: SqliteJournal, made: MadeOrder, order: RowOrder) -> None:
        world = self._world
        found = order_in_force(order, journal, self._policy, world.now(), by="amina", **_HERE)
        if order.claims_the_gateways_word:
            order.require_said_by(self._statement(order), lambda one: self._reader(journal, found.batch).match(one))
        check_settlements(journal, found.batch, order.settlements, quarantine_h=QUARANTINE_H, now=world.now)
        self._look_at_approval(made)
        states = {row.row: row for row in journal.rows(found.batch.number)}
        numbers = {one.row: row_of(states[one.row].client_orderid) for one in order.settlements}
        for one in order.settlements:
            tell(world, numbers[one.row], one.resolution, was_ready=states[one.row].state is State.READY)
        settle(journal, found.batch, order.settlements, by=found.by, now=world.now, order=found.kept)
        world.judge.held -= set(numbers.values())

    def _statement(self, order: RowOrder) -> Statement | None:
        """Return the statement that an order names, read and proven again."""
        for file in self._world.statements:
            one = read_statement(file.path, {}, encoding=None, rule=self._world.statement_rule)
            if one.sha256 == order.content.statement_sha256:
                return one
        return None

    def _reader(self, journal: SqliteJournal, batch: BatchRecord) -> StatementReader:
        return StatementReader(
            journal, batch, words=WORDS, minor_units=MINOR_UNITS, quarantine_h=QUARANTINE_H, now=self._world.now
        )

    def _release(self, journal: SqliteJournal, made: MadeOrder, order: RowOrder) -> None:
        world = self._world
        found = order_in_force(order, journal, self._policy, world.now(), by="amina", **_HERE)
        check_releasable(journal, found.batch, order.numbers, quarantine_h=QUARANTINE_H, now=world.now)
        self._look_at_approval(made)
        rows = {row.row: row_of(row.client_orderid) for row in journal.rows(found.batch.number, numbers=order.numbers)}
        until = JournalClock.read(journal, world.now()).quarantine(QUARANTINE_H).cutoff(world.now())
        released = partial(journal.release, found.batch.number, list(order.numbers), suffix=world.rng.random() < 0.7)
        released(by=found.by, at=world.at(), cutoff=until, order=found.kept)
        for number in rows.values():
            world.judge.release(number)

    def _look_at_approval(self, made: MadeOrder) -> None:
        """I12: an order holds by the word of enough people other than its maker, none of them too old."""
        now = self._world.now()
        people = {person for person, at in made.said_yes if (now - at).total_seconds() < EXPIRES_H * 3600} - {MAKER}
        if len(people) < self._policy.needed:
            raise self._world.judge.found("I12", f"an order is carried out by the word of {sorted(people)}")
