"""Builds the text to sign and the Authorization header of a request, and explains each step.

Sources: section 5 of the gateway's interface, RFC 5849 sections 3.4.1 and 3.6 for the base string, RFC 3986 section 2
for the encoding, RFC 8017 section 8.2 for the signature. Where the interface is ambiguous, the operator configures a
profile.

If the gateway answers 403, the explanation can be compared with another implementation. The explained request is built
by the code that also builds the requests to send.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, assert_never
from urllib.parse import unquote

from paygw_batch.core.batch import Instruction
from paygw_batch.countries.rules import CountryRule, Rules
from paygw_batch.gateway.encode import BodyConstants, ControlAlgorithm, EncodedBody, encode_body
from paygw_batch.gateway.message import Attempt, ExpectedReply, PreparedRequest
from paygw_batch.gateway.signing.key import SIGNATURE_METHOD, SigningKey
from paygw_batch.gateway.signing.signers import Signers
from paygw_batch.language import say

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ENCODED = [chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in range(256)]
_ENCODED_TWICE = [text.replace("%", "%25") for text in _ENCODED]


class SignatureProfile(StrEnum):
    """What is signed besides method and URL. Configurable, because the gateway does not document it."""

    JSON_PARAMS = "json-params"
    """The body's fields and the `oauth_` parameters, sorted together like a form in RFC 5849."""
    RAW_BODY = "raw-body"
    """The `oauth_` parameters, followed by the raw body."""


def percent_encode(text: str) -> str:
    """Percent-encode `text` in UTF-8, except for the unreserved characters of RFC 3986 section 2.3."""
    if text.isascii() and text.isalnum():
        return text
    # Latin-1 maps each byte to the character with the same number, so that `translate` does the encoding quickly.
    return text.encode().decode("latin-1").translate(_ENCODED)


_encode_constant = lru_cache(maxsize=256)(percent_encode)
"""Encodes field names and URLs, which recur. Never use it for values: the cache must not hold personal data."""


def oauth_parameters(*, consumer_key: str, nonce: str, timestamp_s: int) -> tuple[tuple[str, str], ...]:
    """Return the five signed parameters of the `Authorization` header, sorted by name."""
    return (
        ("oauth_consumer_key", consumer_key),
        ("oauth_nonce", nonce),
        ("oauth_signature_method", SIGNATURE_METHOD),
        ("oauth_timestamp", str(timestamp_s)),
        ("oauth_version", "1.0"),
    )


def base_string(profile: SignatureProfile, url: str, encoded: EncodedBody, oauth: Iterable[tuple[str, str]]) -> str:
    """Return the text to sign for a POST of `encoded` to `url`, which must have no query and be exactly as sent."""
    # Every byte matters: the gateway refuses a wrong signature with 403 and gives no reason.
    match profile:
        case SignatureProfile.JSON_PARAMS:
            return f"POST&{_encode_constant(url)}&{_encode_params([*encoded.params, *oauth])}"
        case SignatureProfile.RAW_BODY:
            body = percent_encode(encoded.body.decode())
            return f"POST&{_encode_constant(url)}&{_encode_params(oauth)}&{body}"
        case _:
            assert_never(profile)


def _encode_params(params: Iterable[tuple[str, str]]) -> str:
    """Encode, sort and join parameters, and encode the result (RFC 5849 sections 3.4.1.1 and 3.4.1.3.2).

    For speed, names and values are encoded twice in one step, and joined by encoded separators. The order is the same,
    because the second encoding only inserts `25` after every `%`.
    """
    pairs = [
        (_encode_constant_twice(name), value if value.isalnum() and value.isascii() else _encode_twice(value))
        for name, value in params
    ]
    pairs.sort()
    return "%26".join([f"{name}%3D{value}" for name, value in pairs])


def _encode_twice(text: str) -> str:
    return text.encode().decode("latin-1").translate(_ENCODED_TWICE)


_encode_constant_twice = lru_cache(maxsize=256)(_encode_twice)


def authorization(oauth: Iterable[tuple[str, str]], signature: str) -> str:
    """Build the `Authorization` header: the scheme `OAuth` and six parameters, sorted by name."""
    params = [(name, value if value.isalnum() and value.isascii() else percent_encode(value)) for name, value in oauth]
    # Base64 has only these three reserved characters, so this is the same as `percent_encode`, but faster.
    params.append(("oauth_signature", signature.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")))
    return "OAuth " + ", ".join([f'{name}="{value}"' for name, value in sorted(params)])


@dataclass(frozen=True, slots=True)
class Draft:
    """An unsigned request. `text` is the text to sign."""

    attempt: Attempt
    url: str
    endpoint_id: str
    own_urls: tuple[str, ...]
    encoded: EncodedBody
    oauth: tuple[tuple[str, str], ...] = field(repr=False)
    text: str = field(repr=False)

    def with_signature(self, signature: str) -> PreparedRequest:
        """Return the signed request. `signature` is the signature of `text` in base64."""
        attempt, body = self.attempt, self.encoded.body
        instruction = attempt.instruction
        return PreparedRequest(
            url=self.url,
            authorization=authorization(self.oauth, signature),
            body=body,
            body_sha256=hashlib.sha256(body).hexdigest(),
            nonce=attempt.nonce,
            timestamp_s=attempt.timestamp_s,
            purpose=next((value for name, value in self.encoded.params if name == "purpose"), None),
            endpoint_id=self.endpoint_id,
            expected=ExpectedReply(attempt.order_id, Decimal(instruction.amount), instruction.currency, self.own_urls),
        )


@dataclass(frozen=True, slots=True)
class Signer:
    """Drafts requests to one endpoint, signed with `key`. `url` is exactly as sent (`operation_url`). Thread-safe."""

    url: str
    endpoint_id: str
    consumer_key: str
    constants: BodyConstants
    profile: SignatureProfile
    key: SigningKey = field(repr=False)

    def draft(self, rule: CountryRule, attempt: Attempt) -> Draft:
        """Return the unsigned request for an attempt. Raises the same errors as `encode_body`."""
        encoded = encode_body(rule, attempt.instruction, order_id=attempt.order_id, constants=self.constants)
        oauth = oauth_parameters(consumer_key=self.consumer_key, nonce=attempt.nonce, timestamp_s=attempt.timestamp_s)
        own_urls = tuple([url for url in self.constants.urls.values() if url])
        text = base_string(self.profile, self.url, encoded, oauth)
        return Draft(attempt, self.url, self.endpoint_id, own_urls, encoded, oauth, text)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns attempts into signed requests. `signer` drafts them, and `signers` sign the drafts."""

    rules: Rules
    signer: Signer
    signers: Signers

    async def __call__(self, attempts: Sequence[Attempt]) -> Sequence[PreparedRequest]:
        """Return the signed request for each attempt. Raises `SigningFailed` and the errors of `encode_body`."""
        drafts = [self.signer.draft(self.rules[attempt.instruction.country], attempt) for attempt in attempts]
        signatures = await self.signers.sign([draft.text for draft in drafts])
        return [draft.with_signature(signature) for draft, signature in zip(drafts, signatures, strict=True)]


METHOD = "POST"
SECRET_PLACEHOLDER = "<secret>"  # noqa: S105 (not a secret)


@dataclass(frozen=True, slots=True)
class SignedParameter:
    """A signed parameter: its name, its value, and both percent-encoded as `name=value`."""

    name: str
    value: str
    encoded: str


@dataclass(frozen=True, slots=True)
class Step:
    """A step in signing a request. `meaning` describes it, and `text` is its result."""

    name: str
    meaning: str
    text: str


@dataclass(frozen=True, slots=True)
class ExplainedControl:
    """The control hash of a collection, and the hashed text, with `SECRET_PLACEHOLDER` instead of the secret."""

    text: str
    value: str
    is_keyed: bool = False
    """Whether the secret is the key of the hash."""

    def steps(self) -> tuple[Step, Step]:
        """Return the steps that compute the control hash."""
        text_meaning = say(
            "the text covered by the control hash, with {secret} in place of a secret", secret=SECRET_PLACEHOLDER
        )
        value_meaning = (
            say("its HMAC with SHA-256 and the secret, which is added to the body before the body is signed")
            if self.is_keyed
            else say("its SHA-256, which is added to the body before the body is signed")
        )
        return Step("control_text", text_meaning, self.text), Step("control", value_meaning, self.value)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A signed request with the result of each step. `parameters` are in the signed order.

    The repr omits the payee's data and the valid signature.
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
    """None if the operation has no control hash."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the base string, which the key signs, in hex."""
        return hashlib.sha256(self.base_string.encode()).hexdigest()

    def steps(self) -> list[Step]:
        """Return the steps of signing, in order."""
        body_meaning = say("the {count} bytes that are sent and signed, in UTF-8", count=len(self.body))
        base_string_meaning = (
            say("{method}, the URL, the parameters and the body, each encoded again and joined by &", method=METHOD)
            if self.profile is SignatureProfile.RAW_BODY
            else say("{method}, the URL and the parameters, each encoded again and joined by &", method=METHOD)
        )
        key_meaning = say("SHA-256 of the public key (SubjectPublicKeyInfo, DER), RSA, {bits} bits", bits=self.key_bits)
        return [
            *(() if self.control is None else self.control.steps()),
            Step("body", body_meaning, self.body.decode()),
            Step("body_sha256", say("SHA-256 of the body"), hashlib.sha256(self.body).hexdigest()),
            Step(
                "parameters",
                say("percent-encoded (RFC 3986), sorted by encoded name, then value"),
                "\n".join(parameter.encoded for parameter in self.parameters),
            ),
            Step("base_string", base_string_meaning, self.base_string),
            Step("digest", say("SHA-256 of the base string"), self.digest),
            Step("key_fingerprint", key_meaning, self.key_fingerprint),
            Step("signature", say("RSASSA-PKCS1-v1_5 over the digest, base64"), self.signature),
            Step("authorization", say("the header, as sent"), f"Authorization: {self.authorization}"),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as JSON, with the same keys as the published test vectors."""
        control = None if self.control is None else {"text": self.control.text, "value": self.control.value}
        return {
            "profile": self.profile.value,
            "method": METHOD,
            "url": self.url,
            **({"control": control} if control else {}),
            "body": self.body.decode(),
            "body_sha256": hashlib.sha256(self.body).hexdigest(),
            "parameters": [asdict(parameter) for parameter in self.parameters],
            "base_string": self.base_string,
            "digest": self.digest,
            "key_fingerprint": self.key_fingerprint,
            "signature": self.signature,
            "authorization": self.authorization,
        }


def explain(
    signer: Signer, rule: CountryRule, instruction: Instruction, *, order_id: str, nonce: str, timestamp_s: int
) -> Explanation:
    """Explain how the request for `instruction` is signed. Raises the errors of `encode_body`."""
    draft = signer.draft(rule, Attempt(instruction, order_id, nonce, timestamp_s))
    signature = signer.key.sign(draft.text)
    request = draft.with_signature(signature)
    return Explanation(
        profile=signer.profile,
        url=request.url,
        body=request.body,
        parameters=_parse_parameters(draft.text),
        base_string=draft.text,
        key_bits=signer.key.public.bits,
        key_fingerprint=signer.key.public.fingerprint(),
        signature=signature,
        authorization=request.authorization,
        control=_explain_control(signer, rule, draft),
    )


def _explain_control(signer: Signer, rule: CountryRule, draft: Draft) -> ExplainedControl | None:
    params, attempt = dict(draft.encoded.params), draft.attempt
    if (profile := signer.constants.control) is None or "control" not in params:
        return None
    text = replace(profile, secret=SECRET_PLACEHOLDER).text(
        attempt.instruction, order_id=attempt.order_id, amount_sent=params["amount"], minor_units=rule.minor_units
    )
    return ExplainedControl(text, params["control"], profile.algorithm is ControlAlgorithm.HMAC_SHA256)


def _parse_parameters(base_string: str) -> tuple[SignedParameter, ...]:
    _, _, normalised, *_ = base_string.split("&")
    pairs = [encoded.partition("=") for encoded in unquote(normalised).split("&")]
    return tuple(SignedParameter(unquote(name), unquote(value), f"{name}={value}") for name, _, value in pairs)
