"""Signatures outside the event loop: in threads, and in processes that never outlive the run."""

import asyncio
import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from paygw_batch.errors import SigningFailed
from paygw_batch.gateway.message import Attempt
from paygw_batch.gateway.sign import Preparer, SignatureProfile
from paygw_batch.gateway.signing.key import PrivateKey
from paygw_batch.gateway.signing.signers import (
    LONG_RUN_PAYOUTS,
    MAX_SIGNERS,
    MIN_SIGNERS,
    Signers,
    SigningProcesses,
    SigningThreads,
    _start_process,
    signer_count,
    signers_for,
    usable_cores,
)
from tests.support.gateway_cases import RULES, instruction_for, prepare_golden_request, signer

TEXTS = [f"POST&https%3A%2F%2Fgateway.example&order%3D{number}" for number in range(100)]

SIGNERS = signer_count(usable_cores())


@pytest.mark.parametrize("kind", [SigningThreads, SigningProcesses])
async def test_signers_sign_and_prepare_in_order(key: PrivateKey, kind: Callable[[PrivateKey], Signers]) -> None:
    golden = prepare_golden_request(key, SignatureProfile.JSON_PARAMS, "KE")
    attempt = Attempt(instruction_for("KE"), golden.expected.order_id, golden.nonce, golden.timestamp_s)
    async with kind(key) as signers:
        groups = await asyncio.gather(*(signers.sign(TEXTS[start : start + 32]) for start in range(0, 100, 32)))
        assert [signature for group in groups for signature in group] == [key.sign(text) for text in TEXTS]
        prepare = Preparer(RULES, signer(key, SignatureProfile.JSON_PARAMS), signers)
        assert await prepare([attempt, attempt]) == [golden, golden]


async def test_number_of_signers_depends_on_cores_and_rows(key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {1: MIN_SIGNERS, 2: MIN_SIGNERS, 3: 2, 4: 3, 8: 7, 9: MAX_SIGNERS, 64: MAX_SIGNERS}
    assert {cores: signer_count(cores) for cores in counts} == counts
    for cores in (2, 5):
        monkeypatch.setattr("paygw_batch.gateway.signing.signers.usable_cores", lambda cores=cores: cores)
        async with SigningProcesses(key) as signers:
            assert len(signers.processes) == signer_count(cores)
    assert isinstance(signers_for(key, LONG_RUN_PAYOUTS - 1), SigningThreads)
    assert isinstance(signers_for(key, LONG_RUN_PAYOUTS), SigningProcesses)


async def test_failed_start_ends_started_signing_processes(key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def start_single_process(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        if begun:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        begun.append(_start_process(environ))
        return begun[0]

    monkeypatch.setattr("paygw_batch.gateway.signing.signers._start_process", start_single_process)
    with pytest.raises(SigningFailed, match=r"^No signing process could be started: .+\.$"):
        await SigningProcesses(key).__aenter__()
    assert [process.returncode for process in begun] == [0]


async def test_dead_signing_process_is_reported_immediately(key: PrivateKey) -> None:
    async with SigningProcesses(key) as signers:
        await _sign_with_all(signers)
        waiting = [asyncio.create_task(signers.sign(TEXTS)) for _ in range(20)]
        await asyncio.sleep(0)
        for process in signers.processes:
            process.kill()
            process.wait()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        failed = [result for result in results if isinstance(result, SigningFailed)]
        signed = [result for result in results if isinstance(result, list) and len(result) == len(TEXTS)]
        assert failed
        assert len(failed) + len(signed) == len(results)
        with pytest.raises(SigningFailed):
            await signers.sign(TEXTS)


async def test_signers_survive_stop_signals_and_abandoned_signatures(key: PrivateKey) -> None:
    async with SigningProcesses(key) as signers:
        await _sign_with_all(signers)
        for process in signers.processes:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
        given_up = [asyncio.create_task(signers.sign(TEXTS)) for _ in range(4)]
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        assert await signers.sign(TEXTS[1:3]) == [key.sign(text) for text in TEXTS[1:3]]
        asyncio.create_task(signers.sign(TEXTS)).cancel()
    assert [process.returncode for process in signers.processes] == [0] * SIGNERS


async def _sign_with_all(signers: Signers) -> None:
    await asyncio.gather(*(signers.sign(TEXTS) for _ in range(SIGNERS)))


async def test_key_is_not_in_arguments_or_environment(key: PrivateKey) -> None:
    secret = json.loads(key.serialise())["der"].encode()
    async with SigningProcesses(key) as signers:
        await signers.sign(TEXTS)
        for process in signers.processes:
            about = Path(f"/proc/{process.pid}")
            assert secret not in (about / "cmdline").read_bytes() + (about / "environ").read_bytes()
            assert b"signing.process" in (about / "cmdline").read_bytes()
