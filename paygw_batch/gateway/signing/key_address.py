"""Reads the address of a key that is not in a file, `pkcs11:` (RFC 7512) or `awskms:`, and words its errors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

from paygw_batch.errors import ConfigurationError, SigningFailed
from paygw_batch.gateway.signing.key import MIN_KEY_BITS
from paygw_batch.language import mark, say

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


class KeyTrouble(StrEnum):
    """Why a key cannot be used."""

    MODULE = "module"
    TOKEN_GONE = "token_gone"  # noqa: S105 (not a password)
    SEVERAL_TOKENS = "several_tokens"
    PIN_MISSING = "pin_missing"
    PIN_WRONG = "pin_wrong"
    PIN_LOCKED = "pin_locked"
    KEY_MISSING = "key_missing"
    SEVERAL_KEYS = "several_keys"
    WRONG_KIND = "wrong_kind"
    TOO_SHORT = "too_short"
    NO_REGION = "no_region"
    NO_CREDENTIALS = "no_credentials"
    EXPIRED = "expired"
    FORBIDDEN = "forbidden"
    DISABLED = "disabled"
    UNREACHABLE = "unreachable"
    THROTTLED = "throttled"
    SLOW = "slow"
    WRONG_SIGNATURE = "wrong_signature"
    BROKEN = "broken"


_SENTENCES = {
    KeyTrouble.MODULE: (
        mark("The PKCS#11 module {detail} cannot be used."),
        mark("Set gateway.pkcs11_module to the module of the token's vendor, a file that ends in .so."),
    ),
    KeyTrouble.TOKEN_GONE: (
        mark("The token of {key} is not there."),
        mark("Plug it in, or correct the token's name in gateway.private_key."),
    ),
    KeyTrouble.SEVERAL_TOKENS: (
        mark("{key} matches several tokens."),
        mark("Add the serial number of the right one to gateway.private_key: `serial=...`."),
    ),
    KeyTrouble.PIN_MISSING: (
        mark("There is no PIN for {key}."),
        mark("Set gateway.private_key_passphrase_env or private_key_passphrase_file."),
    ),
    KeyTrouble.PIN_WRONG: (
        mark("The token refuses the PIN for {key}."),
        mark("Correct the PIN before you try again: after a few wrong ones the token locks itself."),
    ),
    KeyTrouble.PIN_LOCKED: (
        mark("The token of {key} is locked: the PIN was wrong too often, or it has expired."),
        mark("Its security officer can set a new PIN with the vendor's tool."),
    ),
    KeyTrouble.KEY_MISSING: (
        mark("There is no private key {key}."),
        mark("Correct gateway.private_key. `paygw-batch init` can make a key in a token."),
    ),
    KeyTrouble.SEVERAL_KEYS: (
        mark("{key} matches several private keys."),
        mark("Add the id of the right one to gateway.private_key: `id=%01`."),
    ),
    KeyTrouble.WRONG_KIND: (
        mark("{key} is not an RSA key that may sign."),
        mark("The gateway accepts only RSA signatures. Name an RSA key for signing (KMS: SIGN_VERIFY), or make one."),
    ),
    KeyTrouble.TOO_SHORT: (
        mark("{key} has {detail} bits; at least {needed} are needed."),
        mark("Make a longer one, and give its public half to the gateway's operator."),
    ),
    KeyTrouble.NO_REGION: (
        mark("The region of {key} is not set, or does not exist."),
        mark("Set AWS_REGION to the key's region, or write the key's ARN."),
    ),
    KeyTrouble.NO_CREDENTIALS: (
        mark("AWS does not accept the credentials for {key}, or there are none."),
        mark("Give this account a role or credentials, as for any AWS program (AWS_PROFILE, AWS_ACCESS_KEY_ID, ...)."),
    ),
    KeyTrouble.EXPIRED: (
        mark("The AWS credentials for {key} have expired."),
        mark("Sign in again, or renew them."),
    ),
    KeyTrouble.FORBIDDEN: (
        mark("These AWS credentials may not use {key} ({detail})."),
        mark("Allow them kms:Sign, kms:GetPublicKey and kms:DescribeKey on the key."),
    ),
    KeyTrouble.DISABLED: (
        mark("{key} is disabled, or is about to be deleted."),
        mark("Enable it in AWS, or name another key."),
    ),
    KeyTrouble.UNREACHABLE: (
        mark("AWS cannot be reached for {key} ({detail})."),
        mark("Check the region and the network (AWS_REGION, AWS_ENDPOINT_URL_KMS, a proxy)."),
    ),
    KeyTrouble.THROTTLED: (
        mark("AWS is not signing with {key} for now: there were too many requests."),
        mark(
            "Wait, lower gateway.signing_concurrency, or ask AWS for a higher limit. Then run the same command again."
        ),
    ),
    KeyTrouble.SLOW: (
        mark("{key} made no signature within {detail} seconds."),
        mark("Find out whether the token or the service hangs. Then run the same command again."),
    ),
    KeyTrouble.WRONG_SIGNATURE: (
        mark("{key} made a signature that its public half does not verify."),
        mark("Do not use this key: the token, its module or the key is damaged."),
    ),
    KeyTrouble.BROKEN: (
        mark("{key} cannot be used ({detail})."),
        mark("Look this word up in the documentation of the token's vendor or of AWS."),
    ),
}


class KeyUnusable(ConfigurationError):
    """A key that is not a file cannot sign. `key` is its address; `detail` has no secret and nobody's data."""

    def __init__(self, key: str, trouble: KeyTrouble, detail: str = "") -> None:
        self.key, self.trouble, self.detail = key, trouble, detail
        message, hint = _SENTENCES[trouble]
        shown = detail or say("no reason given")
        super().__init__(say(message, key=key, detail=shown, needed=MIN_KEY_BITS), hint=say(hint))

    def as_line(self) -> bytes:
        """Return the error as one line of ASCII, for the process that asked for signatures."""
        return json.dumps([self.key, self.trouble, self.detail]).encode("ascii")

    def for_run(self) -> SigningFailed:
        """Return the error as one that ends a run."""
        return SigningFailed(self.message, hint=self.hint)


def trouble_of_line(line: bytes) -> KeyUnusable:
    """Return the error from a line written by `KeyUnusable.as_line`."""
    key, trouble, detail = json.loads(line)
    return KeyUnusable(key, KeyTrouble(trouble), detail)
