"""Reads, from a token (RFC 7512), the key of a person who prepares or approves: Ed25519 or P-256."""

from pathlib import Path

from paygw_batch.errors import ConfigurationError
from paygw_batch.gateway.signing.key_address import PKCS11, token_address
from paygw_batch.gateway.signing.key_trouble import KeyTrouble, KeyUnusable
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import ApprovalKey, load_approval_key, read_public_key_der

MODULE = "PAYGW_APPROVAL_MODULE"
"""The variable for the PKCS#11 module of the token's vendor."""
PASSPHRASE = "PAYGW_APPROVAL_PASSPHRASE"  # noqa: S105 (the name of a variable, not a secret)
"""The variable for the PIN, or for the passphrase of a key in a file."""
_HINTS = {
    KeyTrouble.MODULE: mark("Set PAYGW_APPROVAL_MODULE to the module of the token's vendor, a file that ends in .so."),
    KeyTrouble.TOKEN_GONE: mark("Plug it in, or correct the token's name in --key."),
    KeyTrouble.SEVERAL_TOKENS: mark("Add the serial number of the right one to --key: `serial=...`."),
    KeyTrouble.PIN_MISSING: mark("Set PAYGW_APPROVAL_PASSPHRASE to the PIN."),
    KeyTrouble.KEY_MISSING: mark("Correct --key. The vendor's tool makes a key in the token."),
    KeyTrouble.SEVERAL_KEYS: mark("Add the id of the right one to --key: `id=%01`."),
}
"""Remedies for errors that have settings for the gateway's key, but not for a person's."""


def approval_key_at(key: Path, passphrase: bytes | None, module: str | None) -> ApprovalKey:
    """Return a person's key, in a file or in a token that the module at `module` reaches.

    Raises `ConfigurationError`, with one sentence, if it cannot be used.
    """
    if not str(key).startswith(PKCS11):
        return load_approval_key(key, passphrase)
    return _in_token(str(key), module, None if not passphrase else passphrase.decode(errors="replace"))


def _in_token(uri: str, module: str | None, pin: str | None) -> ApprovalKey:
    address = token_address(uri)
    if not module:
        raise ConfigurationError(say("No module is set for the token."), hint=say(_HINTS[KeyTrouble.MODULE]))
    try:
        from paygw_batch.gateway.signing.token_key import TokenPlace, load_person_token_key  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ConfigurationError(
            say("The key is in a token, but the part of this program that reads tokens is not installed."),
            hint=say("Install it: pip install 'paygw-batch[pkcs11]'."),
        ) from None
    try:
        key = load_person_token_key(TokenPlace(address, Path(module), pin))
    except KeyUnusable as error:
        raise _for_a_person(error) from None
    public = read_public_key_der(key.public)
    if public is None:
        raise _for_a_person(KeyUnusable(uri, KeyTrouble.WRONG_KIND))

    def sign(data: bytes) -> bytes:
        try:
            return key.sign(data)
        except KeyUnusable as error:
            raise _for_a_person(error) from None

    return ApprovalKey(public, sign)


def _for_a_person(error: KeyUnusable) -> ConfigurationError:
    if error.trouble is KeyTrouble.WRONG_KIND:
        return ConfigurationError(
            say("{key} is not a key that a person can sign with.", key=error.key),
            hint=say("Name an Ed25519 or a P-256 key that may sign."),
        )
    hint = _HINTS.get(error.trouble)
    return error if hint is None else ConfigurationError(error.message, hint=say(hint))
