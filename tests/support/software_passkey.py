"""A passkey in software: the parts that an authenticator and a browser make, valid or invalid as a test needs."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache, cached_property

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256

from paygw_batch.approval import approval_keys
from paygw_batch.approval.approval_keys import PasskeySignature, PublicKey, RelyingParty, to_base64url

PRESENT_AND_VERIFIED = 0x05


class SoftwarePasskey:
    """A person's passkey for one console. `party` is the page on which it is used."""

    def __init__(self, key: EllipticCurvePrivateKey | Ed25519PrivateKey | RSAPrivateKey, party: RelyingParty) -> None:
        self._key = key
        self.party = party

    @cached_property
    def public(self) -> PublicKey:
        return approval_keys.encode_public_key(self._key.public_key())

    @cached_property
    def credential_id(self) -> str:
        return to_base64url(hashlib.sha256(self.public.material).digest())

    def client_data(self, challenge: str, kind: str, more: Mapping[str, object]) -> bytes:
        members = {"type": kind, "challenge": challenge, "origin": self.party.origin, "crossOrigin": False, **more}
        return json.dumps(members, separators=(",", ":")).encode()

    def authenticator_data(
        self, flags: int = PRESENT_AND_VERIFIED, rp_id: str | None = None, more: bytes = b""
    ) -> bytes:
        name = self.party.rp_id if rp_id is None else rp_id
        return hashlib.sha256(name.encode()).digest() + bytes([flags]) + (7).to_bytes(4) + more

    def sign(
        self,
        data: bytes,
        *,
        kind: str = "webauthn.get",
        client_data: bytes | None = None,
        authenticator_data: bytes | None = None,
        more: Mapping[str, object] | None = None,
    ) -> PasskeySignature:
        """Sign `data` as a browser does. The other parameters replace parts of the assertion."""
        if client_data is None:
            client_data = self.client_data(approval_keys.passkey_challenge(data), kind, more or {})
        output = self.authenticator_data() if authenticator_data is None else authenticator_data
        plain = self.raw_signature(output + hashlib.sha256(client_data).digest())
        parts = {"client_data": client_data, "authenticator_data": output, "signature": plain}
        return PasskeySignature(**{name: to_base64url(part) for name, part in parts.items()})

    def raw_signature(self, data: bytes) -> bytes:
        match self._key:
            case EllipticCurvePrivateKey():
                return self._key.sign(data, ECDSA(SHA256()))
            case RSAPrivateKey():
                return self._key.sign(data, PKCS1v15(), SHA256())
            case _:
                return self._key.sign(data)


CONSOLE = RelyingParty("https://payouts.example.com")
ELSEWHERE = RelyingParty("https://payouts.example.com.evil.test")


@cache
def passkey(name: str, party: RelyingParty = CONSOLE) -> SoftwarePasskey:
    """Return the passkey of this name, whose first letter determines the kind of key."""
    if name.startswith("r"):
        return SoftwarePasskey(rsa.generate_private_key(65537, 2048), party)
    if name.startswith("e"):
        return SoftwarePasskey(Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b".")), party)
    secret = int.from_bytes(name.encode().ljust(31, b"."))
    return SoftwarePasskey(ec.derive_private_key(secret, ec.SECP256R1()), party)


def flip_each_bit(data: bytes) -> Iterator[bytes]:
    """Yield a copy of `data` for each of its bits, with that bit flipped."""
    for place, byte in enumerate(data):
        for bit in range(8):
            yield data[:place] + bytes([byte ^ (1 << bit)]) + data[place + 1 :]
