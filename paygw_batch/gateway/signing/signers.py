"""Makes signatures during a run, in threads or processes beside the event loop.

A signature is most of what a payout costs. In threads the signers share one interpreter with the event loop and the
journal, and on a long run all of them wait for each other; processes of their own share nothing, but take a moment to
start. So a short run signs in threads, and a long one in processes (`docs/decisions/0050-signing-processes.md`).
"""

import asyncio
import errno
import os
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from operator import attrgetter
from typing import Protocol, Self

from paygw_batch.errors import SigningFailed
from paygw_batch.gateway.signing.key import PrivateKey
from paygw_batch.processes import child_environment, python_command

FEWEST_SIGNERS = 2
MOST_SIGNERS = 8
"""The largest number of signers. Each has two groups of texts signed ahead; one event loop needs two or three."""
LONG_RUN_PAYOUTS = 2_000
"""From here on processes are worth their start: while they start, two threads sign about as many."""
_STARTING_TIMEOUT_S = 60.0
_CLOSING_TIMEOUT_S = 5.0
_TRIAL = "trial"


def signers_on(cores: int) -> int:
    """Return how many sign on a machine of so many cores: all but one, which the event loop needs."""
    return max(FEWEST_SIGNERS, min(cores - 1, MOST_SIGNERS))


def usable_cores() -> int:
    """Return how many cores this process may use; where the system does not say, how many the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Signers(Protocol):
    """Signs texts off the event loop. The end of the context ends the threads or processes that sign."""

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text, in base64. May be called again while an earlier call is under way."""
        ...

    async def __aenter__(self) -> Self:
        """Return the signers, at work."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """End the threads or processes that sign."""
        ...


def signers_for(key: PrivateKey, payouts: int) -> Signers:
    """Return the signers for a run of so many payouts: processes for a long run, threads for a short one."""
    return SigningProcesses(key) if payouts >= LONG_RUN_PAYOUTS else SigningThreads(key)


@asynccontextmanager
async def signers_at_work(key: PrivateKey, payouts: int, tell: Callable[[str], None]) -> AsyncIterator[Signers]:
    """Yield the signers for a run of so many payouts: threads if processes fail to start, and then `tell` is called."""
    async with AsyncExitStack() as stack:
        try:
            signers = await stack.enter_async_context(signers_for(key, payouts))
        except SigningFailed as problem:
            tell(f"{problem.message} This run signs in threads, which takes longer.")
            signers = await stack.enter_async_context(SigningThreads(key))
        yield signers


class SigningThreads:
    """Signs in threads of this process; the key releases the interpreter while it computes."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key
        self._threads = ThreadPoolExecutor(signers_on(usable_cores()), thread_name_prefix="sign")

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text, in base64."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._signed, texts)

    def _signed(self, texts: Sequence[str]) -> list[str]:
        return [self._key.sign(text) for text in texts]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


class SigningProcesses:
    """Signs in processes of their own (`signing_process`), which end when their input does: also when we are killed.

    The key goes to them through a pipe, and is never in an argument, a file or the environment.
    """

    def __init__(self, key: PrivateKey) -> None:
        self._key = key
        self._working: list[_AtWork] = []

    @property
    def processes(self) -> Sequence[subprocess.Popen[bytes]]:
        """The processes that sign."""
        return [one.process for one in self._working]

    async def sign(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the signature of each text, in base64. Raises `SigningFailed` when a process has ended."""
        return await min(self._working, key=attrgetter("waiting")).sign(texts)

    async def __aenter__(self) -> Self:
        """Start them all and have each sign once, or start none. Raises `SigningFailed`."""
        try:
            for _ in range(signers_on(usable_cores())):
                self._working.append(await self._started())
            async with asyncio.timeout(_STARTING_TIMEOUT_S):
                await asyncio.gather(*[one.sign([_TRIAL]) for one in self._working])
        except (OSError, SigningFailed) as problem:
            await self.__aexit__()
            reason = problem.strerror or "it took too long" if isinstance(problem, OSError) else "it ended at once"
            raise SigningFailed(f"No process could be started that signs: {reason}.") from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _started(self) -> "_AtWork":
        loop = asyncio.get_running_loop()
        one = _AtWork(_process(), self._key.signature_characters + 1)
        await loop.connect_read_pipe(lambda: one, one.process.stdout)
        one.input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, one.process.stdin)
        one.input.write(self._key.hand_over() + b"\n")
        return one

    async def __aexit__(self, *_: object) -> None:
        for one in self._working:
            one.input.close()
        for process in self.processes:
            try:
                await asyncio.to_thread(process.wait, _CLOSING_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _AtWork(asyncio.Protocol):
    """A signing process and the groups of texts under way in it: it always has the next group before it ends one.

    Groups come back in the order they were sent, also those that nobody waits for any more.
    """

    input: asyncio.WriteTransport

    def __init__(self, process: subprocess.Popen[bytes], width: int) -> None:
        self.process = process
        self.waiting = 0
        """The number of texts that are not signed yet."""
        self._width = width
        self._groups: deque[tuple[int, asyncio.Future[list[str]]]] = deque()
        self._read = bytearray()
        self._has_ended = False

    async def sign(self, texts: Sequence[str]) -> list[str]:
        """Send a count and the texts, a line each; as many signatures come back, each a line of `width` bytes."""
        if self._has_ended:
            raise SigningFailed
        # Texts are percent-encoded (RFC 5849 section 3.4.1), so that none holds a line break.
        self.input.write("".join([f"{len(texts)}\n", *[f"{text}\n" for text in texts]]).encode("ascii"))
        signed: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._groups.append((len(texts), signed))
        self.waiting += len(texts)
        return await signed

    def data_received(self, data: bytes) -> None:
        """Hand out the groups that are complete."""
        self._read += data
        while self._groups and len(self._read) >= (size := self._groups[0][0] * self._width):
            count, signed = self._groups.popleft()
            self.waiting -= count
            signatures = self._read[:size].decode("ascii").split()
            del self._read[:size]
            if not signed.done():
                signed.set_result(signatures)

    def connection_lost(self, _: Exception | None) -> None:
        """Tell everyone who waits that nothing more will come."""
        self._has_ended = True
        while self._groups:
            signed = self._groups.popleft()[1]
            if not signed.done():
                signed.set_exception(SigningFailed())


def _process() -> subprocess.Popen[bytes]:
    command = python_command("from paygw_batch.gateway.signing.process import main; main()")
    if command is None:
        raise FileNotFoundError(errno.ENOENT, "this program does not run in a Python of its own")
    # A separate process group: the interrupt of a terminal is for the run, which drains and then ends them.
    # But not a session: Linux gives each session an equal share of the processor, and niceness counts only within one.
    # What it says when it cannot start is for no one: the run says so, and signs in threads.
    return subprocess.Popen(  # noqa: S603 (our own program, with our own arguments)
        command,
        env=child_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
