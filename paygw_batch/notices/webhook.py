"""Posts notices to a webhook, signed as Standard Webhooks requires (https://www.standardwebhooks.com)."""

import base64
import binascii
import hashlib
import hmac
import ssl
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from paygw_batch.language import say
from paygw_batch.notices.words import DeliveryFailure, FailureKind

SECRET_PREFIX = "whsec_"  # noqa: S105 (only the prefix of a secret)
_ACCEPTED_STATUSES = range(200, 300)
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 24, 64


def decode_secret(text: str) -> bytes:
    """Decode a secret such as `whsec_<base64>`. Raises `ValueError`, without quoting it, if it is invalid."""
    try:
        key = base64.b64decode(text.strip().removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(say("it is not base64")) from None
    if not _MIN_SECRET_BYTES <= len(key) <= _MAX_SECRET_BYTES:
        raise ValueError(
            say(
                "it has {bytes} bytes, but must have {min} to {max}",
                bytes=len(key),
                min=_MIN_SECRET_BYTES,
                max=_MAX_SECRET_BYTES,
            )
        )
    return key


def compute_signature(key: bytes, notice_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of the `webhook-signature` header: version 1, HMAC-SHA-256 of id, time and body."""
    digest = hmac.digest(key, f"{notice_id}.{timestamp_s}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook. Without a `key`, requests are unsigned and only the secret URL identifies the sender."""

    url: str = field(repr=False)
    tls_context: ssl.SSLContext = field(repr=False)
    key: bytes | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    """How long to wait for the receiver."""

    def post(self, notice_id: str, body: bytes, timestamp_s: int) -> DeliveryFailure | None:
        """Post a notice. Returns the failure, or None if the receiver accepted it (2xx)."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "paygw-batch",
            "webhook-id": notice_id,
            "webhook-timestamp": str(timestamp_s),
        }
        if self.key is not None:
            headers["webhook-signature"] = compute_signature(self.key, notice_id, timestamp_s, body)
        url = urlsplit(self.url)
        host_and_port = (url.hostname or "", url.port)
        connection = (
            HTTPSConnection(*host_and_port, timeout=self.timeout_s, context=self.tls_context)
            if url.scheme == "https"
            else HTTPConnection(*host_and_port, timeout=self.timeout_s)
        )
        try:
            connection.connect()
        except ssl.SSLCertVerificationError:
            return DeliveryFailure(FailureKind.UNTRUSTED)
        except ssl.SSLError:
            return DeliveryFailure(FailureKind.NOT_ENCRYPTED)
        except TimeoutError:
            return DeliveryFailure(FailureKind.NO_ANSWER)
        except OSError:
            return DeliveryFailure(FailureKind.NOT_REACHED)
        try:
            connection.request("POST", f"{url.path or '/'}{url.query and '?'}{url.query}", body, headers)
            status = connection.getresponse().status
        except TimeoutError:
            return DeliveryFailure(FailureKind.NO_ANSWER)
        except (HTTPException, OSError, ValueError):
            return DeliveryFailure(FailureKind.BROKEN)
        finally:
            connection.close()
        return None if status in _ACCEPTED_STATUSES else DeliveryFailure(FailureKind.REFUSED, status)
