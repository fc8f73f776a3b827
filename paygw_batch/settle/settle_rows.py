"""Settles rows of a batch: as one person decides, as the gateway states or answers, or by an order of two people."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.approval.policy import known_maker, policy_of, required_policy
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.evidence import HOLDING, Candidate, Claim, EvidenceSource, Finding
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.core.shown_states import decided_by
from paygw_batch.countries.load import load_enquiry, load_operation, minor_units_by_currency
from paygw_batch.engine.quarantine import MAX_AHEAD_S, DateWatch, JournalClock
from paygw_batch.errors import ApprovalError, ConfigurationError, UsageError
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.enquiry import Enquirer, EnquiryAnswer, read_answer
from paygw_batch.gateway.http.enquiry_client import EnquiryClient
from paygw_batch.gateway.message import Expected
from paygw_batch.gateway.signing.signers import signers_at_work
from paygw_batch.journal import BatchRecord, CarriedOut, Journal, JournalReader, RowState
from paygw_batch.language import say
from paygw_batch.opening.gateway_access import GatewayAccess, SendJob, gateway_of, real_world, transport_settings
from paygw_batch.opening.given_sheet import as_answered, minor_units_of, rules_of
from paygw_batch.opening.open_journal import journal_to_read, judge_arrivals, place_of
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.match_statement import Matched, StatementReader
from paygw_batch.settle.refresh import OPEN_STATES, Ask, Clock, FollowUp, Politeness, Refresh, Refreshed
from paygw_batch.settle.resolve import (
    Settlement,
    check_releasable,
    check_settlements,
    may_settle,
    needs_second_person,
    open_from,
    settle,
    standings_of,
)
from paygw_batch.settle.row_order import (
    Decision,
    OrderInForce,
    RowAct,
    RowOrder,
    order_in_force,
    row_content,
    unsigned_order,
)
from paygw_batch.settle.statement import (
    WRITTEN,
    Statement,
    TimeSpan,
    read_time,
    statement_with_digest,
)


def require_enquiry(settings: Settings) -> str:
    """Return the configured profile of status enquiries. Raises `ConfigurationError` if none is configured."""
    if settings.status_enquiry.profile is None:
        raise ConfigurationError(
            say("The configuration does not set status_enquiry.profile, so enquiries are off."),
            hint=say(
                "The gateway documents no status enquiry. If your operator's gateway has one, set "
                '[status_enquiry] profile = "paynet-v4".'
            ),
        )
    return settings.status_enquiry.profile


def refresh(task: SendJob, tell: Callable[[str], None], watch: Callable[[Refresh], None]) -> Refreshed:
    """Ask about the accepted and in-doubt rows of a batch, in an event loop that starts and ends here.

    Inside the loop, `watch` gets the refresh before it starts, so that the caller can drain it.
    """
    return asyncio.run(_run(task, tell, watch))


def refresh_all(
    settings: Settings,
    journal: Journal,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    watch: Callable[[Refresh], None],
) -> Iterator[tuple[BatchRecord, Refreshed]]:
    """Ask once about every accepted or in-doubt row of all batches. Yield the result for each batch."""
    section = settings.status_enquiry.model_copy(update={"limit_min": 0.0})
    once = settings.model_copy(update={"status_enquiry": section})
    for record in journal.batches():
        if not any(tally.state in OPEN_STATES for tally in journal.tallies(record.number)):
            continue
        rules = rules_of(once, record.operation)
        with gateway_of(once, rules, environ) as gateway:
            done = refresh(SendJob(once, rules, gateway, journal, record), tell, watch)
        yield record, done
        if done.interrupted:
            return


@asynccontextmanager
async def following_up(
    settings: Settings, connection: GatewayAccess, keep: Callable[[str], Awaitable[None]], tell: Callable[[str], None]
) -> AsyncIterator[FollowUp]:
    """Ask about unproven notifications inside the context, first about those that wait in the journal."""
    section = settings.status_enquiry

    def look(order_id: str) -> Sequence[Candidate]:
        if not place_of(settings).may_exist():
            return []
        with journal_to_read(settings, must_be_known=True) as journal:
            return journal.orders(order_id)

    async with _asking(settings, connection, PAYOUT, DateWatch(utc_now), tell) as ask:
        follow_up = FollowUp(
            look,
            ask,
            keep,
            words=settings.words(),
            politeness=Politeness(section.concurrency, section.rate_per_s, section.limit_min * 60),
            clock=Clock(time.monotonic, asyncio.sleep, utc_now),
            tell=tell,
        )
        under_way = asyncio.create_task(follow_up.run(await asyncio.to_thread(_doubts, settings)))
        try:
            yield follow_up
        finally:
            under_way.cancel()
            with suppress(asyncio.CancelledError):
                await under_way


def _doubts(settings: Settings) -> Sequence[Claim]:
    """Return a claim for each order that has an unproven notification waiting in the journal."""
    if not place_of(settings).may_exist():
        return []
    with journal_to_read(settings, must_be_known=True) as journal:
        waiting = [
            message
            for message in journal.messages().waiting
            if message.source is EvidenceSource.NOTIFICATION and message.finding is Finding.TO_CONFIRM
        ]
        candidates = [candidate for message in waiting for candidate in journal.orders(message.client_orderid)]
    return [Claim(candidate.sent_order_id or candidate.client_orderid) for candidate in candidates]


async def _run(task: SendJob, tell: Callable[[str], None], watch: Callable[[Refresh], None]) -> Refreshed:
    section, dates = task.settings.status_enquiry, DateWatch(utc_now)
    async with _asking(task.settings, task.connection, task.batch.operation, dates, tell) as ask:
        asking = Refresh(
            task.journal,
            task.batch,
            ask,
            words=task.settings.words(),
            minor_units=minor_units_of(task.rules),
            politeness=Politeness(section.concurrency, section.rate_per_s, section.limit_min * 60),
            clock=Clock(time.monotonic, asyncio.sleep, utc_now),
            take_in=lambda: judge_arrivals(task.settings, task.journal, tell, is_quiet=True),
        )
        watch(asking)
        refreshed = await asking.run()
    dates.note_in(task.journal)
    return refreshed


@asynccontextmanager
async def _asking(
    settings: Settings, connection: GatewayAccess, of_batch: str, dates: DateWatch, tell: Callable[[str], None]
) -> AsyncIterator[Ask]:
    """Yield the function that asks the gateway about an order of the operation `of_batch`. `dates` sees each reply."""
    signer, world, words = connection.signing.signer, real_world(), settings.words()
    not_found = settings.status_enquiry.not_found or ()
    async with (
        signers_at_work(signer.key, 1, tell) as signers,
        EnquiryClient(transport_settings(settings, connection.base_url)) as client,
    ):
        operation = load_enquiry(require_enquiry(settings), as_answered(settings, load_operation(of_batch)))
        urls = partial(operation_url, connection.base_url, operation)
        enquirer = Enquirer(urls, signer.consumer_key, signer.profile, signers)

        async def ask(expected: Expected, endpoint_id: str | None) -> EnquiryAnswer:
            endpoint_id = endpoint_id or settings.gateway.endpoint_id or ""
            nonce, timestamp_s = world.nonce(), int(world.now().timestamp())
            request = await enquirer.prepare(expected, endpoint_id=endpoint_id, nonce=nonce, timestamp_s=timestamp_s)
            came_back = await client.ask(request)
            dates.see(came_back)
            return read_answer(came_back, expected, words, operation, not_found=not_found, now=utc_now())

        yield ask


class OrderNeeded(ApprovalError):
    """Two people have to settle these rows; nothing was settled."""


@dataclass(frozen=True, slots=True)
class AskedStatement:
    """A statement that a person wants to carry out. `by` is the person, whose `words` precede the statement's evidence.

    `as_of` is the time for lines that state none. With `matching_only`, the matching lines are settled even if other
    lines do not match. With `again`, a file may be carried out for the batch a second time.
    """

    statement: Statement
    by: str
    words: str | None = None
    as_of: TimeSpan | None = None
    matching_only: bool = False
    again: bool = False

    def is_refused(self, matched: Matched) -> bool:
        """Return whether nothing is settled, because a line does not match."""
        return bool(matched.differences) and not self.matching_only

    def settlements(self, matched: Matched) -> Sequence[Settlement]:
        """Return the settlements of the statement, with the person's words before the evidence."""
        settlements, words = matched.settlements, self.words
        return [replace(settlement, words=words) for settlement in settlements] if words else settlements

    def carried_out_before(self, journal: JournalReader, record: BatchRecord) -> str:
        """Return the sentence that this very file was already carried out for the batch, or an empty text."""
        done = [earlier for earlier in journal.carried_out(record.batch) if earlier.sha256 == self.statement.sha256]
        if not done:
            return ""
        by = decided_by(done[-1].by)
        return say(
            "{name} was already applied to this batch at {at} by {by}.", name=self.statement.name, at=done[-1].at, by=by
        )

    def refuse_again(self, journal: JournalReader, record: BatchRecord) -> None:
        """Raise `UsageError` if the file was already carried out for the batch, unless `again` is set."""
        if (done := self.carried_out_before(journal, record)) and not self.again:
            raise UsageError(
                f"{done} {say('Nothing was changed.')}",
                hint=say(
                    "Each file is applied once. --again repeats it; each line must still be about the latest attempt."
                ),
                for_terminal=True,
            )


@dataclass(frozen=True, slots=True)
class CarriedOutStatement:
    """The result of carrying out a statement: the settled rows, and the number of orders that are held."""

    matched: Matched
    settled: Sequence[Settlement]
    held: int


@dataclass(frozen=True, slots=True)
class SettleChoice:
    """An outcome with which a row may be settled, from the time `opens` on (empty: now), perhaps only by two people.

    `again_from` is when the row could then be sent again; empty means at once, or never.
    """

    resolution: Resolution
    opens: str
    needs_two: bool
    again_from: str


def as_of_time(text: str, field: str = "--as-of") -> TimeSpan:
    """Return the time of a statement that a person wrote in `field`. Raises `UsageError` for an unusable text."""
    if (span := read_time(text)) is None:
        raise UsageError(
            say("{field} {text!r} is unclear.", field=field, text=text),
            hint=say("Write it as {written}.", written=WRITTEN),
        )
    if span.start > utc_now() + timedelta(seconds=MAX_AHEAD_S):
        raise UsageError(
            say("{field} {text} is in the future.", field=field, text=text),
            hint=say("A statement cannot be dated in the future."),
        )
    return span


def settle_choices(
    settings: Settings, journal: JournalReader, record: BatchRecord, row: RowState
) -> Sequence[SettleChoice]:
    """Return the outcomes with which a person may settle a row, now or later; none if the row needs no settling."""
    now, hold = utc_now(), journal.holds(record.number).get(row.row)
    opens = open_from(row, JournalClock.read(journal, now).quarantine(settings.submission.quarantine_h), hold)
    later = timestamp(opens) if opens is not None and now < opens else ""
    choices = []
    for way in Resolution:
        if may_settle(row.state, way, is_held=hold is not None):
            needs_two = policy_of(settings) is not None and needs_second_person(row.state, way)
            shut_until = later if way is Resolution.NOT_RECEIVED else ""
            choices.append(SettleChoice(way, shut_until, needs_two, "" if way is Resolution.PAID else later))
    return choices


def settle_by_word(
    settings: Settings, journal: Journal, record: BatchRecord, settlements: Sequence[Settlement], by: str
) -> None:
    """Settle rows on the decision of one person. Raises `OrderNeeded` if two people must agree."""
    standings = _check(settings, journal, record, settlements)
    require_one_is_enough(settings, journal, record, settlements)
    settle(journal, record, settlements, by=by, now=utc_now, standings=standings)


def compare_statement(
    settings: Settings, journal: JournalReader, record: BatchRecord, asked: AskedStatement
) -> Matched:
    """Compare a statement with a batch. This writes nothing."""
    return _reader(settings, journal, record, asked).match(asked.statement)


def carry_out_statement(
    settings: Settings,
    journal: Journal,
    record: BatchRecord,
    asked: AskedStatement,
    show: Callable[[Matched, int], None],
) -> CarriedOutStatement:
    """Settle rows from a statement, and hold the orders that the gateway has according to the statement.

    `show` is called before rows are settled, with the comparison and the number of orders that are now held.
    """
    asked.refuse_again(journal, record)
    matched = compare_statement(settings, journal, record, asked)
    # Orders are held first, even if the statement is refused. An order that the gateway already has must not be sent
    # from here, whatever a person decides about the other lines.
    held = hold_contrary(settings, journal, record, asked, matched)
    show(matched, held)
    if asked.is_refused(matched):
        return CarriedOutStatement(matched, (), held)
    JournalClock.read(journal, utc_now()).require_sound()
    settlements = asked.settlements(matched)
    require_one_is_enough(settings, journal, record, settlements)
    statement, attempts = asked.statement, tuple(sorted(matched.attempts.items()))
    carried_out = CarriedOut(record.batch, statement.name, statement.sha256, asked.by, attempts=attempts)
    # Workers and other people continue meanwhile. A row that was sent again since is not the row that was compared.
    settle(journal, record, settlements, by=asked.by, now=utc_now, carried_out=carried_out, standings=matched.standings)
    return CarriedOutStatement(matched, settlements, held)


def hold_contrary(
    settings: Settings, journal: Journal, record: BatchRecord, asked: AskedStatement, matched: Matched
) -> int:
    """Hold the unsent orders that the gateway already has according to a statement, and return their number."""
    if not matched.contrary:
        return 0
    reader = _reader(settings, journal, record, asked)
    evidence = reader.evidence(asked.statement, matched.contrary, asked.by)
    findings = journal.record_evidence(evidence, reader.meanings(asked.statement), at=timestamp(utc_now()))
    return sum(finding in HOLDING for finding in findings)


def draft_order(
    settings: Settings,
    journal: JournalReader,
    record: BatchRecord,
    decisions: Sequence[Decision],
    maker: PublicKey,
    *,
    statement: Statement | None = None,
) -> RowOrder:
    """Return the unsigned order to settle or release rows. Raises `UsageError` if that may not be done."""
    known_maker(maker, required_policy(settings), say("No order was written."))
    if not decisions:
        raise UsageError(say("There is no row to settle or to release now, so no order was written."))
    if decisions[0].act is RowAct.RELEASE:
        quarantine_h = settings.submission.quarantine_h
        check_releasable(journal, record, [entry.row for entry in decisions], quarantine_h=quarantine_h, now=utc_now)
    else:
        _check(settings, journal, record, [decision.settlement for decision in decisions])
    source = None if statement is None else AskedStatement(statement, "")
    attempts = None if source is None else compare_statement(settings, journal, record, source).attempts
    endpoint = settings.endpoint()
    content = row_content(journal, record, decisions, endpoint=endpoint, statement=statement, attempts=attempts)
    return unsigned_order(content, maker, utc_now())


def carry_out_order(
    settings: Settings, journal: Journal, order: RowOrder, by: str, *, folders: Sequence[Path] = ()
) -> OrderInForce:
    """Carry out an order to settle rows, once. Raises `ApprovalError` if it is not valid.

    If the order cites the gateway, its statement is read and verified again, from one of `folders` or from the folder
    of the transfer.
    """
    policy, endpoint = required_policy(settings), settings.endpoint()
    in_force = order_in_force(order, journal, policy, utc_now(), by=by, endpoint=endpoint)
    if order.claims_the_gateways_word:
        content = order.content
        statement = statement_with_digest(settings, content.statement, content.statement_sha256, folders)
        order.require_said_by(
            statement, lambda current: compare_statement(settings, journal, in_force.batch, AskedStatement(current, by))
        )
    standings = _check(settings, journal, in_force.batch, order.settlements)
    settle(
        journal,
        in_force.batch,
        order.settlements,
        by=in_force.by,
        now=utc_now,
        carried_out=order.carried_out(in_force.by),
        order=in_force.kept,
        standings=standings,
    )
    return in_force


def require_one_is_enough(
    settings: Settings, journal: JournalReader, record: BatchRecord, settlements: Sequence[Settlement]
) -> None:
    """Raise `OrderNeeded` if two people must make `settlements`."""
    if rows := needs_order(settings, journal, record, settlements):
        raise OrderNeeded(f"{needs_order_sentence(rows)} {say('Nothing was settled.')}")


def needs_order_sentence(rows: Sequence[int]) -> str:
    """Return the sentence that says why settling `rows` needs two people."""
    first, count = rows[0], len(rows)
    one = say("row {row}", row=first)
    named = one if count == 1 else say("{rows:,} rows, starting with row {first},", rows=count, first=first)
    return say("This would allow {named} to be paid again, so two people must agree.", named=named)


def _check(
    settings: Settings, journal: JournalReader, record: BatchRecord, settlements: Sequence[Settlement]
) -> Mapping[int, RowState]:
    quarantine_h = settings.submission.quarantine_h
    return check_settlements(journal, record, settlements, quarantine_h=quarantine_h, now=utc_now)


def _reader(settings: Settings, journal: JournalReader, record: BatchRecord, asked: AskedStatement) -> StatementReader:
    return StatementReader(
        journal,
        record,
        words=settings.words(),
        minor_units=minor_units_by_currency(),
        quarantine_h=settings.submission.quarantine_h,
        now=utc_now,
        as_of=asked.as_of,
    )


def needs_order(
    settings: Settings, journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement]
) -> Sequence[int]:
    """Return the rows that one person may not settle this way. If approvals are required, the sum does not matter."""
    if policy_of(settings) is None:
        return []
    standings = standings_of(journal, batch, {entry.row for entry in settlements})
    pairs = ((entry, standings.get(entry.row)) for entry in settlements)
    return [entry.row for entry, row in pairs if row is not None and needs_second_person(row.state, entry.resolution)]
