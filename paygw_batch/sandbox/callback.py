"""Sends the sandbox's notifications to `server_callback_url`, on loopback only.

The behaviour file defines their delays and repetitions, and whether they are out of order or forged. Like a real
gateway, it repeats a notification that is not answered with 200.
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
from paygw_batch.sandbox.reply import Callback

MAX_TRIES = 200
"""The maximum number of attempts to send a notification."""
RETRY_INTERVAL_S = 0.3
ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class CallbackHash:
    """A hash in the field `name` that proves a notification of the sandbox.

    `algorithm` is `sha256`, `sha1` or `hmac-sha256`. `fields` are the names of the hashed fields in order, with
    `{secret}` in the position of the secret.
    """

    algorithm: str
    fields: tuple[str, ...]
    separator: str
    name: str
    secret: bytes = field(repr=False)

    def compute(self, fields: Mapping[str, str]) -> str:
        values = [self.secret.decode() if name == "{secret}" else fields[name] for name in self.fields]
        text = self.separator.join(values).encode()
        if self.algorithm == "hmac-sha256":
            return hmac.new(self.secret, text, hashlib.sha256).hexdigest()
        return hashlib.new(self.algorithm, text).hexdigest()


@dataclass(frozen=True, slots=True)
class CallbackHeader:
    """A header `name` that proves a notification of the sandbox. `proof` computes it from the body.

    `encoding` is `hex` or `base64`; `prefix` precedes the encoded proof.
    """

    name: str
    encoding: str
    prefix: str
    proof: Callable[[bytes], bytes] = field(repr=False)

    def header(self, body: bytes, *, forged: bool) -> tuple[str, str]:
        """Return the header for a body, or for a different body if the notification is forged."""
        proof = self.proof(body + b"?" * forged)
        text = proof.hex() if self.encoding == "hex" else base64.b64encode(proof).decode()
        return self.name, f"{self.prefix}{text}"


CallbackProof = CallbackHash | CallbackHeader
"""The proof of the sandbox's notifications."""


def rsa_signer(algorithm: str, key: RSAPrivateKey) -> Callable[[bytes], bytes]:
    """Return a function that signs a body with `rsa-sha256`, `rsa-sha512` or `rsa-pss-sha256`."""
    digest = SHA512() if algorithm == "rsa-sha512" else SHA256()
    padding = PSS(MGF1(digest), PSS.DIGEST_LENGTH) if algorithm == "rsa-pss-sha256" else PKCS1v15()
    return lambda body: key.sign(body, padding, digest)


class Callbacks:
    """Sends notifications in the background of an event loop, and records the replies."""

    def __init__(self, record_path: Path, proof: CallbackProof | None) -> None:
        self._record_path = record_path
        self._proof = proof
        self._random = random.Random(0)  # noqa: S311 (delays must be the same in every run)
        self._tasks: set[asyncio.Task[None]] = set()

    def schedule(self, order: Order, callback: Callback, reference: str) -> None:
        """Schedule the notifications of `callback` about `order`, if its callback URL is on loopback."""
        address = urlsplit(order.callback_url or "")
        if not _is_loopback(address):
            return
        for _ in range(callback.times):
            delay_s = callback.delay_s + self._random.random() * callback.jitter_s
            task = asyncio.get_running_loop().create_task(self._send(order, callback, reference, address, delay_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(
        self, order: Order, callback: Callback, reference: str, address: SplitResult, delay_s: float
    ) -> None:
        await asyncio.sleep(delay_s)
        request = _build_request(callback, self._callback_fields(order, callback, reference), address, self._proof)
        for _ in range(MAX_TRIES):
            http_status = 0
            with suppress(Exception):  # a failed attempt, such as one with a killed listener, is repeated
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    http_status = await _send_request(address, request)
            self._record_answer(order, callback, http_status)
            if http_status == 200 or 400 <= http_status < 429:  # noqa: PLR2004 (accepted, or refused for good)
                return
            await asyncio.sleep(RETRY_INTERVAL_S)

    def _callback_fields(self, order: Order, callback: Callback, reference: str) -> dict[str, str]:
        fields = {
            "client_orderid": order.order_id,
            "amount": callback.amount or order.amount,
            "currency": order.currency,
            "status": callback.status,
            "paynet-order-id": reference,
        }
        if isinstance(self._proof, CallbackHash):
            proof = self._proof.compute(fields)
            fields[self._proof.name] = proof[::-1] if callback.forged else proof
        return fields

    def _record_answer(self, order: Order, callback: Callback, http_status: int) -> None:
        """Record a notification with the HTTP status of the reply, or 0 if there was none."""
        line = io.StringIO(newline="")
        forged = "yes" if callback.forged else "no"
        csv.writer(line, lineterminator="\n").writerow((order.order_id, callback.status, forged, http_status))
        append_line(self._record_path, line.getvalue().encode())


def _is_loopback(address: SplitResult) -> bool:
    if address.scheme != "http" or address.hostname is None:
        return False
    with suppress(ValueError):
        return ipaddress.ip_address(address.hostname).is_loopback
    return address.hostname == "localhost"


def _build_request(
    callback: Callback, fields: Mapping[str, str], address: SplitResult, proof: CallbackProof | None
) -> bytes:
    target, body, headers = address.path or "/", b"", {"Host": address.netloc, "Connection": "close"}
    if callback.method == "GET":
        target = f"{target}?{urlencode(fields)}"
    elif callback.format == "form":
        body, headers["Content-Type"] = urlencode(fields).encode(), "application/x-www-form-urlencoded"
    else:
        body, headers["Content-Type"] = json.dumps(fields).encode(), "application/json"
    if proof is not None and not isinstance(proof, CallbackHash):
        name, value = proof.header(body, forged=callback.forged)
        headers[name] = value
    headers["Content-Length"] = str(len(body))
    lines = (f"{callback.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()))
    return "\r\n".join((*lines, "", "")).encode() + body


async def _send_request(address: SplitResult, request: bytes) -> int:
    """Send a request in plain HTTP (on loopback only) and return the status of the reply."""
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    try:
        writer.write(request)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
