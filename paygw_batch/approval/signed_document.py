"""Reads, signs and approves documents that one person makes and others approve: a plan to pay, or an order.

The first line of the signed text names the kind of document, so a signature on one kind never counts for another. The
maker signs the whole content. An approver signs its digest, a time and the approver's own key. Nobody can therefore
transfer an approval to other content, or make it look newer. Approvals are counted by person, not by key (`People`).
Keys in files and passkeys sign the same text (see `approval_keys.py`).
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

_APPROVE_IT = mark("`paygw-batch approve {placeholder} --key KEY` approves it.")
_UNKNOWN_MAKER = mark("The {noun} was signed with a key that the configuration does not list under makers.")
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
CLOCK_SKEW = timedelta(minutes=5)
"""The maximum time by which an approver's clock may be ahead of this machine's."""
MAX_SIGNING = timedelta(minutes=10)
"""The maximum time for signing a text with a passkey. The time in the text is that at which it was shown."""


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """The people who may prepare and approve, and the sums that need approval.

    A batch needs approval if its sum in any currency reaches `from_amount`, and always if the currency is not listed
    there. A settlement that lets a row be paid again always needs approval.
    """

    needed: int
    from_amount: Mapping[str, Decimal]
    expires_h: float
    people: People
    passkeys: RelyingParty | None = None
    """The console on whose pages people sign with passkeys. If it is None, passkey signatures do not count."""


class SignedPart(BaseModel):
    """A part of a signed document. It is frozen and strict: an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SparsePart(SignedPart):
    """A part of which a document can contain very many. Its empty values are not written."""

    @model_serializer(mode="wrap")
    def _drop_empty_values(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value or name == "row"}


Signature = str | PasskeySignature
"""A signature by a key from a file (in base64), or by a passkey."""


class Approval(SignedPart):
    """One person's signed approval."""

    key: str
    approved_at: str
    signature: Signature


class SignedDocument(SignedPart):
    """The file of a document. `document` names its kind and the version of its format."""

    noun: ClassVar[str]
    """The name of the document in a sentence."""
    placeholder: ClassVar[str]
    """The name of the document's file in a command line."""
    nothing_done: ClassVar[str]
    """The sentence in an error that says that nothing was done."""
    renewal_hint: ClassVar[str]
    """The hint for the maker on how to make another document."""

    document: str
    content: Any
    made_at: str
    maker: str
    """The maker's public key."""
    signature: Signature
    approvals: list[Approval]

    def signed_text(self) -> bytes:
        """Return the text that the maker signs: every value except the signature and the approvals."""
        return encode_signed_text(self.document, self.model_dump(exclude={"signature", "approvals"}))

    def digest(self) -> str:
        """Return the SHA-256 of the text that the maker signed, in hex."""
        return hashlib.sha256(self.signed_text()).hexdigest()

    @property
    def code(self) -> str:
        """The code that two people compare by phone: the beginning of the digest."""
        return group_digits(self.digest()[:16])

    def approval_text(self, key: PublicKey, approved_at: str) -> bytes:
        """Return the text that an approver signs with this key."""
        body = {"sha256": self.digest(), "approved_at": approved_at, "key": key.text}
        return encode_signed_text(f"{self.document} approval", body)


def group_digits(digits: str) -> str:
    """Return digits in groups of four, for reading aloud."""
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


Document = TypeVar("Document", bound=SignedDocument)


def encode_signed_text(domain: str, body: Mapping[str, object]) -> bytes:
    """Return the text to sign: its kind (`domain`) and its values."""
    return f"{domain}\n{json.dumps(body, sort_keys=True, separators=(',', ':'))}".encode()


@dataclass(frozen=True, slots=True)
class Signatures:
    """The maker of a document, its valid approvals by person, and the problems of its other approvals."""

    maker: Person
    valid: Mapping[Person, Approval]
    problems: Sequence[str]


def sign_document(document: Document, key: ApprovalKey) -> Document:
    return document.model_copy(update={"signature": key.sign(document.signed_text())})


def sign_by_passkey(unsigned: Document, signature: PasskeySignature, policy: ApprovalPolicy) -> Document:
    """Return a document with its maker's passkey signature.

    Raises `ApprovalError` if the signature is for another document, or not by a maker.
    """
    document = unsigned.model_copy(update={"signature": signature})
    _require_maker(document, policy)
    return document


@dataclass(frozen=True, slots=True)
class ApprovalText:
    """The text that an approver signs with a key, and its time."""

    key: PublicKey
    approved_at: str
    text: bytes = field(repr=False)

    @property
    def challenge(self) -> str:
        return passkey_challenge(self.text)


def approval_text(document: SignedDocument, key: PublicKey, policy: ApprovalPolicy, now: datetime) -> ApprovalText:
    """Return the text that the owner of `key` signs to approve the document now.

    Raises `ApprovalError` if the document was changed, if the policy does not know its maker or approver, or if the
    maker tries to approve it with any key.
    """
    maker = _require_maker(document, policy)
    owner = policy.people.find_owner(key)
    if owner == maker:
        raise ApprovalError(
            say(
                "{name} made this {noun}, so another person must approve it.", name=maker.name, noun=say(document.noun)
            ),
            hint=say("Nothing was approved."),
            for_terminal=False,
        )
    if policy.people.approver_with(key) is None:
        raise ApprovalError(
            say("The configuration does not list this key under approvers."),
            hint=say("Nothing was approved."),
            for_terminal=False,
        )
    approved_at = timestamp(now)
    return ApprovalText(key, approved_at, document.approval_text(key, approved_at))


def approve(document: Document, key: ApprovalKey, policy: ApprovalPolicy, now: datetime) -> Document:
    """Return the document with an approval by `key`, which replaces an earlier approval by the same person.

    Raises `ApprovalError` as `approval_text` does.
    """
    to_sign = approval_text(document, key.public, policy, now)
    approval = Approval(key=key.public.text, approved_at=to_sign.approved_at, signature=key.sign(to_sign.text))
    return _add_approval(document, approval, policy)


def approve_by_passkey(document: Document, approval: Approval, policy: ApprovalPolicy, now: datetime) -> Document:
    """Return the document with a recent passkey approval, which replaces an earlier one by the same person.

    Raises `ApprovalError` with the reason if the approval is not valid, or if its text was shown too long ago.
    """
    approver: Person | str = say("has no time")
    if _is_time(approval.approved_at):
        approver = _find_approver(approval, document, _require_maker(document, policy), policy, now)
    if isinstance(approver, Person) and datetime.fromisoformat(approval.approved_at) < now - MAX_SIGNING:
        approver = say("was started at {approved_at}, too long ago", approved_at=approval.approved_at)
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
    """Return the maker and approvers of a document. Raises `ApprovalError` if it was changed, or has no valid maker."""
    maker = _require_maker(document, policy)
    valid: dict[Person, Approval] = {}
    flaws = []
    for approval in document.approvals:
        person = _find_approver(approval, document, maker, policy, now)
        if isinstance(person, Person):
            valid.setdefault(person, approval)
        else:
            flaws.append(say("that of {name} {problem}", name=owner_name(approval.key, policy.people), problem=person))
    return Signatures(maker, valid, flaws)


def require_signatures(document: SignedDocument, policy: ApprovalPolicy, now: datetime) -> Signatures:
    """Return the maker and approvers of a document.

    Raises `ApprovalError` if too few people approve, or if the document is dated in the future.
    """
    signatures = verify_signatures(document, policy, now)
    if datetime.fromisoformat(document.made_at) > now + CLOCK_SKEW:
        raise ApprovalError(
            say(
                "The {noun} was made at {made_at}, which is in the future.",
                noun=say(document.noun),
                made_at=document.made_at,
            ),
            hint=f"{say(document.nothing_done)} {say(document.renewal_hint)}",
        )
    if len(signatures.valid) < policy.needed:
        valid = len(signatures.valid)
        reasons = say("; {wrong}", wrong="; ".join(signatures.problems)) if signatures.problems else ""
        raise ApprovalError(
            say_count(
                policy.needed,
                "The {noun} needs {count} valid approval and has {valid}{reasons}.",
                "The {noun} needs {count} valid approvals and has {valid}{reasons}.",
                noun=say(document.noun),
                valid=valid,
                reasons=reasons,
            ),
            hint=f"{say(document.nothing_done)} {say(_APPROVE_IT, placeholder=document.placeholder)}",
        )
    return signatures


def require_journal(document: SignedDocument, journal_id: str, nothing_done: str) -> None:
    """Raise `ApprovalError` if a document belongs to another journal than `journal_id`."""
    if document.content.journal != journal_id:
        raise ApprovalError(
            say(
                "The {noun} is for the journal {journal}, but this is the journal {journal_id}.",
                noun=say(document.noun),
                journal=document.content.journal[:8],
                journal_id=journal_id[:8],
            ),
            hint=nothing_done,
            for_terminal=False,
        )


def require_not_withdrawn(document: SignedDocument, withdrawals: Iterable[Withdrawal]) -> None:
    """Raise `DocumentWithdrawn` if a person withdrew any copy of the document."""
    for withdrawal in withdrawals:
        if withdrawal.sha256 == document.digest():
            raise DocumentWithdrawn(
                say(
                    "The {noun} was withdrawn by {name} at {at}: no copy of it is valid any longer.",
                    noun=say(document.noun),
                    name=withdrawal.by,
                    at=withdrawal.at,
                ),
                hint=f"{say(document.nothing_done)} {say(document.renewal_hint)}",
            )


def owner_name(key: str, people: People) -> str:
    """Return the name of a key's owner, or a description of an unknown key."""
    owner = _find_owner(key, people)
    return say("an unknown key") if owner is None else owner.name


def _find_owner(key: str, people: People) -> Person | None:
    public_key = parse_canonical_key(key)
    return None if public_key is None else people.find_owner(public_key)


def _require_maker(document: SignedDocument, policy: ApprovalPolicy) -> Person:
    key = parse_canonical_key(document.maker)
    if key is None or not is_valid_signature(key, document.signed_text(), document.signature, policy.passkeys):
        raise ApprovalError(
            say("The {noun} was changed after its maker signed it.", noun=say(document.noun)),
            hint=f"{say(document.nothing_done)} {say(document.renewal_hint)}",
        )
    maker = policy.people.maker_with(key)
    if maker is None:
        raise ApprovalError(
            say(_UNKNOWN_MAKER, noun=say(document.noun)),
            hint=f"{say(document.nothing_done)} {say('Its maker and its approver could be one person.')}",
        )
    return maker


def is_valid_signature(key: PublicKey, text: bytes, signature: Signature, party: RelyingParty | None) -> bool:
    """Return whether `key` signed exactly `text`, from a file or as a passkey on a page of `party`."""
    if isinstance(signature, str):
        return key.has_signed(text, signature)
    return party is not None and is_valid_assertion(key, signature, text, party)


def _find_approver(
    approval: Approval, document: SignedDocument, maker: Person, policy: ApprovalPolicy, now: datetime
) -> Person | str:
    """Return the person who gave a valid approval, or the reason why the approval is not valid."""
    key = parse_canonical_key(approval.key)
    if key is not None and policy.people.find_owner(key) == maker:
        return say("is by the maker of the {noun}", noun=say(document.noun))
    person = None if key is None else policy.people.approver_with(key)
    if key is None or person is None:
        return say("is by a key that does not belong to a listed approver")
    if policy.passkeys is None and not isinstance(approval.signature, str):
        return say("is by passkey, but the configuration does not give the address of the pages")
    text = document.approval_text(key, approval.approved_at)
    if not is_valid_signature(key, text, approval.signature, policy.passkeys):
        return say("is for different content, or was changed")
    approved_at = datetime.fromisoformat(approval.approved_at)
    if approved_at > now + CLOCK_SKEW:
        return say("is dated {approved_at}, which is in the future", approved_at=approval.approved_at)
    expires_at = approved_at + timedelta(hours=policy.expires_h)
    if now >= expires_at:
        return say("expired at {expires_at}", expires_at=timestamp(expires_at))
    return person


def read_document(path: Path, *kinds: type[Document], data: bytes | None = None) -> Document:
    """Read a document of one of `kinds` from the file `path`, or from `data`, stored elsewhere under that name.

    Raises `ApprovalError` if the document is missing, unreadable, or made by another version of this program.
    """
    noun = say(kinds[0].noun) if len(kinds) == 1 else say("plan or order")
    hint = f"{say(kinds[0].nothing_done)} {say(kinds[0].renewal_hint)}"
    try:
        if data is None:
            data = read_regular(path, MAX_DOCUMENT_BYTES)
    except OSError as error:
        reason = say(error.strerror or "unknown reason").lower()
        sentence = say("The {noun} {path} cannot be read: {reason}.", noun=noun, path=path, reason=reason)
        raise ApprovalError(sentence, hint=hint) from None
    readable = {kind.model_fields["document"].default: kind for kind in kinds}
    try:
        label = _DocumentKind.model_validate_json(data).document
        if label is not None and label not in readable:
            raise ApprovalError(
                say(
                    "{name} is not a {noun} that this version can read: its type is {document!r}.",
                    name=path.name,
                    noun=say(kinds[0].noun),
                    document=label[:60],
                ),
                hint=hint,
            )
        document = readable[label].model_validate_json(data)
        for time_text in (document.made_at, *(approval.approved_at for approval in document.approvals)):
            if not _is_time(time_text):
                raise ValueError(time_text)  # noqa: TRY301 (handled like any unreadable document)
    except (ValueError, KeyError):
        raise ApprovalError(say("{name} is not a valid {noun}.", name=path.name, noun=noun), hint=hint) from None
    return document


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class _DocumentKind(BaseModel):
    """The kind of document that a file claims to be. The rest of its content is not read."""

    model_config = ConfigDict(extra="ignore", strict=True)

    document: str | None = None


def write_document(document: SignedDocument, path: Path) -> None:
    """Write a document to `path` atomically."""
    write_atomically(path, (document.model_dump_json(indent=1) + "\n").encode())


def require_reachable_approval(policy: ApprovalPolicy) -> None:
    """Raise `ConfigurationError` if no maker's plan could ever get enough approvals."""
    max_approvers = max((len(policy.people.approvers_for(maker)) for maker in policy.people.makers), default=0)
    if max_approvers < policy.needed:
        raise ConfigurationError(
            say_count(
                max_approvers,
                "[approval] needed is {needed}, but at most {count} other person may approve a maker's plan.",
                "[approval] needed is {needed}, but at most {count} other people may approve a maker's plan.",
                needed=policy.needed,
            ),
            hint=say("Each person counts once, however many keys they hold, and no one can approve their own plan."),
        )
