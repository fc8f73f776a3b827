"""The sandbox in the foreground of a separate process, killed and stopped by signals."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paygw_batch.sandbox.record import read_record
from tests.sandbox.sandbox_client import RunningSandbox, post, wait_for_record
from tests.sandbox.sandbox_merchant import Merchant, payout_fields, raw_request, split_address
from tests.support.checkout import ROOT
from tests.support.patience import PATIENCE_S

PROGRAM = """
import sys; from pathlib import Path
from paygw_batch.countries.load import load_operation
from paygw_batch.sandbox.reply import shipped_behaviour
from paygw_batch.sandbox.server import SandboxConfig, ServedOperation, serve
from tests.sandbox.sandbox_merchant import CONSUMER_KEY, ENDPOINT_ID, payout_rules
served = (ServedOperation(load_operation("payout"), payout_rules(), Path(sys.argv[2])),)
key = Path(sys.argv[1]).read_bytes()
config = SandboxConfig(ENDPOINT_ID, CONSUMER_KEY, key, "json-params", served, shipped_behaviour())
serve(config, 0, on_ready=lambda line: print(line, flush=True))
print("left")
"""


@pytest.fixture
def serving(merchant: Merchant, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], RunningSandbox]]:
    public_key = tmp_path / "merchant.pub"
    public_key.write_bytes(merchant.public_key_pem())
    record_path = tmp_path / "record.csv"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, public_key, record_path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, RunningSandbox(process.stdout.readline().strip(), record_path)
        process.kill()


def test_killed_sandbox_keeps_answered_orders_in_record(
    serving: tuple[subprocess.Popen[str], RunningSandbox], merchant: Merchant
) -> None:
    process, running = serving
    for number in range(20):
        post(merchant, running.base_url, payout_fields(f"KILL-{number}"))
    with socket.create_connection(split_address(running.base_url), timeout=PATIENCE_S) as client:
        client.sendall(raw_request(merchant, running.base_url, payout_fields("KILL-SILENT", "9005")))
        wait_for_record(running.record_path, "KILL-SILENT")
        process.kill()
        process.wait(PATIENCE_S)
    orders = [line.client_orderid for line in read_record(running.record_path)]
    assert orders == [*(f"KILL-{number}" for number in range(20)), "KILL-SILENT"]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_sandbox_exits_quietly_on_signal(
    serving: tuple[subprocess.Popen[str], RunningSandbox], merchant: Merchant, by: signal.Signals
) -> None:
    process, running = serving
    assert post(merchant, running.base_url, payout_fields("FOREGROUND"))[0].status == 200
    process.send_signal(by)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "left\n", "")
