"""Signs documents for the person at a page: with the passkey of the sign-in, or in the sandbox with the own key."""

from collections.abc import Mapping
from contextlib import suppress

from paygw_batch.clock import utc_now
from paygw_batch.compose.approvals import required_policy
from paygw_batch.console.access.passkey_access import signature_in
from paygw_batch.console.pages.preparing import required_key
from paygw_batch.console.visits import Visit
from paygw_batch.console.web_sessions import SignedInKey
from paygw_batch.errors import ApprovalError
from paygw_batch.run.approval_keys import PublicKey
from paygw_batch.run.passkey import challenge_of
from paygw_batch.run.signed_document import (
    Approval,
    Document,
    Signatures,
    SignedDocument,
    approval_text,
    approve,
    approve_by_passkey,
    made_by_passkey,
    signatures_of,
    signed,
)


def signing_key(visit: Visit) -> PublicKey:
    """Return the key with which the person at the page signs."""
    return required_key(visit.console, visit.member).public if visit.passkey is None else visit.passkey.key


def signed_by_maker(visit: Visit, draft: Document) -> Document:
    """Return a draft with the signature of the person at the page."""
    passkey = visit.passkey
    if passkey is None:
        return signed(draft, required_key(visit.console, visit.member))
    own = _by_passkey(draft, passkey)
    return made_by_passkey(own, signature_in(visit.form), required_policy(visit.console.settings))


def approved_by(visit: Visit, document: Document) -> Document:
    """Return a document with the approval of the person at the page."""
    policy, now, passkey = required_policy(visit.console.settings), utc_now(), visit.passkey
    if passkey is None:
        return approve(document, required_key(visit.console, visit.member), policy, now)
    approval = Approval(
        key=passkey.key.text,
        approved_at=visit.form.get("approved_at", ""),
        signature=signature_in(visit.form),
    )
    return approve_by_passkey(document, approval, policy, now)


def form_of_maker(visit: Visit, draft: SignedDocument) -> Mapping[str, str] | None:
    """Return the parts of the form that asks a maker for the passkey; None where no passkey signs."""
    form, passkey = _form(visit), visit.passkey
    if form is None or passkey is None:
        return None
    return {**form, "challenge": challenge_of(_by_passkey(draft, passkey).signed_text())}


def form_of_approver(visit: Visit, document: SignedDocument) -> Mapping[str, str] | None:
    """Return the parts of the form that asks an approver for the passkey; None where no passkey signs."""
    form, passkey = _form(visit), visit.passkey
    if form is None or passkey is None:
        return None
    with suppress(ApprovalError):  # whoever may not approve it is shown why, and no form
        asked = approval_text(document, passkey.key, required_policy(visit.console.settings), utc_now())
        return {**form, "challenge": asked.challenge, "approved_at": asked.approved_at}
    return None


def signatures_now(visit: Visit, document: SignedDocument) -> Signatures | None:
    """Return who made and who approves of a document; None where it does not count at all."""
    try:
        return signatures_of(document, required_policy(visit.console.settings), utc_now())
    except ApprovalError:
        return None


def enough_approve(visit: Visit, document: SignedDocument) -> bool:
    """Whether as many people approve of a document now as the configuration asks for."""
    found = signatures_now(visit, document)
    return found is not None and len(found.valid) >= required_policy(visit.console.settings).needed


def has_approved(visit: Visit, document: SignedDocument) -> bool:
    """Whether the person at the page approves of a document already."""
    found = signatures_now(visit, document)
    return found is not None and visit.member.name in {person.name for person in found.valid}


def _form(visit: Visit) -> Mapping[str, str] | None:
    passkey, party = visit.passkey, visit.console.access.party
    if passkey is None or party is None:
        return None
    return {"kind": "get", "rp_id": party.rp_id, "credential": passkey.credential}


def _by_passkey(draft: Document, passkey: SignedInKey) -> Document:
    """Return a draft as the owner of this passkey makes it. A maker may have several keys."""
    return draft.model_copy(update={"maker": passkey.key.text})
