"""Explains a signature step by step, for comparison with another implementation when the gateway says 403.

This module encodes and joins nothing: it builds the request that would be sent, and reads the parameters back from the
text that was signed, so that the explanation cannot differ from the request.
"""

import hashlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from paygw_batch.core.batch import Instruction
from paygw_batch.countries.rules import CountryRule
from paygw_batch.errors import InternalError
from paygw_batch.gateway.encode import ControlAlgorithm, EncodedBody, encode_body
from paygw_batch.gateway.sign import SignatureProfile, Signer, percent_encode
from paygw_batch.language import say

METHOD = "POST"
SECRET_SHOWN = "<secret>"  # noqa: S105 (it replaces one)


@dataclass(frozen=True, slots=True)
class SignedParameter:
    """A signed parameter: its plain name and value, and `name=value` percent-encoded."""

    name: str
    value: str
    encoded: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the way to the header: its meaning in words, and its result."""

    name: str
    meaning: str
    text: str


@dataclass(frozen=True, slots=True)
class ExplainedControl:
    """The control hash of a collection, and the text that is hashed; `SECRET_SHOWN` replaces a secret in it."""

    text: str
    value: str
    is_keyed: bool = False
    """Whether the secret is the key of the hash."""

    def steps(self) -> tuple[Step, Step]:
        """Return the two steps before the body is complete."""
        covered = say("the text that the control covers; {secret} replaces a secret", secret=SECRET_SHOWN)
        hashed = (
            say("its HMAC with SHA-256 and the secret, which goes into the body before the body is signed")
            if self.is_keyed
            else say("its SHA-256, which goes into the body before the body is signed")
        )
        return Step("control_text", covered, self.text), Step("control", hashed, self.value)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A signed request taken apart. `parameters` are in the order in which they are signed.

    It holds a payee's data and a valid signature, so no repr shows it.
    """

    profile: SignatureProfile
    url: str
    body: bytes = field(repr=False)
    parameters: tuple[SignedParameter, ...] = field(repr=False)
    base_string: str = field(repr=False)
    key_bits: int
    key_fingerprint: str
    signature: str = field(repr=False)
    authorization: str = field(repr=False)
    control: ExplainedControl | None = field(default=None, repr=False)
    """None if the operation has no control."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the base string, in hex. The key signs this digest."""
        return hashlib.sha256(self.base_string.encode()).hexdigest()

    def steps(self) -> list[Step]:
        """Return every step, in the order of any implementation."""
        size = say("the {count} bytes that are sent and signed, UTF-8", count=len(self.body))
        joined = (
            say("{method}, the URL, the parameters and the body joined by &, each encoded once more", method=METHOD)
            if self.profile is SignatureProfile.RAW_BODY
            else say("{method}, the URL and the parameters joined by &, each encoded once more", method=METHOD)
        )
        key = say("SHA-256 of the public key (SubjectPublicKeyInfo, DER), RSA, {bits} bits", bits=self.key_bits)
        return [
            *(() if self.control is None else self.control.steps()),
            Step("body", size, self.body.decode()),
            Step("body_sha256", say("SHA-256 of the body"), hashlib.sha256(self.body).hexdigest()),
            Step(
                "parameters",
                say("percent-encoded (RFC 3986), sorted by encoded name, then value"),
                "\n".join(parameter.encoded for parameter in self.parameters),
            ),
            Step("base_string", joined, self.base_string),
            Step("digest", say("SHA-256 of the base string"), self.digest),
            Step("key_fingerprint", key, self.key_fingerprint),
            Step("signature", say("RSASSA-PKCS1-v1_5 over the digest, base64"), self.signature),
            Step("authorization", say("the header, as sent"), f"Authorization: {self.authorization}"),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON object, with the keys of the published test vectors."""
        control = None if self.control is None else {"text": self.control.text, "value": self.control.value}
        return {
            "profile": self.profile.value,
            "method": METHOD,
            "url": self.url,
            **({"control": control} if control else {}),
            "body": self.body.decode(),
            "body_sha256": hashlib.sha256(self.body).hexdigest(),
            "parameters": [asdict(one) for one in self.parameters],
            "base_string": self.base_string,
            "digest": self.digest,
            "key_fingerprint": self.key_fingerprint,
            "signature": self.signature,
            "authorization": self.authorization,
        }


def explain(
    signer: Signer, rule: CountryRule, instruction: Instruction, *, order_id: str, nonce: str, timestamp_s: int
) -> Explanation:
    """Return the explanation of the request of `signer` for `instruction`. Raises the errors of `encode_body`."""
    request = signer.prepare(rule, instruction, order_id=order_id, nonce=nonce, timestamp_s=timestamp_s)
    encoded = encode_body(rule, instruction, order_id=order_id, supplies=signer.supplies)
    text = signer.base_string(encoded, nonce=nonce, timestamp_s=timestamp_s)
    signature = signer.key.sign(text)
    if encoded.body != request.body or f'oauth_signature="{percent_encode(signature)}"' not in request.authorization:
        raise InternalError("what is explained is not what would be sent")
    return Explanation(
        profile=signer.profile,
        url=request.url,
        body=request.body,
        parameters=_parameters(text),
        base_string=text,
        key_bits=signer.key.public.bits,
        key_fingerprint=signer.key.public.fingerprint(),
        signature=signature,
        authorization=request.authorization,
        control=_control(signer, rule, instruction, order_id, encoded),
    )


def _control(
    signer: Signer, rule: CountryRule, instruction: Instruction, order_id: str, encoded: EncodedBody
) -> ExplainedControl | None:
    sent = dict(encoded.params)
    if (profile := signer.supplies.control) is None or "control" not in sent:
        return None
    text = replace(profile, secret=SECRET_SHOWN).text(
        order_id=order_id,
        amount=instruction.amount,
        amount_sent=sent["amount"],
        currency=instruction.currency,
        minor_units=rule.minor_units,
    )
    return ExplainedControl(text, sent["control"], profile.algorithm is ControlAlgorithm.HMAC_SHA256)


def _parameters(base_string: str) -> tuple[SignedParameter, ...]:
    """Return the parameters that a base string holds, in its order."""
    _, _, normalised, *_ = base_string.split("&")
    pairs = [encoded.partition("=") for encoded in unquote(normalised).split("&")]
    return tuple(SignedParameter(unquote(name), unquote(value), f"{name}={value}") for name, _, value in pairs)
