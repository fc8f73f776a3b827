"""Plain asyncio loops without this program, which sign inline and keep no journal.

One uses httpx and one aiohttp. Each has one worker and one connection per request in flight. Each signs by RFC 5849
with the standard library's `quote`, and reads the reply's `status`.
"""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from benchmarks.figures import Sample
from benchmarks.loops import loop_factory
from benchmarks.merchant import FIELDS

Client = Literal["httpx", "aiohttp"]
Post = Callable[[bytes, dict[str, str]], Awaitable[Any]]
"""Sends one body with headers, and returns the reply's JSON."""
CALLBACK_URL = "https://merchant.example/paygw/callback"


def plain_payouts_per_s(client: Client, key_file: Path, url: str, concurrency: int, for_s: float) -> Sample:
    """Return the payouts per second of the plain loop while it runs for `for_s` seconds."""
    key = load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(key, RSAPrivateKey):
        raise TypeError("an RSA key was expected")
    run = _run_httpx if client == "httpx" else _run_aiohttp
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run(key, url, concurrency, for_s))


def sign_payout(key: RSAPrivateKey, url: str, order_id: str) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of one payout."""
    fields = {
        **FIELDS,
        "amount": 1500.50,
        "client_orderid": order_id,
        "currency": "KES",
        "purpose": "SANDBOX-WALLET-KE",
        "server_callback_url": CALLBACK_URL,
    }
    oauth = {
        "oauth_consumer_key": "benchmark",
        "oauth_nonce": secrets.token_hex(16),
        "oauth_signature_method": "RSA-SHA256",
        "oauth_timestamp": str(int(time.time())),
        "oauth_version": "1.0",
    }
    pairs = sorted((quote(name, safe="~"), quote(str(value), safe="~")) for name, value in (fields | oauth).items())
    params = "&".join(f"{name}={value}" for name, value in pairs)
    text = f"POST&{quote(url, safe='~')}&{quote(params, safe='~')}"
    signature = base64.b64encode(key.sign(text.encode(), PKCS1v15(), SHA256())).decode()
    oauth["oauth_signature"] = signature
    header = ", ".join(f'{name}="{quote(value, safe="~")}"' for name, value in oauth.items())
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Authorization": f"OAuth {header}"}
    return json.dumps(fields).encode(), headers


async def _run_httpx(key: RSAPrivateKey, url: str, concurrency: int, for_s: float) -> Sample:
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:

        async def post(body: bytes, headers: dict[str, str]) -> Any:
            return (await client.post(url, content=body, headers=headers)).json()

        return await _run_workers(post, key, url, concurrency, for_s)


async def _run_aiohttp(key: RSAPrivateKey, url: str, concurrency: int, for_s: float) -> Sample:
    import aiohttp  # noqa: PLC0415 (of the group `bench`)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:

        async def post(body: bytes, headers: dict[str, str]) -> Any:
            async with session.post(url, data=body, headers=headers) as reply:
                return await reply.json()

        return await _run_workers(post, key, url, concurrency, for_s)


async def _run_workers(post: Post, key: RSAPrivateKey, url: str, concurrency: int, for_s: float) -> Sample:
    order_ids = (f"PLAIN-{number:08}" for number in range(1, 10**8))
    until_s = time.perf_counter() + for_s
    started_s, cpu_s = time.perf_counter(), time.process_time()
    paid = sum(await asyncio.gather(*(_pay_orders(post, key, url, order_ids, until_s) for _ in range(concurrency))))
    return Sample(paid / (time.perf_counter() - started_s), 1e6 * (time.process_time() - cpu_s) / paid)


async def _pay_orders(post: Post, key: RSAPrivateKey, url: str, order_ids: Iterator[str], until_s: float) -> int:
    paid = 0
    while paid == 0 or time.perf_counter() < until_s:
        reply = await post(*sign_payout(key, url, next(order_ids)))
        if reply["status"] != "approved":
            raise RuntimeError("the null gateway approves everything")
        paid += 1
    return paid
