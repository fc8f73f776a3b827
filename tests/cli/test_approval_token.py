"""Plans and approvals with keys in a token: payrolls paid on their signatures, and errors of tokens."""

import json
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import MODULE_VARIABLE, PASSPHRASE_VARIABLE, ApprovalKey, load_person_key
from paygw_batch.errors import ConfigurationError
from tests.support.approving import plan_file, policy
from tests.support.program import Program, kenyan_rows, sandbox_toml
from tests.support.tokens import HOW_TO_GET_IT, LABEL, PIN, Token, find_softhsm, make_person_key

KINDS = {"p256": "secp256r1", "ed": "ed25519"}


def key_address(name: str) -> str:
    return f"pkcs11:token={LABEL};object={name}"


def load_key(token: Token, name: str) -> ApprovalKey:
    return load_person_key(Path(key_address(name)), PIN.encode(), str(token.module))


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    """Configure this user to sign with a token that has a P-256 and an Ed25519 key."""
    if find_softhsm() is None:
        pytest.skip(HOW_TO_GET_IT)
    token = Token.create_in(tmp_path / "token")
    for name, value in {**token.environ, PASSPHRASE_VARIABLE: PIN, MODULE_VARIABLE: str(token.module)}.items():
        monkeypatch.setenv(name, value)
    for name, kind in KINDS.items():
        make_person_key(token, name, kind)
    return token


@pytest.mark.parametrize("name", KINDS)
def test_token_key_signs_only_its_text(token: Token, name: str) -> None:
    key = load_key(token, name)
    signature = key.sign(b"a text")
    assert key.public.has_signed(b"a text", signature)
    assert not key.public.has_signed(b"another text", signature)
    assert not key.public.has_signed(b"a text", signature.rstrip("=") + "A")
    assert not load_key(token, next(other for other in KINDS if other != name)).public.has_signed(b"a text", signature)
    assert PIN not in repr(key)


@pytest.mark.parametrize(("maker", "approver"), [("p256", "ed"), ("ed", "p256")])
def test_two_token_signatures_approve_payroll(program: Program, token: Token, maker: str, approver: str) -> None:
    people = policy(program.home)
    lines = {name: load_key(token, name).public.text for name in KINDS}
    for table, name in (("makers", maker), ("approvers", approver)):
        people = people.replace(f"[approval.{table}]\n", f'[approval.{table}]\n"of {name}" = "{lines[name]}"\n')
    program.config.write_text(f"{sandbox_toml()}\n{people}")
    sheet = program.sheet(kenyan_rows(2))
    planned = program.json("plan", sheet, "--out", plan_file(program), "--key", key_address(maker))
    assert (planned["exit_code"], planned["maker"]) == (0, f"of {maker}")
    assert program.json("submit", sheet)["exit_code"] == 8
    approved = program.json("approve", plan_file(program), "--key", key_address(approver))
    assert approved["exit_code"] == 0
    assert PIN not in json.dumps([planned, approved])
    assert program.json("submit", sheet)["states"] == {"paid": 2}
    assert program.json("verify")["exit_code"] == 0
    forged = json.loads(plan_file(program).read_text())
    forged["made_at"] = "2020-01-01T00:00:00.000Z"
    plan_file(program).write_text(json.dumps(forged))
    assert program.json("approve", plan_file(program), "--key", key_address(approver))["exit_code"] == 8


def test_token_error_has_cause_and_hint(token: Token) -> None:
    make_person_key(token, "rsa", "rsa")
    make_person_key(token, "p384", "secp384r1")
    module = str(token.module)
    troubles: list[tuple[str, str | None, str | None, str, str]] = [
        ("p256", "000000", module, "refuses the PIN", "after a few wrong attempts"),
        ("p256", None, module, "There is no PIN", PASSPHRASE_VARIABLE),
        ("p256", PIN, None, "No module is set", MODULE_VARIABLE),
        ("p256", PIN, "/no/such.so", "cannot be used", MODULE_VARIABLE),
        ("nobody", PIN, module, "There is no private key", "--key"),
        ("rsa", PIN, module, "that a person can sign with", "P-256"),
        ("p384", PIN, module, "that a person can sign with", "P-256"),
        ("p256;pin-value=1", PIN, module, "contains a PIN", "Remove it"),
    ]
    for name, pin, there, message, hint in troubles:
        with pytest.raises(ConfigurationError) as error:
            load_person_key(Path(key_address(name)), None if pin is None else pin.encode(), there)
        assert message in error.value.message, name
        assert hint in (error.value.hint or ""), name
        assert "gateway.private_key" not in f"{error.value.message} {error.value.hint}"
    key = load_key(token, "p256")
    token.slots.rename(token.folder / "pulled out")
    token.slots.mkdir()
    with pytest.raises(ConfigurationError, match="was not found"):
        key.sign(b"a text")
