"""`paygw-batch invite`: creates a link with which one person can create a passkey for the console."""

import secrets

import click

from paygw_batch.approval.approval_keys import normalise_name
from paygw_batch.approval.policy import identify_person, require_line
from paygw_batch.cli.help_texts import HelpCommand
from paygw_batch.cli.invocation import Invocation
from paygw_batch.cli.options import settings_for
from paygw_batch.cli.screen.screen import Screen
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.passkey_access import INVITATION_H, RANDOM_BYTES, Invitations, invitation_folder
from paygw_batch.console.permissions import Member, load_members
from paygw_batch.countries.data import nearest
from paygw_batch.errors import ConfigurationError, UsageError
from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.language import say
from paygw_batch.opening.open_journal import journal_for_document, journal_location
from paygw_batch.settings.configuration import Settings
from paygw_batch.show.summary import ExitCode, Summary


@click.command("invite", cls=HelpCommand)
@click.argument("name")
@click.pass_obj
def invite_command(invocation: Invocation, *, name: str) -> None:
    """Print a link that lets NAME create a passkey. The link works once, within 24 hours.

    The page shows a configuration line for the passkey, and its fingerprint. Compare the fingerprint by phone, then add
    the line to the configuration under the person's name. The console cannot add it.
    """
    screen = Screen(invocation)
    settings = settings_for(invocation)
    if settings.console.origin is None:
        raise ConfigurationError(
            say("The configuration has no [console] origin."),
            hint=say("Set it to the console's address in the browser."),
        )
    member = _require_member(settings, require_line(name, "NAME"))
    token = secrets.token_urlsafe(RANDOM_BYTES)
    with journal_for_document(settings, "invite", must_be_known=False):
        note = AuditNote(identify_person(None), "invite", "", AuditResult.DONE)
        journal_location(settings).add_audit_entry(note, timestamp(utc_now()))
    expires_at = Invitations(invitation_folder(settings)).invite(member.name, token, utc_now())
    link = f"{settings.console.origin}/invitation/{token}"
    screen.finish(
        Summary(
            ExitCode.DONE,
            say(
                "{link} works once, within {hours} hours, and only for {invited}. Send it only to this person.",
                link=link,
                invited=member.name,
                hours=INVITATION_H,
            ),
            extra={"link": link, "name": member.name, "expires_at": expires_at},
        )
    )


def _require_member(settings: Settings, name: str) -> Member:
    members_by_name = {normalise_name(member.name): member for member in load_members(settings)}
    if (member := members_by_name.get(normalise_name(name))) is None:
        raise UsageError(
            say(
                "The configuration has no person called {name}. {nearest}",
                name=name,
                nearest=nearest(name, [member.name for member in members_by_name.values()]),
            ),
            hint=say(
                "Use one of these names, or add the person to the configuration first, as docs/console.md explains."
            ),
        )
    return member
