"""Runs a signing process, which reads a key and then texts to sign from standard input until the input ends.

Only `signers.SigningProcesses` starts it. The first line of the input identifies the key (`SigningKey.serialise`).
Groups follow: a line with a count, then that many lines to sign. For each of these, the process writes one line of
base64. If the key cannot sign, it writes one line that begins with `!` and exits.
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
"""Added to the niceness. Signatures are made ahead, while replies and the journal must not wait for a processor.

It is not added for a slow key, which computes elsewhere and has a time limit for each signature.
"""
ERROR_MARK = b"!"
"""The start of a line that is an error. Base64 has no such character."""

Sign = Callable[[str], str]


def main() -> None:
    """Sign until the input ends. Stop signals are ignored, because the run closes the input when it is done."""
    forbid_core_dumps(for_good=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    source, out = sys.stdin.buffer, sys.stdout.buffer
    try:
        key = _deserialise_key(source.readline())
        signing_capacity = key.signing_capacity(1)
        if not signing_capacity.is_slow:
            os.nice(NICENESS_INCREMENT)
        with key.open_signer() as sign:
            if signing_capacity.threads == 1:
                _sign_sequentially(source, out, sign)
            else:
                _sign_concurrently(source, out, sign, signing_capacity.threads)
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
    """Sign in several threads, because each waits for a service. Signatures are written in the texts' order."""
    signatures: SimpleQueue[Future[str] | None] = SimpleQueue()
    with ThreadPoolExecutor(threads) as pool, ThreadPoolExecutor(1) as writer:
        written = writer.submit(_write_signatures, signatures, out)
        for texts in _read_groups(source):
            for text in texts:
                signatures.put(pool.submit(sign, text))
        signatures.put(None)
        written.result()


def _write_signatures(signatures: SimpleQueue[Future[str] | None], out: BinaryIO) -> None:
    """Write each signature as soon as it is ready. An error is the last line, after which the run closes the input."""
    try:
        while (signed := signatures.get()) is not None:
            out.write(signed.result().encode() + b"\n")
            out.flush()
    except KeyUnusable as error:
        out.write(ERROR_MARK + error.to_error_line() + b"\n")
        out.flush()
