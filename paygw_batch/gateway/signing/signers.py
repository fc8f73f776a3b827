"""Signs requests during a run, in threads or processes outside the event loop.

Signing is most of the cost of a payout. Threads share an interpreter with the event loop and the journal, so in a long
run they slow each other down. Processes share nothing but take a moment to start. So a short run signs in threads, and
a long one in processes (`docs/decisions/0050-signing-processes.md`). With a key that is not in a file, every run signs
in processes, so that no row is lost if the vendor's module crashes or hangs.
"""

import asyncio
import errno
import os
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from operator import attrgetter
from typing import Self

from paygw_batch.errors import SigningFailed
from paygw_batch.gateway.signing.key import KeyProblem, KeyUnusable, SigningCapacity, SigningKey, parse_error_line
from paygw_batch.gateway.signing.process import ERROR_MARK
from paygw_batch.language import mark, say
from paygw_batch.processes import child_environment, python_command

MIN_SIGNERS = 2
MAX_SIGNERS = 8
"""The event loop keeps only two or three signers busy, so more would be idle."""
LONG_RUN_PAYOUTS = 2_000
"""A run with this many payouts signs in processes. Two threads sign about as many while processes start."""
_START_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 5.0
_TEST_TEXT = "trial"
SIGNATURE_TIMEOUT_S = 20.0
"""The time limit for a signature by a slow key. It is below the maximum age that the engine allows."""
_TEXTS_PER_THREAD = 4
"""The number of texts to queue for each thread of a slow key, so that it never waits for the event loop."""


def signer_count(cores: int) -> int:
    """Return the number of signers: one for each core but the event loop's, within limits."""
    return max(MIN_SIGNERS, min(cores - 1, MAX_SIGNERS))


def usable_cores() -> int:
    """Return the number of cores that this process may use, or of all cores if that is unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def signers_for(key: SigningKey, payout_count: int) -> "Signers":
    """Return signing threads for a short run with a key in a file, otherwise signing processes."""
    use_processes = payout_count >= LONG_RUN_PAYOUTS or default_signing_capacity(key).is_slow
    return SigningProcesses(key) if use_processes else SigningThreads(key)


def default_signing_capacity(key: SigningKey) -> SigningCapacity:
    """Return the signing capacity for a long run on this machine."""
    return key.signing_capacity(signer_count(usable_cores()))


def signing_lookahead(key: SigningKey) -> int | None:
    """Return how many signatures to request ahead, or None if the key is not slow. More could become too old."""
    capacity = default_signing_capacity(key)
    return (_TEXTS_PER_THREAD + 1) * capacity.processes * capacity.threads if capacity.is_slow else None


@asynccontextmanager
async def start_signers(key: SigningKey, payout_count: int, echo: Callable[[str], None]) -> AsyncIterator["Signers"]:
    """Yield the signers for a run. If the processes for a key file cannot start, tell `echo` and use threads."""
    async with AsyncExitStack() as stack:
        try:
            signers: Signers = await stack.enter_async_context(signers_for(key, payout_count))
        except SigningFailed as error:
            if default_signing_capacity(key).is_slow:
                raise
            echo(f"{error.message} {say('This run signs in threads instead, which is slower.')}")
            signers = await stack.enter_async_context(SigningThreads(key))
        yield signers


class SigningThreads:
    """Signs in threads of this process. Signing releases the global interpreter lock."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._threads = ThreadPoolExecutor(signer_count(usable_cores()), thread_name_prefix="sign")

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: [self._key.sign(text) for text in texts])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


class SigningProcesses:
    """Signs in processes (`process.py`), which end when their input does, even if this process is killed.

    The processes receive the key through a pipe, never in an argument, a file or the environment.
    """

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._capacity = default_signing_capacity(key)
        self._signers: list[_ProcessSigner] = []

    @property
    def processes(self) -> Sequence[subprocess.Popen[bytes]]:
        return [signer.process for signer in self._signers]

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signatures of `texts`. Raises `SigningFailed` if the process ends or a slow key takes too long."""
        least_busy = min(self._signers, key=attrgetter("unsigned_texts"))
        try:
            async with asyncio.timeout(SIGNATURE_TIMEOUT_S if self._capacity.is_slow else None):
                return await least_busy.sign(texts)
        except TimeoutError:
            location = self._key.custody.location
            raise KeyUnusable(location, KeyProblem.SLOW, f"{SIGNATURE_TIMEOUT_S:.0f}").to_signing_failed() from None

    async def __aenter__(self) -> Self:
        """Start and test the processes. If one fails, stop them all and raise `SigningFailed`."""
        try:
            for _ in range(self._capacity.processes):
                self._signers.append(await self._start_signer())
            async with asyncio.timeout(_START_TIMEOUT_S):
                await asyncio.gather(*[signer.sign([_TEST_TEXT]) for signer in self._signers])
        except (OSError, SigningFailed) as error:
            await self.__aexit__()
            if any(signer.problem is not None for signer in self._signers):
                raise
            reason = say("it ended immediately")
            if isinstance(error, OSError):  # a TimeoutError is one too, without `strerror`
                reason = say(error.strerror) if error.strerror else say("it took too long")
            raise SigningFailed(say("No signing process could be started: {reason}.", reason=reason)) from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start_signer(self) -> "_ProcessSigner":
        loop = asyncio.get_running_loop()
        # A vendor's module and the AWS SDK need more environment variables than our own code.
        environ = os.environ if self._capacity.is_slow else child_environment(os.environ)
        signer = _ProcessSigner(_start_process(environ), self._key.public.signature_characters + 1)
        await loop.connect_read_pipe(lambda: signer, signer.process.stdout)
        signer.input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, signer.process.stdin)
        signer.input.write(self._key.serialise() + b"\n")
        return signer

    async def __aexit__(self, *_: object) -> None:
        for signer in self._signers:
            signer.input.close()
        await asyncio.gather(*[asyncio.to_thread(_wait_or_kill, process) for process in self.processes])


Signers = SigningThreads | SigningProcesses
"""Signs texts outside the event loop. Calls may overlap. Leaving the context stops the threads or processes."""


class _ProcessSigner(asyncio.Protocol):
    """Sends groups of texts to a signing process, without waiting for the previous group.

    Signatures arrive in the order of the groups, including groups whose caller was cancelled.
    """

    input: asyncio.WriteTransport

    def __init__(self, process: subprocess.Popen[bytes], line_bytes: int) -> None:
        self.process = process
        self.unsigned_texts = 0
        """The number of texts sent but not yet signed."""
        self._line_bytes = line_bytes
        self._groups: deque[tuple[int, asyncio.Future[list[str]]]] = deque()
        self._received = bytearray()
        self._has_ended = False
        self.problem: KeyUnusable | None = None
        """Why the key cannot sign, if the process has reported it."""

    async def sign(self, texts: Sequence[str]) -> list[str]:
        """Send a group of texts to the process, and return their signatures."""
        if self._has_ended:
            raise self._build_error()
        # Texts are percent-encoded (RFC 5849 section 3.4.1), so none contains a line break.
        self.input.write("".join([f"{len(texts)}\n", *[f"{text}\n" for text in texts]]).encode("ascii"))
        signatures: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._groups.append((len(texts), signatures))
        self.unsigned_texts += len(texts)
        return await signatures

    def data_received(self, data: bytes) -> None:
        self._received += data
        while self._groups and len(self._received) >= (size := self._groups[0][0] * self._line_bytes):
            if ERROR_MARK in self._received[:size]:
                break
            count, future = self._groups.popleft()
            self.unsigned_texts -= count
            signatures = self._received[:size].decode("ascii").split()
            del self._received[:size]
            if not future.done():
                future.set_result(signatures)
        if (error_start := self._received.find(ERROR_MARK)) >= 0 and self._received.endswith(b"\n"):
            self.problem = parse_error_line(bytes(self._received[error_start + 1 :]))
            self.connection_lost(None)

    def connection_lost(self, _: Exception | None) -> None:
        """Fail every pending call of `sign`, because no more signatures will arrive."""
        self._has_ended = True
        while self._groups:
            future = self._groups.popleft()[1]
            if not future.done():
                future.set_exception(self._build_error())

    def _build_error(self) -> SigningFailed:
        return SigningFailed() if self.problem is None else self.problem.to_signing_failed()


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start_process(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = python_command("from paygw_batch.gateway.signing.process import main; main()")
    if command is None:
        raise FileNotFoundError(errno.ENOENT, mark("no Python interpreter was found to start it"))
    # The processes get their own group, because an interrupt at the terminal is meant for the run, which finishes its
    # rows and then stops the processes. They do not get a new session: Linux gives each session an equal share of the
    # processor, and niceness matters only within a session. Standard error is discarded, because the run reports if a
    # process cannot start, and signs in threads.
    return subprocess.Popen(  # noqa: S603 (our own program, with our own arguments)
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
    )
