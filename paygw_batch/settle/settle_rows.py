"""Settles rows of a batch by one person's decision, by the gateway's statement or answer, or by an order."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from paygw_batch.approval.approval_keys import PublicKey
from paygw_batch.approval.policy import approval_policy, require_maker, require_policy
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.evidence import HOLDING_FINDINGS, Candidate, Claim, EvidenceSource, Finding
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.core.shown_states import format_decider
from paygw_batch.countries.load import load_enquiry, load_operation, minor_units_by_currency
from paygw_batch.engine.quarantine import CLOCK_TOLERANCE_S, ClockComparer, JournalClock
from paygw_batch.errors import ApprovalError, ConfigurationError, UsageError
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.enquiry import EnquiryAnswer, EnquirySigner, parse_answer
from paygw_batch.gateway.http.enquiry_client import EnquiryClient
from paygw_batch.gateway.message import ExpectedReply
from paygw_batch.gateway.signing.signers import start_signers
from paygw_batch.journal import BatchRecord, Journal, JournalReader, RowState, StatementNote
from paygw_batch.language import say
from paygw_batch.opening.gateway_access import GatewayAccess, SendJob, open_gateway, system_runtime, transport_settings
from paygw_batch.opening.given_sheet import rule_minor_units, rules_for, with_reply_names
from paygw_batch.opening.open_journal import Echo, journal_location, open_journal_to_read, process_arrivals
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.match_statement import StatementMatch, StatementMatcher
from paygw_batch.settle.refresh import OPEN_STATES, Clock, Enquire, EnquiryLimits, FollowUp, Refresh, RefreshResult
from paygw_batch.settle.resolve import (
    Settlement,
    check_releasable,
    check_settlements,
    may_settle,
    needs_second_person,
    quarantine_end,
    row_states,
    settle,
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
from paygw_batch.settle.statement import TIME_EXAMPLES, Statement, TimeSpan, find_statement, parse_time_span


def require_enquiry_profile(settings: Settings) -> str:
    """Return the profile for status enquiries. Raises `ConfigurationError` if none is configured."""
    if settings.status_enquiry.profile is None:
        raise ConfigurationError(
            say("Enquiries are off, because status_enquiry.profile is not set."),
            hint=say(
                "The gateway's documentation does not include a status enquiry. If your operator's gateway has one, "
                'set [status_enquiry] profile = "paynet-v4".'
            ),
        )
    return settings.status_enquiry.profile


def refresh(job: SendJob, echo: Echo, on_start: Callable[[Refresh], None]) -> RefreshResult:
    """Ask the gateway about a batch's accepted rows and rows in doubt. Calls `on_start` with the `Refresh`."""
    return asyncio.run(_refresh(job, echo, on_start))


def refresh_all(
    settings: Settings, journal: Journal, environ: Mapping[str, str], echo: Echo, on_start: Callable[[Refresh], None]
) -> Iterator[tuple[BatchRecord, RefreshResult]]:
    """Ask once about each row that is accepted or in doubt, and yield the result for each batch."""
    section = settings.status_enquiry.model_copy(update={"limit_min": 0.0})
    one_round_settings = settings.model_copy(update={"status_enquiry": section})
    for batch in journal.batches():
        if not any(tally.state in OPEN_STATES for tally in journal.tallies(batch.number)):
            continue
        rules = rules_for(one_round_settings, batch.operation)
        with open_gateway(one_round_settings, rules, environ) as gateway:
            result = refresh(SendJob(one_round_settings, rules, gateway, journal, batch), echo, on_start)
        yield batch, result
        if result.interrupted:
            return


@asynccontextmanager
async def run_follow_up(
    settings: Settings, gateway: GatewayAccess, store: Callable[[str], Awaitable[None]], echo: Echo
) -> AsyncIterator[FollowUp]:
    """Ask about unproven notifications in the background, starting with those waiting in the journal."""
    section = settings.status_enquiry

    def find_instructions(order_id: str) -> Sequence[Candidate]:
        if not journal_location(settings).may_exist():
            return []
        with open_journal_to_read(settings, must_be_known=True) as journal:
            return journal.candidates(order_id)

    async with _open_enquiry_client(settings, gateway, PAYOUT, ClockComparer(utc_now), echo) as enquire:
        follow_up = FollowUp(
            find_instructions,
            enquire,
            store,
            words=settings.words(),
            limits=EnquiryLimits(section.concurrency, section.rate_per_s, section.limit_min * 60),
            clock=Clock(time.monotonic, asyncio.sleep, utc_now),
            echo=echo,
        )
        task = asyncio.create_task(follow_up.run(await asyncio.to_thread(_waiting_claims, settings)))
        try:
            yield follow_up
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _waiting_claims(settings: Settings) -> Sequence[Claim]:
    """Return a claim for each order with an unproven notification in the journal."""
    if not journal_location(settings).may_exist():
        return []
    with open_journal_to_read(settings, must_be_known=True) as journal:
        waiting = [
            message
            for message in journal.messages().waiting
            if message.source is EvidenceSource.NOTIFICATION and message.finding is Finding.TO_CONFIRM
        ]
        candidates = [candidate for message in waiting for candidate in journal.candidates(message.client_orderid)]
    return [Claim(candidate.sent_order_id or candidate.client_orderid) for candidate in candidates]


async def _refresh(job: SendJob, echo: Echo, on_start: Callable[[Refresh], None]) -> RefreshResult:
    section, clocks = job.settings.status_enquiry, ClockComparer(utc_now)
    async with _open_enquiry_client(job.settings, job.gateway, job.batch.operation, clocks, echo) as enquire:
        refresh_run = Refresh(
            job.journal,
            job.batch,
            enquire,
            words=job.settings.words(),
            minor_units=rule_minor_units(job.rules),
            limits=EnquiryLimits(section.concurrency, section.rate_per_s, section.limit_min * 60),
            clock=Clock(time.monotonic, asyncio.sleep, utc_now),
            record_arrivals=lambda: process_arrivals(job.settings, job.journal, echo, is_quiet=True),
        )
        on_start(refresh_run)
        result = await refresh_run.run()
    clocks.record_in(job.journal)
    return result


@asynccontextmanager
async def _open_enquiry_client(
    settings: Settings, gateway: GatewayAccess, operation_name: str, clocks: ClockComparer, echo: Echo
) -> AsyncIterator[Enquire]:
    """Yield a function that asks the gateway about orders of one operation."""
    signer, runtime, words = gateway.signing.signer, system_runtime(), settings.words()
    not_found = settings.status_enquiry.not_found or ()
    async with (
        start_signers(signer.key, 1, echo) as signers,
        EnquiryClient(transport_settings(settings, gateway.base_url)) as client,
    ):
        operation = load_enquiry(
            require_enquiry_profile(settings), with_reply_names(settings, load_operation(operation_name))
        )
        url_for = partial(operation_url, gateway.base_url, operation)
        enquirer = EnquirySigner(url_for, signer.consumer_key, signer.profile, signers)

        async def enquire(expected: ExpectedReply, endpoint_id: str | None) -> EnquiryAnswer:
            endpoint_id = endpoint_id or settings.gateway.endpoint_id or ""
            nonce, timestamp_s = runtime.nonce(), int(runtime.now().timestamp())
            request = await enquirer.prepare(expected, endpoint_id=endpoint_id, nonce=nonce, timestamp_s=timestamp_s)
            reply = await client.send(request)
            clocks.observe_reply(reply)
            return parse_answer(reply, expected, words, operation, not_found=not_found, now=utc_now())

        yield enquire


class SecondPersonRequired(ApprovalError):
    """Two people must agree to settle these rows. Nothing was settled."""


@dataclass(frozen=True, slots=True)
class RequestedStatement:
    """A statement that the person `by` wants to carry out. Their `words` are shown before the evidence.

    `as_of` is the time of lines that have none. With `matching_only`, matching lines are carried out even if others do
    not match. With `again`, a file may be carried out for the same batch again.
    """

    statement: Statement
    by: str
    words: str | None = None
    as_of: TimeSpan | None = None
    matching_only: bool = False
    again: bool = False

    def is_refused(self, match: StatementMatch) -> bool:
        """Return whether the statement must be refused because a line does not match."""
        return bool(match.differences) and not self.matching_only

    def settlements(self, match: StatementMatch) -> Sequence[Settlement]:
        """Return the settlements with the person's words added."""
        settlements, words = match.settlements, self.words
        return [replace(settlement, words=words) for settlement in settlements] if words else settlements

    def reuse_message(self, journal: JournalReader, batch: BatchRecord) -> str:
        """Return a message if the file was already carried out for the batch, or an empty string."""
        uses = [use for use in journal.carried_out_statements(batch.batch) if use.sha256 == self.statement.sha256]
        if not uses:
            return ""
        name, by = self.statement.name, format_decider(uses[-1].by)
        return say("{by} already applied {name} to this batch at {at}.", name=name, at=uses[-1].at, by=by)

    def require_first_use(self, journal: JournalReader, batch: BatchRecord) -> None:
        """Raise `UsageError` if the file was already carried out for the batch and `again` is not set."""
        if (message := self.reuse_message(journal, batch)) and not self.again:
            raise UsageError(
                f"{message} {say('Nothing was changed.')}",
                hint=say(
                    "A file can be applied only once. To apply it again, use --again. Each line must still be about "
                    "the latest attempt."
                ),
                for_terminal=True,
            )


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of carrying out a statement. `held` is the number of held orders."""

    match: StatementMatch
    settled: Sequence[Settlement]
    held: int


@dataclass(frozen=True, slots=True)
class SettleChoice:
    """A resolution that a person may choose, starting at `open_from` if it is set.

    `needs_two` is set if a second person must agree. `retry_from` is when the row may be sent again, or empty if it may
    be sent again immediately or never.
    """

    resolution: Resolution
    open_from: str
    needs_two: bool
    retry_from: str


def parse_as_of(text: str, field: str = "--as-of") -> TimeSpan:
    """Parse a statement's time as entered in `field`. Raises `UsageError` if it is unclear or in the future."""
    if (span := parse_time_span(text)) is None:
        raise UsageError(
            say("{field} {text!r} is unclear.", field=field, text=text),
            hint=say("Write it as {written}.", written=TIME_EXAMPLES),
        )
    if span.start > utc_now() + timedelta(seconds=CLOCK_TOLERANCE_S):
        raise UsageError(
            say("{field} {text} is in the future.", field=field, text=text),
            hint=say("A statement cannot be dated in the future."),
        )
    return span


def settle_choices(
    settings: Settings, journal: JournalReader, batch: BatchRecord, row: RowState
) -> Sequence[SettleChoice]:
    """Return the resolutions that a person may choose for a row, either now or later."""
    now, hold = utc_now(), journal.holds(batch.number).get(row.row)
    end = quarantine_end(row, JournalClock.read(journal, now).quarantine(settings.submission.quarantine_h), hold)
    quarantine_ends_at = timestamp(end) if end is not None and now < end else ""
    choices = []
    for resolution in Resolution:
        if may_settle(row.state, resolution, is_held=hold is not None):
            needs_two = approval_policy(settings) is not None and needs_second_person(row.state, resolution)
            opens_at = quarantine_ends_at if resolution is Resolution.NOT_RECEIVED else ""
            retry_from = "" if resolution is Resolution.PAID else quarantine_ends_at
            choices.append(SettleChoice(resolution, opens_at, needs_two, retry_from))
    return choices


def settle_by_decision(
    settings: Settings, journal: Journal, batch: BatchRecord, settlements: Sequence[Settlement], by: str
) -> None:
    """Settle rows by one person's decision. Raises `SecondPersonRequired` if two people must agree."""
    states = _check_settlements(settings, journal, batch, settlements)
    check_one_person_suffices(settings, journal, batch, settlements)
    settle(journal, batch, settlements, by=by, now=utc_now, standings=states)


def compare_statement(
    settings: Settings, journal: JournalReader, batch: BatchRecord, request: RequestedStatement
) -> StatementMatch:
    """Compare a statement with a batch. Writes nothing."""
    return _statement_matcher(settings, journal, batch, request).match(request.statement)


def carry_out_statement(
    settings: Settings,
    journal: Journal,
    batch: BatchRecord,
    request: RequestedStatement,
    show: Callable[[StatementMatch, int], None],
) -> StatementResult:
    """Settle rows by a statement, and hold unsent orders that the gateway already has.

    `show` is called before rows are settled, with the comparison and the number of held orders.
    """
    request.require_first_use(journal, batch)
    match = compare_statement(settings, journal, batch, request)
    # Orders are held first, even if the statement is refused: an order that the gateway already has must not be sent
    # from here, regardless of the other lines.
    held_count = hold_blocked_orders(settings, journal, batch, request, match)
    show(match, held_count)
    if request.is_refused(match):
        return StatementResult(match, (), held_count)
    JournalClock.read(journal, utc_now()).require_plausible()
    settlements = request.settlements(match)
    check_one_person_suffices(settings, journal, batch, settlements)
    statement, attempts = request.statement, tuple(sorted(match.attempts.items()))
    note = StatementNote(batch.batch, statement.name, statement.sha256, request.by, attempts=attempts)
    # Workers and other people keep working in the meantime. A row that has since been resent was not compared.
    settle(journal, batch, settlements, by=request.by, now=utc_now, statement_note=note, standings=match.standings)
    return StatementResult(match, settlements, held_count)


def hold_blocked_orders(
    settings: Settings, journal: Journal, batch: BatchRecord, request: RequestedStatement, match: StatementMatch
) -> int:
    """Hold unsent orders that the gateway already has according to a statement. Returns their number."""
    if not match.blocking:
        return 0
    matcher = _statement_matcher(settings, journal, batch, request)
    evidence = matcher.evidence(request.statement, match.blocking, request.by)
    findings = journal.record_evidence(evidence, matcher.meanings(request.statement), at=timestamp(utc_now()))
    return sum(finding in HOLDING_FINDINGS for finding in findings)


def draft_order(
    settings: Settings,
    journal: JournalReader,
    batch: BatchRecord,
    decisions: Sequence[Decision],
    maker: PublicKey,
    *,
    statement: Statement | None = None,
) -> RowOrder:
    """Draft an order to settle or release rows. Raises `UsageError` if a row cannot be settled or released."""
    require_maker(maker, require_policy(settings), say("No order was written."))
    if not decisions:
        raise UsageError(say("No row can be settled or released now, so no order was written."))
    if decisions[0].act is RowAct.RELEASE:
        quarantine_h = settings.submission.quarantine_h
        check_releasable(journal, batch, [entry.row for entry in decisions], quarantine_h=quarantine_h, now=utc_now)
    else:
        _check_settlements(settings, journal, batch, [entry.settlement for entry in decisions])
    request = None if statement is None else RequestedStatement(statement, "")
    attempts = None if request is None else compare_statement(settings, journal, batch, request).attempts
    endpoint = settings.endpoint()
    content = row_content(journal, batch, decisions, endpoint=endpoint, statement=statement, attempts=attempts)
    return unsigned_order(content, maker, utc_now())


def carry_out_order(
    settings: Settings, journal: Journal, order: RowOrder, by: str, *, folders: Sequence[Path] = ()
) -> OrderInForce:
    """Carry out an order to settle rows. Raises `ApprovalError` if it is not valid or was already carried out.

    If the order cites the gateway, its statement is verified again, from one of `folders` or the transfer's folder.
    """
    policy, endpoint = require_policy(settings), settings.endpoint()
    in_force = order_in_force(order, journal, policy, utc_now(), by=by, endpoint=endpoint)
    if order.cites_gateway:
        content = order.content
        statement = find_statement(settings, content.statement, content.statement_sha256, folders)
        order.require_confirmed_by(
            statement,
            lambda current: compare_statement(settings, journal, in_force.batch, RequestedStatement(current, by)),
        )
    states = _check_settlements(settings, journal, in_force.batch, order.settlements)
    settle(
        journal,
        in_force.batch,
        order.settlements,
        by=in_force.by,
        now=utc_now,
        statement_note=order.statement_note(in_force.by),
        order=in_force.signed_order,
        standings=states,
    )
    return in_force


def check_one_person_suffices(
    settings: Settings, journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement]
) -> None:
    """Raise `SecondPersonRequired` if one of `settlements` needs a second person."""
    if rows := rows_needing_order(settings, journal, batch, settlements):
        raise SecondPersonRequired(f"{second_person_message(rows)} {say('Nothing was settled.')}")


def second_person_message(rows: Sequence[int]) -> str:
    """Return a message that two people must agree to settle `rows`."""
    first, count = rows[0], len(rows)
    first_row = say("row {row}", row=first)
    rows_text = first_row if count == 1 else say("{rows:,} rows, starting with row {first},", rows=count, first=first)
    return say("This would allow {named} to be paid again, so two people must agree.", named=rows_text)


def _check_settlements(
    settings: Settings, journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement]
) -> Mapping[int, RowState]:
    quarantine_h = settings.submission.quarantine_h
    return check_settlements(journal, batch, settlements, quarantine_h=quarantine_h, now=utc_now)


def _statement_matcher(
    settings: Settings, journal: JournalReader, batch: BatchRecord, request: RequestedStatement
) -> StatementMatcher:
    words, units, quarantine_h = settings.words(), minor_units_by_currency(), settings.submission.quarantine_h
    return StatementMatcher(
        journal, batch, words=words, minor_units=units, quarantine_h=quarantine_h, now=utc_now, as_of=request.as_of
    )


def rows_needing_order(
    settings: Settings, journal: JournalReader, batch: BatchRecord, settlements: Sequence[Settlement]
) -> Sequence[int]:
    """Return the rows of `settlements` that one person may not settle without an order."""
    if approval_policy(settings) is None:
        return []
    states = row_states(journal, batch, {entry.row for entry in settlements})
    pairs = ((entry, states.get(entry.row)) for entry in settlements)
    return [entry.row for entry, row in pairs if row is not None and needs_second_person(row.state, entry.resolution)]
