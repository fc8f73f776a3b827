"""`paygw-batch invite`: a link with which one person creates a passkey for the console."""

import secrets

import click

from paygw_batch.approval.approval_keys import plain_name
from paygw_batch.approval.policy import person, required_line
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_of
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.passkey_access import INVITATION_H, RANDOM_BYTES, Invitations, invitation_folder
from paygw_batch.console.permissions import Member, members_of
from paygw_batch.countries.data import nearest
from paygw_batch.errors import ConfigurationError, UsageError
from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.language import say
from paygw_batch.opening.open_journal import journal_for_document, place_of
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.summary import ExitCode, Summary


@click.command("invite", cls=HelpCommand)
@click.argument("name")
@click.pass_obj
def invite_command(invocation: Invocation, *, name: str) -> None:
    """Print a link with which the person called NAME makes a passkey. It works once, within 24 hours.

    The page shows the passkey's line and its fingerprint. Compare the fingerprint by phone, then add the line to the
    configuration under the person's name: no page does that.
    """
    screen = Screen(invocation)
    settings = settings_of(invocation)
    if settings.console.origin is None:
        raise ConfigurationError(
            say("The configuration has no [console] origin."),
            hint=say("It is the address of the pages, as a browser shows it."),
        )
    member = _member(settings, required_line(name, "NAME"))
    token = secrets.token_urlsafe(RANDOM_BYTES)
    with journal_for_document(settings, "invite", must_be_known=False):
        note = AuditNote(person(None), "invite", "", AuditResult.DONE)
        place_of(settings).note_act(note, timestamp(utc_now()))
    expires_at = Invitations(invitation_folder(settings)).invite(member.name, token, utc_now())
    link = f"{settings.console.origin}/invitation/{token}"
    screen.finish(
        Summary(
            ExitCode.DONE,
            say(
                "{link} works once, within {hours} hours, and only for {invited}. Give it to the person directly.",
                link=link,
                invited=member.name,
                hours=INVITATION_H,
            ),
            further={"link": link, "name": member.name, "expires_at": expires_at},
        )
    )


def _member(settings: Settings, name: str) -> Member:
    """Return the person with this name. Raises `UsageError`, which says the nearest name, if there is none."""
    members = {plain_name(member.name): member for member in members_of(settings)}
    if (member := members.get(plain_name(name))) is None:
        raise UsageError(
            say(
                "The configuration has no person called {name}; {nearest}",
                name=name,
                nearest=nearest(name, [member.name for member in members.values()]),
            ),
            hint=say(
                "Use one of these names, or add the person to the configuration first: docs/console.md shows how."
            ),
        )
    return member
