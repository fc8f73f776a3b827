"""Signatures made beside the event loop: in threads, and in processes that never outlive the run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway_cases import KEY_FILE, RULES, instruction_for, prepared, signer, throw_away_key

from paygw_batch.errors import SigningFailed
from paygw_batch.gateway.message import Attempt
from paygw_batch.gateway.prepare import Preparer
from paygw_batch.gateway.sign import PrivateKey, SignatureProfile
from paygw_batch.gateway.signers import (
    LONG_RUN_PAYOUTS,
    SIGNERS,
    Signers,
    SigningProcesses,
    SigningThreads,
    signers_for,
)

TEXTS = [f"POST&https%3A%2F%2Fgateway.example&order%3D{number}" for number in range(100)]
KINDS: list[Callable[[PrivateKey], Signers]] = [SigningThreads, SigningProcesses]


@pytest.mark.parametrize("kind", KINDS)
def test_each_text_gets_its_own_signature_in_order(key: PrivateKey, kind: Callable[[PrivateKey], Signers]):
    async def sign_in_groups(signers: Signers) -> list[str]:
        groups = await asyncio.gather(*(signers.sign(TEXTS[start : start + 32]) for start in range(0, 100, 32)))
        return [signature for group in groups for signature in group]

    with kind(key) as signers:
        assert asyncio.run(sign_in_groups(signers)) == [key.sign(text) for text in TEXTS]


def test_a_prepared_request_is_the_same_whoever_signs_it(key: PrivateKey):
    golden = prepared(key, SignatureProfile.JSON_PARAMS, "KE")
    attempt = Attempt(instruction_for("KE"), golden.expected.order_id, golden.nonce, golden.timestamp_s)
    for kind in KINDS:
        with kind(key) as signers:
            prepare = Preparer(RULES, signer(key, SignatureProfile.JSON_PARAMS), signers)
            assert asyncio.run(prepare([attempt, attempt])) == [golden, golden]


def test_a_short_run_signs_in_threads_and_a_long_one_in_processes(key: PrivateKey):
    with signers_for(key, LONG_RUN_PAYOUTS - 1) as short, signers_for(key, LONG_RUN_PAYOUTS) as long:
        assert isinstance(short, SigningThreads)
        assert isinstance(long, SigningProcesses)


def test_a_signing_process_that_ends_is_an_error_and_not_a_wait(key: PrivateKey):
    with SigningProcesses(key) as signers:
        asyncio.run(signers.sign(TEXTS))
        for process in signers._processes:
            process.kill()
            process.wait()
        with pytest.raises(SigningFailed):
            asyncio.run(signers.sign(TEXTS))


def test_signing_processes_ignore_the_signals_that_stop_a_run(key: PrivateKey):
    with SigningProcesses(key) as signers:
        asyncio.run(_sign_with_all(signers))
        for process in signers._processes:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
        assert len(asyncio.run(signers.sign(TEXTS))) == len(TEXTS)
    assert [process.returncode for process in signers._processes] == [0] * SIGNERS


async def _sign_with_all(signers: Signers) -> None:
    await asyncio.gather(*(signers.sign(TEXTS) for _ in range(SIGNERS)))


def test_signing_processes_end_when_the_run_is_killed(tmp_path: Path):
    run = """
import asyncio, sys, time
from pathlib import Path
from paygw_batch.gateway.sign import load_private_key
from paygw_batch.gateway.signers import SigningProcesses
signers = SigningProcesses(load_private_key(Path(sys.argv[1])))
asyncio.run(signers.sign(["a", "b"]))
print(*[process.pid for process in signers._processes], flush=True)
time.sleep(60)
"""
    throw_away_key(tmp_path)
    command = [sys.executable, "-c", run, str(tmp_path / KEY_FILE.name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == SIGNERS
    deadline_s = time.monotonic() + 30
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < deadline_s, "a signing process outlived its run"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # One that ended and that nobody has waited for is still listed.
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_key_stands_in_no_argument_and_no_environment(key: PrivateKey):
    secret = key.hand_over()
    with SigningProcesses(key) as signers:
        asyncio.run(signers.sign(TEXTS))
        for process in signers._processes:
            about = Path(f"/proc/{process.pid}")
            assert secret not in (about / "cmdline").read_bytes() + (about / "environ").read_bytes()
            assert b"signing_process" in (about / "cmdline").read_bytes()
