"""The listener as a user has it: real processes, a sandbox that calls back late, twice, out of order and forged."""

import csv
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from program import Program, kenyan_rows, read_csv, sandbox_toml

ROWS = 300
TOKEN = "t" * 16 + "0123456789abcdefABCDEF_-"
PATIENCE_S = 90.0
AUTHENTIC = """
authenticity = "shared-secret-hash"
hash_algorithm = "sha256"
hash_fields = ["status", "client_orderid", "amount", "currency", "{secret}"]
hash_separator = "|"
hash_field = "control"
secret_file = "secret.txt"
"""
BEHAVIOUR = """
[default]
status = "processing"
delay_s = 0.01

[[notification]]
status = "approved"
jitter_s = 2.0
times = 2

[[notification]]
status = "processing"
jitter_s = 2.0
method = "GET"

[[notification]]
status = "declined"
jitter_s = 1.5
forged = true
format = "form"
order_id = "PAY-.*5"

[[notification]]
status = "declined"
delay_s = 4.0
order_id = "PAY-77"

[[notification]]
status = "approved"
amount = "1.00"
jitter_s = 1.0
order_id = "PAY-88"

[[notification]]
status = "sandbox-limbo"
order_id = "PAY-99"
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def until(holds: Callable[[], bool], why: str) -> None:
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at_s, why
        time.sleep(0.05)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextmanager
def started(program: Program, *arguments: str, config: Path) -> Iterator["subprocess.Popen[bytes]"]:
    log = (config.parent / f"{arguments[0]}.log").open("wb")
    with (
        log,
        subprocess.Popen(
            [sys.executable, "-m", "paygw_batch", "--config", config, *arguments],
            env={**os.environ, **program.environ},
            cwd=config.parent,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def merchant_and_gateway(program: Program, *, behaviour: str, notifications: str) -> Iterator[tuple[int, Path]]:
    """Run the sandbox, and set the program up to pay through it and to be called back; yield the listener's port."""
    port, gateway_port = free_port(), free_port()
    gateway = program.home / "gateway"
    gateway.mkdir(mode=0o700)
    for home in (program.home, gateway):
        for name, text in (("token.txt", TOKEN), ("secret.txt", "a secret of enough bytes")):
            (home / name).write_text(text + "\n")
            (home / name).chmod(0o600)
    section = f'\n[notifications]\nport = {port}\ntoken_file = "token.txt"\n{notifications}'
    callback = f'"http://127.0.0.1:{port}/paygw/{{token}}"'
    (gateway / "behaviour.toml").write_text(behaviour)
    (gateway / "paygw.toml").write_text(sandbox_toml(server_callback_url=callback) + section)
    with started(
        program,
        "sandbox",
        "--port",
        str(gateway_port),
        "--behaviour",
        "behaviour.toml",
        config=gateway / "paygw.toml",
    ) as process:
        until(lambda: answers(gateway_port) or process.poll() is not None, "the sandbox did not start")
        text = sandbox_toml(server_callback_url=callback, base_url=f'"http://127.0.0.1:{gateway_port}"')
        text = text.replace("[gateway]\n", '[gateway]\nprivate_key = "gateway/sandbox-merchant.pem"\n')
        program.config.write_text(text + section)
        yield port, gateway / "sandbox-callbacks.csv"


def heard(callbacks: Path) -> Counter[str]:
    """Return how many notifications were answered with 200, by their word."""
    if not callbacks.exists():
        return Counter()
    with callbacks.open(newline="") as stream:
        return Counter(status for _, status, _, http_status in csv.reader(stream) if http_status == "200")


def kept(program: Program) -> Counter[str]:
    """Return the evidence in the journal by finding, read by another library than the program's own."""
    with closing(sqlite3.connect(f"file:{program.journal}?mode=ro", uri=True)) as connection:
        return Counter(dict(connection.execute("SELECT finding, count(*) FROM evidence GROUP BY 1")))


def test_300_payouts_notified_late_twice_out_of_order_forged_and_contradicted(program: Program) -> None:
    with (
        merchant_and_gateway(program, behaviour=BEHAVIOUR, notifications=AUTHENTIC) as (port, callbacks),
        started(program, "listen", config=program.config) as listener,
    ):
        until(lambda: answers(port) or listener.poll() is not None, "the listener did not start")
        sheet = program.sheet(kenyan_rows(ROWS))
        submitted = program.json("submit", sheet)
        assert submitted["exit_code"] in {0, 5}, submitted["message"]
        expected = {"approved": 2 * ROWS + 1, "processing": ROWS, "declined": 31, "sandbox-limbo": 1}
        until(lambda: heard(callbacks) == expected, f"heard: {heard(callbacks)}")
        until(lambda: kept(program).total() == sum(expected.values()), "not all was taken in")
        listener.send_signal(signal.SIGTERM)
        assert listener.wait(30) == 0
    findings = kept(program)
    assert findings["moved"] == ROWS
    assert findings["forged"] == 30
    assert findings["contradicting"] == 1
    assert findings["unmatched"] == 1
    assert findings["unlisted"] == 1
    assert findings["repeated"] + findings["late"] == 2 * ROWS

    status = program.json("status", sheet)
    assert status["states"] == {"paid": ROWS}
    assert status["exit_code"] == 5
    assert status["contradictions"] == 1
    reconciled = program.json("reconcile", sheet, "--out", str(program.home / "again.csv"))
    assert reconciled["totals"] == {"KES": {"paid": f"{ROWS * 150050 // 100}.00"}}
    lines = read_csv(program.home / "again.csv")
    assert Counter(line["state"] for line in lines) == {"paid": ROWS}
    assert {line["gateway_status"] for line in lines} == {"approved"}
    verified = program.json("verify")
    assert verified["checked"]["evidence"] == findings.total()
    assert verified["checked"]["paid"] == ROWS
    said = "".join(path.read_text() for path in program.home.rglob("*.log"))
    assert TOKEN not in said
    assert "254712" not in said
    assert TOKEN not in json.dumps(status)
