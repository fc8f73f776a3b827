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
from paygw_batch.cli.options import guard_of, settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.cli.signals import interruption
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.core.batch import PAYOUT
from paygw_batch.core.evidence import Finding
from paygw_batch.countries.load import load_operation
from paygw_batch.errors import HolderKind, JournalError, JournalHeld
from paygw_batch.gateway.notification import read_notification
from paygw_batch.journal import Arrived
from paygw_batch.journal.place import KeepBeside
from paygw_batch.language import mark, say
from paygw_batch.listener import InGroups, Limits, ListenerApp, serve
from paygw_batch.opening.gateway_access import GatewayAccess, authenticity, field_names, gateway_of, listener_path
from paygw_batch.opening.given_sheet import rules_of
from paygw_batch.opening.open_journal import open_to_write, place_of, require_journal
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.summary import ExitCode, Summary
from paygw_batch.unattended.metrics import EndedRun, write_metrics
from paygw_batch.web_server import LOOPBACK

TAKE_IN_EVERY_S = 1.0
"""The seconds between two attempts to record the notifications that wait."""
AT_ONCE = 200
"""The number of notifications, about, after which the journal is released for others."""
METRICS_EVERY_S = 10.0
"""The minimum seconds between two writes of the metrics after notifications were recorded."""
AFTER_TROUBLE_S = 30.0
"""The seconds before the next attempt, after the journal could not be used."""


@click.command("listen", cls=HelpCommand)
@click.option("--port", type=WholeNumber(0, 65535), help="Port on loopback; 0: any free one.")
@click.pass_obj
def listen_command(invocation: Invocation, *, port: int | None) -> None:
    """Receive the gateway's notifications on loopback until interrupted, even during a run.

    Put a proxy in front of it for TLS. Each notification is stored before it is answered.
    """
    screen, settings = Screen(invocation), settings_of(invocation, {("notifications", "port"): port})
    guard_of(invocation, settings).check(reporting=True)
    path = listener_path(settings, os.environ)
    names = field_names(settings, load_operation(PAYOUT))
    check = authenticity(settings, names, os.environ)
    section = settings.notifications
    require_journal(settings, "listen")
    taking = _Taking(settings, screen)
    with (
        place_of(settings).beside() as keep,
        closing(InGroups(partial(_keep, keep, taking))) as keeper,
        _way_to_ask(settings) as connection,
    ):
        app = ListenerApp(
            path,
            read=partial(read_notification, names=names, check=check),
            keep=keeper.keep,
            limits=Limits(section.max_body_kib * 1024, section.rate_per_s),
            now=lambda: timestamp(utc_now()),
            monotonic_s=time.monotonic,
            header=section.header,
        )
        screen.notes(list(_notes(settings, is_checked=check is not None)))

        def ready(port: int) -> None:
            where = {"host": LOOPBACK, "port": port, "journal": settings.journal_place()}
            screen.say(say("Listening on {host}:{port}. Notifications are stored in the journal {journal}.", **where))

        async def receive() -> None:
            async with AsyncExitStack() as stack:
                if connection is not None:
                    from paygw_batch.settle.settle_rows import following_up  # noqa: PLC0415 (httpx)

                    asking = following_up(settings, connection, keeper.keep, lambda sentence: screen.notes([sentence]))
                    app.follow_up = (await stack.enter_async_context(asking)).doubt
                at_intervals = asyncio.create_task(taking.at_intervals())
                await serve(app, section.port, client_timeout_s=section.client_timeout_s, ready=ready)
            at_intervals.cancel()
            with suppress(asyncio.CancelledError):
                await at_intervals

        asyncio.run(receive())
        interruption.heed_again()
        keeper.close()  # this finishes storing, before notifications are judged for the last time
        taking.take_what_is_left()
    counted = dict(sorted(app.counts.items()))
    summary = Summary(
        ExitCode.DONE,
        say("The listener has stopped. Notifications stored: {count:,}.", count=app.counts["kept"]),
        further={"requests": counted, "findings": dict(sorted(taking.findings.items()))},
    )
    if (failure := write_metrics(settings, EndedRun("listen", summary))) is not None:
        screen.notes([failure])
    screen.finish(summary)


def _asks(settings: Settings) -> bool:
    return settings.notifications.on_unproven == "refresh" and settings.status_enquiry.profile is not None


def _way_to_ask(settings: Settings) -> AbstractContextManager[GatewayAccess | None]:
    """Return a connection to the gateway, or None if unproven notifications lead to no enquiries."""
    return gateway_of(settings, rules_of(settings, PAYOUT), os.environ) if _asks(settings) else nullcontext()


def _notes(settings: Settings, *, is_checked: bool) -> Iterator[str]:
    if _asks(settings):
        yield say("The gateway is asked at once about each notification that is not proven.")
        return
    if settings.notifications.on_unproven is not None:
        yield say('on_unproven = "refresh" has no effect: status_enquiry.profile is not configured.')
    if not is_checked:
        yield say("No authenticity check is configured, so a person must confirm each notification.")


def _keep(keep: KeepBeside, taking: "_Taking", contents: Sequence[str]) -> None:
    at = timestamp(utc_now())
    keep([Arrived(content, at) for content in contents])
    taking.are_waiting = True


class _Taking:
    """Judges notifications while no run holds the journal, and only briefly, so that a run can always start."""

    def __init__(self, settings: Settings, screen: Screen) -> None:
        self.findings: Counter[Finding] = Counter()
        self.are_waiting = True
        """Whether there may be notifications that were not judged yet."""
        self._settings = settings
        self._screen = screen
        self._told = ""
        self._is_measured = True
        self._measured_s = -METRICS_EVERY_S

    async def at_intervals(self) -> None:
        """Record the notifications that wait, at intervals, until cancelled. Then finish the step under way."""
        while True:
            await asyncio.sleep(TAKE_IN_EVERY_S)
            moment = asyncio.create_task(asyncio.to_thread(self._take_and_measure))
            try:
                is_well = await asyncio.shield(moment)
            except asyncio.CancelledError:
                await moment
                raise
            if not is_well:
                await asyncio.sleep(AFTER_TROUBLE_S)

    def take_what_is_left(self) -> None:
        """Judge the notifications that wait when the listener ends, if the journal is free."""
        before = -1
        while self.are_waiting and before != self.findings.total() and self._take_for_a_moment():
            before = self.findings.total()

    def _take_and_measure(self) -> bool:
        is_well = self._take_for_a_moment()
        if not self._is_measured and time.monotonic() >= self._measured_s + METRICS_EVERY_S:
            self._is_measured, self._measured_s = True, time.monotonic()
            if (failure := write_metrics(self._settings, None)) is not None:
                self._note_once(failure)
        return is_well

    def _take_for_a_moment(self) -> bool:
        """Judge some of the notifications that wait. Return whether the journal can be used, even if it is busy."""
        if not self.are_waiting:
            return True
        try:
            with closing(open_to_write(self._settings, "listen", HolderKind.LISTENER)) as journal:
                journal.mark_interrupted(timestamp(utc_now()))
                now = timestamp(utc_now())
                self.are_waiting = False  # a notification that arrives from now on sets it again
                findings = journal.judge_arrivals(self._settings.words(), at=now, at_most=AT_ONCE)
                self.findings += findings
                if journal.has_arrivals():
                    self.are_waiting = True
            self._is_measured &= not findings
        except JournalHeld:
            return True
        except JournalError as error:
            sentence = mark("Notifications are stored, but not yet recorded in the journal: {message} {hint}")
            self._note_once(say(sentence, message=error.message, hint=error.hint))
            return False
        return True

    def _note_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._screen.notes([sentence])
