"""Approvals by passkey: every assertion that another library accepts is valid, and any changed byte is detected."""

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from webauthn import verify_authentication_response
from webauthn.helpers import encode_cbor
from webauthn.helpers.exceptions import WebAuthnException

from paygw_batch.approval.approval_keys import (
    PasskeySignature,
    PublicKey,
    RelyingParty,
    build_people,
    from_base64url,
    is_valid_assertion,
    parse_public_key,
    passkey_challenge,
    to_base64url,
)
from paygw_batch.approval.plan_document import PlanDocument, build_plan, payout_code
from paygw_batch.approval.signed_document import (
    Approval,
    ApprovalPolicy,
    SignedDocument,
    approval_text,
    approve,
    approve_by_passkey,
    sign_by_passkey,
    sign_document,
    verify_signatures,
)
from paygw_batch.errors import ApprovalError, ConfigurationError
from paygw_batch.settle.row_order import RowOrder, unsigned_order
from tests.support.signed_plans import AT, NOW, create_private_key, has_valid_signatures, order_content, plan_content
from tests.support.software_passkey import CONSOLE, ELSEWHERE, SoftwarePasskey, flip_each_bit, passkey

TEXT = b"paygw-batch plan 5 approval\n{...}"
KEY = passkey("p256")


KINDS = pytest.mark.parametrize("name", ["p256", "ed25519", "rsa"])
PARTS = ("client_data", "authenticator_data", "signature")


# py_webauthn serves as the oracle.
def encode_cose(key: PublicKey) -> bytes:
    """Return a key as an authenticator registers it, for the other library (RFC 9053)."""
    public = load_der_public_key(key.material)
    match public:
        case ec.EllipticCurvePublicKey():
            numbers = public.public_numbers()
            return encode_cbor({1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32), -3: numbers.y.to_bytes(32)})
        case rsa.RSAPublicKey():
            parts = public.public_numbers()
            return encode_cbor({1: 3, 3: -257, -1: parts.n.to_bytes(256), -2: parts.e.to_bytes(3)})
        case _:
            return encode_cbor({1: 1, 3: -8, -1: 6, -2: key.material[-32:]})


def is_accepted_by_webauthn(key: PublicKey, signature: PasskeySignature, data: bytes, party: RelyingParty) -> bool:
    response = {
        "clientDataJSON": signature.client_data,
        "authenticatorData": signature.authenticator_data,
        "signature": signature.signature,
    }
    try:
        verify_authentication_response(
            credential={"id": "AAAA", "rawId": "AAAA", "type": "public-key", "response": response},
            expected_challenge=from_base64url(passkey_challenge(data)) or b"",
            expected_rp_id=party.rp_id,
            expected_origin=party.origin,
            credential_public_key=encode_cose(key),
            credential_current_sign_count=0,
            require_user_verification=True,
        )
    except (WebAuthnException, ValueError):
        return False
    return True


@KINDS
def test_both_libraries_accept_only_signed_text(name: str) -> None:
    signature, public = passkey(name).sign(TEXT), passkey(name).public
    assert is_valid_assertion(public, signature, TEXT, CONSOLE)
    assert is_accepted_by_webauthn(public, signature, TEXT, CONSOLE)
    for other in flip_each_bit(TEXT):
        assert not is_valid_assertion(public, signature, other, CONSOLE)
    for material in flip_each_bit(public.material):
        key = parse_public_key(base64.b64encode(material).decode())
        assert key in {None, public} or not is_valid_assertion(key, signature, TEXT, CONSOLE)


@KINDS
@pytest.mark.parametrize("part", PARTS)
def test_assertion_with_flipped_bit_is_refused(name: str, part: str) -> None:
    signature = passkey(name).sign(TEXT)
    for other in flip_each_bit(from_base64url(getattr(signature, part)) or b""):
        changed = signature.model_copy(update={part: to_base64url(other)})
        assert not is_valid_assertion(passkey(name).public, changed, TEXT, CONSOLE), other


def test_assertion_for_different_origin_is_refused() -> None:
    signature = KEY.sign(TEXT)
    for other in flip_each_bit(CONSOLE.origin.encode()):
        party = RelyingParty(other.decode("latin-1"))
        assert not is_valid_assertion(KEY.public, signature, TEXT, party)


@pytest.mark.parametrize("part", PARTS)
def test_noncanonical_base64_in_assertion_is_refused(part: str) -> None:
    signature = KEY.sign(TEXT)
    text = getattr(signature, part)
    others = {text + "=", text + "==", text + "A", text[:-1], text + "\n", " " + text, text + "\u00e4", ""}
    for other in (others | {text.replace("-", "+"), text.replace("_", "/")}) - {text}:
        changed = signature.model_copy(update={part: other})
        assert not is_valid_assertion(KEY.public, changed, TEXT, CONSOLE), other


# These signatures are genuine, but over something that was not requested.
def build_page_data(**more: object) -> PasskeySignature:
    return KEY.sign(TEXT, more=more)


def build_authenticator_data(flags: int = 0x05, more: bytes = b"", rp_id: str | None = None) -> PasskeySignature:
    return KEY.sign(TEXT, authenticator_data=KEY.authenticator_data(flags, rp_id, more))


def build_client_data(text: str) -> PasskeySignature:
    return KEY.sign(TEXT, client_data=text.encode())


GOOD = f'"type":"webauthn.get","challenge":"{passkey_challenge(TEXT)}","origin":"{CONSOLE.origin}"'

REFUSED: dict[str, Callable[[], PasskeySignature]] = {
    "another challenge": lambda: build_page_data(challenge=passkey_challenge(b"another text")),
    "a challenge in another spelling": lambda: build_page_data(challenge=passkey_challenge(TEXT) + "="),
    "no challenge": lambda: build_client_data('{"type":"webauthn.get","origin":"' + CONSOLE.origin + '"}'),
    "a new passkey": lambda: build_page_data(type="webauthn.create"),
    "a payment": lambda: build_page_data(type="payment.get"),
    "another origin": lambda: build_page_data(origin=ELSEWHERE.origin),
    "another port": lambda: build_page_data(origin=CONSOLE.origin + ":8443"),
    "another scheme": lambda: build_page_data(origin=CONSOLE.origin.replace("https", "http")),
    "another spelling of the origin": lambda: build_page_data(origin=CONSOLE.origin + "/"),
    "a list of origins": lambda: build_page_data(origin=[CONSOLE.origin]),
    "a page in a frame": lambda: build_page_data(crossOrigin=True),
    "a page in a frame, not said plainly": lambda: build_page_data(crossOrigin="false"),
    "a page in a frame of another": lambda: build_page_data(topOrigin=ELSEWHERE.origin),
    "a name twice": lambda: build_client_data(f'{{{GOOD},"origin":"{CONSOLE.origin}"}}'),
    "two objects": lambda: build_client_data(f"{{{GOOD}}}{{{GOOD}}}"),
    "no JSON": lambda: build_client_data(f"{{{GOOD}"),
    "no object": lambda: build_client_data(f"[{{{GOOD}}}]"),
    "a byte order mark": lambda: build_client_data(f"\ufeff{{{GOOD}}}"),
    "not a number": lambda: build_client_data(f'{{{GOOD},"more":NaN}}'),
    "too much": lambda: build_page_data(more="x" * 5000),
    "another console": lambda: build_authenticator_data(rp_id=ELSEWHERE.rp_id),
    "the origin, not its name": lambda: build_authenticator_data(rp_id=CONSOLE.origin),
    "nobody present": lambda: build_authenticator_data(0x04),
    "nobody verified": lambda: build_authenticator_data(0x01),
    "neither": lambda: build_authenticator_data(0x00),
    "a copy of what cannot be copied": lambda: build_authenticator_data(0x15),
    "a key, and none": lambda: build_authenticator_data(0x45),
    "extensions, and none": lambda: build_authenticator_data(0x85),
    "extensions nobody asked for": lambda: build_authenticator_data(0x85, encode_cbor({"x": True})),
    "a byte too much": lambda: build_authenticator_data(more=b"\0"),
    "a byte too little": lambda: KEY.sign(TEXT, authenticator_data=KEY.authenticator_data()[:-1]),
    "nothing said": lambda: KEY.sign(TEXT, authenticator_data=b""),
}


STRICTER = {
    *("a challenge in another spelling", "a page in a frame", "a page in a frame, not said plainly"),
    *("a page in a frame of another", "a name twice", "not a number", "a byte order mark", "too much"),
    "extensions nobody asked for",
}
"""The other library ignores frames, ambiguous JSON, sizes and unused extensions."""


@pytest.mark.parametrize("what", REFUSED)
def test_passkey_signature_with_invalid_property_is_refused(what: str) -> None:
    key, signature = KEY.public, REFUSED[what]()
    assert not is_valid_assertion(key, signature, TEXT, CONSOLE)
    assert what in STRICTER or not is_accepted_by_webauthn(key, signature, TEXT, CONSOLE)


ACCEPTED: dict[str, Callable[[], PasskeySignature]] = {
    "as it is": build_page_data,
    "members nobody has heard of": lambda: build_page_data(other_keys_can_be_added_here="do not compare with any"),
    "without crossOrigin": lambda: build_client_data(f"{{{GOOD}}}"),
    "in another order": lambda: build_client_data(f'{{"origin":"{CONSOLE.origin}",{GOOD.rpartition(",")[0]}}}'),
    "a passkey that may be copied": lambda: build_authenticator_data(0x0D),
    "a passkey that is copied": lambda: build_authenticator_data(0x1D),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_valid_client_data_variants_are_accepted(what: str) -> None:
    assert is_valid_assertion(KEY.public, ACCEPTED[what](), TEXT, CONSOLE)
    assert is_accepted_by_webauthn(KEY.public, ACCEPTED[what](), TEXT, CONSOLE)


def test_compressed_point_yields_same_key() -> None:
    public = load_der_public_key(KEY.public.material)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    point = public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    header = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200")
    assert parse_public_key(base64.b64encode(header + point).decode()) == KEY.public


WEAK: tuple[Callable[[], ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey], ...] = (
    lambda: ec.derive_private_key(7, ec.SECP384R1()),
    lambda: rsa.generate_private_key(65537, 1024),  # noqa: S505 (a weak one is wanted)
    lambda: rsa.generate_private_key(3, 2048),
)


@pytest.mark.parametrize("weak", WEAK, ids=["another curve", "a short RSA key", "a small exponent"])
def test_weak_personal_key_is_refused(weak: Callable[[], ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]) -> None:
    der = weak().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    line = base64.b64encode(der).decode()
    assert parse_public_key(line) is None
    with pytest.raises(ConfigurationError, match=r"approvers\.ben is not a person's public key"):
        build_people({"ada": create_private_key(1).public.text}, {"ben": line})


def test_plain_and_passkey_signatures_are_not_interchangeable() -> None:
    plain = base64.b64encode(passkey("rsa").raw_signature(TEXT)).decode()
    assert passkey("rsa").public.verify(base64.b64decode(plain), TEXT)
    assert not passkey("rsa").public.verifies(TEXT, plain)
    # A token signs plain text with such a key. The text that a passkey signs begins with a digest instead
    asserted = from_base64url(KEY.sign(TEXT).signature) or b""
    assert asserted
    assert not KEY.public.verifies(TEXT, base64.b64encode(asserted).decode())


# Documents
ADA, BEN, CLEO = passkey("p-ada"), passkey("e-ben"), passkey("r-cleo")
ADA_FILE, CLEO_FILE, STRANGER = create_private_key(1), create_private_key(2), passkey("p-stranger")


def policy(needed: int = 1, party: RelyingParty | None = CONSOLE) -> ApprovalPolicy:
    makers = {"ada": [ADA.public.text, ADA_FILE.public.text], "ben": BEN.public.text}
    people = build_people(makers, {**makers, "cleo": [CLEO.public.text, CLEO_FILE.public.text]})
    return ApprovalPolicy(needed, {}, 72, people, party)


def plan(**other: Any) -> PlanDocument:
    return build_plan(plan_content(**other), [], ADA.public, NOW)


def order(**other: Any) -> RowOrder:
    return unsigned_order(order_content(**other), ADA.public, NOW)


def made(unsigned: SignedDocument, maker: SoftwarePasskey = ADA) -> SignedDocument:
    return sign_by_passkey(unsigned, maker.sign(unsigned.signed_text()), policy())


def build_approval(key: SoftwarePasskey, document: SignedDocument, now: datetime = NOW) -> Approval:
    asked = approval_text(document, key.public, policy(), now)
    return Approval(key=key.public.text, approved_at=asked.approved_at, signature=key.sign(asked.text))


def approved(document: SignedDocument, key: SoftwarePasskey, *, needed: int = 1) -> SignedDocument:
    return approve_by_passkey(document, build_approval(key, document), policy(needed), NOW)


def is_valid(document: SignedDocument, *, needed: int = 1, party: RelyingParty | None = CONSOLE) -> bool:
    return has_valid_signatures(document, policy(needed, party))


def file_plan() -> SignedDocument:
    """Return a plan that ada signed with a key in a file."""
    return sign_document(plan().model_copy(update={"maker": ADA_FILE.public.text}), ADA_FILE)


DOCUMENTS = pytest.mark.parametrize("kind", [plan, order])


@DOCUMENTS
@pytest.mark.parametrize("approver", [BEN, CLEO])
def test_document_signed_by_passkey_survives_reading_back(kind: Any, approver: SoftwarePasskey) -> None:
    document = approved(made(kind()), approver)
    assert is_valid(type(document).model_validate_json(document.model_dump_json()))
    assert not is_valid(made(kind()))


def test_challenge_and_code_are_derived_from_content() -> None:
    document = made(plan())
    challenge = passkey_challenge(document.approval_text(CLEO.public, AT))
    assert approval_text(document, CLEO.public, policy(), NOW).challenge == challenge
    assert document.code.replace(" ", "") == payout_code(plan())
    assert made(order()).code.replace(" ", "") == order().digest()[:16]
    assert plan().code != plan(endpoint="gateway.example/2").code
    assert [len(part) for part in plan().code.split(" ")] == [4, 4, 4, 4]


def test_person_with_both_key_kinds_counts_once() -> None:
    by_file = file_plan()
    document = approve(approved(by_file, CLEO, needed=2), CLEO_FILE, policy(2), NOW)
    assert len(document.approvals) == 1
    assert not is_valid(document, needed=2)
    both = document.model_copy(update={"approvals": [*document.approvals, build_approval(CLEO, by_file)]})
    assert [person.name for person in verify_signatures(both, policy(2), NOW).valid] == ["cleo"]
    assert not is_valid(both, needed=2)
    assert is_valid(approved(both, BEN, needed=2), needed=2)


@DOCUMENTS
def test_maker_cannot_approve_with_any_passkey(kind: Any) -> None:
    document = made(kind())
    with pytest.raises(ApprovalError, match="ada made this"):
        approval_text(document, ADA.public, policy(), NOW)
    own = Approval(key=ADA.public.text, approved_at=AT, signature=ADA.sign(document.approval_text(ADA.public, AT)))
    assert not is_valid(document.model_copy(update={"approvals": [own]}))
    with pytest.raises(ApprovalError, match=r"is from the (plan|order)'s maker"):
        approve_by_passkey(document, own, policy(), NOW)


def signed_by(document: SignedDocument, approver: SoftwarePasskey, signature: PasskeySignature) -> SignedDocument:
    approval = Approval(key=approver.public.text, approved_at=AT, signature=signature)
    return document.model_copy(update={"approvals": [approval]})


def test_unlisted_person_can_neither_prepare_nor_approve() -> None:
    with pytest.raises(ApprovalError, match="does not list under makers"):
        made(plan().model_copy(update={"maker": STRANGER.public.text}), STRANGER)
    with pytest.raises(ApprovalError, match="does not list this key under approvers"):
        approval_text(made(plan()), STRANGER.public, policy(), NOW)


@DOCUMENTS
def test_changed_or_foreign_passkey_signature_is_refused(kind: Any) -> None:
    document = approved(made(kind()), CLEO)
    moved = document.content.model_copy(update={"batch": "d" * 16})
    for change in (
        {"content": moved},
        {"made_at": "2026-11-21T08:00:00.001Z"},
        {"signature": BEN.sign(document.signed_text())},
        {"signature": ADA.sign(document.approval_text(CLEO.public, AT))},
    ):
        assert not is_valid(document.model_copy(update=change)), change
    texts = [(other, document.approval_text(CLEO.public, AT)) for other in (ADA, BEN, STRANGER)]
    for key, text in (*texts, (CLEO, document.signed_text())):  # of another, and of a maker
        assert not is_valid(signed_by(document, CLEO, key.sign(text)))


def test_passkey_needs_configured_console_address() -> None:
    document = approved(file_plan(), CLEO)
    assert is_valid(document)
    for party in (None, ELSEWHERE, RelyingParty("https://example.com"), RelyingParty(CONSOLE.origin + ":8443")):
        assert not is_valid(document, party=party)
    unset = "was signed with a passkey, but the console's address is not configured"
    assert list(verify_signatures(document, policy(party=None), NOW).problems) == [f"the approval by cleo {unset}"]


def test_late_or_undated_passkey_approval_is_refused() -> None:
    document = made(plan())
    for minutes, reason in ((-11, r"started at 2026-11-21T07:49:00.000Z, which is too long ago"), (6, "in the future")):
        approval = build_approval(CLEO, document, NOW + timedelta(minutes=minutes))
        with pytest.raises(ApprovalError, match=reason):
            approve_by_passkey(document, approval, policy(), NOW)
    for at in ("", "today", "2026-11-21T08:00:00", "2026-11-21"):
        signature = CLEO.sign(document.approval_text(CLEO.public, at))
        approval = Approval(key=CLEO.public.text, approved_at=at, signature=signature)
        with pytest.raises(ApprovalError, match="is not dated"):
            approve_by_passkey(document, approval, policy(), NOW)


def test_passkey_signature_has_exactly_three_parts() -> None:
    written = json.loads(approved(made(plan()), CLEO).model_dump_json())
    for change in ({"more": ""}, {"client_data": 1}, {"signature": None}):
        changed = json.loads(json.dumps(written))
        changed["approvals"][0]["signature"] |= change
        with pytest.raises(ValueError, match="validation error"):
            PlanDocument.model_validate_json(json.dumps(changed))
