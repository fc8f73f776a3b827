"""Signs requests: builds the text to sign, and the Authorization header.

Source: section 5 of the gateway's interface; RFC 5849 sections 3.4.1 and 3.6 for the base string, RFC 3986 section 2
for the encoding, RFC 8017 section 8.2 for the signature. What the interface leaves open is a named profile.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import assert_never

from paygw_batch.gateway.encode import EncodedBody
from paygw_batch.gateway.signing.key import SIGNATURE_METHOD

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ENCODED = [chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in range(256)]
_ENCODED_TWICE = [text.replace("%", "%25") for text in _ENCODED]


class SignatureProfile(StrEnum):
    """The parts signed besides method and URL. The interface does not show them: the operator names a profile."""

    JSON_PARAMS = "json-params"
    """The body's fields and the `oauth_` parameters together, sorted, as RFC 5849 does with a form."""
    RAW_BODY = "raw-body"
    """The `oauth_` parameters alone, then the body as text."""


def percent_encode(text: str) -> str:
    """Return `text` as UTF-8 with everything encoded that RFC 3986 section 2.3 does not call unreserved."""
    if text.isascii() and text.isalnum():
        return text
    # Every byte as the character of that number: then one table does the rest, at C speed.
    return text.encode().decode("latin-1").translate(_ENCODED)


_encoded_constant = lru_cache(maxsize=256)(percent_encode)
"""For field names and addresses, which every request shares. Never for a value: a cache must hold no payee's data."""


def oauth_parameters(*, consumer_key: str, nonce: str, timestamp_s: int) -> tuple[tuple[str, str], ...]:
    """Return the five `Authorization` parameters that are signed, by name."""
    return (
        ("oauth_consumer_key", consumer_key),
        ("oauth_nonce", nonce),
        ("oauth_signature_method", SIGNATURE_METHOD),
        ("oauth_timestamp", str(timestamp_s)),
        ("oauth_version", "1.0"),
    )


def base_string(profile: SignatureProfile, url: str, encoded: EncodedBody, oauth: Iterable[tuple[str, str]]) -> str:
    """Return the text that is signed for a POST of `encoded` to `url` (as sent, without query)."""
    match profile:
        case SignatureProfile.JSON_PARAMS:
            return f"POST&{_encoded_constant(url)}&{_normalised([*encoded.params, *oauth])}"
        case SignatureProfile.RAW_BODY:
            body = percent_encode(encoded.body.decode())
            return f"POST&{_encoded_constant(url)}&{_normalised(oauth)}&{body}"
        case _:
            assert_never(profile)


def _normalised(params: Iterable[tuple[str, str]]) -> str:
    """Return parameters encoded, sorted, joined and encoded again (RFC 5849 sections 3.4.1.1 and 3.4.1.3.2).

    Names and values are encoded twice to begin with, and joined by separators that are encoded once: the same, much
    cheaper. It sorts the same as well, because the second encoding only puts the same two digits behind every `%`.
    """
    pairs = [
        (_encoded_twice_constant(name), value if value.isalnum() and value.isascii() else _encode_twice(value))
        for name, value in params
    ]
    pairs.sort()
    return "%26".join([f"{name}%3D{value}" for name, value in pairs])


def _encode_twice(text: str) -> str:
    return text.encode().decode("latin-1").translate(_ENCODED_TWICE)


_encoded_twice_constant = lru_cache(maxsize=256)(_encode_twice)


def authorization(oauth: Iterable[tuple[str, str]], signature: str) -> str:
    """Return the value of the `Authorization` header: the scheme `OAuth` and the six parameters, sorted by name."""
    params = [(name, value if value.isalnum() and value.isascii() else percent_encode(value)) for name, value in oauth]
    # Base64 holds these three alone that are not unreserved, so this is `percent_encode`, much cheaper.
    params.append(("oauth_signature", signature.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")))
    return "OAuth " + ", ".join([f'{name}="{value}"' for name, value in sorted(params)])
