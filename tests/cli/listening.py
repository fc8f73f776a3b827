"""Runs a listener and a gateway that sends notifications, as real processes."""

import csv
import http.client
import json
import os
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support import forked
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port, wait_for_server
from tests.support.program import Program, sandbox_toml

TOKEN = "t" * 16 + "0123456789abcdefABCDEF_-"
AUTHENTIC = """
authenticity = "shared-secret-hash"
hash_algorithm = "sha256"
hash_fields = ["status", "client_orderid", "amount", "currency", "{secret}"]
hash_separator = "|"
hash_field = "control"
secret_file = "secret.txt"
"""


@contextmanager
def start_process(program: Program, *arguments: str, config: Path) -> Iterator["subprocess.Popen[str]"]:
    command = next(word for word in arguments if not word.startswith("-"))
    log = (config.parent / f"{command}.log").open("wb")
    with (
        log,
        forked.start(
            ["--config", config, *arguments], {**os.environ, **program.environ}, config.parent, log, log
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def merchant_and_gateway(program: Program, *, behaviour: str, notifications: str) -> Iterator[tuple[int, Path]]:
    """Run the sandbox, configure the program to pay through it, and yield the listener's port."""
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
    with start_process(
        program, "sandbox", "--port", str(gateway_port), "--behaviour", "behaviour.toml", config=gateway / "paygw.toml"
    ) as process:
        wait_for_server(gateway_port, process)
        text = sandbox_toml(server_callback_url=callback, base_url=f'"http://127.0.0.1:{gateway_port}"')
        text = text.replace("[gateway]\n", '[gateway]\nprivate_key = "gateway/sandbox-merchant.pem"\n')
        program.config.write_text(text + section)
        program.make_journal()
        yield port, gateway / "sandbox-callbacks.csv"


def count_acknowledged(callbacks: Path) -> Counter[str]:
    if not callbacks.exists():
        return Counter()
    with callbacks.open(newline="") as stream:
        return Counter(status for _, status, _, http_status in csv.reader(stream) if http_status == "200")


def count_findings(program: Program) -> Counter[str]:
    """Count the journal's messages by finding, read with another SQLite library than the program's."""
    query = "SELECT finding, count(*) FROM fact WHERE finding <> 'resolved' GROUP BY 1"
    with closing(sqlite3.connect(f"file:{program.journal}?mode=ro", uri=True, timeout=PATIENCE_S)) as connection:
        return Counter(dict(connection.execute(query)))


PATH = f"/paygw/{TOKEN}"


APPROVED = {"client_orderid": "PAY-1", "amount": "9002", "currency": "KES", "status": "approved"}


def configure_listener(program: Program, section: str = "") -> int:
    port = free_port()
    for name, text in (("token.txt", TOKEN), ("secret.txt", "a secret of enough bytes")):
        (program.home / name).write_text(text + "\n")
        (program.home / name).chmod(0o600)
    text = sandbox_toml(server_callback_url=f'"http://127.0.0.1:{port}/paygw/{{token}}"')
    program.config.write_text(f'{text}\n[notifications]\nport = {port}\ntoken_file = "token.txt"\n{section}')
    return port


def send_request(port: int, method: str = "POST", path: str = PATH, body: bytes = b"", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse().status
    finally:
        connection.close()


def notify(port: int, **fields: str) -> int:
    return send_request(port, body=json.dumps({**APPROVED, **fields}).encode(), Content_Type="application/json")


def read_log(program: Program) -> str:
    return (program.home / "listen.log").read_text()


@contextmanager
def run_listener(program: Program, port: int, *options: str) -> Iterator[None]:
    with start_process(program, *options, "listen", config=program.config) as listener:
        wait_for_server(port, listener)
        yield
        listener.send_signal(signal.SIGTERM)
        assert listener.wait(PATIENCE_S) == 0
