"""Keys that are no files: how many signatures one makes by itself, and what a run needs to sign with it."""

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
from paygw_batch.gateway.signing.key import SigningKey, token_address
from paygw_batch.gateway.signing.signers import SigningProcesses, signed_ahead
from tests.support.ports import free_port, wait_until_there
from tests.support.tokens import PIN, Token

SIGNED = "x" * 500
"""As long as the text that is signed for a payout."""


@dataclass(frozen=True, slots=True)
class KeyElsewhere:
    """A key, and the environment in which it is found. `module` is None for a key of AWS."""

    address: str
    environ: Mapping[str, str]
    at_once: int
    module: Path | None = None

    def load(self) -> SigningKey:
        """Return the key, for this process."""
        os.environ.update(self.environ)
        if self.module is None:
            from paygw_batch.custody.kms_key import load_kms_key  # noqa: PLC0415 (an extra)

            return load_kms_key(self.address, self.at_once)
        from paygw_batch.custody.token_key import TokenPlace, load_token_key  # noqa: PLC0415 (an extra)

        return load_token_key(TokenPlace(token_address(self.address), self.module, PIN, self.at_once))


def alone_per_s(key: KeyElsewhere, signatures: int) -> Sample:
    """Return how many signatures a second the key makes for a program that does nothing else."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_alone(key.load(), signatures))


async def _alone(key: SigningKey, signatures: int) -> Sample:
    left = asyncio.Semaphore(signed_ahead(key) or 1)

    async def one(signers: SigningProcesses) -> None:
        async with left:
            await signers.sign([SIGNED])

    async with SigningProcesses(key) as signers:
        started_s = time.perf_counter()
        await asyncio.gather(*(one(signers) for _ in range(signatures)))
        return Sample(signatures / (time.perf_counter() - started_s))


def in_token(directory: Path, key_file: Path, sessions: int) -> KeyElsewhere:
    """Return the key of a file, put into a token of SoftHSM in `directory`."""
    token = Token.made_in(directory)
    token.import_key(key_file)
    return KeyElsewhere("pkcs11:object=payouts", token.environ, sessions, token.module)


@contextmanager
def in_slow_kms(calls: int) -> Iterator[KeyElsewhere]:
    """Run a KMS of 20 ms, and yield its key."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.slow_kms", str(port)], text=True)
    try:
        wait_until_there(port, process)
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
