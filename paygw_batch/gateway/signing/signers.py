"""Makes signatures during a run, in threads or processes outside the event loop.

Signing is most of the cost of a payout. Threads share one interpreter with the event loop and the journal, so in a long
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
from typing import Protocol, Self

from paygw_batch.errors import SigningFailed
from paygw_batch.gateway.signing.key import KeyProblem, KeyUnusable, SigningCapacity, SigningKey, parse_error_line
from paygw_batch.gateway.signing.process import ERROR_MARK
from paygw_batch.language import mark, say
from paygw_batch.processes import child_environment, python_command

MIN_SIGNERS = 2
MAX_SIGNERS = 8
"""More would be idle: each signer has two groups of texts ahead, and one event loop keeps only two or three busy."""
LONG_RUN_PAYOUTS = 2_000
"""The number of payouts from which processes are used. While they start, two threads would sign about as many."""
_START_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 5.0
_TRIAL = "trial"
SIGNATURE_TIMEOUT_S = 20.0
"""The time limit for one signature of a slow key. It keeps a signature younger than the engine allows."""
_TEXTS_PER_THREAD = 4
"""The number of texts waiting for each thread of a slow key, so that it never waits for the event loop."""


def signer_count(cores: int) -> int:
    """Return the number of signers for a machine: one for each core, except for the event loop's."""
    return max(MIN_SIGNERS, min(cores - 1, MAX_SIGNERS))


def usable_cores() -> int:
    """Return the number of cores that this process may use, or of all cores if unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Signers(Protocol):
    """Signs texts outside the event loop. Leaving the context stops the threads or processes."""

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text, in base64. Calls may overlap."""
        ...

    async def __aenter__(self) -> Self:
        """Start the signers and return them."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Stop the signing threads or processes."""
        ...


def signers_for(key: SigningKey, payouts: int) -> Signers:
    """Return the signers for a run: threads for a short run with a key in a file, otherwise processes."""
    is_worth_it = payouts >= LONG_RUN_PAYOUTS or default_signing_capacity(key).is_slow
    return SigningProcesses(key) if is_worth_it else SigningThreads(key)


def default_signing_capacity(key: SigningKey) -> SigningCapacity:
    """Return the number of signing processes and threads for a long run on this machine."""
    return key.signing_capacity(signer_count(usable_cores()))


def signing_lookahead(key: SigningKey) -> int | None:
    """Return the number of signatures to request in advance from a slow key, or None if the key is not slow.

    With more, the last signatures would be too old when they are sent.
    """
    capacity = default_signing_capacity(key)
    return (_TEXTS_PER_THREAD + 1) * capacity.processes * capacity.threads if capacity.is_slow else None


@asynccontextmanager
async def running_signers(key: SigningKey, payouts: int, echo: Callable[[str], None]) -> AsyncIterator[Signers]:
    """Yield the signers for a run. If processes for a key in a file fail to start, call `echo` and yield threads."""
    async with AsyncExitStack() as stack:
        try:
            signers = await stack.enter_async_context(signers_for(key, payouts))
        except SigningFailed as problem:
            if default_signing_capacity(key).is_slow:
                raise
            echo(f"{problem.message} {say('This run signs in threads, which takes longer.')}")
            signers = await stack.enter_async_context(SigningThreads(key))
        yield signers


class SigningThreads:
    """Signs in threads of this process. Signing releases the interpreter lock."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._threads = ThreadPoolExecutor(signer_count(usable_cores()), thread_name_prefix="sign")

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: [self._key.sign(text) for text in texts]
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


class SigningProcesses:
    """Signs in processes (`process.py`), which end with their input, even if this process is killed.

    They get the key through a pipe, never through an argument, a file or the environment.
    """

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self._staff = default_signing_capacity(key)
        self._signers: list[_ProcessSigner] = []

    @property
    def processes(self) -> Sequence[subprocess.Popen[bytes]]:
        return [signer.process for signer in self._signers]

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text. Raises `SigningFailed` if a process ended or a slow key takes too long."""
        least_busy = min(self._signers, key=attrgetter("waiting"))
        try:
            async with asyncio.timeout(SIGNATURE_TIMEOUT_S if self._staff.is_slow else None):
                return await least_busy.sign(texts)
        except TimeoutError:
            place = self._key.custody.location
            raise KeyUnusable(place, KeyProblem.SLOW, f"{SIGNATURE_TIMEOUT_S:.0f}").to_signing_failed() from None

    async def __aenter__(self) -> Self:
        """Start all processes and have each sign one text. If one fails, stop all. Raises `SigningFailed`."""
        try:
            for _ in range(self._staff.processes):
                self._signers.append(await self._start_signer())
            async with asyncio.timeout(_START_TIMEOUT_S):
                await asyncio.gather(*[signer.sign([_TRIAL]) for signer in self._signers])
        except (OSError, SigningFailed) as problem:
            await self.__aexit__()
            if any(signer.problem is not None for signer in self._signers):
                raise
            reason = say("it ended immediately")
            if isinstance(problem, OSError):  # a TimeoutError is one too, without `strerror`
                reason = say(problem.strerror) if problem.strerror else say("it took too long")
            raise SigningFailed(say("No signing process could be started: {reason}.", reason=reason)) from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _start_signer(self) -> "_ProcessSigner":
        loop = asyncio.get_running_loop()
        # A vendor's module and the AWS SDK need more variables than our own processes.
        environ = os.environ if self._staff.is_slow else child_environment(os.environ)
        signer = _ProcessSigner(_start_process(environ), self._key.public.signature_characters + 1)
        await loop.connect_read_pipe(lambda: signer, signer.process.stdout)
        signer.input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, signer.process.stdin)
        signer.input.write(self._key.serialise() + b"\n")
        return signer

    async def __aexit__(self, *_: object) -> None:
        for signer in self._signers:
            signer.input.close()
        await asyncio.gather(*[asyncio.to_thread(_wait_or_kill, process) for process in self.processes])


class _ProcessSigner(asyncio.Protocol):
    """Sends groups of texts to one signing process, queueing the next group before the current one is finished.

    Signatures come back in the order of the groups, including groups whose caller no longer waits.
    """

    input: asyncio.WriteTransport

    def __init__(self, process: subprocess.Popen[bytes], width: int) -> None:
        self.process = process
        self.waiting = 0
        """The number of texts not signed yet."""
        self._width = width
        self._groups: deque[tuple[int, asyncio.Future[list[str]]]] = deque()
        self._read = bytearray()
        self._has_ended = False
        self.problem: KeyUnusable | None = None
        """The reason why the key cannot sign, if the process reported one."""

    async def sign(self, texts: Sequence[str]) -> list[str]:
        """Send a count and the texts, one per line, and wait for as many signatures, each a line of `width` bytes."""
        if self._has_ended:
            raise self._failure()
        # Texts are percent-encoded (RFC 5849 section 3.4.1), so none contains a line break.
        self.input.write("".join([f"{len(texts)}\n", *[f"{text}\n" for text in texts]]).encode("ascii"))
        signed: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._groups.append((len(texts), signed))
        self.waiting += len(texts)
        return await signed

    def data_received(self, data: bytes) -> None:
        """Pass the signatures of each complete group to its caller."""
        self._read += data
        while self._groups and len(self._read) >= (size := self._groups[0][0] * self._width):
            if ERROR_MARK in self._read[:size]:
                break
            count, signed = self._groups.popleft()
            self.waiting -= count
            signatures = self._read[:size].decode("ascii").split()
            del self._read[:size]
            if not signed.done():
                signed.set_result(signatures)
        if (begin := self._read.find(ERROR_MARK)) >= 0 and self._read.endswith(b"\n"):
            self.problem = parse_error_line(bytes(self._read[begin + 1 :]))
            self.connection_lost(None)

    def connection_lost(self, _: Exception | None) -> None:
        """Raise the error in every waiting caller, because no more signatures will arrive."""
        self._has_ended = True
        while self._groups:
            signed = self._groups.popleft()[1]
            if not signed.done():
                signed.set_exception(self._failure())

    def _failure(self) -> SigningFailed:
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
        raise FileNotFoundError(errno.ENOENT, mark("this program does not run in plain Python"))
    # The processes get their own group, because the terminal's interrupt is for the run, which finishes its rows and
    # then ends them. They do not get a new session: Linux gives each session an equal share of the processor, and
    # niceness counts only within one. The error text of a process that cannot start is discarded, because the run
    # reports that and signs in threads.
    return subprocess.Popen(  # noqa: S603 (our own program, with our own arguments)
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
    )
