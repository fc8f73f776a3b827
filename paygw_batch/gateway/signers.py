"""Where signatures are made while a run goes on: beside the event loop, by two signers.

A signature is most of what a payout costs. In threads the signers share one interpreter with the event loop and the
journal, and on a long run all of them wait for each other; processes of their own share nothing, but take a moment to
start. So a short run signs in threads, and a long one in processes (`docs/decisions/0050-signing-processes.md`).
"""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol, Self

from paygw_batch.errors import SigningFailed
from paygw_batch.gateway.sign import PrivateKey

SIGNERS = 2
"""More than two would take the processor from what has to be quick."""
LONG_RUN_PAYOUTS = 2_000
"""From here on processes are worth their start: while they start, two threads sign about as many."""
_CLOSING_TIMEOUT_S = 5.0


class Signers(Protocol):
    """Sign texts off the event loop. A context, whose end lets go of what signs."""

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text, in base64. May be called again while an earlier call is under way."""
        ...

    def __enter__(self) -> Self:
        """Return the signers."""
        ...

    def __exit__(self, *_: object) -> None:
        """Let go of what signs."""
        ...


def signers_for(key: PrivateKey, payouts: int) -> Signers:
    """Return what signs a run of so many payouts."""
    return SigningProcesses(key) if payouts >= LONG_RUN_PAYOUTS else SigningThreads(key)


class SigningThreads:
    """Signs in threads of this process; the key releases the interpreter while it computes."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key
        self._threads = ThreadPoolExecutor(SIGNERS, thread_name_prefix="sign")

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text, in base64."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._signed, texts)

    def _signed(self, texts: Sequence[str]) -> list[str]:
        return [self._key.sign(text) for text in texts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


class SigningProcesses:
    """Signs in processes of their own (`signing_process`), which end when their input does: also when we are killed.

    The key goes to them through a pipe, and never stands in an argument, a file or the environment.
    """

    def __init__(self, key: PrivateKey) -> None:
        self._width = key.signature_characters + 1
        self._threads = ThreadPoolExecutor(SIGNERS, thread_name_prefix="sign")
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes = [_started(key) for _ in range(SIGNERS)]
        for process in self._processes:
            self._idle.put(process)

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text, in base64. Raises `SigningFailed` when a process has ended."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._signed, texts)

    def _signed(self, texts: Sequence[str]) -> list[str]:
        """Have an idle process sign the texts; there is one for every thread."""
        process = self._idle.get()
        try:
            return _round_trip(process, texts, self._width)
        finally:
            self._idle.put(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            try:
                process.communicate(timeout=_CLOSING_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def _started(key: PrivateKey) -> subprocess.Popen[bytes]:
    # A group of its own: the interrupt of a terminal is for the run, which then drains and needs its signers no more.
    # But not a session: Linux gives each session an equal share of the processor, and niceness counts only within one.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "paygw_batch.gateway.signing_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    if process.stdin is None:
        raise SigningFailed
    process.stdin.write(key.hand_over() + b"\n")
    return process


def _round_trip(process: subprocess.Popen[bytes], texts: Sequence[str], width: int) -> list[str]:
    """Send a count and the texts, a line each, and read as many signatures, each a line of `width` bytes."""
    if process.stdin is None or process.stdout is None:
        raise SigningFailed
    try:
        # Texts are percent-encoded (RFC 5849 section 3.4.1), so that none holds a line break.
        process.stdin.write("".join([f"{len(texts)}\n", *[f"{text}\n" for text in texts]]).encode("ascii"))
        process.stdin.flush()
    except OSError:
        raise SigningFailed from None
    signed = process.stdout.read(width * len(texts))
    if len(signed) < width * len(texts):
        raise SigningFailed
    return signed.decode("ascii").split()
