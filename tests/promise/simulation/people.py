"""The people of a simulated world, between runs: they settle, release, lift holds and read statements, and they err.

Everything goes through what ships: the checks of a settlement, the quarantine, the reader of statements, the release.
"""

import hmac
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paygw_batch.clock import timestamp
from paygw_batch.core.lifecycle import Basis, Resolution, State
from paygw_batch.engine.quarantine import DateWatch, JournalClock
from paygw_batch.errors import SheetError, UsageError
from paygw_batch.gateway.message import RawReply
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.journal.values import BatchRecord, CarriedOut, RowState
from paygw_batch.settle.match_statement import StatementReader
from paygw_batch.settle.resolve import Settlement, check_releasable, check_settlements, settle
from paygw_batch.settle.statement import read_statement, read_time
from tests.promise.simulation.gateway import QUARANTINE_H
from tests.promise.simulation.judge import row_of
from tests.promise.simulation.process import Process, hold
from tests.promise.simulation.sheets import MINOR_UNITS
from tests.promise.simulation.words import MEANS, WORDS

if TYPE_CHECKING:
    from tests.promise.simulation.world import SimWorld


CHANCE_OF_FORGING = 0.3
FORGED = "Proven statement day.csv (SHA-256 0123456789abcdef), line 2: declined"
UNSETTLED = {State.IN_DOUBT, State.ACCEPTED}


async def come(process: Process, *, settle_all: bool) -> int:
    """A day later: people look at the gateway's own books, settle rows, and release some."""
    world, rng = process.world, process.world.rng
    journal = await hold(process)
    if settle_all:
        refresh(world, journal)
    if not settle_all and rng.random() < 0.2:
        rng.choice((world.inbox.surprise, world.inbox.contradict))(journal)
        world.inbox.take_in(journal)
    for record in journal.batches():
        if not settle_all and world.statements and rng.random() < 0.4:
            read_a_statement(world, journal, record, rng.choice(world.statements))
        if rng.random() < 0.25:
            surprises = journal.due(record.number, after_row=0, limit=100) if rng.random() < 0.3 else ()
            extra = [f"{one.order_id},{one.instruction.amount},KES,approved" for one in surprises[:1]]
            world.inbox.untrue |= {row_of(one.order_id) for one in surprises[:1]}  # believed of an older copy
            read_a_statement(world, journal, record, statement_of(world, extra))
        by_hand(world, journal, record, everything=settle_all)
        if not settle_all and rng.random() < 0.4:
            if world.orders is not None and rng.random() < 0.6:
                world.orders.release(journal, record)
            else:
                release(world, journal, record)
    return 0


async def look_in(process: Process) -> int:
    """Somebody opens the journal, which takes in what waits."""
    await hold(process)
    return 0


async def come_early(process: Process) -> int:
    """Somebody does not wait for a day: the gateway has not executed an order yet, so it was not received.

    Some type that into a file as the gateway's "declined", or forge an order that says so, and pay at once.
    """
    world = process.world
    journal = await hold(process)
    for record in journal.batches():
        if world.typing.random() < CHANCE_OF_FORGING:
            pretend(world, journal, record)
        for row in journal.rows(record.number):
            number = row_of(row.client_orderid)
            if row.state is State.IN_DOUBT and world.judge.rows[number].nonce not in world.judge.paid_nonces:
                word = Resolution.NOT_RECEIVED
                if world.rng.random() < 0.5:
                    word = Resolution.REJECTED
                    world.judge.called_early.add(number)
                settle_words(world, journal, record, [(number, Settlement(row.row, word, "no sign of it"))])
        if world.rng.random() < 0.5:
            release(world, journal, record)
    return 0


def pretend(world: "SimWorld", journal: SqliteJournal, record: BatchRecord) -> None:
    """Have the gateway's "declined" said of rows in doubt, by people, and try them again at once."""
    numbers = {}
    for row in journal.rows(record.number, states={State.IN_DOUBT}):
        number = row_of(row.client_orderid)
        if world.judge.rows[number].nonce not in world.judge.paid_nonces:
            numbers[number] = row
    if not numbers:
        return
    if world.orders is not None and world.typing.random() < 0.6:
        settlements = [Settlement(row.row, Resolution.REJECTED, FORGED, Basis.GATEWAY) for row in numbers.values()]
        if world.orders.settle_forged(journal, record, settlements):
            world.judge.called_early |= set(numbers)
    else:
        world.judge.called_early |= set(numbers)
        read_a_statement(world, journal, record, typed_statement(world, list(numbers.values())))
    release(world, journal, record)


def by_hand(world: "SimWorld", journal: SqliteJournal, record: BatchRecord, *, everything: bool) -> None:
    """Say what became of rows that are in doubt, accepted or held: the truth, as far as a day shows it."""
    holds = journal.holds(record.number)
    words = []
    for row in journal.rows(record.number):
        is_asked = row.state in UNSETTLED or row.row in holds
        if is_asked and (everything or world.rng.random() < 0.5):
            number = row_of(row.client_orderid)
            words.append((number, Settlement(row.row, _truth(world, number, row), "statement")))
    if not everything and world.orders is not None and world.rng.random() < 0.6:
        world.orders.settle(journal, record, words)
    elif not everything and world.rng.random() < 0.3:
        for word in words:  # one by one: what may not be said of one row keeps nothing back from another
            settle_words(world, journal, record, [word])
    else:
        settle_words(world, journal, record, words)


def _truth(world: "SimWorld", number: int, row: RowState) -> Resolution:
    judged = world.judge.rows[number]
    was_paid = judged.payments > 0 if row.state is State.READY else judged.nonce in world.judge.paid_nonces
    if was_paid:
        return Resolution.PAID
    if row.state is State.ACCEPTED:
        return Resolution.REJECTED
    return world.rng.choice((Resolution.REJECTED, Resolution.NOT_RECEIVED, Resolution.NOT_RECEIVED))


def settle_words(
    world: "SimWorld", journal: SqliteJournal, record: BatchRecord, words: Sequence[tuple[int, Settlement]]
) -> None:
    """Settle rows as `resolve` does, all or none."""
    settlements = [settlement for _, settlement in words]
    try:
        check_settlements(journal, record, settlements, quarantine_h=QUARANTINE_H, now=world.now)
    except UsageError:
        return
    ready = {row.row for row in journal.rows(record.number) if row.state is State.READY}
    for number, settlement in words:
        tell(world, number, settlement.resolution, was_ready=settlement.row in ready)
    if settlements:
        settle(journal, record, settlements, by="amina", now=world.now)
        world.judge.held -= {number for number, _ in words}


def tell(world: "SimWorld", number: int, resolution: Resolution, *, was_ready: bool) -> None:
    """Let the judge know what a person says of a row."""
    if resolution is not Resolution.NOT_RECEIVED:
        world.judge.tell(number, resolution.value)
    elif not was_ready:
        world.judge.release(number)


def release(world: "SimWorld", journal: SqliteJournal, record: BatchRecord) -> None:
    """Give rejected rows another attempt, as `retry` does.

    What a person called rejected early is looked up once more: the word was true then, and the quarantine is there so
    that a look at its end is true for good.
    """
    rejected = [one for one in journal.rows(record.number) if one.state is State.REJECTED]
    numbers = {one.row: row_of(one.client_orderid) for one in rejected}
    paid_since = {
        row
        for row, number in numbers.items()
        if number in world.judge.called_early and world.judge.rows[number].nonce in world.judge.paid_nonces
    }
    rows = [row for row in numbers if row not in paid_since] if paid_since or world.rng.random() < 0.5 else []
    if paid_since and not rows:
        return
    suffix = world.rng.random() < 0.7
    try:
        check_releasable(journal, record, rows, quarantine_h=QUARANTINE_H, now=world.now)
    except UsageError:
        return
    until = JournalClock.read(journal, world.now()).quarantine(QUARANTINE_H).cutoff(world.now())
    journal.release(record.number, rows or None, suffix=suffix, by="amina", at=world.at(), cutoff=until)
    waiting = {one.row for one in journal.rows(record.number) if one.state is State.REJECTED}
    for one in rejected:
        if one.row not in waiting:
            world.judge.release(row_of(one.client_orderid))


def refresh(world: "SimWorld", journal: SqliteJournal) -> None:
    """Ask the gateway about nothing but its clock, as `refresh` hears it from any reply."""
    dates = DateWatch(world.now)
    dates.see(world.dated(RawReply(200, (), b"")))
    dates.note_in(journal)
    world.clock_is_unknown = False


# Statements.


@dataclass(frozen=True, slots=True)
class StatementFile:
    """A statement as the gateway gave it, and when: all of it was true then."""

    path: Path
    made_at: str


def statement_of(world: "SimWorld", extra: Sequence[str]) -> StatementFile:
    """Write what the gateway's books say now: every order that it has, by its id, and `extra` lines.

    Some say when each line was true, by the gateway's clock.
    """
    has_times = world.rng.random() < 0.5
    made_at = timestamp(world.right_time(world.clock.now_s))
    lines = {line.partition(",")[0]: f"{line},{made_at}" for line in extra}
    for row in world.judge.rows.values():
        for order_id, (request, word) in world.books(row.requests).items():
            at = timestamp(world.right_time(world.judge.executed_at_s.get(order_id, request.said_at_s)))
            lines[order_id] = f"{order_id},{request.amount},KES,{word},{at}"
    path = world.directory() / f"statement-{len(world.statements)}.csv"
    whole = ["order_id,amount,currency,status,time", *(lines.values() or [f"PAY-0,1,KES,approved,{made_at}"])]
    path.write_text("\n".join(whole if has_times else [line.rpartition(",")[0] for line in whole]) + "\n")
    made = StatementFile(path, made_at)
    world.statements.append(made)
    path.with_name(f"{path.name}.sig").write_bytes(signature_of(path.read_bytes()))
    return made


def signature_of(content: bytes) -> bytes:
    """Return the gateway's signature of a statement: of this world's gateway, whose key nobody else has."""
    return hmac.digest(b"the gateway's own", content, "sha256")


def is_gateways(signature: bytes, content: bytes) -> bool:
    """Whether a signature is the gateway's."""
    return hmac.compare_digest(signature, signature_of(content))


def typed_statement(world: "SimWorld", rows: Sequence[RowState]) -> StatementFile:
    """Write "declined" of rows as a person types it, with the time of now, at times beside another file's signature."""
    now = world.at()
    path = world.directory() / f"typed-{world.typing.randrange(10**9)}.csv"
    lines = [f"{row.sent_orderid},{row.minor / 100:.2f},{row.currency},declined,{now}" for row in rows]
    path.write_text("\n".join(["order_id,amount,currency,status,time", *lines]) + "\n")
    if world.statements and world.typing.random() < 0.3:
        other = world.statements[-1].path
        shutil.copyfile(other.with_name(f"{other.name}.sig"), path.with_name(f"{path.name}.sig"))
    return StatementFile(path, now)


def read_a_statement(world: "SimWorld", journal: SqliteJournal, record: BatchRecord, file: StatementFile) -> None:
    """Carry out a statement, as `resolve --from FILE --yes --matching-only --again` does, at times with `--as-of`."""
    try:
        statement = read_statement(file.path, {}, encoding=None, rule=world.statement_rule)
    except SheetError:  # a signature that does not fit
        return
    reader = StatementReader(
        journal,
        record,
        words=WORDS,
        minor_units=MINOR_UNITS,
        quarantine_h=QUARANTINE_H,
        now=world.now,
        as_of=read_time(file.made_at) if world.rng.random() < 0.3 else None,
    )
    matched = reader.match(statement)
    named = {line.order_id: line for line in statement.lines}
    ready = {
        row_of(due.order_id) for due in journal.due(record.number, after_row=0, limit=100) if due.order_id in named
    }
    for line in statement.lines:
        if line.status in MEANS and line.order_id != "PAY-0":
            world.judge.tell(row_of(line.order_id), MEANS[line.status])
    if matched.contrary:
        journal.record_evidence(
            reader.evidence(statement, matched.contrary, "amina"), reader.meanings(statement), at=timestamp(world.now())
        )
    for number in ready:
        if any(row_of(line.order_id) == number for line in statement.lines if MEANS.get(line.status or "") == "paid"):
            world.judge.held.add(number)
    try:
        JournalClock.read(journal, world.now()).require_sound()
    except UsageError:
        return
    attempts = tuple(matched.attempts.items())
    carried_out = CarriedOut(record.batch, statement.name, statement.sha256, "amina", attempts=attempts)
    settle(journal, record, matched.settlements, by="amina", now=world.now, carried_out=carried_out)
