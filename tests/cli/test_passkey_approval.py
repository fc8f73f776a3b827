"""Plans and orders signed by passkey, or by keys in a token: commands verify them by the configuration alone."""

import json
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import MODULE_VARIABLE, PASSPHRASE_VARIABLE, ApprovalKey, load_person_key
from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.approval.policy import require_policy
from paygw_batch.approval.signed_document import (
    Approval,
    ApprovalPolicy,
    SignedDocument,
    approval_text,
    approve_by_passkey,
    read_document,
    sign_by_passkey,
    write_document,
)
from paygw_batch.clock import utc_now
from paygw_batch.errors import ConfigurationError
from paygw_batch.settings.configuration import load_settings
from paygw_batch.settle.row_order import RowOrder
from tests.support.approving import edit_plan, plan_file, policy, prepare_sheet, submit_and_expect_refusal
from tests.support.program import Program, kenyan_rows, sandbox_toml
from tests.support.software_passkey import CONSOLE, passkey
from tests.support.tokens import HOW_TO_GET_IT, LABEL, PIN, Token, find_softhsm, make_person_key

ADA, CLEO = passkey("p-ada"), passkey("p-cleo")


@pytest.fixture
def console(program: Program) -> Program:
    """Set up a company in which Ada and Cleo have a passkey each, besides their key files."""
    people = policy(program.home)
    for name, key in (("ada", ADA), ("cleo", CLEO)):
        own = next(line for line in people.splitlines() if line.startswith(f"{name} = "))
        people = people.replace(own, f'{own.replace("= ", "= [")}, "{key.public.text}"]')
    text = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(f'{text}\n[console]\norigin = "{CONSOLE.origin}"\n{people}')
    return program


def load_policy(program: Program) -> ApprovalPolicy:
    return require_policy(load_settings(program.config, environ=program.environ))


def approve_by_passkey_in(program: Program, path: Path, kind: type[SignedDocument]) -> None:
    """Have Cleo approve the document in a file as the console does."""
    document, rules = read_document(path, kind), load_policy(program)
    asked = approval_text(document, CLEO.public, rules, utc_now())
    approval = Approval(key=CLEO.public.text, approved_at=asked.approved_at, signature=CLEO.sign(asked.text))
    write_document(approve_by_passkey(document, approval, rules, utc_now()), path)


def sign_document(program: Program, path: Path, kind: type[SignedDocument]) -> None:
    """Have Ada sign the document in a file by passkey, as if it had been made in the console."""
    draft = read_document(path, kind).model_copy(update={"maker": ADA.public.text, "approvals": []})
    write_document(sign_by_passkey(draft, ADA.sign(draft.signed_text()), load_policy(program)), path)


def test_plan_approved_by_passkeys_is_sent(console: Program) -> None:
    sheet = prepare_sheet(console)
    sign_document(console, plan_file(console), PlanDocument)
    assert "needs 1 valid approval but has 0" in submit_and_expect_refusal(console)
    approve_by_passkey_in(console, plan_file(console), PlanDocument)
    output = " ".join(console.run("approve", plan_file(console)).stdout.split())
    assert ("Prepared by ada at " in output, "Approved by cleo at " in output) == (True, True)
    summary = console.json("submit", sheet)
    assert (summary["exit_code"], summary["states"]) == (0, {"paid": 3})
    statements = [deed["said"] for deed in console.json("status", summary["batch"], "--history")["history"]]
    assert [sentence.split(" at ")[0] for sentence in statements[1:]] == ["prepared by ada", "approved by cleo"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f'origin = "{CONSOLE.origin}"', ""),
        (CONSOLE.origin, CONSOLE.origin + ".evil.test"),
        (CLEO.public.text, passkey("p-stranger").public.text),
    ],
)
def test_passkey_approval_is_checked_against_current_configuration(console: Program, old: str, new: str) -> None:
    """It is not valid at another address, for a removed key, or for another person's key."""
    prepare_sheet(console)
    approve_by_passkey_in(console, plan_file(console), PlanDocument)
    console.config.write_text(console.config.read_text().replace(old, new))
    assert "needs 1 valid approval but has 0" in submit_and_expect_refusal(console)


def test_order_signed_by_passkeys_is_carried_out_once(console: Program) -> None:
    console.config.write_text(console.config.read_text().replace('KES = "1000"', 'KES = "1000000"'))
    sheet, order = console.sheet(kenyan_rows(1, amount="9008")), console.home / "order.json"
    assert console.json("submit", sheet)["states"] == {"in_doubt": 1}
    settlement = ("2", "--as", "not-received", "--evidence", "Ticket 4711")
    console.json("order", "settle", sheet, *settlement, "--out", order, "--key", console.home / "ada.pem")
    sign_document(console, order, RowOrder)
    assert console.json("carry-out", order)["exit_code"] == 8
    approve_by_passkey_in(console, order, RowOrder)
    assert console.json("carry-out", order)["states"] == {"ready": 1}
    assert console.json("carry-out", order)["exit_code"] == 8
    assert console.json("verify")["checked"]["signed_orders"] == 1


def test_doctor_reports_passkey_unusable_without_console_address(console: Program) -> None:
    message = f"the key {CLEO.public.fingerprint} cannot be used if it is a passkey"
    assert message not in console.run("doctor").stdout
    console.config.write_text(console.config.read_text().replace(f'origin = "{CONSOLE.origin}"', ""))
    assert message in " ".join(console.run("doctor").stdout.split())


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
def test_token_signature_is_valid_only_for_its_text(token: Token, name: str) -> None:
    key = load_key(token, name)
    signature = key.sign(b"a text")
    assert key.public.verifies(b"a text", signature)
    assert not key.public.verifies(b"another text", signature)
    assert not key.public.verifies(b"a text", signature.rstrip("=") + "A")
    assert not load_key(token, next(other for other in KINDS if other != name)).public.verifies(b"a text", signature)
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
    assert (approved["exit_code"], PIN in json.dumps([planned, approved])) == (0, False)
    assert program.json("submit", sheet)["states"] == {"paid": 2}
    assert program.json("verify")["exit_code"] == 0
    edit_plan(program, {"made_at": "2020-01-01T00:00:00.000Z"})
    assert program.json("approve", plan_file(program), "--key", key_address(approver))["exit_code"] == 8


def test_error_about_token_names_cause_and_hint(token: Token) -> None:
    make_person_key(token, "rsa", "rsa")
    make_person_key(token, "p384", "secp384r1")
    module = str(token.module)
    pin = PIN.encode()
    for name, given, there, message, hint in (
        ("p256", b"000000", module, "rejected the PIN", "after a few wrong attempts"),
        ("p256", None, module, "No PIN is set", PASSPHRASE_VARIABLE),
        ("p256", pin, None, "No module is set", MODULE_VARIABLE),
        ("p256", pin, "/no/such.so", "cannot be used", MODULE_VARIABLE),
        ("nobody", pin, module, "There is no private key", "--key"),
        ("rsa", pin, module, "that a person can sign with", "P-256"),
        ("p384", pin, module, "that a person can sign with", "P-256"),
        ("p256;pin-value=1", pin, module, "contains a PIN", "Remove it"),
    ):
        with pytest.raises(ConfigurationError) as error:
            load_person_key(Path(key_address(name)), given, there)
        assert (message in error.value.message, hint in (error.value.hint or "")) == (True, True), name
        assert "gateway.private_key" not in f"{error.value.message} {error.value.hint}"
    key = load_key(token, "p256")
    token.slots.rename(token.folder / "pulled out")
    token.slots.mkdir()
    with pytest.raises(ConfigurationError, match="was not found"):
        key.sign(b"a text")
