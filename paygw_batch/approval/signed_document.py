"""Reads, signs and approves documents that one person makes and others approve: plans and orders.

The signed text begins with the kind of document, so a signature on one kind never counts for another. The maker signs
the whole content. An approver signs its digest, a time and the approver's own key, so an approval cannot be transferred
to other content or made to look newer. Approvals are counted by person, not by key (`People`). Keys in files and
passkeys sign the same text (see `approval_keys.py`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from paygw_batch.approval.approval_keys import (
    ApprovalKey,
    PasskeySignature,
    People,
    Person,
    PublicKey,
    RelyingParty,
    is_valid_assertion,
    parse_canonical_key,
    passkey_challenge,
)
from paygw_batch.clock import timestamp
from paygw_batch.errors import ApprovalError, ConfigurationError, DocumentWithdrawn
from paygw_batch.files import read_regular, write_atomically
from paygw_batch.journal import Withdrawal
from paygw_batch.language import mark, say, say_count

_APPROVE_IT = mark("To approve it, run `paygw-batch approve {placeholder} --key KEY`.")
_UNKNOWN_MAKER = mark("The {noun} was signed with a key that the configuration does not list under makers.")
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
CLOCK_SKEW = timedelta(minutes=5)
"""How far an approver's clock may be ahead of ours."""
MAX_SIGNING_TIME = timedelta(minutes=10)
"""The maximum time between showing a text to a passkey's owner and the owner signing it."""


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """Who may prepare and approve payouts, and which sums need approval.

    A batch needs approval if its sum in any currency reaches `from_amount`, or if the currency is not listed there. A
    settlement after which a row could be paid again always needs approval.
    """

    needed: int
    from_amount: Mapping[str, Decimal]
    expires_h: float
    people: People
    passkeys: RelyingParty | None = None
    """The console for signing with passkeys. If it is None, passkey signatures do not count."""


class SignedPart(BaseModel):
    """A part of a signed document. It is frozen and strict: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SparsePart(SignedPart):
    """A part that a document may contain many times. Empty values are not written."""

    @model_serializer(mode="wrap")
    def _drop_empty_values(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value or name == "row"}


Signature = str | PasskeySignature
"""A signature by a passkey, or by another key (in base64)."""


class Approval(SignedPart):
    """One person's signed approval."""

    key: str
    approved_at: str
    signature: Signature


class SignedDocument(SignedPart):
    """A document that one person makes and others approve. `document` is its kind and format version."""

    noun: ClassVar[str]
    """The document's name in a sentence."""
    placeholder: ClassVar[str]
    """The placeholder for its file in commands."""
    nothing_done: ClassVar[str]
    """A message that nothing was done, shown in errors."""
    renewal_hint: ClassVar[str]
    """A hint about how to make a new document."""

    document: str
    content: Any
    made_at: str
    maker: str
    """The maker's public key."""
    signature: Signature
    approvals: list[Approval]

    def signed_text(self) -> bytes:
        """Return the text that the maker signs: every value except the signature and approvals."""
        return encode_signed_text(self.document, self.model_dump(exclude={"signature", "approvals"}))

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the text that the maker signs."""
        return hashlib.sha256(self.signed_text()).hexdigest()

    @property
    def code(self) -> str:
        """The first digits of the digest, which two people can compare by phone."""
        return group_digits(self.digest()[:16])

    def approval_text(self, key: PublicKey, approved_at: str) -> bytes:
        """Return the text that the owner of `key` signs to approve the document."""
        body = {"sha256": self.digest(), "approved_at": approved_at, "key": key.text}
        return encode_signed_text(f"{self.document} approval", body)


def group_digits(digits: str) -> str:
    """Separate digits into groups of four, for reading aloud."""
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


Document = TypeVar("Document", bound=SignedDocument)


def encode_signed_text(domain: str, body: Mapping[str, object]) -> bytes:
    """Encode the text to sign: the kind of document (`domain`) and the values in `body`."""
    return f"{domain}\n{json.dumps(body, sort_keys=True, separators=(',', ':'))}".encode()


@dataclass(frozen=True, slots=True)
class Signatures:
    """A document's maker, its valid approvals by person, and the problems with its other approvals."""

    maker: Person
    valid: Mapping[Person, Approval]
    problems: Sequence[str]


def sign_document(document: Document, key: ApprovalKey) -> Document:
    return document.model_copy(update={"signature": key.sign(document.signed_text())})


def sign_by_passkey(unsigned: Document, signature: PasskeySignature, policy: ApprovalPolicy) -> Document:
    """Add the maker's passkey signature to a document. Raises `ApprovalError` if the signature is not valid."""
    document = unsigned.model_copy(update={"signature": signature})
    _verify_maker(document, policy)
    return document


@dataclass(frozen=True, slots=True)
class ApprovalText:
    """The text that an approver signs, and the time of approval that it contains."""

    key: PublicKey
    approved_at: str
    text: bytes = field(repr=False)

    @property
    def challenge(self) -> str:
        return passkey_challenge(self.text)


def approval_text(document: SignedDocument, key: PublicKey, policy: ApprovalPolicy, now: datetime) -> ApprovalText:
    """Return the text that the owner of `key` signs to approve the document now.

    Raises `ApprovalError` if the document was changed, its maker is unknown or the owner may not approve it.
    """
    maker = _verify_maker(document, policy)
    owner = policy.people.find_owner(key)
    if owner == maker:
        raise ApprovalError(
            say(
                "{name} made this {noun}, so another person must approve it.", name=maker.name, noun=say(document.noun)
            ),
            hint=say("Nothing was approved."),
            for_terminal=False,
        )
    if policy.people.find_approver(key) is None:
        raise ApprovalError(
            say("The configuration does not list this key under approvers."),
            hint=say("Nothing was approved."),
            for_terminal=False,
        )
    approved_at = timestamp(now)
    return ApprovalText(key, approved_at, document.approval_text(key, approved_at))


def approve(document: Document, key: ApprovalKey, policy: ApprovalPolicy, now: datetime) -> Document:
    """Approve a document, replacing any approval by the same person. Raises `ApprovalError` as in `approval_text`."""
    to_sign = approval_text(document, key.public, policy, now)
    approval = Approval(key=key.public.text, approved_at=to_sign.approved_at, signature=key.sign(to_sign.text))
    return _add_approval(document, approval, policy)


def approve_by_passkey(document: Document, approval: Approval, policy: ApprovalPolicy, now: datetime) -> Document:
    """Add a recent passkey approval, replacing any by the same person. Raises `ApprovalError` if it is not valid."""
    approver: Person | str = say("is not dated")
    if _has_time_zone(approval.approved_at):
        approver = _find_approver(approval, document, _verify_maker(document, policy), policy, now)
    if isinstance(approver, Person) and datetime.fromisoformat(approval.approved_at) < now - MAX_SIGNING_TIME:
        approver = say("was started at {approved_at}, which is too long ago", approved_at=approval.approved_at)
    if not isinstance(approver, Person):
        raise ApprovalError(
            say("The approval {problem}.", problem=approver),
            hint=say("Nothing was approved. Reload the page and approve again."),
            for_terminal=False,
        )
    return _add_approval(document, approval, policy)


def _add_approval(document: Document, approval: Approval, policy: ApprovalPolicy) -> Document:
    person = _find_owner(approval.key, policy.people)
    other_approvals = [other for other in document.approvals if _find_owner(other.key, policy.people) != person]
    return document.model_copy(update={"approvals": [*other_approvals, approval]})


def verify_signatures(document: SignedDocument, policy: ApprovalPolicy, now: datetime) -> Signatures:
    """Verify all signatures of a document. Raises `ApprovalError` if the maker's signature is not valid."""
    maker = _verify_maker(document, policy)
    valid: dict[Person, Approval] = {}
    problems = []
    for approval in document.approvals:
        person = _find_approver(approval, document, maker, policy, now)
        if isinstance(person, Person):
            valid.setdefault(person, approval)
        else:
            problems.append(
                say("the approval by {name} {problem}", name=owner_name(approval.key, policy.people), problem=person)
            )
    return Signatures(maker, valid, problems)


def require_signatures(document: SignedDocument, policy: ApprovalPolicy, now: datetime) -> Signatures:
    """Verify all signatures. Raises `ApprovalError` for too few approvals or a date in the future."""
    signatures = verify_signatures(document, policy, now)
    if datetime.fromisoformat(document.made_at) > now + CLOCK_SKEW:
        raise ApprovalError(
            say(
                "The {noun} is dated {made_at}, which is in the future.",
                noun=say(document.noun),
                made_at=document.made_at,
            ),
            hint=f"{say(document.nothing_done)} {say(document.renewal_hint)}",
        )
    if len(signatures.valid) < policy.needed:
        valid_count = len(signatures.valid)
        reasons = say("; {wrong}", wrong="; ".join(signatures.problems)) if signatures.problems else ""
        raise ApprovalError(
            say_count(
                policy.needed,
                "The {noun} needs {count} valid approval but has {valid}{reasons}.",
                "The {noun} needs {count} valid approvals but has {valid}{reasons}.",
                noun=say(document.noun),
                valid=valid_count,
                reasons=reasons,
            ),
            hint=f"{say(document.nothing_done)} {say(_APPROVE_IT, placeholder=document.placeholder)}",
        )
    return signatures


def require_journal_id(document: SignedDocument, journal_id: str, hint: str) -> None:
    """Raise `ApprovalError` if a document is for another journal than `journal_id`."""
    if document.content.journal != journal_id:
        raise ApprovalError(
            say(
                "The {noun} is for the journal {journal}, not for the journal {journal_id}.",
                noun=say(document.noun),
                journal=document.content.journal[:8],
                journal_id=journal_id[:8],
            ),
            hint=hint,
            for_terminal=False,
        )


def require_not_withdrawn(document: SignedDocument, withdrawals: Iterable[Withdrawal]) -> None:
    """Raise `DocumentWithdrawn` if the document was withdrawn."""
    for withdrawal in withdrawals:
        if withdrawal.sha256 == document.digest():
            raise DocumentWithdrawn(
                say(
                    "{name} withdrew the {noun} at {at}. Copies of it are no longer valid.",
                    noun=say(document.noun),
                    name=withdrawal.by,
                    at=withdrawal.at,
                ),
                hint=f"{say(document.nothing_done)} {say(document.renewal_hint)}",
            )


def owner_name(key: str, people: People) -> str:
    """Return the name of a key's owner, or a description if the key is unknown."""
    owner = _find_owner(key, people)
    return say("an unknown key") if owner is None else owner.name


def _find_owner(key: str, people: People) -> Person | None:
    public_key = parse_canonical_key(key)
    return None if public_key is None else people.find_owner(public_key)


def _verify_maker(document: SignedDocument, policy: ApprovalPolicy) -> Person:
    key = parse_canonical_key(document.maker)
    if key is None or not is_valid_signature(key, document.signed_text(), document.signature, policy.passkeys):
        raise ApprovalError(
            say("The {noun} was changed after its maker signed it.", noun=say(document.noun)),
            hint=f"{say(document.nothing_done)} {say(document.renewal_hint)}",
        )
    if (maker := policy.people.find_maker(key)) is None:
        raise ApprovalError(
            say(_UNKNOWN_MAKER, noun=say(document.noun)),
            hint=f"{say(document.nothing_done)} {say('Its maker and its approver could be one person.')}",
        )
    return maker


def is_valid_signature(key: PublicKey, text: bytes, signature: Signature, party: RelyingParty | None) -> bool:
    """Return whether `key` signed exactly `text`, either directly or as a passkey on a page of `party`."""
    if isinstance(signature, str):
        return key.verifies(text, signature)
    return party is not None and is_valid_assertion(key, signature, text, party)


def _find_approver(
    approval: Approval, document: SignedDocument, maker: Person, policy: ApprovalPolicy, now: datetime
) -> Person | str:
    """Return the person who approved, or why the approval is not valid."""
    key = parse_canonical_key(approval.key)
    if key is not None and policy.people.find_owner(key) == maker:
        return say("is from the {noun}'s maker", noun=say(document.noun))
    person = None if key is None else policy.people.find_approver(key)
    if key is None or person is None:
        return say("was signed with a key that does not belong to a listed approver")
    if policy.passkeys is None and not isinstance(approval.signature, str):
        return say("was signed with a passkey, but the console's address is not configured")
    text = document.approval_text(key, approval.approved_at)
    if not is_valid_signature(key, text, approval.signature, policy.passkeys):
        return say("is for different content or has been changed")
    approved_at = datetime.fromisoformat(approval.approved_at)
    if approved_at > now + CLOCK_SKEW:
        return say("is dated {approved_at}, which is in the future", approved_at=approval.approved_at)
    expires_at = approved_at + timedelta(hours=policy.expires_h)
    if now >= expires_at:
        return say("expired at {expires_at}", expires_at=timestamp(expires_at))
    return person


def read_document(path: Path, *kinds: type[Document], data: bytes | None = None) -> Document:
    """Read a document of one of `kinds` from `data`, or else from a file. Raises `ApprovalError` if it is invalid."""
    noun = say(kinds[0].noun) if len(kinds) == 1 else say("plan or order")
    hint = f"{say(kinds[0].nothing_done)} {say(kinds[0].renewal_hint)}"
    try:
        if data is None:
            data = read_regular(path, MAX_DOCUMENT_BYTES)
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        message = say("The {noun} {path} cannot be read: {reason}.", noun=noun, path=path, reason=reason)
        raise ApprovalError(message, hint=hint) from None
    kinds_by_name = {kind.model_fields["document"].default: kind for kind in kinds}
    try:
        kind_name = _DocumentKind.model_validate_json(data).document
        if kind_name is not None and kind_name not in kinds_by_name:
            raise ApprovalError(
                say(
                    "{name} is not a {noun} that this version can read: its type is {document!r}.",
                    name=path.name,
                    noun=say(kinds[0].noun),
                    document=kind_name[:60],
                ),
                hint=hint,
            )
        document = kinds_by_name[kind_name].model_validate_json(data)
        for time_text in (document.made_at, *(approval.approved_at for approval in document.approvals)):
            if not _has_time_zone(time_text):
                raise ValueError(time_text)  # noqa: TRY301 (handled like any unreadable document)
    except (ValueError, KeyError):
        raise ApprovalError(say("{name} is not a valid {noun}.", name=path.name, noun=noun), hint=hint) from None
    return document


def _has_time_zone(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class _DocumentKind(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    document: str | None = None


def write_document(document: SignedDocument, path: Path) -> None:
    write_atomically(path, (document.model_dump_json(indent=1) + "\n").encode())


def require_reachable_approval(policy: ApprovalPolicy) -> None:
    """Raise `ConfigurationError` if no plan could ever get enough approvals."""
    max_approvers = max((len(policy.people.approvers_for(maker)) for maker in policy.people.makers), default=0)
    if max_approvers < policy.needed:
        raise ConfigurationError(
            say_count(
                max_approvers,
                "[approval] needed is {needed}, but at most {count} other person can approve a maker's plan.",
                "[approval] needed is {needed}, but at most {count} other people can approve a maker's plan.",
                needed=policy.needed,
            ),
            hint=say("Each person counts once, however many keys they hold, and no one can approve their own plan."),
        )
