"""A journal that is lost in a scenario, and restored from a copy as docs/journals.md describes."""

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
from tests.promise.simulation.people import apply_statement, settle_rows, statement_of
from tests.promise.simulation.process import Process, open_for_run

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario

OPEN_STATES = {State.IN_FLIGHT, State.IN_DOUBT, State.ACCEPTED}
"""The states of unsettled rows, which the gateway's statement settles."""
OLDER_STATES = {"ready", "in_doubt", "accepted", "rejected"}
"""The states that a copy may show, as of its time. A paid row remains paid."""


def copies_with_every_batch(scenario: "Scenario") -> Sequence[Copy]:
    """Return the copies that have all batches."""
    last = scenario.disk.last_batch
    return [copy for copy in scenario.disk.copies if last and copy.last_batch == last]


def adopt(scenario: "Scenario", copy: Copy) -> None:
    """Replace the lost journal with a copy, and adopt it as the newest one.

    With a sent log, no row is sent again without a person's decision. On a new machine, any ready row of the copy may
    be sent, except those that the gateway has: people have asked the gateway after the quarantine.
    """
    is_known = scenario.disk.adopt(copy, scenario.at())
    scenario.inbox.look_again()
    judge = scenario.judge
    judge.lied |= scenario.inbox.untrue  # an older copy may accept an untrue line about a row that was decided later
    judge.held.clear()  # later notifications are lost unless the gateway repeats them
    states = scenario.disk.states_by_row()
    for number, row in judge.rows.items():
        row.releases = max(row.releases, row.left - is_known)
        row.final = None
        row.stated |= OLDER_STATES
        if scenario.gateway_has(row.requests) and states.get(number) not in OPEN_STATES:
            judge.held.add(number)


async def ask_the_gateway(process: Process) -> int:
    """Apply a complete statement to every batch, and settle the rejected rows that it names."""
    scenario = process.scenario
    journal = await open_for_run(process)
    file = statement_of(scenario, ())
    for record in journal.batches():
        apply_statement(scenario, journal, record, file)
    for record in journal.batches():
        _retry_what_is_contradicted(scenario, journal, record)
    return 0


def _retry_what_is_contradicted(scenario: "Scenario", journal: SqliteJournal, record: BatchRecord) -> None:
    """Release rejected rows that the gateway has: they are held, and then settled as paid."""
    contradicted = {contradiction.row for contradiction in journal.messages(record.number).contradictions}
    rejected = journal.rows(record.number, states={State.REJECTED}, numbers=contradicted)
    paid = {rejected_row.row: row_of(rejected_row.client_orderid) for rejected_row in rejected}
    paid = {row: number for row, number in paid.items() if scenario.judge.rows[number].payments}
    if not paid:
        return
    until = JournalClock.read(journal, scenario.now()).quarantine(QUARANTINE_H).cutoff(scenario.now())
    suffix = scenario.rng.random() < 0.5
    journal.release(record.number, list(paid), suffix=suffix, by="amina", at=scenario.at(), cutoff=until)
    words = [(number, Settlement(row, Resolution.PAID, "statement")) for row, number in paid.items()]
    settle_rows(scenario, journal, record, words)
