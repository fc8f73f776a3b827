"""`paygw-batch listen`: receives the gateway's notifications, and records them whenever the journal is free."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, closing, nullcontext, suppress
from functools import partial

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation, WholeNumber
from paygw_batch.cli.options import output_guard, settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.signals import interruption
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.evidence import Finding
from paygw_batch.countries.load import load_operation
from paygw_batch.errors import HolderKind, JournalError, JournalHeld
from paygw_batch.gateway.notification import read_notification
from paygw_batch.journal import Arrival
from paygw_batch.journal.location import RecordNotes
from paygw_batch.language import mark, say
from paygw_batch.listener import GroupedWriter, Limits, ListenerApp, serve
from paygw_batch.opening.gateway_access import (
    GatewayAccess,
    build_authenticity_check,
    listener_path,
    notification_fields,
    open_gateway,
)
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.opening.open_journal import journal_location, open_to_write, require_journal_id
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.unattended.metrics import EndedRun, write_metrics
from paygw_batch.web_server import LOOPBACK

PROCESSING_INTERVAL_S = 1.0
"""The interval between checks for pending notifications."""
MAX_PROCESSED_PER_LOCK = 200
"""The approximate number of notifications processed before the journal is released for other processes."""
METRICS_INTERVAL_S = 10.0
"""The minimum interval between writes of the metrics."""
FAILURE_DELAY_S = 30.0
"""The delay before the journal is used again after an error."""


@click.command("listen", cls=HelpCommand)
@click.option("--port", type=WholeNumber(0, 65535), help="Port on loopback (0 picks a free port).")
@click.pass_obj
def listen_command(invocation: Invocation, *, port: int | None) -> None:
    """Receive the gateway's notifications on loopback until interrupted, even during a run.

    For TLS, put a proxy in front of the listener. Each notification is stored before the gateway gets a reply.
    """
    screen, settings = Screen(invocation), settings_for(invocation, {("notifications", "port"): port})
    output_guard(invocation, settings).check(reporting=True)
    path = listener_path(settings, os.environ)
    fields = notification_fields(settings, load_operation(PAYOUT))
    check = build_authenticity_check(settings, fields, os.environ)
    section = settings.notifications
    require_journal_id(settings, "listen")
    processor = _ArrivalProcessor(settings, screen)
    with (
        journal_location(settings).open_note_recorder() as record_notes,
        closing(GroupedWriter(partial(_store_arrivals, record_notes, processor))) as writer,
        _open_enquiry_gateway(settings) as gateway,
    ):
        app = ListenerApp(
            path,
            read_claim=partial(read_notification, names=fields, check=check),
            store=writer.write,
            limits=Limits(section.max_body_kib * 1024, section.rate_per_s),
            now=lambda: timestamp(utc_now()),
            monotonic_s=time.monotonic,
            header=section.header,
        )
        screen.notes(list(_startup_notes(settings, has_check=check is not None)))

        def report_ready(port: int) -> None:
            values = {"host": LOOPBACK, "port": port, "journal": settings.journal_label()}
            screen.say(say("Listening on {host}:{port}. Notifications are stored in the journal {journal}.", **values))

        async def serve_and_process() -> None:
            async with AsyncExitStack() as stack:
                if gateway is not None:
                    from paygw_batch.settle.settle_rows import run_follow_up  # noqa: PLC0415 (slow: imports httpx)

                    follow_up = run_follow_up(settings, gateway, writer.write, lambda note: screen.notes([note]))
                    app.follow_up = (await stack.enter_async_context(follow_up)).queue_claim
                processing = asyncio.create_task(processor.run())
                await serve(app, section.port, client_timeout_s=section.client_timeout_s, on_ready=report_ready)
            processing.cancel()
            with suppress(asyncio.CancelledError):
                await processing

        asyncio.run(serve_and_process())
        interruption.restore_handlers()
        writer.close()  # stores every notification before the last ones are processed
        processor.finish()
    counts = dict(sorted(app.counts.items()))
    summary = Summary(
        ExitCode.DONE,
        say("The listener has stopped. Notifications stored: {count:,}.", count=app.counts["kept"]),
        extra={"requests": counts, "findings": dict(sorted(processor.findings.items()))},
    )
    if (failure := write_metrics(settings, EndedRun("listen", summary))) is not None:
        screen.notes([failure])
    screen.finish(summary)


def _uses_enquiries(settings: Settings) -> bool:
    return settings.notifications.on_unproven == "refresh" and settings.status_enquiry.profile is not None


def _open_enquiry_gateway(settings: Settings) -> AbstractContextManager[GatewayAccess | None]:
    return (
        open_gateway(settings, rules_for(settings, PAYOUT), os.environ) if _uses_enquiries(settings) else nullcontext()
    )


def _startup_notes(settings: Settings, *, has_check: bool) -> Iterator[str]:
    if _uses_enquiries(settings):
        yield say("The gateway is asked about each unverified notification as soon as it arrives.")
        return
    if settings.notifications.on_unproven is not None:
        yield say('on_unproven = "refresh" has no effect, because status_enquiry.profile is not set.')
    if not has_check:
        yield say("No authenticity check is configured, so a person must confirm each notification.")


def _store_arrivals(record_notes: RecordNotes, processor: "_ArrivalProcessor", contents: Sequence[str]) -> None:
    now = timestamp(utc_now())
    record_notes([Arrival(content, now) for content in contents])
    processor.may_have_arrivals = True


class _ArrivalProcessor:
    """Processes pending notifications while no run holds the journal. Steps are short, so that runs can start."""

    def __init__(self, settings: Settings, screen: Screen) -> None:
        self.findings: Counter[Finding] = Counter()
        self.may_have_arrivals = True
        """Whether there may be pending notifications."""
        self._settings = settings
        self._screen = screen
        self._last_note = ""
        self._are_metrics_current = True
        self._metrics_written_s = -METRICS_INTERVAL_S

    async def run(self) -> None:
        """Process pending notifications at intervals. When cancelled, finish the current step first."""
        while True:
            await asyncio.sleep(PROCESSING_INTERVAL_S)
            step = asyncio.create_task(asyncio.to_thread(self._process_and_write_metrics))
            try:
                is_journal_usable = await asyncio.shield(step)
            except asyncio.CancelledError:
                await step
                raise
            if not is_journal_usable:
                await asyncio.sleep(FAILURE_DELAY_S)

    def finish(self) -> None:
        """Process the remaining notifications when the listener ends, if the journal is free."""
        processed_count = -1
        while self.may_have_arrivals and processed_count != self.findings.total() and self._process_arrivals():
            processed_count = self.findings.total()

    def _process_and_write_metrics(self) -> bool:
        is_journal_usable = self._process_arrivals()
        if not self._are_metrics_current and time.monotonic() >= self._metrics_written_s + METRICS_INTERVAL_S:
            self._are_metrics_current, self._metrics_written_s = True, time.monotonic()
            if (failure := write_metrics(self._settings, None)) is not None:
                self._show_note_once(failure)
        return is_journal_usable

    def _process_arrivals(self) -> bool:
        """Process the next pending notifications. Return False if the journal is unusable, True if it is only busy."""
        if not self.may_have_arrivals:
            return True
        try:
            with closing(open_to_write(self._settings, "listen", HolderKind.LISTENER)) as journal:
                journal.mark_interrupted(timestamp(utc_now()))
                now = timestamp(utc_now())
                self.may_have_arrivals = False  # every notification that arrives later sets it again
                findings = journal.process_arrivals(self._settings.words(), at=now, at_most=MAX_PROCESSED_PER_LOCK)
                self.findings += findings
                if journal.has_arrivals():
                    self.may_have_arrivals = True
            self._are_metrics_current &= not findings
        except JournalHeld:
            return True
        except JournalError as error:
            template = mark("Notifications are stored, but could not be recorded in the journal yet: {message} {hint}")
            self._show_note_once(say(template, message=error.message, hint=error.hint))
            return False
        return True

    def _show_note_once(self, message: str) -> None:
        if message != self._last_note:
            self._last_note = message
            self._screen.notes([message])
