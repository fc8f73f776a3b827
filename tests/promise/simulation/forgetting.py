"""People of a scenario are forgotten by one person or two; processes die meanwhile, and sheets are repeated."""

from random import Random
from typing import TYPE_CHECKING

from paygw_batch.approval.order import build_forget_order, verify_forget_order
from paygw_batch.approval.signed_document import approve, sign_document
from paygw_batch.core.lifecycle import State
from paygw_batch.engine.quarantine import JournalClock
from paygw_batch.errors import ApprovalError
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import ForgettablePayments
from paygw_batch.settle.kept_documents import is_recorded
from tests.promise.simulation.approvals import MAKER, key_of
from tests.promise.simulation.disk import ENDPOINT
from tests.promise.simulation.gateway import QUARANTINE_H
from tests.promise.simulation.orders import BOTH
from tests.promise.simulation.process import Process, open_for_run

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario

CHANCE_OF_FORGETTING = 0.12
CHANCE_OF_FORGETTING_ALL = 0.4
"""The chance that everybody is forgotten at the end, and the same sheets are submitted again."""
_OPEN = {State.READY, State.IN_FLIGHT, State.IN_DOUBT, State.ACCEPTED}


def plan_death(process: Process, dice: Random) -> Process:
    """Sometimes let a process die while it forgets people."""
    if dice.random() < 0.5:
        if dice.random() < 0.5:
            process.dies_before_write = 1 + dice.randrange(3)
        else:
            process.dies_after_write = 1 + dice.randrange(3)
    return process


async def forget(process: Process) -> int:
    """Forget everybody whose batch is over, by one person's decision or by an order."""
    scenario = process.scenario
    journal = await open_for_run(process)
    until = JournalClock.read(journal, scenario.now()).quarantine(QUARANTINE_H).cutoff(scenario.now())
    chosen = journal.forgettable_payments(before=scenario.at(), cutoff=until)
    if not chosen.batches:
        return 0
    scenario.has_forgotten = True
    if scenario.orders is None:
        journal.forget(chosen, by="amina", at=scenario.at())
    else:
        _by_order(scenario, journal, chosen, until)
    check_forgotten(scenario, journal, chosen)
    return 0


def _by_order(scenario: "Scenario", journal: SqliteJournal, chosen: ForgettablePayments, until: str) -> None:
    """Make an order, have it approved by nobody, one or both people, and carry it out once."""
    policy, now = scenario.required_policy, scenario.now()
    unsigned = build_forget_order(journal, chosen, endpoint=ENDPOINT.name, maker=key_of(MAKER).public, now=now)
    order = sign_document(unsigned, key_of(MAKER))
    people = scenario.forgetting.choice(((), BOTH[:1], BOTH, BOTH, BOTH))
    for person in people:
        order = approve(order, key_of(person), policy, now)
    try:
        found, decided, kept = verify_forget_order(
            order, journal, policy, now, by="amina", endpoint=ENDPOINT.name, cutoff=until, recent=""
        )
    except ApprovalError:
        return
    if len(people) < policy.needed:
        raise scenario.judge.found("I12", f"people are forgotten by the word of {people}")
    journal.forget(found, by=decided, at=scenario.at(), order=kept)
    if not is_recorded(journal, order):
        raise scenario.judge.found("I18", "an order to forget people is not kept")


def check_forgotten(scenario: "Scenario", journal: SqliteJournal, chosen: ForgettablePayments) -> None:
    """I18: nobody is forgotten while their row may still move."""
    numbers = {number for some in chosen.batches.values() for number in some}
    for record in journal.batches():
        if open_rows := [
            row.row for row in journal.rows(record.number) if row.instruction in numbers and row.state in _OPEN
        ]:
            raise scenario.judge.found("I18", f"the payees of rows {open_rows} are forgotten, and they are not over")


def check_bytes_are_gone(scenario: "Scenario") -> None:
    """I18: after everybody is forgotten, the journal has no byte of a payee and verifies."""
    reader = scenario.disk.reader()
    reader.verify()
    if any(reader.first_forgetting(record.number) is None for record in reader.batches()):
        return
    image = bytes(scenario.disk.image)
    for secret in (b"Wanjiku", b"wanjiku", b"254712345"):
        if secret in image:
            raise scenario.judge.found("I18", f"{secret.decode()} is still in the journal, and everybody is forgotten")
