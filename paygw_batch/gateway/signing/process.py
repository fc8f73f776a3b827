"""Runs a signing process: reads a key and then texts to sign from standard input, until the input ends.

Started by `signers.SigningProcesses` alone. A line of input holds the key (PKCS#8, DER, base64); after it come groups:
a line with a count, and as many lines to sign. Every group is answered with a line of base64 for each of its lines.
"""

import os
import signal
import sys

from paygw_batch.gateway.signing.key import handed_over
from paygw_batch.processes import forbid_core_dumps

LESS_URGENT = 19
"""Added to the niceness: signatures are made ahead, while replies and the journal must not wait for a processor."""


def main() -> None:
    """Sign until the input ends. Signals to stop are for the run, which closes the input when it needs no more."""
    forbid_core_dumps(for_good=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(LESS_URGENT)
    source, out = sys.stdin.buffer, sys.stdout.buffer
    key = handed_over(source.readline())
    while count := source.readline():
        texts = [source.readline() for _ in range(int(count))]
        out.writelines([key.sign(text.decode("ascii").removesuffix("\n")).encode() + b"\n" for text in texts])
        out.flush()
