"""Signs people in by passkey, and out; creates a passkey by invitation; changes the language from a page's footer.

Only in the sandbox can a person be chosen from a list. A new passkey is shown, and not stored.
"""

from starlette.responses import PlainTextResponse, Response

from paygw_batch.approval.approval_keys import RelyingParty
from paygw_batch.console.passkey_access import (
    NewPasskey,
    SignedInKey,
    SignInText,
    SignInWay,
    invitation_challenge,
    key_that_signed,
    new_passkey,
    signature_in,
)
from paygw_batch.console.rendering import LANGUAGE_COOKIE
from paygw_batch.console.visits import (
    ActRefused,
    PageNotFound,
    PageOutdated,
    Visit,
    first_page,
    own_path,
    signed_in,
    signed_out,
)
from paygw_batch.journal import AuditResult
from paygw_batch.language import languages, mark, say


def sign_in_page(visit: Visit) -> Response:
    """Show the button for a passkey and, in the sandbox, the people who may sign in."""
    access = visit.console.access
    passkey = None
    if access.party is not None:
        begun = access.sign_ins.begin()
        passkey = {"kind": "get", "challenge": begun.challenge, "rp_id": access.party.rp_id, "nonce": begun.nonce}
    section = visit.console.settings.console
    return visit.page(
        "sign_in.html",
        members=visit.console.members,
        passkey=passkey,
        has_keys=bool(access.keys),
        to=own_path(visit.query("to")) or "",
        is_ended=visit.query("ended") == "yes",
        idle_min=section.idle_min,
        session_h=section.session_h,
    )


def session_left(visit: Visit) -> Response:
    """Say for how many seconds the session continues if unused; a request that is not a poll counts as a use."""
    return PlainTextResponse("" if visit.session is None else str(int(visit.session.left_s)))


def use_passkey(visit: Visit) -> Response:
    access, form = visit.console.access, visit.form
    nonce, signature, party = form.get("nonce", ""), signature_in(form), access.party
    begun = access.sign_ins.end(nonce)
    if begun is None and party is not None and (own := visit.passkey) is not None:
        is_second_click = key_that_signed(SignInText(nonce), signature, [own.key], party) is not None
        if is_second_click:
            return visit.go_to(first_page(visit.member))
    if begun is None or party is None:
        raise ActRefused(say("This page was open for too long. Reload it and sign in."))
    key = key_that_signed(begun, signature, access.keys, party)
    if key is None:
        raise ActRefused(say("This passkey isn't registered. Ask your administrator."))
    visit.note(mark("sign in"), key.fingerprint, AuditResult.DONE, who=access.keys[key].name)
    return signed_in(visit, access.keys[key], SignInWay.PASSKEY, SignedInKey(key, form.get("credential", "")))


def choose_person(visit: Visit) -> Response:
    if not visit.console.settings.uses_sandbox:
        raise ActRefused(say("You can choose a name from a list only in the sandbox."))
    member = next((member for member in visit.console.members if member.name == visit.form.get("name")), None)
    if member is None:
        raise ActRefused(say("There is no such person."))
    visit.note(mark("sign in"), "sandbox", AuditResult.DONE, who=member.name)
    return signed_in(visit, member, SignInWay.LIST)


def sign_out(visit: Visit) -> Response:
    return signed_out(visit)


_A_YEAR_S = 365 * 24 * 3600


def choose_language(visit: Visit) -> Response:
    """Remember the language, and redirect to the page. An unknown language changes nothing."""
    chosen = visit.form.get("language", "")
    answer = visit.go_to(own_path(visit.form.get("back", "")) or "/")
    if chosen in languages():
        answer.set_cookie(
            LANGUAGE_COOKIE,
            chosen,
            max_age=_A_YEAR_S,
            path="/",
            secure=visit.console.is_secure,
            httponly=True,
            samesite="strict",
        )
    return answer


_SHOWN = 22
"""Part of the token, as the authenticator's name for the person: 16 bytes, meaningless, and new each time."""


def invited(visit: Visit) -> Response:
    token, party = visit.path("token"), _party(visit)
    invitation = visit.console.access.invitations.invitation(token, visit.console.now())
    if invitation is None:
        raise PageNotFound(say("This link was used before, or is older than a day. Ask for another one."))
    passkey = {
        "kind": "create",
        "challenge": invitation_challenge(token),
        "rp_id": party.rp_id,
        "user_name": invitation.name,
        "user_id": token[:_SHOWN],
    }
    return visit.page("invitation.html", passkey=passkey, name=invitation.name)


def take_invitation(visit: Visit) -> Response:
    """Show the line and fingerprint of the new passkey, once."""
    token, form, console = visit.path("token"), visit.form, visit.console
    passkey = NewPasskey(form.get("client_data", ""), form.get("authenticator_data", ""), form.get("public_key", ""))
    key = new_passkey(passkey, token, _party(visit))
    if key is None:
        raise ActRefused(say("The passkey was not made. Open the link again, and make it there."))
    used = console.access.invitations.use(token, key.fingerprint, console.now())
    if used is None:
        raise PageOutdated(say("This link was used before, or is older than a day. Ask for another one."))
    if used.is_first:
        visit.note(mark("make a passkey"), key.fingerprint, AuditResult.DONE, who=used.name)
    return visit.page("new_passkey.html", name=used.name, line=key.text, fingerprint=key.fingerprint)


def _party(visit: Visit) -> RelyingParty:
    party = visit.console.access.party
    if party is None:
        raise PageNotFound
    return party
