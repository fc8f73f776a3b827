"""Posts notices to a webhook, signed by the rules of Standard Webhooks (https://www.standardwebhooks.com)."""

import base64
import binascii
import hashlib
import hmac
import ssl
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from paygw_batch.language import say
from paygw_batch.notices.words import Trouble, TroubleKind

SECRET_PREFIX = "whsec_"  # noqa: S105 (the beginning of a secret)
_TAKEN = range(200, 300)
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 24, 64


def secret_bytes(text: str) -> bytes:
    """Return the key in a secret (`whsec_` and base64). Raises `ValueError`, which does not quote the secret."""
    try:
        key = base64.b64decode(text.strip().removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(say("it is not base64")) from None
    if not _MIN_SECRET_BYTES <= len(key) <= _MAX_SECRET_BYTES:
        raise ValueError(
            say(
                "it has {bytes} bytes, and must have {min} to {max}",
                bytes=len(key),
                min=_MIN_SECRET_BYTES,
                max=_MAX_SECRET_BYTES,
            )
        )
    return key


def signature_of(key: bytes, notice: str, at_s: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`: version 1, HMAC-SHA256 over id, time and body."""
    digest = hmac.digest(key, f"{notice}.{at_s}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook. Without a `key`, its messages are not signed, and its address is the secret."""

    url: str = field(repr=False)
    trust: ssl.SSLContext = field(repr=False)
    key: bytes | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    """How long the receiver may be silent."""

    def post(self, notice: str, body: bytes, at_s: int) -> Trouble | None:
        """Post a notice. Return why the receiver did not accept it, or None if it did (2xx). Its answer is not read."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "paygw-batch",
            "webhook-id": notice,
            "webhook-timestamp": str(at_s),
        }
        if self.key is not None:
            headers["webhook-signature"] = signature_of(self.key, notice, at_s, body)
        address = urlsplit(self.url)
        place = (address.hostname or "", address.port)
        connection = (
            HTTPSConnection(*place, timeout=self.timeout_s, context=self.trust)
            if address.scheme == "https"
            else HTTPConnection(*place, timeout=self.timeout_s)
        )
        try:
            connection.connect()
        except ssl.SSLCertVerificationError:
            return Trouble(TroubleKind.UNTRUSTED)
        except ssl.SSLError:
            return Trouble(TroubleKind.NOT_ENCRYPTED)
        except TimeoutError:
            return Trouble(TroubleKind.NO_ANSWER)
        except OSError:
            return Trouble(TroubleKind.NOT_REACHED)
        try:
            connection.request("POST", f"{address.path or '/'}{address.query and '?'}{address.query}", body, headers)
            status = connection.getresponse().status
        except TimeoutError:
            return Trouble(TroubleKind.NO_ANSWER)
        except (HTTPException, OSError, ValueError):
            return Trouble(TroubleKind.BROKEN)
        finally:
            connection.close()
        return None if status in _TAKEN else Trouble(TroubleKind.REFUSED, status)
