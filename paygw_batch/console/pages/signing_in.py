"""Signs people in by passkey, and out. In the sandbox a person can be chosen from a list, and nowhere else."""

from starlette.responses import Response

from paygw_batch.console.access.passkey_access import signature_in
from paygw_batch.console.access.passkey_sign_in import key_that_signed
from paygw_batch.console.visits import ActRefused, Visit, signed_in, signed_out
from paygw_batch.console.web_sessions import SignedInKey, SignInWay
from paygw_batch.journal import AuditResult
from paygw_batch.language import say


def sign_in_page(visit: Visit) -> Response:
    """Show the button for a passkey; in the sandbox also who may sign in."""
    access = visit.console.access
    passkey = None
    if access.party is not None:
        begun = access.sign_ins.begin()
        passkey = {"kind": "get", "challenge": begun.challenge, "rp_id": access.party.rp_id, "nonce": begun.nonce}
    return visit.page("sign_in.html", members=visit.console.members, passkey=passkey)


def use_passkey(visit: Visit) -> Response:
    """Sign in the person whose passkey signed."""
    access, form = visit.console.access, visit.form
    begun = access.sign_ins.end(form.get("nonce", ""))
    if begun is None or access.party is None:
        raise ActRefused(say("This page was open for too long. Open it again, and sign in."))
    key = key_that_signed(begun, signature_in(form), access.keys, access.party)
    if key is None:
        raise ActRefused(say("The configuration does not know this passkey."))
    visit.note("sign in", key.fingerprint, AuditResult.DONE, who=access.keys[key].name)
    return signed_in(visit, access.keys[key], SignInWay.PASSKEY, SignedInKey(key, form.get("credential", "")))


def choose_person(visit: Visit) -> Response:
    """Sign in the person that was chosen from the list of the sandbox."""
    if not visit.console.settings.uses_sandbox:
        raise ActRefused(say("People are chosen from a list in the sandbox alone."))
    member = next((one for one in visit.console.members if one.name == visit.form.get("name")), None)
    if member is None:
        raise ActRefused(say("There is no such person."))
    visit.note("sign in", "sandbox", AuditResult.DONE, who=member.name)
    return signed_in(visit, member, SignInWay.LIST)


def sign_out(visit: Visit) -> Response:
    """End the session."""
    return signed_out(visit)
