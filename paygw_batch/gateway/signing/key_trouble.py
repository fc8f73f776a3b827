"""The troubles of a key that is not a file: one sentence each, with the remedy."""

import json
from enum import StrEnum

from paygw_batch.errors import ConfigurationError, SigningFailed
from paygw_batch.gateway.signing.key import MIN_KEY_BITS
from paygw_batch.language import mark, say


class KeyTrouble(StrEnum):
    """Why a key cannot be used."""

    MODULE = "module"
    TOKEN_GONE = "token_gone"  # noqa: S105 (no password)
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
        """Return it for the process that asked for signatures: one line of ASCII."""
        return json.dumps([self.key, self.trouble, self.detail]).encode("ascii")

    def for_run(self) -> SigningFailed:
        """Return it for a run that was under way."""
        return SigningFailed(self.message, hint=self.hint)


def trouble_of_line(line: bytes) -> KeyUnusable:
    """Return the trouble of a line that `KeyUnusable.as_line` wrote."""
    key, trouble, detail = json.loads(line)
    return KeyUnusable(key, KeyTrouble(trouble), detail)
