"""People of a simulated world are forgotten, by one or by two; processes die at it, and the same sheets come again."""

from random import Random
from typing import TYPE_CHECKING

from paygw_batch.approval.order import forget_order_in_force, unsigned_forget_order
from paygw_batch.approval.signed_document import approve, signed
from paygw_batch.core.lifecycle import State
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import ApprovalError
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import Forgettable
from paygw_batch.settle.kept_documents import is_kept
from tests.promise.simulation.approvals import MAKER, key_of
from tests.promise.simulation.disk import ENDPOINT
from tests.promise.simulation.gateway import QUARANTINE_H
from tests.promise.simulation.orders import BOTH
from tests.promise.simulation.process import Process, hold

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld

CHANCE_OF_FORGETTING = 0.12
CHANCE_OF_FORGETTING_ALL = 0.4
"""How often everybody is forgotten when all has come right, and the same sheets are submitted again."""
_OPEN = {State.READY, State.IN_FLIGHT, State.IN_DOUBT, State.ACCEPTED}


def will_die(process: Process, dice: Random) -> Process:
    """Let a process die in the middle of forgetting, at times."""
    if dice.random() < 0.5:
        if dice.random() < 0.5:
            process.dies_before_write = 1 + dice.randrange(3)
        else:
            process.dies_after_write = 1 + dice.randrange(3)
    return process


async def forget(process: Process) -> int:
    """Forget whoever may be: everybody whose batch is over, on one person's word or by an order of two."""
    world = process.world
    journal = await hold(process)
    until = JournalClock.read(journal, world.now()).quarantine(QUARANTINE_H).cutoff(world.now())
    chosen = journal.forgettable(before=world.at(), cutoff=until)
    if not chosen.batches:
        return 0
    world.has_forgotten = True
    if world.orders is None:
        journal.forget(chosen, by="amina", at=world.at())
    else:
        _by_order(world, journal, chosen, until)
    look_at_forgotten(world, journal, chosen)
    return 0


def _by_order(world: "SimWorld", journal: SqliteJournal, chosen: Forgettable, until: str) -> None:
    """Have an order of two people written, approved by none, one or both, and carried out: once."""
    policy, now = world.required_policy, world.now()
    unsigned = unsigned_forget_order(journal, chosen, endpoint=ENDPOINT.name, maker=key_of(MAKER).public, now=now)
    order = signed(unsigned, key_of(MAKER))
    people = world.forgetting.choice(((), BOTH[:1], BOTH, BOTH, BOTH))
    for person in people:
        order = approve(order, key_of(person), policy, now)
    try:
        found, decided, kept = forget_order_in_force(
            order, journal, policy, now, by="amina", endpoint=ENDPOINT.name, cutoff=until, recent=""
        )
    except ApprovalError:
        return
    if len(people) < policy.needed:
        raise world.judge.found("I12", f"people are forgotten by the word of {people}")
    journal.forget(found, by=decided, at=world.at(), order=kept)
    if not is_kept(journal, order):
        raise world.judge.found("I18", "an order to forget people is not kept")


def look_at_forgotten(world: "SimWorld", journal: SqliteJournal, chosen: Forgettable) -> None:
    """I18: nobody is forgotten whose row may still move."""
    numbers = {number for some in chosen.batches.values() for number in some}
    for record in journal.batches():
        if open_rows := [
            row.row for row in journal.rows(record.number) if row.instruction in numbers and row.state in _OPEN
        ]:
            raise world.judge.found("I18", f"the payees of rows {open_rows} are forgotten, and they are not over")


def look_at_bytes(world: "SimWorld") -> None:
    """I18: when everybody is forgotten, no byte of a payee is in the journal, and it verifies."""
    reader = world.disk.reader()
    reader.verify()
    if any(reader.forgotten(record.number) is None for record in reader.batches()):
        return
    image = bytes(world.disk.image)
    for secret in (b"Wanjiku", b"wanjiku", b"254712345"):
        if secret in image:
            raise world.judge.found("I18", f"{secret.decode()} is still in the journal, and everybody is forgotten")
