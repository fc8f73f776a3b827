"""The people of a scenario between runs: they settle, release, apply statements, forget others, and err."""

import asyncio
import hmac
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from paygw_batch.approval.order import build_forget_order, verify_forget_order
from paygw_batch.approval.signed_document import sign_document
from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.countries.load import load_enquiry
from paygw_batch.engine.quarantine import ClockComparer, JournalClock
from paygw_batch.errors import ApprovalError, SheetError, UsageError
from paygw_batch.gateway.enquiry import EnquiryAnswer, parse_answer
from paygw_batch.gateway.message import ExpectedReply, RawReply
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.values import BatchRecord, PaymentsToForget, RowState, StatementNote
from paygw_batch.settle.kept_documents import is_recorded
from paygw_batch.settle.match_statement import StatementMatcher
from paygw_batch.settle.refresh import Clock, EnquiryLimits, Refresh
from paygw_batch.settle.resolve import Settlement, check_releasable, check_settlements, settle
from paygw_batch.settle.statement import parse_time_span, read_statement
from tests.promise.simulation.approvals import MAKER, PEOPLE, approve_by, key_of
from tests.promise.simulation.disk import ENDPOINT, Copy
from tests.promise.simulation.gateway import MEANS, OPERATIONS, QUARANTINE_H, WORDS, AnswerMeaning
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.process import Process, open_for_run
from tests.promise.simulation.sheets import MINOR_UNITS

if TYPE_CHECKING:
    from tests.promise.simulation.scenario import Scenario


FORGED = "Proven statement day.csv (SHA-256 0123456789abcdef), line 2: declined"
UNSETTLED = {State.IN_DOUBT, State.ACCEPTED}


async def review_batches(process: Process, *, settle_all: bool) -> int:
    """A day later: check the gateway's own record, settle rows, and release some."""
    scenario, rng = process.scenario, process.scenario.rng
    journal = await open_for_run(process)
    if settle_all:  # the gateway's clock is heard
        dates = ClockComparer(scenario.now)
        dates.observe_reply(scenario.add_date(RawReply(200, (), b"")))
        dates.record_in(journal)
        scenario.clock_is_unknown = False
    if not settle_all and rng.random() < 0.2:
        rng.choice((scenario.inbox.surprise, scenario.inbox.contradict))(journal)
        scenario.inbox.record_arrivals(journal)
    for record in journal.batches():
        if not settle_all and scenario.statements and rng.random() < 0.4:
            apply_statement(scenario, journal, record, rng.choice(scenario.statements))
        if rng.random() < 0.25:
            surprises = journal.due(record.number, after_row=0, limit=1) if rng.random() < 0.3 else ()
            extra = [f"{surprise.order_id},{surprise.instruction.amount},KES,approved" for surprise in surprises]
            # An older copy may accept it.
            scenario.inbox.untrue |= {row_of(surprise.order_id) for surprise in surprises}
            apply_statement(scenario, journal, record, statement_of(scenario, extra))
        settle_truthfully(scenario, journal, record, everything=settle_all)
        if not settle_all and rng.random() < 0.4:
            if scenario.orders is not None and rng.random() < 0.6:
                scenario.orders.release(journal, record)
            else:
                release(scenario, journal, record)
    if settle_all:
        retry_contradicted_rows(scenario, journal)
    return 0


async def settle_early(process: Process) -> int:
    """Settle rows as not received too early. Some write "declined" into a file or a forged order, and retry at once."""
    scenario = process.scenario
    journal = await open_for_run(process)
    for record in journal.batches():
        if scenario.typing.random() < 0.3:
            forge_rejections(scenario, journal, record)
        for row in journal.rows(record.number):
            number = row_of(row.client_orderid)
            if row.state is State.IN_DOUBT and scenario.judge.rows[number].nonce not in scenario.judge.paid_nonces:
                word = Resolution.NOT_RECEIVED
                if scenario.rng.random() < 0.5:
                    word = Resolution.REJECTED
                    scenario.judge.called_early.add(number)
                settle_rows(scenario, journal, record, [(number, Settlement(row.row, word, "no sign of it"))])
        if scenario.rng.random() < 0.5:
            release(scenario, journal, record)
    return 0


def forge_rejections(scenario: "Scenario", journal: SqliteJournal, record: BatchRecord) -> None:
    """Have people claim that the gateway declined rows in doubt, and retry the rows at once."""
    doubtful = {row_of(row.client_orderid): row for row in journal.rows(record.number, states={State.IN_DOUBT})}
    judge = scenario.judge
    numbers = {number: row for number, row in doubtful.items() if judge.rows[number].nonce not in judge.paid_nonces}
    if not numbers:
        return
    if scenario.orders is not None and scenario.typing.random() < 0.6:
        settlements = [Settlement(row.row, Resolution.REJECTED, FORGED, Basis.GATEWAY) for row in numbers.values()]
        if scenario.orders.settle_forged(journal, record, settlements):
            judge.called_early |= set(numbers)
    else:
        judge.called_early |= set(numbers)
        apply_statement(scenario, journal, record, typed_statement(scenario, list(numbers.values())))
    release(scenario, journal, record)


def settle_truthfully(scenario: "Scenario", journal: SqliteJournal, record: BatchRecord, *, everything: bool) -> None:
    """Settle rows in doubt, accepted or held with the truth, as far as it is known after a day."""
    held = [row for row, hold in journal.holds(record.number).items() if hold.state is State.READY]
    words = [
        (row_of(row.client_orderid), Settlement(row.row, _truth(scenario, row), "statement"))
        for row in journal.rows(record.number)
        if (row.state in UNSETTLED or row.row in held) and (everything or scenario.rng.random() < 0.5)
    ]
    if not everything and scenario.orders is not None and scenario.rng.random() < 0.6:
        scenario.orders.settle(journal, record, words)
    elif not everything and scenario.rng.random() < 0.3:
        for word in words:  # one by one, so that a refused row does not block another
            settle_rows(scenario, journal, record, [word])
    else:
        settle_rows(scenario, journal, record, words)


def _truth(scenario: "Scenario", row: RowState) -> Resolution:
    judged = scenario.judge.rows[row_of(row.client_orderid)]
    was_paid = judged.payments > 0 if row.state is State.READY else judged.nonce in scenario.judge.paid_nonces
    if was_paid:
        return Resolution.PAID
    if row.state is State.ACCEPTED:
        return Resolution.REJECTED
    return scenario.rng.choice((Resolution.REJECTED, Resolution.NOT_RECEIVED, Resolution.NOT_RECEIVED))


def settle_rows(
    scenario: "Scenario", journal: SqliteJournal, record: BatchRecord, words: Sequence[tuple[int, Settlement]]
) -> None:
    settlements = [settlement for _, settlement in words]
    try:
        check_settlements(journal, record, settlements, quarantine_h=QUARANTINE_H, now=scenario.now)
    except UsageError:
        return
    ready = {row.row for row in journal.rows(record.number) if row.state is State.READY}
    for number, settlement in words:
        scenario.judge.settle(number, settlement.resolution, was_ready=settlement.row in ready)
    if settlements:
        settle(journal, record, settlements, by="amina", now=scenario.now)
        scenario.judge.held -= {number for number, _ in words}


def release(scenario: "Scenario", journal: SqliteJournal, record: BatchRecord) -> None:
    rejected = [one for one in journal.rows(record.number) if one.state is State.REJECTED]
    numbers = {rejected_row.row: row_of(rejected_row.client_orderid) for rejected_row in rejected}
    early = {row: number for row, number in numbers.items() if number in scenario.judge.called_early}
    paid_since = {row for row, one in early.items() if scenario.judge.rows[one].nonce in scenario.judge.paid_nonces}
    rows = [row for row in numbers if row not in paid_since] if paid_since or scenario.rng.random() < 0.5 else []
    if paid_since and not rows:
        return
    suffix = scenario.rng.random() < 0.7
    try:
        check_releasable(journal, record, rows, quarantine_h=QUARANTINE_H, now=scenario.now)
    except UsageError:
        return
    until = scenario.cutoff(journal)
    journal.release(record.number, rows or None, suffix=suffix, by="amina", at=scenario.at(), cutoff=until)
    waiting = {one.row for one in journal.rows(record.number) if one.state is State.REJECTED}
    for rejected_row in rejected:
        if rejected_row.row not in waiting:
            scenario.judge.release(row_of(rejected_row.client_orderid))


class StatementFile(NamedTuple):
    path: Path
    made_at: str


def statement_of(scenario: "Scenario", extra: Sequence[str]) -> StatementFile:
    """Write the gateway's record as a statement, with `extra` lines. Some have times, of each line or of all."""
    has_times = scenario.rng.random() < 0.5
    made_at = timestamp(scenario.right_time(scenario.clock.now_s))
    lines = {line.partition(",")[0]: f"{line},{made_at}" for line in extra}
    for row in scenario.judge.rows.values():
        for order_id, (request, word) in scenario.gateway_records(row.requests).items():
            at = timestamp(scenario.right_time(scenario.judge.executed_at_s.get(order_id, request.answered_at_s)))
            lines[order_id] = f"{order_id},{request.amount},KES,{word},{at}"
    path = scenario.directory() / f"statement-{len(scenario.statements)}.csv"
    whole = ["order_id,amount,currency,status,time", *(lines.values() or [f"PAY-0,1,KES,approved,{made_at}"])]
    path.write_text("\n".join(whole if has_times else [line.rpartition(",")[0] for line in whole]) + "\n")
    made = StatementFile(path, made_at)
    scenario.statements.append(made)
    path.with_name(f"{path.name}.sig").write_bytes(signature_of(path.read_bytes()))
    return made


def signature_of(content: bytes) -> bytes:
    return hmac.digest(b"the gateway's own", content, "sha256")


def typed_statement(scenario: "Scenario", rows: Sequence[RowState]) -> StatementFile:
    """Write "declined" for rows as a person types it, dated now, sometimes with another file's signature."""
    now = scenario.at()
    path = scenario.directory() / f"typed-{scenario.typing.randrange(10**9)}.csv"
    lines = [f"{row.sent_orderid},{row.minor / 100:.2f},{row.currency},declined,{now}" for row in rows]
    path.write_text("\n".join(["order_id,amount,currency,status,time", *lines]) + "\n")
    if scenario.statements and scenario.typing.random() < 0.3:
        other = scenario.statements[-1].path
        shutil.copyfile(other.with_name(f"{other.name}.sig"), path.with_name(f"{path.name}.sig"))
    return StatementFile(path, now)


def apply_statement(scenario: "Scenario", journal: SqliteJournal, record: BatchRecord, file: StatementFile) -> None:
    """Apply a statement, as `resolve --from FILE --yes --matching-only --again` does, sometimes with `--as-of`."""
    try:
        statement = read_statement(file.path, {}, encoding=None, rule=scenario.statement_rule)
    except SheetError:  # a signature that does not fit
        return
    as_of = parse_time_span(file.made_at) if scenario.rng.random() < 0.3 else None
    terms: dict[str, Any] = {"words": WORDS, "minor_units": MINOR_UNITS, "quarantine_h": QUARANTINE_H}
    reader = StatementMatcher(journal, record, **terms, now=scenario.now, as_of=as_of)
    matched = reader.match(statement)
    named = {line.order_id: line for line in statement.lines}
    found = journal.due(record.number, after_row=0, limit=100)
    ready = {row_of(due.order_id) for due in found if due.order_id in named}
    for line in statement.lines:
        if line.status in MEANS and line.order_id != "PAY-0":
            scenario.judge.tell(row_of(line.order_id), MEANS[line.status])
    if matched.blocking:
        evidence = reader.evidence(statement, matched.blocking, "amina")
        journal.record_evidence(evidence, reader.meanings(statement), at=timestamp(scenario.now()))
    for number in ready:
        if any(row_of(line.order_id) == number for line in statement.lines if MEANS.get(line.status or "") == "paid"):
            scenario.judge.held.add(number)
    try:
        JournalClock.read(journal, scenario.now()).require_plausible()
    except UsageError:
        return
    attempts = tuple(matched.attempts.items())
    carried_out = StatementNote(record.batch, statement.name, statement.sha256, "amina", attempts=attempts)
    settle(journal, record, matched.settlements, by="amina", now=scenario.now, statement_note=carried_out)


NOT_FOUND = "no-such-order"
_ENQUIRY = load_enquiry("paynet-v4", OPERATIONS["payout"])
_SAID = {AnswerMeaning.NO: "declined", AnswerMeaning.PENDING: "processing", AnswerMeaning.YES: "approved"}


async def refresh_rows(process: Process) -> int:
    """Ask about rows that are accepted or in doubt. The gateway does not know its later executions yet."""
    scenario = process.scenario
    journal = await open_for_run(process)
    dates = ClockComparer(scenario.now)

    async def ask(expected: ExpectedReply, _endpoint_id: str | None) -> EnquiryAnswer:
        await asyncio.sleep(scenario.rng.random())
        word = _word_about(scenario, expected.order_id)
        answer = {"status": word, _ENQUIRY.reply.order_id[0]: expected.order_id}
        came_back = scenario.add_date(RawReply(200, (), json.dumps(answer).encode()))
        dates.observe_reply(came_back)
        if word in MEANS:
            scenario.judge.tell(row_of(expected.order_id), MEANS[word])
        return parse_answer(came_back, expected, WORDS, _ENQUIRY, not_found=(NOT_FOUND,), now=scenario.now())

    for record in journal.batches():
        await Refresh(
            journal,
            record,
            ask,
            words=WORDS,
            minor_units=MINOR_UNITS,
            limits=EnquiryLimits(concurrency=2, rate_per_s=0, limit_s=20),
            clock=Clock(lambda: scenario.clock.now_s, asyncio.sleep, scenario.now),
            record_arrivals=lambda: scenario.inbox.record_arrivals(journal),
        ).run()
    dates.record_in(journal)
    if dates.comparison is not None:
        scenario.clock_is_unknown = False
    return 0


def _word_about(scenario: "Scenario", order_id: str) -> str:
    """Return the gateway's status of an order, of its best-known attempt under this id."""
    if scenario.judge.executed_orders[order_id]:
        return "approved"
    requests = [one for one in scenario.judge.rows[row_of(order_id)].requests if one.left and one.order_id == order_id]
    words = [_SAID[one.meaning] for one in requests if one.meaning in _SAID]
    return words[-1] if words else NOT_FOUND


OLDER_STATES = {"ready", "in_doubt", "accepted", "rejected"}
"""The states that a copy may show, as of its time. A paid row remains paid."""


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
    states = dict(scenario.disk.states_by_row())
    for number, row in judge.rows.items():
        row.releases = max(row.releases, row.left - is_known)
        row.final = None
        row.stated |= OLDER_STATES
        words = [MEANS[word] for _, word in scenario.gateway_records(row.requests).values()]
        if {"paid", "accepted"} & {*words} and states.get(number) not in {State.IN_FLIGHT, *UNSETTLED}:
            judge.held.add(number)


async def ask_the_gateway(process: Process) -> int:
    """Apply a complete statement to every batch, and settle the rejected rows that it names."""
    scenario = process.scenario
    journal = await open_for_run(process)
    file = statement_of(scenario, ())
    for record in journal.batches():
        apply_statement(scenario, journal, record, file)
    retry_contradicted_rows(scenario, journal)
    return 0


def retry_contradicted_rows(scenario: "Scenario", journal: SqliteJournal) -> None:
    """Release rejected rows that the gateway paid: they are held, and then settled as paid."""
    for record in journal.batches():
        if paid := contradicted_rows(scenario, journal, record):
            suffix, until = scenario.rng.random() < 0.5, scenario.cutoff(journal)
            journal.release(record.number, list(paid), suffix=suffix, by="amina", at=scenario.at(), cutoff=until)
            words = [(number, Settlement(row, Resolution.PAID, "statement")) for row, number in paid.items()]
            settle_rows(scenario, journal, record, words)
            for number in paid.values():
                scenario.judge.rows[number].final = None


def contradicted_rows(scenario: "Scenario", journal: SqliteReader, record: BatchRecord) -> dict[int, int]:
    """Return the number of each rejected row that the gateway paid and reports as paid, by row."""
    contradicted = {contradiction.row for contradiction in journal.messages(record.number).contradictions}
    rejected = journal.rows(record.number, states={State.REJECTED}, numbers=contradicted)
    numbers = {row.row: row_of(row.client_orderid) for row in rejected}
    return {row: number for row, number in numbers.items() if scenario.judge.rows[number].payments}


def plan_death(process: Process, dice: Random) -> Process:
    if dice.random() < 0.5:
        setattr(process, "dies_before_write" if dice.random() < 0.5 else "dies_after_write", 1 + dice.randrange(3))
    return process


async def forget(process: Process) -> int:
    """Forget everybody whose batch is over, by one person's decision or by an order."""
    scenario = process.scenario
    journal = await open_for_run(process)
    until = scenario.cutoff(journal)
    chosen = journal.payments_to_forget(before=scenario.at(), cutoff=until)
    if not chosen.batches:
        return 0
    scenario.has_forgotten = True
    if scenario.orders is None:
        journal.forget(chosen, by="amina", at=scenario.at())
    else:
        _by_order(scenario, journal, chosen, until)
    check_forgotten(scenario, journal, chosen)
    return 0


def _by_order(scenario: "Scenario", journal: SqliteJournal, chosen: PaymentsToForget, until: str) -> None:
    """Make an order, have it approved by nobody, one or both people, and carry it out once."""
    assert scenario.approvals is not None
    policy, now = scenario.approvals.policy, scenario.now()
    unsigned = build_forget_order(journal, chosen, endpoint=ENDPOINT.name, maker=key_of(MAKER).public, now=now)
    order = sign_document(unsigned, key_of(MAKER))
    both = PEOPLE[1:]
    people = scenario.forgetting.choice(((), both[:1], both, both, both))
    order, said_yes = approve_by(order, people, policy, now)
    try:
        found, decided, kept = verify_forget_order(
            order, journal, policy, now, by="amina", endpoint=ENDPOINT.name, cutoff=until, recent=""
        )
    except ApprovalError:
        return
    if len(said_yes) < policy.needed:
        raise scenario.judge.found("I12", f"people are forgotten by the word of {said_yes}")
    journal.forget(found, by=decided, at=scenario.at(), order=kept)
    if not is_recorded(journal, order):
        raise scenario.judge.found("I18", "an order to forget people is not kept")


def check_forgotten(scenario: "Scenario", journal: SqliteJournal, chosen: PaymentsToForget) -> None:
    """I18: nobody is forgotten while their row may still move."""
    numbers = {number for some in chosen.batches.values() for number in some}
    for record in journal.batches():
        rows = [row for row in journal.rows(record.number) if row.instruction in numbers]
        if open_rows := [row.row for row in rows if row.state in {State.READY, State.IN_FLIGHT, *UNSETTLED}]:
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
