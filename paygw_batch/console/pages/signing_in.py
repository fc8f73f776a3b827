"""The pages on which people sign in and out, create a passkey by invitation, and choose the language.

Only in the sandbox can people choose their name from a list. A new passkey's public key is shown but not stored.
"""

from starlette.responses import PlainTextResponse, Response

from paygw_batch.approval.approval_keys import RelyingParty, passkey_challenge
from paygw_batch.console.passkey_access import (
    SignInKey,
    SignInMethod,
    find_signing_key,
    invitation_challenge,
    parse_new_passkey,
    parse_signature,
    sign_in_text,
)
from paygw_batch.console.permissions import Member
from paygw_batch.console.rendering import LANGUAGE_COOKIE
from paygw_batch.console.visits import (
    ActionRefused,
    PageNotFound,
    PageOutdated,
    Visit,
    console_path,
    delete_session_cookie,
    home_path,
    session_cookie,
)
from paygw_batch.journal import AuditResult
from paygw_batch.language import languages, mark, say


def show_sign_in_page(visit: Visit) -> Response:
    """Show the passkey button and, in the sandbox, a list of people who may sign in."""
    access = visit.console.access
    passkey = None
    if access.party is not None:
        nonce = access.sign_ins.begin()
        challenge = passkey_challenge(sign_in_text(nonce))
        passkey = {"kind": "get", "challenge": challenge, "rp_id": access.party.rp_id, "nonce": nonce}
    section = visit.console.settings.console
    return visit.page(
        "sign_in.html",
        members=visit.console.members,
        passkey=passkey,
        has_keys=bool(access.keys),
        to=console_path(visit.query("to")) or "",
        is_ended=visit.query("ended") == "yes",
        idle_min=section.idle_min,
        session_h=section.session_h,
    )


def send_remaining_seconds(visit: Visit) -> Response:
    """Send the number of seconds until the session ends. Any request except a poll extends the session."""
    return PlainTextResponse("" if visit.session is None else str(int(visit.session.remaining_s)))


def use_passkey(visit: Visit) -> Response:
    access, form = visit.console.access, visit.form
    nonce, signature, party = form.get("nonce", ""), parse_signature(form), access.party
    was_open = access.sign_ins.complete(nonce)
    if not was_open and party is not None and (passkey := visit.passkey) is not None:
        is_second_click = find_signing_key(nonce, signature, [passkey.key], party) is not None
        if is_second_click:
            return visit.redirect(home_path(visit.member))
    if not was_open or party is None:
        raise ActionRefused(say("This page was open for too long. Reload it and sign in."))
    key = find_signing_key(nonce, signature, access.keys, party)
    if key is None:
        raise ActionRefused(say("This passkey is not registered. Ask your administrator to add it."))
    visit.record_action(mark("sign in"), key.fingerprint, AuditResult.DONE, person=access.keys[key].name)
    return _start_session(visit, access.keys[key], SignInMethod.PASSKEY, SignInKey(key, form.get("credential", "")))


def choose_person(visit: Visit) -> Response:
    if not visit.console.settings.uses_sandbox:
        raise ActionRefused(say("You can choose a name from a list only in the sandbox."))
    member = next((member for member in visit.console.members if member.name == visit.form.get("name")), None)
    if member is None:
        raise ActionRefused(say("This person does not exist."))
    visit.record_action(mark("sign in"), "sandbox", AuditResult.DONE, person=member.name)
    return _start_session(visit, member, SignInMethod.LIST)


def _start_session(visit: Visit, member: Member, method: SignInMethod, passkey: SignInKey | None = None) -> Response:
    """Begin a session and redirect to the requested page, or else to the person's home page."""
    console = visit.console
    session_id = console.sessions.sign_in(member, session_cookie(visit), method, passkey)
    response = visit.redirect(console_path(visit.form.get("to", "")) or home_path(member))
    response.set_cookie(
        console.cookie_name, session_id, path="/", secure=console.is_secure, httponly=True, samesite="strict"
    )
    return response


def sign_out(visit: Visit) -> Response:
    visit.console.sessions.sign_out(session_cookie(visit))
    response = visit.redirect("/sign-in")
    delete_session_cookie(visit, response)
    return response


_YEAR_S = 365 * 24 * 3600


def choose_language(visit: Visit) -> Response:
    """Set the language cookie and return to the same page. An unknown language changes nothing."""
    code = visit.form.get("language", "")
    response = visit.redirect(console_path(visit.form.get("back", "")) or "/")
    if code in languages():
        response.set_cookie(
            LANGUAGE_COOKIE,
            code,
            max_age=_YEAR_S,
            path="/",
            secure=visit.console.is_secure,
            httponly=True,
            samesite="strict",
        )
    return response


_USER_ID_LENGTH = 22
"""Length of the first part of the token, which identifies the person to the authenticator (16 random bytes)."""


def show_invitation(visit: Visit) -> Response:
    token, party = visit.path_param("token"), _require_party(visit)
    invitation = visit.console.access.invitations.invitation(token, visit.console.now())
    if invitation is None:
        raise PageNotFound(say("This link has already been used or has expired. Ask for a new one."))
    passkey = {
        "kind": "create",
        "challenge": invitation_challenge(token),
        "rp_id": party.rp_id,
        "user_name": invitation["name"],
        "user_id": token[:_USER_ID_LENGTH],
    }
    return visit.page("invitation.html", passkey=passkey, name=invitation["name"])


def accept_invitation(visit: Visit) -> Response:
    """Show the new passkey's line and fingerprint. Raises `PageOutdated` if the invitation was used or has expired."""
    token, form, console = visit.path_param("token"), visit.form, visit.console
    key = parse_new_passkey(form, token, _require_party(visit))
    if key is None:
        raise ActionRefused(say("The passkey was not created. Open the link again to create it."))
    use = console.access.invitations.use(token, key.fingerprint, console.now())
    if use is None:
        raise PageOutdated(say("This link has already been used or has expired. Ask for a new one."))
    name, is_first_use = use
    if is_first_use:
        visit.record_action(mark("make a passkey"), key.fingerprint, AuditResult.DONE, person=name)
    return visit.page("new_passkey.html", name=name, line=key.text, fingerprint=key.fingerprint)


def _require_party(visit: Visit) -> RelyingParty:
    party = visit.console.access.party
    if party is None:
        raise PageNotFound
    return party
