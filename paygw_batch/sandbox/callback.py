"""Sends the sandbox's notifications to `server_callback_url`, on loopback only.

The behaviour file says how late and how often they are sent, and whether they are out of order or forged. A
notification that is not answered with 200 is sent again, as a gateway would do.
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

TRIES = 200
"""The maximum number of times that a notification is sent without an answer 200."""
BETWEEN_TRIES_S = 0.3
ANSWER_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class CallbackHash:
    """How a field proves a notification of the sandbox. `algorithm` is `sha256`, `sha1` or `hmac-sha256`.

    `fields` are names in order, with `{secret}` at the place of the secret. The field `name` contains the hash.
    """

    algorithm: str
    fields: tuple[str, ...]
    separator: str
    name: str
    secret: bytes = field(repr=False)

    def of(self, fields: Mapping[str, str]) -> str:
        values = [self.secret.decode() if name == "{secret}" else fields[name] for name in self.fields]
        text = self.separator.join(values).encode()
        if self.algorithm == "hmac-sha256":
            return hmac.new(self.secret, text, hashlib.sha256).hexdigest()
        return hashlib.new(self.algorithm, text).hexdigest()


@dataclass(frozen=True, slots=True)
class CallbackHeader:
    """How the header `name` proves a notification of the sandbox. `proof` computes the proof from the body.

    `encoding` is `hex` or `base64`; `prefix` is the text before the proof.
    """

    name: str
    encoding: str
    prefix: str
    proof: Callable[[bytes], bytes] = field(repr=False)

    def header(self, body: bytes, *, forged: bool) -> tuple[str, str]:
        """Return the header of a notification. A forged notification has the proof of another body."""
        proof = self.proof(body + b"?" * forged)
        text = proof.hex() if self.encoding == "hex" else base64.b64encode(proof).decode()
        return self.name, f"{self.prefix}{text}"


CallbackProof = CallbackHash | CallbackHeader
"""How the sandbox proves its notifications."""


def by_key(algorithm: str, key: RSAPrivateKey) -> Callable[[bytes], bytes]:
    """Return a function that proves a body by an RSA signature: `rsa-sha256`, `rsa-sha512` or `rsa-pss-sha256`."""
    digest = SHA512() if algorithm == "rsa-sha512" else SHA256()
    padding = PSS(MGF1(digest), PSS.DIGEST_LENGTH) if algorithm == "rsa-pss-sha256" else PKCS1v15()
    return lambda body: key.sign(body, padding, digest)


class Callbacks:
    """Sends notifications in the background of one event loop, and records the status of each answer."""

    def __init__(self, record_path: Path, proof: CallbackProof | None) -> None:
        self._record_path = record_path
        self._proof = proof
        self._chance = random.Random(0)  # noqa: S311 (for delays that are the same in every run)
        self._tasks: set[asyncio.Task[None]] = set()

    def schedule(self, order: Order, callback: Callback, reference: str) -> None:
        """Schedule the notifications of `callback` about `order`, if the order's address for them is on this host."""
        address = urlsplit(order.callback_url or "")
        if not _is_loopback(address):
            return
        for _ in range(callback.times):
            delay_s = callback.delay_s + self._chance.random() * callback.jitter_s
            task = asyncio.get_running_loop().create_task(self._send(order, callback, reference, address, delay_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(
        self, order: Order, callback: Callback, reference: str, address: SplitResult, delay_s: float
    ) -> None:
        await asyncio.sleep(delay_s)
        request = _request(callback, self._fields(order, callback, reference), address, self._proof)
        for _ in range(TRIES):
            http_status = 0
            with suppress(Exception):  # a failed try, such as a killed listener, is followed by another
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    http_status = await _sent(address, request)
            self._write(order, callback, http_status)
            if http_status == 200 or 400 <= http_status < 429:  # noqa: PLR2004 (accepted, or refused for good)
                return
            await asyncio.sleep(BETWEEN_TRIES_S)

    def _fields(self, order: Order, callback: Callback, reference: str) -> dict[str, str]:
        fields = {
            "client_orderid": order.order_id,
            "amount": callback.amount or order.amount,
            "currency": order.currency,
            "status": callback.status,
            "paynet-order-id": reference,
        }
        if isinstance(self._proof, CallbackHash):
            proof = self._proof.of(fields)
            fields[self._proof.name] = proof[::-1] if callback.forged else proof
        return fields

    def _write(self, order: Order, callback: Callback, http_status: int) -> None:
        """Append one line with the notification and the status of the answer, or 0 if there was no answer."""
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


def _request(callback: Callback, fields: Mapping[str, str], address: SplitResult, proof: CallbackProof | None) -> bytes:
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


async def _sent(address: SplitResult, request: bytes) -> int:
    """Send a request in plain HTTP, which is used only on this machine, and return the status of the answer."""
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    try:
        writer.write(request)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()
