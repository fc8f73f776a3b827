"""Verifies the sender and the content of every request to the sandbox.

The code deliberately follows the specification, not the client, because it tests the client's signatures. Sources:
sections 4 and 5 of the gateway's interface (POST, the path, the three headers), RFC 5849 and RFC 3986 (the header, the
signature, single-use nonces), sections 2.1 to 2.4 (the form), section 5 (the control hash).
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from urllib.parse import quote, unquote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from paygw_batch.countries.rules import Operation, Rules
from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say
from paygw_batch.sandbox.form import Expectations, FormCheck, Order, Refusal, Request, parse_body, parse_order_id

CLOCK_TOLERANCE_S = 300
"""The maximum difference between a timestamp and the sandbox's clock."""

_SIGNATURE = "oauth_signature"
_PARAMETERS = frozenset(
    {"oauth_consumer_key", "oauth_nonce", _SIGNATURE, "oauth_signature_method", "oauth_timestamp", "oauth_version"}
)
_PARAMETER = re.compile(r'([a-z_]+)="([A-Za-z0-9._~%-]+)"')
_TIMESTAMP = re.compile(r"[1-9][0-9]{0,11}")
_MIN_NONCE_CHARACTERS = 22
"""The minimum length of a nonce. Fewer than 22 of the 66 unreserved characters cannot hold 128 random bits."""


class VerifiedProfile(StrEnum):
    """What the signature covers, which the gateway's interface does not define."""

    JSON_PARAMS = "json-params"
    """The body's fields together with the `oauth_` parameters, like a form in RFC 5849."""
    RAW_BODY = "raw-body"
    """The `oauth_` parameters, followed by the body as a separate part."""


def parse_authorization(header: str) -> Mapping[str, str] | Refusal:
    """Return the six decoded parameters of an `Authorization` header, or a refusal if the header is invalid."""
    scheme, _, parameter_list = header.partition(" ")
    if scheme != "OAuth":
        return _refusal("authorization", "The Authorization header does not start with the scheme word OAuth.")
    parameters: dict[str, str] = {}
    for part in parameter_list.split(","):
        match = _PARAMETER.fullmatch(part.strip(" "))
        if match is None:
            return _refusal("authorization", 'The Authorization header is not a list of name="value".')
        name, encoded = match.groups()
        value = unquote(encoded, errors="replace")
        if quote(value, safe="") != encoded:
            return _refusal(
                "authorization", "A value of the Authorization header is not percent-encoded as RFC 3986 requires."
            )
        if name in parameters:
            return _refusal("authorization", "The Authorization header names a parameter twice.")
        parameters[name] = value
    if parameters.keys() != _PARAMETERS:
        return _refusal("authorization", "The Authorization header does not have exactly the six OAuth parameters.")
    return parameters


def base_string(
    profile: VerifiedProfile, url: str, parameters: Mapping[str, str], fields: Mapping[str, str], body: bytes
) -> bytes:
    """Return the text that the signature of a POST request must cover. `url` must not have a query.

    `parameters` are from the Authorization header, whose signature is ignored. `fields` are from the body.
    """
    pairs = [(quote(name, safe=""), quote(value, safe="")) for name, value in parameters.items() if name != _SIGNATURE]
    if profile is VerifiedProfile.JSON_PARAMS:
        pairs += [(quote(name, safe=""), quote(value, safe="")) for name, value in fields.items()]
    text = "&".join(f"{name}={value}" for name, value in sorted(pairs))
    parts = ["POST", quote(url, safe=""), quote(text, safe="")]
    if profile is VerifiedProfile.RAW_BODY:
        parts.append(quote(body, safe=""))
    return "&".join(parts).encode("ascii")


class NonceMemory:
    """Remembers nonces for at least ten minutes. Older requests are refused because of their timestamps."""

    def __init__(self) -> None:
        self._older: set[str] = set()
        self._newer: set[str] = set()
        self._rotated_at_s = float("-inf")

    def remember(self, nonce: str, now_s: float) -> bool:
        """Remember a nonce. Returns whether it is new."""
        if now_s - self._rotated_at_s > 2 * CLOCK_TOLERANCE_S:
            self._older, self._newer = self._newer, set()
            self._rotated_at_s = now_s
        if nonce in self._older or nonce in self._newer:
            return False
        self._newer.add(nonce)
        return True


class Authenticator:
    """Checks the consumer key and signature of requests, to prove that the merchant sent them."""

    def __init__(self, *, consumer_key: str, public_key_pem: bytes, profile: VerifiedProfile) -> None:
        self._consumer_key = consumer_key
        self._public_key = _load_public_key(public_key_pem)
        self._profile = profile
        self._nonces = NonceMemory()

    def check(self, request: Request, fields: Mapping[str, str], now_s: float) -> Refusal | None:
        """Return a refusal for a forged, outdated or repeated request, or None. Only signed requests use up a nonce."""
        headers = request.header_values("authorization")
        if len(headers) != 1:
            return _refusal("authorization", "There must be exactly one Authorization header.")
        parameters = parse_authorization(headers[0])
        if isinstance(parameters, Refusal):
            return parameters
        if (refusal := self._check_parameters(parameters, now_s)) is not None:
            return refusal
        url = f"http://{request.header_values('host')[0]}{request.path}"
        signed_text = base_string(self._profile, url, parameters, fields, request.body)
        if not self._is_signature_valid(signed_text, parameters[_SIGNATURE]):
            return _refusal("signature", f"The signature does not fit the request under the profile {self._profile}.")
        if not self._nonces.remember(parameters["oauth_nonce"], now_s):
            return _refusal("nonce", "oauth_nonce was used before.")
        return None

    def _check_parameters(self, parameters: Mapping[str, str], now_s: float) -> Refusal | None:
        if parameters["oauth_consumer_key"] != self._consumer_key:
            return Refusal(403, "consumer_key", "oauth_consumer_key is unknown.")
        if parameters["oauth_signature_method"] != "RSA-SHA256":
            return _refusal("signature_method", "oauth_signature_method must be RSA-SHA256.")
        if parameters["oauth_version"] != "1.0":
            return _refusal("version", "oauth_version must be 1.0.")
        if len(parameters["oauth_nonce"]) < _MIN_NONCE_CHARACTERS:
            return _refusal("nonce", "oauth_nonce is too short for 128 random bits.")
        timestamp = parameters["oauth_timestamp"]
        if _TIMESTAMP.fullmatch(timestamp) is None:
            return _refusal("timestamp", "oauth_timestamp must be whole seconds since 1970.")
        if abs(int(timestamp) - now_s) > CLOCK_TOLERANCE_S:
            return _refusal("timestamp", f"oauth_timestamp is more than {CLOCK_TOLERANCE_S} seconds from our clock.")
        return None

    def _is_signature_valid(self, text: bytes, signature: str) -> bool:
        try:
            self._public_key.verify(base64.b64decode(signature, validate=True), text, PKCS1v15(), SHA256())
        except (binascii.Error, ValueError, InvalidSignature):
            return False
        return True


def _load_public_key(pem: bytes) -> RSAPublicKey:
    try:
        key = load_pem_public_key(pem)
    except ValueError:
        raise ConfigurationError(say("The merchant's public key for the sandbox is not PEM.")) from None
    if not isinstance(key, RSAPublicKey):
        raise ConfigurationError(say("The merchant's public key for the sandbox is not an RSA key."))
    return key


def _refusal(code: str, message: str) -> Refusal:
    return Refusal(401, code, message)


MAX_BODY_BYTES = 65536
"""The maximum length of a body, far above the largest form. Longer bodies are refused without being parsed."""

_JSON_HEADERS = (("content-type", 415), ("accept", 406))


class Verifier:
    """Verifies the requests of one operation. Not thread-safe, because it remembers nonces."""

    def __init__(
        self,
        *,
        endpoint_id: str,
        operation: Operation,
        rules: Rules,
        authenticator: Authenticator,
        clock: Callable[[], float],
        expectations: Expectations = Expectations(),  # noqa: B008 (frozen)
    ) -> None:
        self.operation = operation
        self._path_prefix = operation.path.format(endpoint_id="")
        self._path = operation.path.format(endpoint_id=endpoint_id)
        self._form_check = FormCheck(rules, expectations)
        self._authenticator = authenticator
        self._clock = clock

    def can_serve(self, request: Request) -> bool:
        """Return whether a request's path belongs to this operation, at any endpoint."""
        return request.path.startswith(self._path_prefix)

    def verify(self, request: Request) -> Order | Refusal:
        """Return the order in a request, or a refusal (HTTP 400 to 422)."""
        fields = self.authenticate(request)
        return fields if isinstance(fields, Refusal) else self._form_check.check(fields)

    def authenticate(self, request: Request) -> Mapping[str, str] | Refusal:
        """Return a request's unchecked fields, or a refusal if its headers or signature are invalid."""
        if (refusal := self._check_request_head(request)) is not None:
            return refusal
        fields = parse_body(request.body)
        if isinstance(fields, Refusal):
            return fields
        if (refusal := self._authenticator.check(request, fields, self._clock())) is not None:
            return replace(refusal, order_id=parse_order_id(fields))
        return fields

    def _check_request_head(self, request: Request) -> Refusal | None:
        if request.http_version != "1.1":
            return Refusal(400, "http", "Only HTTP/1.1 is supported.")
        if request.path != self._path or request.query:
            if request.path.startswith(self._path_prefix) and not request.query:
                return Refusal(403, "endpoint", "The endpoint id in the path is not the merchant's.")
            return Refusal(404, "path", "There is nothing at this path.")
        if request.method != "POST":
            return Refusal(405, "method", "The method must be POST.")
        if len(request.header_values("host")) != 1:
            return Refusal(400, "host", "There must be exactly one Host header.")
        if request.header_values("content-encoding"):
            return Refusal(415, "content-encoding", "Content-Encoding is not supported.")
        for name, http_status in _JSON_HEADERS:
            if request.header_values(name) != ("application/json",):
                return Refusal(http_status, name, f"There must be exactly one {name} header: application/json.")
        return None
