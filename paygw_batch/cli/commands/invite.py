"""`paygw-batch invite`: a link with which one person creates a passkey for the console."""

import secrets
from contextlib import closing

import click

from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.passkey_access import INVITATION_H, RANDOM_BYTES, Invitations, invitation_folder
from paygw_batch.errors import ConfigurationError
from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.language import say
from paygw_batch.report.summary import ExitCode, Summary
from paygw_batch.wiring.approvals import person, required_line
from paygw_batch.wiring.journal import open_trail


@click.command("invite", cls=HelpCommand)
@click.argument("name")
@click.pass_obj
def command(invocation: Invocation, *, name: str) -> None:
    """Print a link with which the person called NAME makes a passkey. It works once, within 24 hours.

    The page shows the passkey's line and its fingerprint. Compare the fingerprint by phone, then add the line to the
    configuration under the person's name: no page does that.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    invited = required_line(name, "NAME")
    if settings.console.origin is None:
        raise ConfigurationError(
            say("The configuration has no [console] origin."),
            hint=say("It is the address of the pages, as a browser shows it."),
        )
    token = secrets.token_urlsafe(RANDOM_BYTES)
    with closing(open_trail(settings)) as trail:
        trail.note(AuditNote(person(None), "invite", "", AuditResult.DONE), timestamp(utc_now()))
    invitation = Invitations(invitation_folder(settings)).invite(invited, token, utc_now())
    link = f"{settings.console.origin}/invitation/{token}"
    screen.finish(
        Summary(
            ExitCode.DONE,
            say(
                "{link} is for {invited} alone, once, within {hours} hours. Give it to the person directly.",
                link=link,
                invited=invited,
                hours=INVITATION_H,
            ),
            further={"link": link, "name": invited, "expires_at": invitation.expires_at},
        )
    )
