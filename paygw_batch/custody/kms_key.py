"""Signs with a key in AWS KMS (extra `aws`). The AWS SDK finds the region, the endpoint and the credentials.

Only the digest of a text is sent, so that no personal data reaches AWS.
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
    KeyProblem,
    KeyUnusable,
    PublicHalf,
    SigningCapacity,
    SigningKey,
    parse_public_half,
)

MAX_RETRY_S = 12.0
"""How long to retry a signature while AWS throttles requests or cannot be reached."""
_MIN_WAIT_S = 0.1
_MAX_WAIT_S = 2.0
_CONNECT_TIMEOUT_S = 3
_READ_TIMEOUT_S = 5
_REGION_PART = 3
_ALGORITHM = "RSASSA_PKCS1_V1_5_SHA_256"
_TRANSIENT = {KeyProblem.THROTTLED, KeyProblem.UNREACHABLE}
_AWS_CODES = {
    KeyProblem.KEY_MISSING: ("NotFoundException", "InvalidArnException", "ValidationException"),
    KeyProblem.FORBIDDEN: ("AccessDeniedException", "AccessDenied"),
    KeyProblem.EXPIRED: ("ExpiredTokenException", "ExpiredToken", "RequestExpired"),
    KeyProblem.NO_CREDENTIALS: (
        *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch"),
        *("IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException"),
    ),
    KeyProblem.DISABLED: ("DisabledException", "KMSInvalidStateException", "KMSInvalidState"),
    KeyProblem.THROTTLED: (
        *("ThrottlingException", "Throttling", "LimitExceededException", "TooManyRequestsException"),
        *("RequestLimitExceeded", "SlowDown"),
    ),
    KeyProblem.UNREACHABLE: ("KMSInternalException", "DependencyTimeoutException", "KeyUnavailableException"),
    KeyProblem.WRONG_KIND: ("InvalidKeyUsageException", "UnsupportedOperationException"),
}
_SDK_ERRORS: dict[KeyProblem, tuple[type[Exception], ...]] = {
    KeyProblem.NO_REGION: (sdk.NoRegionError, sdk.InvalidRegionError),
    KeyProblem.EXPIRED: (sdk.UnauthorizedSSOTokenError, sdk.SSOTokenLoadError, sdk.TokenRetrievalError),
    KeyProblem.NO_CREDENTIALS: (
        *(sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.CredentialRetrievalError, sdk.ProfileNotFound),
        sdk.ConfigNotFound,
    ),
    KeyProblem.UNREACHABLE: (sdk.HTTPClientError, sdk.ConnectionError),
}


@dataclass(frozen=True, slots=True)
class KmsKey(SigningKey):
    """A key that never leaves AWS. Thread-safe."""

    key_id: str
    public: PublicHalf
    custody: Custody
    max_calls: int = 1
    """The maximum number of concurrent calls during a run."""

    @contextmanager
    def open_signer(self) -> Iterator[Callable[[str], str]]:
        """Yield a function that signs text over persistent connections. Raises `KeyUnusable`."""
        client = _create_client(self.key_id, self.max_calls)

        def sign(text: str) -> str:
            signature = self._sign_with_retries(client, hashlib.sha256(text.encode()).digest())
            if not self.public.verifies(text, signature):
                raise KeyUnusable(_key_address(self.key_id), KeyProblem.WRONG_SIGNATURE)
            return base64.b64encode(signature).decode("ascii")

        yield sign

    def _sign_with_retries(self, client: Any, digest: bytes) -> bytes:
        deadline_s, wait_s = time.monotonic() + MAX_RETRY_S, _MIN_WAIT_S
        while True:
            try:
                with _translate_errors(self.key_id):
                    response = client.sign(
                        KeyId=self.key_id, Message=digest, MessageType="DIGEST", SigningAlgorithm=_ALGORITHM
                    )
                    return bytes(response["Signature"])
            except KeyUnusable as error:
                if error.problem not in _TRANSIENT or time.monotonic() + wait_s > deadline_s:
                    raise
            time.sleep(wait_s * (0.5 + random.random() / 2))  # noqa: S311 (jitter needs no secure random numbers)
            wait_s = min(2 * wait_s, _MAX_WAIT_S)

    def serialise(self) -> bytes:
        """Return the key's id and `max_calls` as JSON. The signing process finds its own credentials."""
        return json.dumps({"kind": KeyKind.AWSKMS, "key_id": self.key_id, "calls": self.max_calls}).encode("ascii")

    def signing_capacity(self, cores: int) -> SigningCapacity:  # noqa: ARG002 (AWS computes the signatures)
        return SigningCapacity(1, self.max_calls, is_slow=True)


def deserialise_kms_key(fields: dict[str, Any]) -> KmsKey:
    """Load a key from the fields written by `KmsKey.serialise`. Raises `KeyUnusable`."""
    return load_kms_key(fields["key_id"], fields["calls"])


def load_kms_key(key_id: str, max_calls: int) -> KmsKey:
    """Load an RSA key from AWS. Raises `KeyUnusable` if it is missing or cannot be used to sign."""
    client = _create_client(key_id, max_calls)
    with _translate_errors(key_id):
        response = client.get_public_key(KeyId=key_id)
    public_half = parse_public_half(response["PublicKey"])
    if public_half is None or response["KeyUsage"] != "SIGN_VERIFY" or _ALGORITHM not in response["SigningAlgorithms"]:
        raise KeyUnusable(_key_address(key_id), KeyProblem.WRONG_KIND)
    if public_half.bits < MIN_KEY_BITS:
        raise KeyUnusable(_key_address(key_id), KeyProblem.TOO_SHORT, str(public_half.bits))
    with _translate_errors(key_id):
        metadata = client.describe_key(KeyId=key_id)["KeyMetadata"]
    if metadata["KeyState"] != "Enabled":
        raise KeyUnusable(_key_address(key_id), KeyProblem.DISABLED)
    valid_to = metadata.get("ValidTo")
    custody = Custody(
        KeyKind.AWSKMS,
        f"{_key_address(key_id)} ({metadata['Arn']})",
        was_stored_elsewhere=metadata.get("Origin") == "EXTERNAL",
        expires=None if valid_to is None else valid_to.date(),
    )
    return KmsKey(key_id, public_half, custody, max_calls)


def _create_client(key_id: str, max_calls: int) -> Any:
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=max_calls,
    )
    parts = key_id.split(":")
    region = parts[_REGION_PART] if parts[0] == "arn" and len(parts) > _REGION_PART else os.environ.get("AWS_REGION")
    with _translate_errors(key_id):
        return boto3.session.Session().client("kms", region_name=region or None, config=config)


def _key_address(key_id: str) -> str:
    return f"{AWSKMS}{key_id}"


@contextmanager
def _translate_errors(key_id: str) -> Iterator[None]:
    """Raise SDK errors as `KeyUnusable` without their messages, which may contain internal details."""
    try:
        yield
    except sdk.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        problem = next((kind for kind, codes in _AWS_CODES.items() if code in codes), KeyProblem.BROKEN)
        raise KeyUnusable(_key_address(key_id), problem, code or type(error).__name__) from None
    except (sdk.BotoCoreError, ValueError) as error:
        problem = next((kind for kind, errors in _SDK_ERRORS.items() if isinstance(error, errors)), KeyProblem.BROKEN)
        raise KeyUnusable(_key_address(key_id), problem, type(error).__name__) from None
