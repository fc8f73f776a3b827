"""Reads the address of a key that is not in a file: `pkcs11:` (RFC 7512) or `awskms:`."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from paygw_batch.errors import ConfigurationError
from paygw_batch.language import say

PKCS11 = "pkcs11:"
AWSKMS = "awskms:"


@dataclass(frozen=True, slots=True)
class TokenAddress:
    """The address of a private key in a token, by RFC 7512. A part that is None matches anything."""

    uri: str
    token: str | None = None
    serial: str | None = None
    manufacturer: str | None = None
    model: str | None = None
    slot: int | None = None
    label: str | None = None
    key_id: bytes | None = None


_TEXTS = {
    "token": "token",
    "serial": "serial",
    "manufacturer": "manufacturer",
    "model": "model",
    "slot-id": "slot",
    "object": "label",
    "id": "key_id",
}
"""The attributes of RFC 7512 that are read, each with its field."""
_SECRET = ("pin-value", "pin-source")
_MODULE = ("module-path", "module-name")


def token_address(uri: str) -> TokenAddress:
    """Read a `pkcs11:` URI. Raises `ConfigurationError` for a part that is not supported."""
    path, _, query = uri.removeprefix(PKCS11).partition("?")
    said = {**_attributes(uri, path, ";"), **_attributes(uri, query, "&")}
    if any(name in said for name in _SECRET):
        raise ConfigurationError(
            say("The address of the key holds a PIN, or says where one is."),
            hint=say("Remove it: the PIN belongs in a file or an environment variable (docs/keys.md)."),
        )
    if any(name in said for name in _MODULE):
        raise ConfigurationError(
            say("The address of the key names a module."),
            hint=say("Remove it, and set the module separately (docs/keys.md)."),
        )
    if said.pop("type", b"private") != b"private":
        raise ConfigurationError(
            say("The address of the key does not ask for a private key."), hint=say("Leave `type` out.")
        )
    if unknown := sorted(said.keys() - _TEXTS.keys()):
        raise _wrong(uri, unknown[0])
    if not said.keys() & {"object", "id"}:
        raise ConfigurationError(
            say("The address of the key does not say which key of the token is meant."),
            hint=say('Write it like "pkcs11:token=paygw;object=payouts".'),
        )
    return TokenAddress(uri, **{_TEXTS[name]: _value(uri, name, value) for name, value in said.items()})  # type: ignore[arg-type]


def kms_key_id(address: str) -> str:
    """Return the key id, ARN or alias of an `awskms:` address. Raises `ConfigurationError` if there is none."""
    key_id = address.removeprefix(AWSKMS).strip()
    if not key_id or any(character.isspace() for character in key_id):
        raise ConfigurationError(
            say("gateway.private_key does not say which key is meant."),
            hint=say('Write it like "awskms:alias/payouts", or with the key id or ARN.'),
        )
    return key_id


def _attributes(uri: str, text: str, separator: str) -> Mapping[str, bytes]:
    said: dict[str, bytes] = {}
    for pair in filter(None, text.split(separator)):
        name, equals, value = pair.partition("=")
        if not equals or name in said:
            raise _wrong(uri, name)
        said[name] = unquote_to_bytes(value)
    return said


def _value(uri: str, name: str, value: bytes) -> str | bytes | int:
    if name == "id":
        return value
    try:
        text = value.decode()
        return int(text) if name == "slot-id" else text
    except ValueError:
        raise _wrong(uri, name) from None


def _wrong(uri: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        say("The address of the key is {uri}; its part {name} cannot be read.", uri=uri, name=name or "="),
        hint=say('Write it like "pkcs11:token=paygw;object=payouts" (RFC 7512).'),
    )
