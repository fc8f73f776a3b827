"""Asking after a batch: settings become the parts of a refresh."""

import asyncio
import time
from collections.abc import Callable

from paygw_batch.clock import utc_now
from paygw_batch.compose.actions.send import Task, real_world
from paygw_batch.compose.operations import as_answered, minor_units_of, operation_of
from paygw_batch.compose.run_journal import take_in_waiting
from paygw_batch.countries.load import load_enquiry
from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.address import operation_url
from paygw_batch.gateway.enquiry import Enquirer, EnquiryAnswer, read_answer
from paygw_batch.gateway.http.httpx_transport import GatewayClient
from paygw_batch.gateway.message import Expected
from paygw_batch.run.quarantine_clock import DateWatch
from paygw_batch.run.refresh import Ask, Clock, Politeness, Refresh, Refreshed
from paygw_batch.settings.configuration import Settings


def require_enquiry(settings: Settings) -> str:
    """Return the configured profile of status enquiries. Raises `ConfigurationError` where none is."""
    if settings.status_enquiry.profile is None:
        raise ConfigurationError(
            "The configuration does not say status_enquiry.profile: enquiries are off.",
            hint="The gateway's interface shows no status enquiry. Where the operator's gateway has one, write "
            '[status_enquiry] profile = "paynet-v4".',
        )
    return settings.status_enquiry.profile


def refresh(task: Task, tell: Callable[[str], None], watch: Callable[[Refresh], None]) -> Refreshed:
    """Ask after the rows of a batch that are accepted or in doubt, in an event loop of its own.

    `watch` is given the refresh inside the loop, before it starts: whoever wants to drain it keeps it.
    """
    return asyncio.run(_run(task, tell, watch))


async def _run(task: Task, tell: Callable[[str], None], watch: Callable[[Refresh], None]) -> Refreshed:
    section = task.settings.status_enquiry
    dates = DateWatch(utc_now)
    async with GatewayClient(task.connection.transport) as client:
        one = Refresh(
            task.journal,
            task.batch,
            _asking(task, client, dates),
            words=task.settings.words(),
            minor_units=minor_units_of(task.rules),
            politeness=Politeness(section.concurrency, section.rate_per_s, section.limit_min * 60),
            clock=Clock(time.monotonic, asyncio.sleep, utc_now),
            take_in=lambda: take_in_waiting(task.settings, task.journal, tell, is_quiet=True),
        )
        watch(one)
        refreshed = await one.run()
    dates.note_in(task.journal)
    return refreshed


def _asking(task: Task, client: GatewayClient, dates: DateWatch) -> Ask:
    settings, connection = task.settings, task.connection
    signer = connection.signing.signer
    operation = load_enquiry(require_enquiry(settings), as_answered(settings, operation_of(task.rules)))
    url = operation_url(connection.base_url, operation, settings.gateway.endpoint_id or "")
    enquirer = Enquirer(url, signer.consumer_key, signer.profile, signer.key)
    world, words, not_found = real_world(), settings.words(), settings.status_enquiry.not_found or ()

    async def ask(expected: Expected) -> EnquiryAnswer:
        request = enquirer.prepare(expected, nonce=world.nonce(), timestamp_s=int(world.now().timestamp()))
        came_back = await client.ask(request)
        dates.see(came_back)
        return read_answer(came_back, expected, words, operation, not_found=not_found, now=utc_now())

    return ask
