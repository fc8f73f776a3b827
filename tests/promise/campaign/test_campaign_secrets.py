"""No secret and no payee's data outside its files, whatever fails; and no effect of environment variables.

The journal, the sheet, the reconciliation and rejects files, the gateway's record, and the list of defects have payees'
data by design, each for its owner alone. Nothing else may have any.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from tests.promise.campaign.judge import orders_of, wait_for_orders
from tests.promise.campaign.machine import (
    HEADINGS,
    ROOT,
    GatewayProcess,
    Machine,
    Spawner,
    gateway,
    run_under_strace,
    why_not,
)
from tests.support.long_part import share

AMOUNTS = ("100", "9001", "9002", "9004", "9006", "9007", "9008", "9009", "9010", "9011", "200", "300")
"""One amount for each fault of the built-in gateway, except the one that takes a minute."""
OURS = {"payroll.csv", "payroll.reconciliation.csv", "merchant.pem"}


@pytest.fixture(scope="module")
def faulty_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    rules = (ROOT / "config" / "sandbox-behaviour.toml").read_text()
    with gateway(tmp_path_factory.mktemp("faulty") / "gateway", rules) as started:
        yield started


@pytest.fixture
def canary(tmp_path: Path, spawner: Spawner, faulty_gateway: GatewayProcess) -> Machine:
    machine = Machine.create(tmp_path / "home", spawner, faulty_gateway, prefix=f"C{abs(hash(tmp_path)) % 10**8}")
    key = serialization.load_pem_private_key(faulty_gateway.key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(PASSPHRASE.encode())
    encrypted = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    (machine.home / "merchant.pem").write_bytes(encrypted)
    (machine.home / "merchant.pem").chmod(0o600)
    config = machine.home / "paygw.toml"
    secret = 'private_key = "merchant.pem"\nprivate_key_passphrase_env = "CANARY"'
    config.write_text(config.read_text().replace(f'private_key = "{faulty_gateway.key}"', secret))
    (machine.home / "tmp").mkdir()
    lines = [sheet_line(f"{machine.prefix}-{n}", amount) for n, amount in enumerate(AMOUNTS)]
    (machine.home / "payroll.csv").write_text("\n".join([HEADINGS["payout"], *lines]) + "\n")
    return machine


def start_options(machine: Machine) -> dict[str, Any]:
    return {"environ": {"CANARY": PASSPHRASE, "TMPDIR": str(machine.home / "tmp")}}


def others(machine: Machine) -> list[Path]:
    """Return every file on the machine that may have no payee's data."""
    journal = {machine.journal.name, f"{machine.journal.name}-wal", f"{machine.journal.name}-shm"}
    files = [path for path in machine.home.rglob("*") if path.is_file()]
    # A kill while the reconciliation is written leaves it under the name that it had before it was whole.
    unfinished = set(machine.home.glob(".paygw-*.part"))
    assert all(path.stat().st_mode & 0o077 == 0 for path in unfinished)
    return [path for path in files if path.name not in OURS | journal and path not in unfinished]


def submit(machine: Machine, *options: str, planted: str | None = None) -> int:
    return machine.run(*options, "submit", machine.home / "payroll.csv", planted=planted, **start_options(machine))


def run_through_every_fault(machine: Machine) -> None:
    for _ in range(4):
        if submit(machine, "--json", "-v") == 5:
            break
    submit(machine, "-v")
    for command in (("status",), ("verify",), ("reconcile", str(machine.home / "payroll.csv"), "--out", "o.csv")):
        machine.run(*command, **start_options(machine))
    (machine.home / "o.csv").unlink(missing_ok=True)


def kill_in_the_middle(machine: Machine) -> None:
    run = machine.start("-v", "submit", machine.home / "payroll.csv", **start_options(machine))
    run.wait(0.7)
    run.send(signal.SIGKILL)
    run.done()
    submit(machine, "-v")


def fail_by_an_error_of_our_own(machine: Machine) -> None:
    assert submit(machine, "-v", planted="plants:an_error_of_our_own") == 1
    assert "Traceback (innermost call last)" in machine.said()


def fail_to_write_the_journal(machine: Machine) -> None:
    if why_not():
        pytest.skip(why_not())
    inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=12"]
    log = machine.home.with_name("strace.txt")
    run_under_strace(machine, log, inject, "-v", "submit", machine.home / "payroll.csv", **start_options(machine))


def damage_the_journal(machine: Machine) -> None:
    submit(machine, "-v")
    content = bytearray(machine.journal.read_bytes())
    content[5_000:9_000] = os.urandom(4_000)
    machine.journal.write_bytes(content)
    assert submit(machine, "-v") in {1, 7}
    machine.run("-v", "verify", **start_options(machine))


def give_a_wrong_passphrase(machine: Machine) -> None:
    assert machine.run("-v", "submit", machine.home / "payroll.csv", environ={"CANARY": PASSPHRASE + "x"}) == 2


def lose_the_directory_of_the_reconciliation(machine: Machine) -> None:
    out = machine.home / "missing" / "out.csv"
    assert machine.run("-v", "submit", machine.home / "payroll.csv", "--out", out, **start_options(machine)) == 2


@pytest.mark.parametrize(
    "happening",
    share(
        [
            run_through_every_fault,
            kill_in_the_middle,
            fail_by_an_error_of_our_own,
            fail_to_write_the_journal,
            damage_the_journal,
            give_a_wrong_passphrase,
            lose_the_directory_of_the_reconciliation,
        ],
        every=3,
    ),
)
def test_outputs_leak_no_secrets_or_payees(canary: Machine, happening: Callable[[Machine], None]) -> None:
    happening(canary)
    assert leaks(others(canary)) == []
    assert list((canary.home / "tmp").iterdir()) == []
    assert all(path.stat().st_mode & 0o077 == 0 for path in canary.state_files())


@pytest.mark.parametrize("planted", share(["plants:body_in_a_log_line", "plants:header_in_a_log_line"], every=2))
def test_planted_secret_in_log_is_detected(canary: Machine, planted: str) -> None:
    submit(canary, planted=planted)
    assert leaks(others(canary)) != []


def test_process_disables_core_dumps(machine: Machine, slow_gateway: GatewayProcess) -> None:
    run = machine.start("submit", machine.sheet(30))
    wait_for_orders(machine, slow_gateway, 1)
    limits = Path(f"/proc/{run.pid}/limits").read_text()
    run.send(signal.SIGKILL)
    run.done()
    (line,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert line.split()[4:6] == ["0", "0"]


UNHEARD = {
    **dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY"), "http://127.0.0.1:1"),
    **dict.fromkeys(("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "/nonexistent"),
    "ALL_PROXY": "socks5://127.0.0.1:1",
    "NO_PROXY": "",
    "PYTHONHTTPSVERIFY": "0",
    "SSLKEYLOGFILE": "keys.log",
    "PANDERA_VALIDATION_ENABLED": "False",
    "PANDERA_VALIDATION_DEPTH": "SCHEMA_ONLY",
    "PYTHONOPTIMIZE": "2",
}


def test_unrelated_environment_variables_change_nothing(machine: Machine, slow_gateway: GatewayProcess) -> None:
    sheet = machine.sheet(2)
    bad = machine.home / "bad.csv"
    bad.write_text(sheet.read_text().replace("100.25", "-5"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(machine.home), "XDG_STATE_HOME": str(machine.home / "state")}
    environ |= {"PYTHONPATH": str(ROOT), **UNHEARD}

    def fresh(path: Path) -> tuple[int, dict[str, object]]:
        command = [sys.executable, "-m", "paygw_batch", "--config", "paygw.toml", "--json", "submit", str(path)]
        done = subprocess.run(command, env=environ, cwd=machine.home, capture_output=True, check=False)
        return done.returncode, json.loads(done.stdout)

    code, summary = fresh(bad)
    assert (code, summary["defects"]) == (3, 1)
    assert orders_of(machine, slow_gateway.record()) == []
    code, summary = fresh(sheet)
    assert (code, summary["states"]) == (0, {"paid": 2})
    assert not (machine.home / "keys.log").exists()


NAME = "Zebulon Canaria"
PHONE = "254799424242"
PASSPHRASE = "canary-passphrase-7f3a"
CANARIES = (NAME, "Canaria", PHONE, "799424242", PASSPHRASE)
SIGNED = ("oauth_signature", "oauth_nonce=", "Authorization", "BEGIN PRIVATE", "BEGIN RSA", "BEGIN ENCRYPTED")
"""Texts that a leaked header or key would contain."""


def sheet_line(order_id: str, amount: str) -> str:
    return f"KE,{order_id},{amount},KES,{NAME},{PHONE},+{PHONE}"


def leaks(files: Iterable[Path]) -> list[str]:
    contents = {path.name: path.read_bytes() for path in files}
    words = (*CANARIES, *SIGNED)
    return [f"{word} in {name}" for name, content in contents.items() for word in words if word.encode() in content]
