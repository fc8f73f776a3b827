"""The command `paygw-batch notices`, which lists the notices in the journal and sends those that are due."""

import os
from dataclasses import asdict

import click

from paygw_batch.cli.help_texts import HelpGroup
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import minute
from paygw_batch.errors import JournalError
from paygw_batch.journal import KeptNotice
from paygw_batch.language import mark_all, say, say_count
from paygw_batch.notices.channels import channels_of
from paygw_batch.notices.delivery import BY_ITSELF_S, listed_notices, send_due
from paygw_batch.notices.words import OCCASION_WORDS, trouble_words
from paygw_batch.opening.open_journal import journal_to_read
from paygw_batch.show.summary import ExitCode, Summary

_HEADINGS = mark_all("written", "occasion", "recipient", "tries", "state")


@click.group("notices", cls=HelpGroup, invoke_without_command=True)
@click.pass_context
def notices_command(context: click.Context) -> None:
    """List the notices in the journal: those sent and to whom, and those that wait and why.

    The notices are configured in [notices]. Runs send them at their end.
    """
    if context.invoked_subcommand is None:
        _list(context.obj)


def _list(invocation: Invocation) -> None:
    screen, settings = Screen(invocation), settings_of(invocation)
    with journal_to_read(settings):
        notices = listed_notices(settings)
    if notices:
        lines = [
            (
                f"{minute(notice.written_at)}Z",
                say(OCCASION_WORDS[notice.occasion]),
                notice.recipient,
                notice.tries,
                _state(notice),
            )
            for notice in notices
        ]
        screen.table(say("Notices"), _HEADINGS, lines)
    waiting = sum(notice.sent_at is None for notice in notices)
    message = say_count(waiting, "{count:,} notice waits to be sent.", "{count:,} notices wait to be sent.")
    notices_as_json = [{**asdict(notice), "occasion": notice.occasion.value} for notice in notices]
    screen.finish(Summary(ExitCode.DONE, message, further={"notices": notices_as_json}))


@notices_command.command("send", short_help="Send the notices that are due.")
@click.option("--again", is_flag=True, help="Also retry notices that are waiting or were given up.")
@click.pass_obj
def send(invocation: Invocation, *, again: bool) -> None:
    """Send the notices that are due. For cron: several can run at once, even during a run.

    Ends with exit code 6 if a server refused a notice or time ran out. Notices are retried for up to five days.
    """
    screen, settings = Screen(invocation), settings_of(invocation)
    channels = channels_of(settings, os.environ)
    with journal_to_read(settings):  # reports anything wrong with the journal
        pass
    done = send_due(settings, channels, within_s=BY_ITSELF_S, again=again)
    if done.fault:
        raise JournalError(done.fault)
    sentences = [say_count(done.sent, "{count:,} notice was sent.", "{count:,} notices were sent.")]
    if done.failed:
        sentences.append(
            say_count(
                done.failed,
                "{count:,} could not be sent: `paygw-batch notices` shows why.",
                "{count:,} could not be sent: `paygw-batch notices` shows why.",
            )
        )
    elif not done.has_ended:
        sentences.append(say("Time ran out. The next call will continue."))
    code = ExitCode.DONE if done.has_ended and not done.failed else ExitCode.STOPPED_EARLY
    screen.finish(Summary(code, " ".join(sentences), further={"sent": done.sent, "failed": done.failed}))


def _state(notice: KeptNotice) -> str:
    if notice.sent_at is not None:
        return say("sent")
    reason = trouble_words(notice.problem) if notice.problem else ""
    if notice.next_at is None:
        return say("given up: {reason}", reason=reason) if reason else say("given up")
    return say("waits: {reason}", reason=reason) if reason else say("waits")
