"""The pages for signing in and out, for creating a passkey by invitation, and for choosing the language.

Only in the sandbox can people choose their name from a list. The public key of a new passkey is shown, but not stored.
"""

from starlette.responses import PlainTextResponse, Response

from paygw_batch.approval.approval_keys import RelyingParty, challenge_of
from paygw_batch.console.passkey_access import (
    SignedInKey,
    SignInWay,
    invitation_challenge,
    key_that_signed,
    new_passkey,
    sign_in_text,
    signature_in,
)
from paygw_batch.console.permissions import Member
from paygw_batch.console.rendering import LANGUAGE_COOKIE
from paygw_batch.console.visits import (
    ActRefused,
    PageNotFound,
    PageOutdated,
    Visit,
    cookie_of,
    first_page,
    forget_cookie,
    own_path,
)
from paygw_batch.journal import AuditResult
from paygw_batch.language import languages, mark, say


def sign_in_page(visit: Visit) -> Response:
    """Show the button for a passkey and, in the sandbox, the people who may sign in."""
    access = visit.console.access
    passkey = None
    if access.party is not None:
        nonce = access.sign_ins.begin()
        challenge = challenge_of(sign_in_text(nonce))
        passkey = {"kind": "get", "challenge": challenge, "rp_id": access.party.rp_id, "nonce": nonce}
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
    """Answer with the seconds until an unused session ends. A request that is not a poll counts as a use."""
    return PlainTextResponse("" if visit.session is None else str(int(visit.session.left_s)))


def use_passkey(visit: Visit) -> Response:
    access, form = visit.console.access, visit.form
    nonce, signature, party = form.get("nonce", ""), signature_in(form), access.party
    was_open = access.sign_ins.end(nonce)
    if not was_open and party is not None and (own := visit.passkey) is not None:
        is_second_click = key_that_signed(nonce, signature, [own.key], party) is not None
        if is_second_click:
            return visit.go_to(first_page(visit.member))
    if not was_open or party is None:
        raise ActRefused(say("This page was open for too long. Reload it and sign in."))
    key = key_that_signed(nonce, signature, access.keys, party)
    if key is None:
        raise ActRefused(say("This passkey isn't registered. Ask your administrator."))
    visit.note(mark("sign in"), key.fingerprint, AuditResult.DONE, who=access.keys[key].name)
    return _signed_in(visit, access.keys[key], SignInWay.PASSKEY, SignedInKey(key, form.get("credential", "")))


def choose_person(visit: Visit) -> Response:
    if not visit.console.settings.uses_sandbox:
        raise ActRefused(say("You can choose a name from a list only in the sandbox."))
    member = next((member for member in visit.console.members if member.name == visit.form.get("name")), None)
    if member is None:
        raise ActRefused(say("There is no such person."))
    visit.note(mark("sign in"), "sandbox", AuditResult.DONE, who=member.name)
    return _signed_in(visit, member, SignInWay.LIST)


def _signed_in(visit: Visit, member: Member, way: SignInWay, passkey: SignedInKey | None = None) -> Response:
    """Begin a session for a person, and redirect to the requested page or to the person's first page."""
    console = visit.console
    session_id = console.sessions.sign_in(member, cookie_of(visit), way, passkey)
    answer = visit.go_to(own_path(visit.form.get("to", "")) or first_page(member))
    answer.set_cookie(console.cookie, session_id, path="/", secure=console.is_secure, httponly=True, samesite="strict")
    return answer


def sign_out(visit: Visit) -> Response:
    visit.console.sessions.sign_out(cookie_of(visit))
    answer = visit.go_to("/sign-in")
    forget_cookie(visit, answer)
    return answer


_A_YEAR_S = 365 * 24 * 3600


def choose_language(visit: Visit) -> Response:
    """Set the cookie for the language, and redirect to the page. An unknown language changes nothing."""
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
"""The length of the part of the token that is the authenticator's id of the person: 16 random bytes."""


def invited(visit: Visit) -> Response:
    token, party = visit.path("token"), _party(visit)
    invitation = visit.console.access.invitations.invitation(token, visit.console.now())
    if invitation is None:
        raise PageNotFound(say("This link was used before, or is older than a day. Ask for another one."))
    passkey = {
        "kind": "create",
        "challenge": invitation_challenge(token),
        "rp_id": party.rp_id,
        "user_name": invitation["name"],
        "user_id": token[:_SHOWN],
    }
    return visit.page("invitation.html", passkey=passkey, name=invitation["name"])


def take_invitation(visit: Visit) -> Response:
    """Show the line and fingerprint of the new passkey once. Raises `PageOutdated` if the invitation was used."""
    token, form, console = visit.path("token"), visit.form, visit.console
    key = new_passkey(form, token, _party(visit))
    if key is None:
        raise ActRefused(say("The passkey was not made. Open the link again, and make it there."))
    used = console.access.invitations.use(token, key.fingerprint, console.now())
    if used is None:
        raise PageOutdated(say("This link was used before, or is older than a day. Ask for another one."))
    name, is_first = used
    if is_first:
        visit.note(mark("make a passkey"), key.fingerprint, AuditResult.DONE, who=name)
    return visit.page("new_passkey.html", name=name, line=key.text, fingerprint=key.fingerprint)


def _party(visit: Visit) -> RelyingParty:
    party = visit.console.access.party
    if party is None:
        raise PageNotFound
    return party
