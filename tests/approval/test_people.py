"""Who may prepare and approve: names and keys are compared by their meaning, not their spelling."""

import base64
import hashlib
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from paygw_batch.approval.approval_keys import (
    PublicKey,
    build_people,
    encode_public_key,
    normalise_name,
    parse_canonical_key,
    parse_public_key,
)
from paygw_batch.errors import ConfigurationError


def public_key_text(seed: int) -> PublicKey:
    return encode_public_key(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32).public_key())


ADA, SECOND, BEN = (public_key_text(seed) for seed in (1, 2, 3))


def test_similar_looking_names_are_equal() -> None:
    respelled = ["ada obi", "ADA OBI", " Ada  Obi ", "Ada\u00a0Obi", "Ada\u3000Obi", "Ada\u2800Obi", "Ada Obi\u00ad"]
    respelled += ["A\u200bda O\u200dbi\ufeff", "Ada Obi\ufe0f", "\uff21\uff44\uff41 Obi", "Ada\tObi", "Ada O\u2060bi"]
    assert {normalise_name(name) for name in (*respelled, "\u202eAda Obi")} == {normalise_name("Ada Obi")}
    assert normalise_name("Zoe\u0308 Stra\u00dfe") == normalise_name("ZO\u00cb STRASSE")
    for other in ("Ada Obl", "Ada", "Ada Obi 2", "AdaObi"):
        assert normalise_name(other) != normalise_name("Ada Obi")


@given(st.text(max_size=12))
def test_normalised_name_is_idempotent(name: str) -> None:
    assert normalise_name(normalise_name(name)) == normalise_name(name)


SPELLINGS = (
    ADA.text,
    ADA.text.rstrip("="),
    ADA.text + "=",
    ADA.text + "===",
    ADA.text[:30] + "\n" + ADA.text[30:] + "\n",
    " ".join(ADA.text),
)


@pytest.mark.parametrize("text", SPELLINGS)
def test_key_spacing_and_padding_are_ignored(text: str) -> None:
    assert parse_public_key(text) == ADA
    for invalid in ("", "x", "AAAA", "\u00e4", ADA.text[4:], ADA.text.replace("M", "!", 1)):
        assert parse_public_key(invalid) is None


def test_signed_documents_need_canonical_key_text() -> None:
    bare = ADA.text.rstrip("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    place = alphabet.index(bare[-1])
    others = [bare[:-1] + alphabet[place + step] + "=" for step in (1, 2, 3)]
    assert [parse_public_key(text) for text in others] == [ADA] * 3
    assert [parse_canonical_key(text) for text in (*others, ADA.text)] == [None, None, None, ADA]
    der = base64.b64decode(ADA.text)
    long_lengths = der[:1] + b"\x81" + der[1:]
    null_parameters = bytes.fromhex("302c300706032b65700500032100") + ADA.material[-32:]
    for encoding in (long_lengths, null_parameters, der + b"\0"):
        assert parse_public_key(base64.b64encode(encoding).decode()) in {ADA, None}


def test_keys_under_similar_names_belong_to_one_person() -> None:
    people = build_people({"Ada": ADA.text, "BEN": BEN.text}, {"ada ": [SECOND.text, ADA.text], "ben": BEN.text})
    ada, ben = people.listed
    assert (ada.name, ada.keys) == ("Ada", frozenset({ADA, SECOND}))
    assert (people.find_owner(SECOND), people.find_maker(SECOND), people.find_approver(SECOND)) == (ada, None, ada)
    assert (list(people.approvers_for(ada)), list(people.approvers_for(ben))) == ([ben], [ada])
    (shown, _) = build_people({" Ada\u202e\n\x1b Obi": ADA.text}, {"ben": BEN.text}).listed
    assert shown.name == "Ada Obi"


@pytest.mark.parametrize("text", SPELLINGS)
def test_same_key_under_two_names_is_refused(text: str) -> None:
    for makers, approvers in (
        ({"ada": ADA.text}, {"eve": [BEN.text, text]}),
        ({"ada": ADA.text, "eve": text}, {"ben": BEN.text}),
        ({"ben": BEN.text}, {"ada": ADA.text, "eve": text}),
    ):
        with pytest.raises(ConfigurationError, match="under two names, ada and eve"):
            build_people(makers, approvers)


def test_fingerprint_matches_openssl_and_sha256sum() -> None:
    pem = f"-----BEGIN PUBLIC KEY-----\n{ADA.text}\n-----END PUBLIC KEY-----\n"
    command = ["openssl", "pkey", "-pubin", "-outform", "DER"]
    displayed = subprocess.run(command, input=pem.encode(), capture_output=True, check=True).stdout
    assert ADA.fingerprint == hashlib.sha256(displayed).hexdigest()[:16]
