"""Runs a signing process, which reads a key from standard input, and then texts to sign until the input ends.

Only `signers.SigningProcesses` starts it. The first line of input is the key (`SigningKey.serialise`). Groups follow: a
line with a count, and then that many lines to sign. For each text, the process writes a line with its base64 signature.
If the key cannot sign, it writes a line that begins with `!` and exits.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import BinaryIO

from paygw_batch.extras import extra
from paygw_batch.gateway.signing.key import KeyKind, KeyUnusable, SigningKey, deserialise_file_key
from paygw_batch.processes import forbid_core_dumps

NICENESS_INCREMENT = 19
"""Added to the process's niceness, because the event loop and the journal need the processor more urgently.

It is not added for a slow key, which signs elsewhere and within a time limit.
"""
ERROR_MARK = b"!"
"""The start of an error line. Base64 never contains it."""

Sign = Callable[[str], str]


def main() -> None:
    """Sign until the input ends. Stop signals are ignored, because the parent process closes the input to stop us."""
    forbid_core_dumps(permanent=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    source, out = sys.stdin.buffer, sys.stdout.buffer
    try:
        key = _deserialise_key(source.readline())
        capacity = key.signing_capacity(1)
        if not capacity.is_slow:
            os.nice(NICENESS_INCREMENT)
        with key.open_signer() as sign:
            if capacity.threads == 1:
                _sign_sequentially(source, out, sign)
            else:
                _sign_concurrently(source, out, sign, capacity.threads)
    except KeyUnusable as error:
        out.write(ERROR_MARK + error.to_error_line() + b"\n")
        out.flush()


def _deserialise_key(line: bytes) -> SigningKey:
    fields = json.loads(line)
    key: SigningKey
    match KeyKind(fields["kind"]):
        case KeyKind.FILE:
            key = deserialise_file_key(fields)
        case KeyKind.PKCS11:
            key = extra("custody.token_key").deserialise_token_key(fields)
        case KeyKind.AWSKMS:
            key = extra("custody.kms_key").deserialise_kms_key(fields)
    return key


def _read_groups(source: BinaryIO) -> Iterator[list[str]]:
    while count := source.readline():
        yield [source.readline().decode("ascii").removesuffix("\n") for _ in range(int(count))]


def _sign_sequentially(source: BinaryIO, out: BinaryIO, sign: Sign) -> None:
    for texts in _read_groups(source):
        out.writelines([sign(text).encode() + b"\n" for text in texts])
        out.flush()


def _sign_concurrently(source: BinaryIO, out: BinaryIO, sign: Sign, threads: int) -> None:
    """Sign in several threads, because the key is remote. The signatures are written in order."""
    futures: SimpleQueue[Future[str] | None] = SimpleQueue()
    with ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(1) as writer:
        writing = writer.submit(_write_signatures, futures, out)
        for texts in _read_groups(source):
            for text in texts:
                futures.put(pool.submit(sign, text))
        futures.put(None)
        writing.result()


def _write_signatures(futures: SimpleQueue[Future[str] | None], out: BinaryIO) -> None:
    """Write each signature as soon as it is ready. Stop after an error, when the parent closes the input."""
    try:
        while (future := futures.get()) is not None:
            out.write(future.result().encode() + b"\n")
            out.flush()
    except KeyUnusable as error:
        out.write(ERROR_MARK + error.to_error_line() + b"\n")
        out.flush()
