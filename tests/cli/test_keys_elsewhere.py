"""Payrolls paid with a key in a token or in AWS KMS: setup, checks, payment, and failures of the key."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from paygw_batch.custody.token_key import TokenLocation, create_token_key, load_token_key
from paygw_batch.gateway.signing.key import parse_token_address
from tests.support.kms import SIGN, Kms, running_kms
from tests.support.program import ROOT, Program, kenyan_rows
from tests.support.tokens import HOW_TO_GET_IT, LABEL, PIN, Token, find_softhsm

URI = f"pkcs11:token={LABEL};object=payouts"
SHELL_BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "keys.md").read_text(), flags=re.DOTALL)


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kms]:
    with running_kms() as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def token(program: Program, monkeypatch: pytest.MonkeyPatch) -> Token:
    """Create a token with a key, and configure the program to sign with it."""
    if find_softhsm() is None:
        pytest.skip(HOW_TO_GET_IT)
    token = Token.create_in(program.home / "token")
    for name, value in token.environ.items():
        monkeypatch.setenv(name, value)
    create_token_key(TokenLocation(parse_token_address(URI), token.module, PIN))
    pin = program.home / "pin"
    pin.write_text(f"{PIN}\n")
    pin.chmod(0o600)
    configure_key(program, URI, f'pkcs11_module = "{token.module}"\nprivate_key_passphrase_file = "pin"')
    return token


def configure_key(program: Program, place: str = "awskms:alias/payouts", more: str = "") -> None:
    lines = f'[gateway]\nprivate_key = "{place}"\nsigning_concurrency = 2\n{more}\n'
    program.config.write_text(program.config.read_text().replace("[gateway]\n", lines))


def test_sheet_is_paid_with_token_key(program: Program, token: Token) -> None:
    sheet = program.sheet(kenyan_rows(5))
    assert program.json("submit", sheet)["states"] == {"paid": 5}
    assert len(program.record()) == 5
    looked, explained = program.json("doctor"), program.json("sign", sheet, "--explain")
    key = looked["key"]
    assert (key["kind"], key["bits"], key["exportable"], key["was_outside"]) == ("pkcs11", 3072, False, False)
    public = load_token_key(TokenLocation(parse_token_address(URI), token.module, PIN)).public.public_key_pem()
    assert (looked["exit_code"], key["public_key"]) == (0, public.decode())
    assert explained["signed"]["key_fingerprint"] == key["fingerprint"]
    assert PIN not in json.dumps([looked, explained])
    token.slots.rename(token.folder / "pulled out")
    token.slots.mkdir()
    refused = program.run("submit", program.sheet(kenyan_rows(2, prefix="NEXT"), "next.csv"))
    sentence = "The token for pkcs11:token=paygw;object=payouts was not found. Plug it in"
    assert (refused.exit_code, sentence in " ".join(refused.stderr.split())) == (2, True)
    assert len(program.record()) == 5


def test_wrong_pin_stops_run_before_sending(program: Program, token: Token) -> None:
    (program.home / "pin").write_text("000000\n")
    looked = program.json("doctor")
    (key_check,) = [check for check in looked["checks"] if check["check"] == "private key"]
    assert key_check["found"].startswith("The token rejected the PIN")
    assert (key_check["state"], looked["key"], looked["exit_code"]) == ("wrong", None, 2)
    assert program.run("submit", program.sheet(kenyan_rows(2))).exit_code == 2
    assert program.record() == []
    assert token.slots.exists()


def test_expired_credentials_are_reported_before_sending(program: Program, kms: Kms) -> None:
    kms.key("payouts")
    configure_key(program)
    kms.for_good = dict.fromkeys(("DescribeKey", "GetPublicKey", SIGN), "ExpiredTokenException")
    looked = program.json("doctor")
    (finding,) = [check["found"] for check in looked["checks"] if check["check"] == "private key"]
    refused = program.json("submit", program.sheet(kenyan_rows(2)))
    assert (looked["exit_code"], refused["exit_code"], program.record()) == (2, 2, [])
    for said in (finding, refused["message"]):
        assert said.startswith("The AWS credentials for awskms:alias/payouts have expired.")


def test_run_stops_on_key_failure_and_resumes(program: Program, kms: Kms) -> None:
    sentence = "The AWS credentials for awskms:alias/payouts have expired."
    kms.key("payouts")
    configure_key(program)
    sheet = program.sheet(kenyan_rows(30))
    kms.for_good, kms.for_good_after = {SIGN: "ExpiredTokenException"}, {SIGN: 12}
    stopped = program.run("submit", sheet)
    assert (stopped.exit_code, sentence in " ".join(stopped.stderr.split())) == (6, True), stopped.stderr
    states = program.json("status", sheet)["states"]
    assert set(states) <= {"paid", "ready"}
    assert states["ready"] >= 18
    kms.for_good = {}
    assert program.json("submit", sheet)["states"] == {"paid": 30}
    orders = [line["client_orderid"] for line in program.record()]
    assert len(orders) == len(set(orders)) == 30


def test_error_about_missing_extra_shows_install_option(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_key(program)
    monkeypatch.delitem(sys.modules, "paygw_batch.custody.kms_key", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    refused = program.run("submit", program.sheet(kenyan_rows(1)))
    assert (refused.exit_code, "[aws]'." in refused.stderr) == (2, True)


@pytest.mark.long
def test_documented_token_commands_run(tmp_path: Path) -> None:
    if (module := find_softhsm()) is None:
        pytest.skip(HOW_TO_GET_IT)
    script = SHELL_BLOCKS[0].replace("/usr/lib/softhsm/libsofthsm2.so", str(module))
    output = run_shell(tmp_path, script)
    assert ("-----BEGIN PUBLIC KEY-----" in output, URI in output, "271828" in output) == (True, True, False)
    assert 'pkcs11_module = "' in (tmp_path / "paygw.toml").read_text()


def test_documented_aws_commands_run(tmp_path: Path, kms: Kms) -> None:
    create, alias, setup = SHELL_BLOCKS[1].splitlines()
    key_id = call_aws(kms, create)["KeyMetadata"]["KeyId"]
    call_aws(kms, alias.replace("$KEY_ID", key_id))
    output = run_shell(tmp_path, setup)
    (pem,) = re.findall(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", output, flags=re.DOTALL)
    public = load_pem_public_key("\n".join(line.strip() for line in pem.splitlines()).encode())
    assert getattr(public, "key_size", 0) == 3072


def call_aws(kms: Kms, line: str) -> dict[str, dict[str, str]]:
    program, service, action, *options = shlex.split(line)
    assert (program, service) == ("aws", "kms")
    pairs = zip(options[::2], options[1::2], strict=True)
    named = {name.removeprefix("--").title().replace("-", ""): value for name, value in pairs}
    answer: dict[str, dict[str, str]] = getattr(kms.client, action.replace("-", "_"))(**named)
    return answer


def run_shell(folder: Path, script: str) -> str:
    folder.chmod(0o700)
    program = folder / "bin" / "paygw-batch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m paygw_batch "$@"\n')
    program.chmod(0o755)
    own = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT)}
    environ = {**os.environ, **own, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    command = ["bash", "-ec", script]
    result = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
