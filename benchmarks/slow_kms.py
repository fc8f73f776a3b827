"""A KMS that takes 20 ms for every signature and almost no processor time: `python -m benchmarks.slow_kms PORT`.

It has one RSA-2048 key, and answers the requests of `paygw_batch/custody/kms_key.py`.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

LATENCY_S = 0.02
_KEY = generate_private_key(65537, 2048)
_PUBLIC = _KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _escape_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


_ANSWERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "GetPublicKey": lambda _: {
        "KeyUsage": "SIGN_VERIFY",
        "PublicKey": _escape_text(_PUBLIC),
        "SigningAlgorithms": ["RSASSA_PKCS1_V1_5_SHA_256"],
    },
    "DescribeKey": lambda _: {
        "KeyMetadata": {
            "Arn": "arn:aws:kms:eu-west-1:1:key/1",
            "KeyId": "1",
            "KeyState": "Enabled",
            "Origin": "AWS_KMS",
        }
    },
    "Sign": lambda asked: {
        "Signature": _escape_text(_KEY.sign(base64.b64decode(asked["Message"]), PKCS1v15(), Prehashed(SHA256())))
    },
}


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of the next request, or empty bytes at the end of the connection."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await _read_head(reader):
        lines = head.decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        asked = json.loads(await reader.readexactly(int(fields["content-length"])))
        action = next(name for name in _ANSWERS if fields["x-amz-target"].endswith(name.lower()))
        done_s = asyncio.get_running_loop().time() + LATENCY_S
        body = json.dumps(_ANSWERS[action](asked)).encode()
        await asyncio.sleep(max(0.0, done_s - asyncio.get_running_loop().time()))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)


async def main(port: int) -> None:
    """Serve until the process is terminated."""
    server = await asyncio.start_server(_serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
