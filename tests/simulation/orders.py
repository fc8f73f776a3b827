"""Orders of two people in a simulated world: to settle rows, and to release them; approved or not, late, and twice."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from paygw_batch.core.lifecycle import State
from paygw_batch.errors import ApprovalError, UsageError
from paygw_batch.journal.sqlite.writer import SqliteJournal
from paygw_batch.journal.values import BatchRecord, RowStanding
from paygw_batch.run import quarantine_clock
from paygw_batch.run.orders.ordered_batch import order_in_force
from paygw_batch.run.orders.release_order import ReleaseOrder, release_content, unsigned_release
from paygw_batch.run.orders.settlement_order import SettlementOrder, order_content, unsigned_order
from paygw_batch.run.release import check_releasable
from paygw_batch.run.resolve import Settlement, check_settlements, settle
from paygw_batch.run.signed_document import ApprovalPolicy, approve, signed
from tests.simulation.approvals import EXPIRES_H, MAKER, key_of
from tests.simulation.disk import ENDPOINT
from tests.simulation.gateway import QUARANTINE_H
from tests.simulation.judge import row_of
from tests.simulation.people import tell
from tests.simulation.sheets import MINOR_UNITS

if TYPE_CHECKING:
    from tests.simulation.world import SimWorld

BOTH = ("brian", "carol")
_HERE: dict[str, Any] = {"endpoint": ENDPOINT.name, "minor_units": MINOR_UNITS}


@dataclass(frozen=True, slots=True)
class MadeOrder:
    """An order as its file is, and who said yes to it, and when."""

    order: SettlementOrder | ReleaseOrder
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
            content = order_content(journal, record, settlements, **_HERE)
            self._make(signed(unsigned_order(content, key_of(MAKER).public, now), key_of(MAKER)))
            self._carry_out(journal)

    def release(self, journal: SqliteJournal, record: BatchRecord) -> None:
        """Order that rejected rows are sent again, and carry that out, or something else."""
        rejected = [one.row for one in journal.rows(record.number, states={State.REJECTED}) if self._is_sure(one)]
        if rejected:
            content = release_content(journal, record, rejected, evidence="looked at", **_HERE)
            unsigned = unsigned_release(content, key_of(MAKER).public, self._world.now())
            self._make(signed(unsigned, key_of(MAKER)))
            self._carry_out(journal)

    def _is_sure(self, one: RowStanding) -> bool:
        """Whether a look at the gateway's books agrees with the word that a person gave early."""
        number, judge = row_of(one.client_orderid), self._world.judge
        return number not in judge.called_early or judge.rows[number].nonce not in judge.paid_nonces

    def _make(self, order: SettlementOrder | ReleaseOrder) -> None:
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
            if isinstance(made.order, SettlementOrder):
                self._settle(journal, made, made.order)
            else:
                self._release(journal, made, made.order)
        except (ApprovalError, UsageError):
            return

    def _settle(self, journal: SqliteJournal, made: MadeOrder, order: SettlementOrder) -> None:
        world = self._world
        found = order_in_force(order, journal, self._policy, world.now(), **_HERE)
        check_settlements(journal, found.batch, order.settlements, quarantine_h=QUARANTINE_H, now=world.now)
        self._look_at_approval(made)
        states = {row.row: row for row in journal.rows(found.batch.number)}
        numbers = {one.row: row_of(states[one.row].client_orderid) for one in order.settlements}
        for one in order.settlements:
            tell(world, numbers[one.row], one.resolution, was_ready=states[one.row].state is State.READY)
        settle(journal, found.batch, order.settlements, by=f"amina, {found.decided}", now=world.now, order=found.kept)
        world.judge.held -= set(numbers.values())

    def _release(self, journal: SqliteJournal, made: MadeOrder, order: ReleaseOrder) -> None:
        world = self._world
        found = order_in_force(order, journal, self._policy, world.now(), **_HERE)
        check_releasable(journal, found.batch, order.numbers, quarantine_h=QUARANTINE_H, now=world.now)
        self._look_at_approval(made)
        rows = {row.row: row_of(row.client_orderid) for row in journal.rows(found.batch.number, numbers=order.numbers)}
        until = quarantine_clock.quarantine_in_force(journal, QUARANTINE_H, world.now()).left_until(world.now())
        released = partial(journal.release, found.batch.number, list(order.numbers), suffix=world.rng.random() < 0.7)
        released(by=f"amina, {found.decided}", at=world.at(), left_until=until, order=found.kept)
        for number in rows.values():
            world.judge.release(number)

    def _look_at_approval(self, made: MadeOrder) -> None:
        """I12: an order holds by the word of enough people other than its maker, none of them too old."""
        now = self._world.now()
        people = {person for person, at in made.said_yes if (now - at).total_seconds() < EXPIRES_H * 3600} - {MAKER}
        if len(people) < self._policy.needed:
            raise self._world.judge.found("I12", f"an order is carried out by the word of {sorted(people)}")
