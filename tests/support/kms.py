"""AWS KMS on loopback: moto's server, behind a proxy that can refuse, hang and count."""

import base64
import json
import threading
import urllib.request
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from moto.kms.models import kms_backends
from moto.server import ThreadedMotoServer

REGION = "eu-west-1"
ACCOUNT = "123456789012"
SIGN = "Sign"


class _DigestKey:
    """The private key of a KMS key. It signs a digest as AWS does, whereas moto would hash it again."""

    def __init__(self, key: RSAPrivateKey) -> None:
        self._key = key

    def sign(self, message: bytes, _algorithm: str) -> bytes:
        digest = message if len(message) == 32 else base64.b64decode(message)
        return self._key.sign(digest, PKCS1v15(), Prehashed(SHA256()))

    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@dataclass
class Kms:
    """A KMS. `refusals` answer an action's next calls (an empty one lets one pass), `for_good` all later ones."""

    url: str
    client: Any
    calls: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, deque[str]] = field(default_factory=dict)
    for_good: dict[str, str] = field(default_factory=dict)
    for_good_after: dict[str, int] = field(default_factory=dict)
    hangs: threading.Event = field(default_factory=threading.Event)
    lies: bool = False

    @property
    def environ(self) -> Mapping[str, str]:
        secrets = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        return {"AWS_ENDPOINT_URL_KMS": self.url, "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", **secrets}

    def key(self, alias: str, private: RSAPrivateKey | None = None, **options: str) -> str:
        """Create a signing key, from `private` if it is given, and return its id."""
        expected = {"KeyUsage": "SIGN_VERIFY", "KeySpec": "RSA_2048", **options}
        key_id: str = self.client.create_key(**expected)["KeyMetadata"]["KeyId"]
        self.client.create_alias(AliasName=f"alias/{alias}", TargetKeyId=key_id)
        held: Any = kms_backends[ACCOUNT][REGION].keys[key_id]
        if expected["KeyUsage"] == "SIGN_VERIFY" and expected["KeySpec"].startswith("RSA"):
            held.private_key = _DigestKey(private or held.private_key.private_key)
        return key_id

    def refusal(self, action: str) -> str | None:
        """Return the error code for the next call of an action."""
        self.calls[action] += 1
        if waiting := self.refusals.get(action):
            return waiting.popleft() or None
        is_over = self.calls[action] > self.for_good_after.get(action, 0)
        return self.for_good.get(action) if is_over else None


@cache
def _start_moto() -> tuple[str, Any]:
    """Return the address of moto's server, started once for each process, and a client of it."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    behind = f"http://{host}:{port}"
    client = boto3.client(
        "kms", region_name=REGION, endpoint_url=behind, aws_access_key_id="testing", aws_secret_access_key="testing"
    )
    return behind, client


@contextmanager
def running_kms() -> Iterator[Kms]:
    """Run a KMS on loopback without keys of an earlier one."""
    behind, client = _start_moto()
    kms_backends.reset()
    kms = Kms("", client)
    door = ThreadingHTTPServer(("127.0.0.1", 0), _start_proxy(kms, behind))
    door.daemon_threads = True
    kms.url = f"http://127.0.0.1:{door.server_port}"
    threading.Thread(target=door.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield kms
    finally:
        kms.hangs.set()
        door.shutdown()
        door.server_close()


def _start_proxy(kms: Kms, behind: str) -> type[BaseHTTPRequestHandler]:
    class ProxyHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Write nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            action = self.headers["X-Amz-Target"].partition(".")[2]
            code = kms.refusal(action)
            if code == "hang":
                kms.hangs.wait()
            if code is not None:
                self._send_answer(400, json.dumps({"__type": code, "message": "refused"}).encode())
                return
            asked = urllib.request.Request(behind, body, {**self.headers, "Host": behind})  # noqa: S310 (loopback)
            try:
                with urllib.request.urlopen(asked) as answer:  # noqa: S310 (loopback)
                    status, answer_body = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    status, answer_body = error.code, error.read()
            if kms.lies and action == SIGN:
                signed = json.loads(answer_body) | {"Signature": base64.b64encode(bytes(256)).decode()}
                answer_body = json.dumps(signed).encode()
            self._send_answer(status, answer_body)

        def _send_answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ProxyHandler
