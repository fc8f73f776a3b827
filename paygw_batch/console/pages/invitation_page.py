"""Lets a person who is invited make a passkey, and shows its line for the administrator. Nothing is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from starlette.responses import Response

from paygw_batch.console.access.invitations import NewPasskey, invitation_challenge, new_passkey
from paygw_batch.console.rendering import Page
from paygw_batch.console.visits import ActRefused, PageNotFound, PageOutdated, Visit
from paygw_batch.journal import AuditResult
from paygw_batch.language import say
from paygw_batch.run.passkey import RelyingParty

_SHOWN = 22
"""Of the token, as the authenticator's own name for the person: 16 bytes. It says nothing, and is another each time."""


@dataclass(frozen=True, slots=True)
class InvitationPage(Page):
    """The page on which an invited person makes a passkey."""

    template: ClassVar[str] = "invitation.html"

    passkey: Mapping[str, str]
    name: str


def invited(visit: Visit) -> Response:
    """Show the page on which a passkey is made."""
    token, party = visit.path("token"), _party(visit)
    found = visit.console.access.invitations.invitation(token, visit.console.now())
    if found is None:
        raise PageNotFound(say("This link was used before, or is older than a day. Ask for another one."))
    passkey = {
        "kind": "create",
        "challenge": invitation_challenge(token),
        "rp_id": party.rp_id,
        "user_name": found.name,
        "user_id": token[:_SHOWN],
    }
    return visit.page(InvitationPage(passkey=passkey, name=found.name))


@dataclass(frozen=True, slots=True)
class NewPasskeyPage(Page):
    """The passkey that was made: its line for the configuration."""

    template: ClassVar[str] = "new_passkey.html"

    name: str
    line: str
    fingerprint: str


def take_invitation(visit: Visit) -> Response:
    """Show the line and the fingerprint of the passkey that was made, once."""
    token, form, console = visit.path("token"), visit.form, visit.console
    made = NewPasskey(form.get("client_data", ""), form.get("authenticator_data", ""), form.get("public_key", ""))
    key = new_passkey(made, token, _party(visit))
    if key is None:
        raise ActRefused(say("The passkey was not made. Open the link again, and make it there."))
    found = console.access.invitations.use(token, key.fingerprint, console.now())
    if found is None:
        raise PageOutdated(say("This link was used before, or is older than a day. Ask for another one."))
    if found.is_first:
        visit.note("make a passkey", key.fingerprint, AuditResult.DONE, who=found.name)
    return visit.page(NewPasskeyPage(name=found.name, line=key.text, fingerprint=key.fingerprint))


def _party(visit: Visit) -> RelyingParty:
    party = visit.console.access.party
    if party is None:
        raise PageNotFound
    return party
