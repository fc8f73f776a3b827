"""Asks the gateway about the rows of a batch, as configured."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

from paygw_batch.actions.send import SendJob, real_world
from paygw_batch.clock import utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.evidence import Candidate, Claim, EvidenceSource, Finding
from paygw_batch.countries.load import load_enquiry, load_operation
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.enquiry import Enquirer, EnquiryAnswer, read_answer
from paygw_batch.gateway.http.enquiry_client import EnquiryClient
from paygw_batch.gateway.message import Expected
from paygw_batch.gateway.signing.signers import Signers, signers_at_work
from paygw_batch.journal import BatchRecord, Journal
from paygw_batch.language import say
from paygw_batch.run.quarantine_clock import DateWatch
from paygw_batch.run.refresh import OPEN_STATES, Ask, Clock, FollowUp, Politeness, Refresh, Refreshed
from paygw_batch.settings.configuration import Settings
from paygw_batch.wiring.gateway import GatewayAccess, gateway_of, transport_settings
from paygw_batch.wiring.journal import journal_to_read, judge_arrivals, place_of
from paygw_batch.wiring.operations import as_answered, minor_units_of, rules_of


def require_enquiry(settings: Settings) -> str:
    """Return the configured profile for status enquiries. Raises `ConfigurationError` if there is none."""
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

    `watch` gets the refresh inside the loop before it starts, so that the caller can drain it.
    """
    return asyncio.run(_run(task, tell, watch))


def refresh_all(
    settings: Settings,
    journal: Journal,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    watch: Callable[[Refresh], None],
) -> Iterator[tuple[BatchRecord, Refreshed]]:
    """Ask once about every accepted or in-doubt row of all batches; yield the answers for each batch."""
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
    """Ask about unproven notifications inside the context, starting with those waiting in the journal."""
    section = settings.status_enquiry

    def look(order_id: str) -> Sequence[Candidate]:
        if not place_of(settings).may_exist():
            return []
        with journal_to_read(settings, must_be_known=True) as journal:
            return journal.orders(order_id)

    async with AsyncExitStack() as stack:
        signers = await stack.enter_async_context(signers_at_work(connection.signing.signer.key, 1, tell))
        client = await stack.enter_async_context(EnquiryClient(transport_settings(settings, connection.base_url)))
        follow_up = FollowUp(
            look,
            _asking(settings, connection, client, signers, PAYOUT, DateWatch(utc_now)),
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
    """Return a claim for each order with an unproven notification waiting in the journal."""
    if not place_of(settings).may_exist():
        return []
    with journal_to_read(settings, must_be_known=True) as journal:
        waiting = [
            one
            for one in journal.messages().waiting
            if one.source is EvidenceSource.NOTIFICATION and one.finding is Finding.TO_CONFIRM
        ]
        found = [candidate for one in waiting for candidate in journal.orders(one.client_orderid)]
    return [Claim(candidate.sent_order_id or candidate.client_orderid) for candidate in found]


async def _run(task: SendJob, tell: Callable[[str], None], watch: Callable[[Refresh], None]) -> Refreshed:
    section = task.settings.status_enquiry
    dates = DateWatch(utc_now)
    reached = transport_settings(task.settings, task.connection.base_url)
    async with AsyncExitStack() as stack:
        signers = await stack.enter_async_context(signers_at_work(task.connection.signing.signer.key, 1, tell))
        client = await stack.enter_async_context(EnquiryClient(reached))
        one = Refresh(
            task.journal,
            task.batch,
            _asking(task.settings, task.connection, client, signers, task.batch.operation, dates),
            words=task.settings.words(),
            minor_units=minor_units_of(task.rules),
            politeness=Politeness(section.concurrency, section.rate_per_s, section.limit_min * 60),
            clock=Clock(time.monotonic, asyncio.sleep, utc_now),
            take_in=lambda: judge_arrivals(task.settings, task.journal, tell, is_quiet=True),
        )
        watch(one)
        refreshed = await one.run()
    dates.note_in(task.journal)
    return refreshed


def _asking(
    settings: Settings,
    connection: GatewayAccess,
    client: EnquiryClient,
    signers: Signers,
    batch_operation: str,
    dates: DateWatch,
) -> Ask:
    """Return the function that asks the gateway about one order; `dates` sees each reply."""
    signer = connection.signing.signer
    operation = load_enquiry(require_enquiry(settings), as_answered(settings, load_operation(batch_operation)))
    urls = partial(operation_url, connection.base_url, operation)
    enquirer = Enquirer(urls, signer.consumer_key, signer.profile, signers)
    world, words, not_found = real_world(), settings.words(), settings.status_enquiry.not_found or ()

    async def ask(expected: Expected, endpoint_id: str | None) -> EnquiryAnswer:
        endpoint_id = endpoint_id or settings.gateway.endpoint_id or ""
        timestamp_s = int(world.now().timestamp())
        request = await enquirer.prepare(
            expected, endpoint_id=endpoint_id, nonce=world.nonce(), timestamp_s=timestamp_s
        )
        came_back = await client.ask(request)
        dates.see(came_back)
        return read_answer(came_back, expected, words, operation, not_found=not_found, now=utc_now())

    return ask
