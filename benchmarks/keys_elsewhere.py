"""Measures keys in a token or a KMS: signatures per second of the key alone, and of a run."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Sample
from benchmarks.loops import loop_factory
from paygw_batch.gateway.signing.key import SigningKey, parse_token_address
from paygw_batch.gateway.signing.signers import SigningProcesses, signing_lookahead
from tests.support.ports import free_port, wait_for_server
from tests.support.tokens import PIN, Token

SIGNED = "x" * 500
"""A text as long as the signed text of a payout."""


@dataclass(frozen=True, slots=True)
class KeyElsewhere:
    """A key, and the environment that it needs. `module` is None for a key in AWS."""

    address: str
    environ: Mapping[str, str]
    at_once: int
    module: Path | None = None

    def load(self) -> SigningKey:
        """Return the key for this process."""
        os.environ.update(self.environ)
        if self.module is None:
            from paygw_batch.custody.kms_key import load_kms_key  # noqa: PLC0415 (an extra)

            return load_kms_key(self.address, self.at_once)
        from paygw_batch.custody.token_key import TokenLocation, load_token_key  # noqa: PLC0415 (an extra)

        return load_token_key(TokenLocation(parse_token_address(self.address), self.module, PIN, self.at_once))


def key_signatures_per_s(key: KeyElsewhere, signatures: int) -> Sample:
    """Return the number of signatures per second for a program that does nothing else."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_sign_repeatedly(key.load(), signatures))


async def _sign_repeatedly(key: SigningKey, signatures: int) -> Sample:
    left = asyncio.Semaphore(signing_lookahead(key) or 1)

    async def one(signers: SigningProcesses) -> None:
        async with left:
            await signers.sign([SIGNED])

    async with SigningProcesses(key) as signers:
        started_s = time.perf_counter()
        await asyncio.gather(*(one(signers) for _ in range(signatures)))
        return Sample(signatures / (time.perf_counter() - started_s))


def import_into_token(directory: Path, key_file: Path, sessions: int) -> KeyElsewhere:
    """Return a file's key after importing it into a SoftHSM token in `directory`."""
    token = Token.create_in(directory)
    token.import_key(key_file)
    return KeyElsewhere("pkcs11:object=payouts", token.environ, sessions, token.module)


@contextmanager
def slow_kms_key(calls: int) -> Iterator[KeyElsewhere]:
    """Run a KMS with a latency of 20 ms, and yield its key."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.slow_kms", str(port)], text=True)
    try:
        wait_for_server(port, process)
        environ = {
            "AWS_ENDPOINT_URL_KMS": f"http://127.0.0.1:{port}",
            "AWS_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
        }
        yield KeyElsewhere("alias/benchmark", environ, calls)
    finally:
        process.kill()
        process.wait()
