"""Signs with a key in AWS KMS (the extra `aws`). Region, endpoint and credentials are found as in every AWS SDK.

Only the digest of a text is sent, so that no payee's data reaches AWS.
"""

import base64
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from botocore import exceptions as sdk
from botocore.config import Config

from paygw_batch.gateway.signing.key import (
    AWSKMS,
    MIN_KEY_BITS,
    Custody,
    KeyKind,
    KeyTrouble,
    KeyUnusable,
    PublicHalf,
    SigningKey,
    Staff,
    public_half_of,
)

PATIENCE_S = 12.0
"""How long a signature is retried while AWS throttles or cannot be reached."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_CONNECT_TIMEOUT_S = 3
_READ_TIMEOUT_S = 5
_REGION_IN_ARN = 3
_ALGORITHM = "RSASSA_PKCS1_V1_5_SHA_256"
_PASSING = {KeyTrouble.THROTTLED, KeyTrouble.UNREACHABLE}
_BY_CODE = {
    KeyTrouble.KEY_MISSING: ("NotFoundException", "InvalidArnException", "ValidationException"),
    KeyTrouble.FORBIDDEN: ("AccessDeniedException", "AccessDenied"),
    KeyTrouble.EXPIRED: ("ExpiredTokenException", "ExpiredToken", "RequestExpired"),
    KeyTrouble.NO_CREDENTIALS: (
        *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch"),
        *("IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException"),
    ),
    KeyTrouble.DISABLED: ("DisabledException", "KMSInvalidStateException", "KMSInvalidState"),
    KeyTrouble.THROTTLED: (
        *("ThrottlingException", "Throttling", "LimitExceededException", "TooManyRequestsException"),
        *("RequestLimitExceeded", "SlowDown"),
    ),
    KeyTrouble.UNREACHABLE: ("KMSInternalException", "DependencyTimeoutException", "KeyUnavailableException"),
    KeyTrouble.WRONG_KIND: ("InvalidKeyUsageException", "UnsupportedOperationException"),
}
_BY_ERROR: dict[KeyTrouble, tuple[type[Exception], ...]] = {
    KeyTrouble.NO_REGION: (sdk.NoRegionError, sdk.InvalidRegionError),
    KeyTrouble.EXPIRED: (sdk.UnauthorizedSSOTokenError, sdk.SSOTokenLoadError, sdk.TokenRetrievalError),
    KeyTrouble.NO_CREDENTIALS: (
        *(sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.CredentialRetrievalError, sdk.ProfileNotFound),
        sdk.ConfigNotFound,
    ),
    KeyTrouble.UNREACHABLE: (sdk.HTTPClientError, sdk.ConnectionError),
}


@dataclass(frozen=True, slots=True)
class KmsKey(SigningKey):
    """A key that never leaves AWS. Safe to use from many threads."""

    key_id: str
    public: PublicHalf
    custody: Custody
    calls: int = 1
    """The maximum number of simultaneous calls during a run."""

    @contextmanager
    def at_work(self) -> Iterator[Callable[[str], str]]:
        """Yield a function that signs a text, over persistent connections. Raises `KeyUnusable`."""
        client = _client(self.key_id, self.calls)

        def sign(text: str) -> str:
            signature = self._patiently(client, hashlib.sha256(text.encode()).digest())
            if not self.public.has_signed(text, signature):
                raise KeyUnusable(_address(self.key_id), KeyTrouble.WRONG_SIGNATURE)
            return base64.b64encode(signature).decode("ascii")

        yield sign

    def _patiently(self, client: Any, digest: bytes) -> bytes:
        """Request a signature. Retry after errors that may pass, for `PATIENCE_S` seconds."""
        until_s, wait_s = time.monotonic() + PATIENCE_S, _FIRST_WAIT_S
        while True:
            try:
                with _translating_errors(self.key_id):
                    answer = client.sign(
                        KeyId=self.key_id, Message=digest, MessageType="DIGEST", SigningAlgorithm=_ALGORITHM
                    )
                    return bytes(answer["Signature"])
            except KeyUnusable as error:
                if error.trouble not in _PASSING or time.monotonic() + wait_s > until_s:
                    raise
            time.sleep(wait_s * (0.5 + random.random() / 2))  # noqa: S311 (only the length of a wait depends on it)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def hand_over(self) -> bytes:
        """Return the key's name and the maximum number of calls. The other process finds its own credentials."""
        return json.dumps({"kind": KeyKind.AWSKMS, "key_id": self.key_id, "calls": self.calls}).encode("ascii")

    def staff(self, cores: int) -> Staff:  # noqa: ARG002 (AWS computes the signatures)
        return Staff(1, self.calls, is_slow=True)


def kms_key_handed_over(fields: dict[str, Any]) -> KmsKey:
    """Return the key that `KmsKey.hand_over` named to this process. Raises `KeyUnusable`."""
    return load_kms_key(fields["key_id"], fields["calls"])


def load_kms_key(key_id: str, calls: int) -> KmsKey:
    """Return the RSA key in AWS. Raises `KeyUnusable` if it is missing or may not sign."""
    client = _client(key_id, calls)
    with _translating_errors(key_id):
        answer = client.get_public_key(KeyId=key_id)
    public = public_half_of(answer["PublicKey"])
    if public is None or answer["KeyUsage"] != "SIGN_VERIFY" or _ALGORITHM not in answer["SigningAlgorithms"]:
        raise KeyUnusable(_address(key_id), KeyTrouble.WRONG_KIND)
    if public.bits < MIN_KEY_BITS:
        raise KeyUnusable(_address(key_id), KeyTrouble.TOO_SHORT, str(public.bits))
    with _translating_errors(key_id):
        about = client.describe_key(KeyId=key_id)["KeyMetadata"]
    if about["KeyState"] != "Enabled":
        raise KeyUnusable(_address(key_id), KeyTrouble.DISABLED)
    expires = about.get("ValidTo")
    custody = Custody(
        KeyKind.AWSKMS,
        f"{_address(key_id)} ({about['Arn']})",
        was_outside=about.get("Origin") == "EXTERNAL",
        expires=None if expires is None else expires.date(),
    )
    return KmsKey(key_id, public, custody, calls)


def _client(key_id: str, calls: int) -> Any:
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=calls,
    )
    arn = key_id.split(":")
    named = arn[_REGION_IN_ARN] if arn[0] == "arn" and len(arn) > _REGION_IN_ARN else os.environ.get("AWS_REGION")
    with _translating_errors(key_id):
        return boto3.session.Session().client("kms", region_name=named or None, config=config)


def _address(key_id: str) -> str:
    return f"{AWSKMS}{key_id}"


@contextmanager
def _translating_errors(key_id: str) -> Iterator[None]:
    """Translate an error of the SDK without its own text, which can contain more than a person needs."""
    try:
        yield
    except sdk.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        trouble = next((kind for kind, codes in _BY_CODE.items() if code in codes), KeyTrouble.BROKEN)
        raise KeyUnusable(_address(key_id), trouble, code or type(error).__name__) from None
    except (sdk.BotoCoreError, ValueError) as error:
        trouble = next((kind for kind, errors in _BY_ERROR.items() if isinstance(error, errors)), KeyTrouble.BROKEN)
        raise KeyUnusable(_address(key_id), trouble, type(error).__name__) from None
