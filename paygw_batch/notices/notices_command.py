"""`paygw-batch notices`: lists the notices in the journal, and sends those that are due."""

import os
from dataclasses import asdict

import click

from paygw_batch.cli.help_texts import HelpGroup
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import format_minute
from paygw_batch.errors import JournalError
from paygw_batch.journal import StoredNotice
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.notices.channels import build_channels
from paygw_batch.notices.delivery import MAX_SEND_S, list_notices, send_due
from paygw_batch.notices.words import OCCASION_LABELS, describe_failure
from paygw_batch.opening.open_journal import open_journal_to_read
from paygw_batch.show.summary import ExitCode, Summary

_HEADINGS = mark_all("written", "event", "recipient", "attempts", "state")


@click.group("notices", cls=HelpGroup, invoke_without_command=True)
@click.pass_context
def notices_command(context: click.Context) -> None:
    """List the notices in the journal with their recipients, and why some are still waiting.

    Notices are configured in [notices]. Runs send them when they end.
    """
    if context.invoked_subcommand is None:
        _show_notices(context.obj)


def _show_notices(invocation: Invocation) -> None:
    screen, settings = Screen(invocation), settings_for(invocation)
    with open_journal_to_read(settings):
        notices = list_notices(settings)
    if notices:
        lines = [
            (
                f"{format_minute(notice.written_at)}Z",
                say(OCCASION_LABELS[notice.occasion]),
                notice.recipient,
                notice.tries,
                _notice_state(notice),
            )
            for notice in notices
        ]
        screen.table(say("Notices"), _HEADINGS, lines)
    count = sum(notice.sent_at is None for notice in notices)
    message = say_count(count, "{count:,} notice is waiting to be sent.", "{count:,} notices are waiting to be sent.")
    notices_as_json = [{**asdict(notice), "occasion": notice.occasion.value} for notice in notices]
    screen.finish(Summary(ExitCode.DONE, message, extra={"notices": notices_as_json}))


@notices_command.command("send", short_help="Send the notices that are due.")
@click.option("--again", is_flag=True, help="Also retry notices that are waiting or have been given up.")
@click.pass_obj
def send(invocation: Invocation, *, again: bool) -> None:
    """Send the notices that are due. You can run it from cron at any time, even during a run.

    The exit code is 6 if a notice could not be sent or time ran out. Notices are retried for up to five days.
    """
    screen, settings = Screen(invocation), settings_for(invocation)
    channels = build_channels(settings, os.environ)
    with open_journal_to_read(settings):  # raises an error if the journal cannot be used
        pass
    result = send_due(settings, channels, within_s=MAX_SEND_S, again=again)
    if result.error_message:
        raise JournalError(result.error_message)
    sentences = [say_count(result.sent, "{count:,} notice was sent.", "{count:,} notices were sent.")]
    if result.failed:
        sentences.append(
            say_count(
                result.failed,
                "{count:,} could not be sent. To see why, run `paygw-batch notices`.",
                "{count:,} could not be sent. To see why, run `paygw-batch notices`.",
            )
        )
    elif not result.is_complete:
        sentences.append(say("Time ran out. Run the command again to send the rest."))
    code = ExitCode.DONE if result.is_complete and not result.failed else ExitCode.STOPPED_EARLY
    screen.finish(Summary(code, " ".join(sentences), extra={"sent": result.sent, "failed": result.failed}))


def _notice_state(notice: StoredNotice) -> str:
    if notice.sent_at is not None:
        return say("sent")
    reason = describe_failure(notice.problem) if notice.problem else ""
    if notice.next_at is None:
        return say("given up: {reason}", reason=reason) if reason else say("given up")
    return say("waiting: {reason}", reason=reason) if reason else say("waiting")
