"""Measures the upper bound: bare RSA-2048 signatures per second by two threads."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from benchmarks.figures import Sample

THREADS = 2
SIGNED = b"x" * 500
"""A text as long as the signed text of a payout."""


def signatures_per_s(key_file: Path, signatures: int) -> Sample:
    """Return the rate of `signatures` signatures by two threads. The key releases the GIL while it signs."""
    key = load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(key, RSAPrivateKey):
        raise TypeError("an RSA key was expected")
    padding, digest = PKCS1v15(), SHA256()

    def sign(count: int) -> None:
        for _ in range(count):
            key.sign(SIGNED, padding, digest)

    with ThreadPoolExecutor(THREADS) as threads:
        sign(1)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for thread in [threads.submit(sign, signatures // THREADS) for _ in range(THREADS)]:
            thread.result()
        cpu_us = 1e6 * (time.process_time() - cpu_s) / signatures
        return Sample(signatures / (time.perf_counter() - started_s), cpu_us)
