"""Sends the sandbox's notifications to `server_callback_url`, on loopback only.

The behaviour file defines how often and when notifications are sent, and whether they are forged. Like a real gateway,
the sandbox repeats a notification that is not answered with 200.
"""

import asyncio
import base64
import csv
import hashlib
import hmac
import io
import ipaddress
import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA512

from paygw_batch.files import append_line
from paygw_batch.sandbox.form import Order
from paygw_batch.sandbox.reply import NotificationRule

MAX_ATTEMPTS = 200
"""The maximum number of attempts to send a notification."""
RETRY_INTERVAL_S = 0.3
REPLY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class NotificationHash:
    """A hash in the field `name` that authenticates a notification.

    `algorithm` is `sha256`, `sha1` or `hmac-sha256`. `fields` lists the hashed fields, with `{secret}` for the secret.
    """

    algorithm: str
    fields: tuple[str, ...]
    separator: str
    name: str
    secret: bytes = field(repr=False)

    def compute(self, values: Mapping[str, str]) -> str:
        parts = [self.secret.decode() if name == "{secret}" else values[name] for name in self.fields]
        text = self.separator.join(parts).encode()
        if self.algorithm == "hmac-sha256":
            return hmac.new(self.secret, text, hashlib.sha256).hexdigest()
        return hashlib.new(self.algorithm, text).hexdigest()


@dataclass(frozen=True, slots=True)
class NotificationHeader:
    """A header `name` that authenticates a notification. `compute` returns the proof for a body.

    `encoding` is `hex` or `base64`. `prefix` precedes the encoded proof.
    """

    name: str
    encoding: str
    prefix: str
    compute: Callable[[bytes], bytes] = field(repr=False)

    def header(self, body: bytes, *, forged: bool) -> tuple[str, str]:
        """Return the header for `body`. If `forged` is true, the proof is for a different body."""
        proof = self.compute(body + b"?" * forged)
        text = proof.hex() if self.encoding == "hex" else base64.b64encode(proof).decode()
        return self.name, f"{self.prefix}{text}"


NotificationProof = NotificationHash | NotificationHeader
"""How the sandbox proves that it sent a notification."""


def rsa_signer(algorithm: str, key: RSAPrivateKey) -> Callable[[bytes], bytes]:
    """Return a function that signs a body with `rsa-sha256`, `rsa-sha512` or `rsa-pss-sha256`."""
    hash_algorithm = SHA512() if algorithm == "rsa-sha512" else SHA256()
    padding = PSS(MGF1(hash_algorithm), PSS.DIGEST_LENGTH) if algorithm == "rsa-pss-sha256" else PKCS1v15()
    return lambda body: key.sign(body, padding, hash_algorithm)


class NotificationSender:
    """Sends notifications in background tasks, and records the replies."""

    def __init__(self, record_path: Path, proof: NotificationProof | None) -> None:
        self._record_path = record_path
        self._proof = proof
        self._random = random.Random(0)  # noqa: S311 (every run must have the same delays)
        self._tasks: set[asyncio.Task[None]] = set()

    def schedule(self, order: Order, rule: NotificationRule, reference: str) -> None:
        """Schedule the notifications that `rule` defines for `order`, if the callback URL is on loopback."""
        url = urlsplit(order.callback_url or "")
        if not _is_http_on_loopback(url):
            return
        for _ in range(rule.times):
            delay_s = rule.delay_s + self._random.random() * rule.jitter_s
            task = asyncio.get_running_loop().create_task(self._send(order, rule, reference, url, delay_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(
        self, order: Order, rule: NotificationRule, reference: str, url: SplitResult, delay_s: float
    ) -> None:
        await asyncio.sleep(delay_s)
        request = _build_request(rule, self._build_fields(order, rule, reference), url, self._proof)
        for _ in range(MAX_ATTEMPTS):
            http_status = 0
            with suppress(Exception):  # a failed attempt is repeated, for example while the listener restarts
                async with asyncio.timeout(REPLY_TIMEOUT_S):
                    http_status = await _send_request(url, request)
            self._record_reply(order, rule, http_status)
            if http_status == 200 or 400 <= http_status < 429:  # noqa: PLR2004 (accepted or permanently refused)
                return
            await asyncio.sleep(RETRY_INTERVAL_S)

    def _build_fields(self, order: Order, rule: NotificationRule, reference: str) -> dict[str, str]:
        fields = {
            "client_orderid": order.order_id,
            "amount": rule.amount or order.amount,
            "currency": order.currency,
            "status": rule.status,
            "paynet-order-id": reference,
        }
        if isinstance(self._proof, NotificationHash):
            proof = self._proof.compute(fields)
            fields[self._proof.name] = proof[::-1] if rule.forged else proof
        return fields

    def _record_reply(self, order: Order, rule: NotificationRule, http_status: int) -> None:
        line = io.StringIO(newline="")
        forged = "yes" if rule.forged else "no"
        csv.writer(line, lineterminator="\n").writerow((order.order_id, rule.status, forged, http_status))
        append_line(self._record_path, line.getvalue().encode())


def _is_http_on_loopback(url: SplitResult) -> bool:
    if url.scheme != "http" or url.hostname is None:
        return False
    with suppress(ValueError):
        return ipaddress.ip_address(url.hostname).is_loopback
    return url.hostname == "localhost"


def _build_request(
    rule: NotificationRule, fields: Mapping[str, str], url: SplitResult, proof: NotificationProof | None
) -> bytes:
    target, body, headers = url.path or "/", b"", {"Host": url.netloc, "Connection": "close"}
    if rule.method == "GET":
        target = f"{target}?{urlencode(fields)}"
    elif rule.format == "form":
        body, headers["Content-Type"] = urlencode(fields).encode(), "application/x-www-form-urlencoded"
    else:
        body, headers["Content-Type"] = json.dumps(fields).encode(), "application/json"
    if proof is not None and not isinstance(proof, NotificationHash):
        name, value = proof.header(body, forged=rule.forged)
        headers[name] = value
    headers["Content-Length"] = str(len(body))
    lines = (f"{rule.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()))
    return "\r\n".join((*lines, "", "")).encode() + body


async def _send_request(url: SplitResult, request: bytes) -> int:
    """Send a request over plain HTTP, and return the reply's status code."""
    reader, writer = await asyncio.open_connection(url.hostname, url.port or 80)
    try:
        writer.write(request)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
