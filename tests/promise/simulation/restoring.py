"""A journal that is lost for good in a simulated world, and restored from a copy as docs/journals.md says."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord
from paygw_batch.settle.resolve import Settlement
from tests.promise.simulation.disk import Copy
from tests.promise.simulation.gateway import QUARANTINE_H
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.people import read_a_statement, settle_words, statement_of
from tests.promise.simulation.process import Process, hold

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld

OPEN_STATES = {State.IN_FLIGHT, State.IN_DOUBT, State.ACCEPTED}
"""The states of rows whose fate is open: what the gateway says of them settles them."""
OLDER_STATES = {"ready", "in_doubt", "accepted", "rejected"}
"""A copy shows what was so when it was made. That a row is paid is no older state: it stays."""


def copies_with_every_batch(world: "SimWorld") -> Sequence[Copy]:
    """Return the copies that know all batches: of another one the page says not to submit its sheet again."""
    last = world.disk.last_batch
    return [copy for copy in world.disk.copies if last and copy.last_batch == last]


def adopt(world: "SimWorld", copy: Copy) -> None:
    """Put a copy in the place of the journal that is lost, and say that it is the newest one.

    Where it is known what left since, no row leaves once more without a person's word. On a new machine, whatever the
    copy has ready may: only what the gateway has may not. The people have asked it, after the quarantine.
    """
    is_known = world.disk.adopt(copy, world.at())
    world.inbox.look_again()
    judge = world.judge
    judge.lied |= world.inbox.untrue  # what was untrue of a row that was decided may be believed of an older copy
    judge.held.clear()  # what was heard since is lost, but for what the gateway says again
    states = world.disk.states_by_row()
    for number, row in judge.rows.items():
        row.releases = max(row.releases, row.left - is_known)
        row.final = None
        row.told |= OLDER_STATES
        if world.gateway_has(row.requests) and states.get(number) not in OPEN_STATES:
            judge.held.add(number)


async def ask_the_gateway(process: Process) -> int:
    """Carry out a statement of everything for every batch, and settle the rejected rows that it speaks of."""
    world = process.world
    journal = await hold(process)
    file = statement_of(world, ())
    for record in journal.batches():
        read_a_statement(world, journal, record, file)
    for record in journal.batches():
        _retry_what_is_contradicted(world, journal, record)
    return 0


def _retry_what_is_contradicted(world: "SimWorld", journal: SqliteJournal, record: BatchRecord) -> None:
    """Give rejected rows another attempt although the gateway has them: they are held, and then called paid."""
    contradicted = {one.row for one in journal.messages(record.number).contradictions}
    rejected = journal.rows(record.number, states={State.REJECTED}, numbers=contradicted)
    paid = {one.row: row_of(one.client_orderid) for one in rejected}
    paid = {row: number for row, number in paid.items() if world.judge.rows[number].payments}
    if not paid:
        return
    until = JournalClock.read(journal, world.now()).quarantine(QUARANTINE_H).cutoff(world.now())
    suffix = world.rng.random() < 0.5
    journal.release(record.number, list(paid), suffix=suffix, by="amina", at=world.at(), cutoff=until)
    words = [(number, Settlement(row, Resolution.PAID, "statement")) for row, number in paid.items()]
    settle_words(world, journal, record, words)
