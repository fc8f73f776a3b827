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
from paygw_batch.journal.place import RecordNotes
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
from paygw_batch.opening.open_journal import journal_location, open_to_write, require_journal
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.unattended.metrics import EndedRun, write_metrics
from paygw_batch.web_server import LOOPBACK

JUDGE_INTERVAL_S = 1.0
"""The interval at which waiting notifications are judged."""
MAX_JUDGED_PER_LOCK = 200
"""The approximate number of notifications to judge before the journal is released for other processes."""
METRICS_INTERVAL_S = 10.0
"""The minimum interval between two writes of the metrics."""
FAILURE_DELAY_S = 30.0
"""The delay before the next attempt after the journal could not be used."""


@click.command("listen", cls=HelpCommand)
@click.option("--port", type=WholeNumber(0, 65535), help="Port on loopback; 0 picks a free port.")
@click.pass_obj
def listen_command(invocation: Invocation, *, port: int | None) -> None:
    """Receive the gateway's notifications on loopback until interrupted, even during a run.

    Put a proxy in front of it for TLS. Each notification is stored before it is answered.
    """
    screen, settings = Screen(invocation), settings_for(invocation, {("notifications", "port"): port})
    output_guard(invocation, settings).check(reporting=True)
    path = listener_path(settings, os.environ)
    names = notification_fields(settings, load_operation(PAYOUT))
    check = build_authenticity_check(settings, names, os.environ)
    section = settings.notifications
    require_journal(settings, "listen")
    judge = _ArrivalJudge(settings, screen)
    with (
        journal_location(settings).open_note_recorder() as store,
        closing(GroupedWriter(partial(_store_arrivals, store, judge))) as writer,
        _enquiry_connection(settings) as connection,
    ):
        app = ListenerApp(
            path,
            read_claim=partial(read_notification, names=names, check=check),
            store=writer.keep,
            limits=Limits(section.max_body_kib * 1024, section.rate_per_s),
            now=lambda: timestamp(utc_now()),
            monotonic_s=time.monotonic,
            header=section.header,
        )
        screen.notes(list(_startup_notes(settings, is_checked=check is not None)))

        def report_ready(port: int) -> None:
            address = {"host": LOOPBACK, "port": port, "journal": settings.journal_place()}
            screen.say(say("Listening on {host}:{port}. Notifications are stored in the journal {journal}.", **address))

        async def serve_and_judge() -> None:
            async with AsyncExitStack() as stack:
                if connection is not None:
                    from paygw_batch.settle.settle_rows import run_follow_up  # noqa: PLC0415 (httpx)

                    follow_up = run_follow_up(settings, connection, writer.keep, lambda note: screen.notes([note]))
                    app.follow_up = (await stack.enter_async_context(follow_up)).queue_claim
                judging = asyncio.create_task(judge.run())
                await serve(app, section.port, client_timeout_s=section.client_timeout_s, ready=report_ready)
            judging.cancel()
            with suppress(asyncio.CancelledError):
                await judging

        asyncio.run(serve_and_judge())
        interruption.restore_handlers()
        writer.close()  # every notification must be stored before the last ones are judged
        judge.finish()
    counts = dict(sorted(app.counts.items()))
    summary = Summary(
        ExitCode.DONE,
        say("The listener has stopped. Notifications stored: {count:,}.", count=app.counts["kept"]),
        extra={"requests": counts, "findings": dict(sorted(judge.findings.items()))},
    )
    if (failure := write_metrics(settings, EndedRun("listen", summary))) is not None:
        screen.notes([failure])
    screen.finish(summary)


def _has_enquiries(settings: Settings) -> bool:
    return settings.notifications.on_unproven == "refresh" and settings.status_enquiry.profile is not None


def _enquiry_connection(settings: Settings) -> AbstractContextManager[GatewayAccess | None]:
    """Return a connection to the gateway, or None if unproven notifications cause no enquiries."""
    return (
        open_gateway(settings, rules_for(settings, PAYOUT), os.environ) if _has_enquiries(settings) else nullcontext()
    )


def _startup_notes(settings: Settings, *, is_checked: bool) -> Iterator[str]:
    if _has_enquiries(settings):
        yield say("The gateway is asked at once about each notification that is not proven.")
        return
    if settings.notifications.on_unproven is not None:
        yield say('on_unproven = "refresh" has no effect: status_enquiry.profile is not configured.')
    if not is_checked:
        yield say("No authenticity check is configured, so a person must confirm each notification.")


def _store_arrivals(store: RecordNotes, judge: "_ArrivalJudge", contents: Sequence[str]) -> None:
    now = timestamp(utc_now())
    store([Arrival(content, now) for content in contents])
    judge.may_have_arrivals = True


class _ArrivalJudge:
    """Judges notifications while no run holds the journal.

    It holds the journal only briefly, so that a run can always start.
    """

    def __init__(self, settings: Settings, screen: Screen) -> None:
        self.findings: Counter[Finding] = Counter()
        self.may_have_arrivals = True
        """Whether notifications may be waiting to be judged."""
        self._settings = settings
        self._screen = screen
        self._last_note = ""
        self._are_metrics_current = True
        self._metrics_written_s = -METRICS_INTERVAL_S

    async def run(self) -> None:
        """Judge waiting notifications at intervals until cancelled, and then finish the current step."""
        while True:
            await asyncio.sleep(JUDGE_INTERVAL_S)
            step = asyncio.create_task(asyncio.to_thread(self._judge_and_measure))
            try:
                is_usable = await asyncio.shield(step)
            except asyncio.CancelledError:
                await step
                raise
            if not is_usable:
                await asyncio.sleep(FAILURE_DELAY_S)

    def finish(self) -> None:
        """Judge the remaining notifications when the listener ends, if the journal is free."""
        judged_count = -1
        while self.may_have_arrivals and judged_count != self.findings.total() and self._judge_arrivals():
            judged_count = self.findings.total()

    def _judge_and_measure(self) -> bool:
        is_usable = self._judge_arrivals()
        if not self._are_metrics_current and time.monotonic() >= self._metrics_written_s + METRICS_INTERVAL_S:
            self._are_metrics_current, self._metrics_written_s = True, time.monotonic()
            if (failure := write_metrics(self._settings, None)) is not None:
                self._show_note_once(failure)
        return is_usable

    def _judge_arrivals(self) -> bool:
        """Judge some of the waiting notifications. Returns False if the journal is unusable, not just busy."""
        if not self.may_have_arrivals:
            return True
        try:
            with closing(open_to_write(self._settings, "listen", HolderKind.LISTENER)) as journal:
                journal.mark_interrupted(timestamp(utc_now()))
                now = timestamp(utc_now())
                self.may_have_arrivals = False  # set again by any notification that arrives from now on
                findings = journal.judge_arrivals(self._settings.words(), at=now, at_most=MAX_JUDGED_PER_LOCK)
                self.findings += findings
                if journal.has_arrivals():
                    self.may_have_arrivals = True
            self._are_metrics_current &= not findings
        except JournalHeld:
            return True
        except JournalError as error:
            sentence = mark("Notifications are stored, but not yet recorded in the journal: {message} {hint}")
            self._show_note_once(say(sentence, message=error.message, hint=error.hint))
            return False
        return True

    def _show_note_once(self, sentence: str) -> None:
        if sentence != self._last_note:
            self._last_note = sentence
            self._screen.notes([sentence])
