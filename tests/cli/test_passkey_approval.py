"""Plans and orders signed by passkey: `submit` and `carry-out` need only the configuration to verify them."""

from pathlib import Path

import pytest

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
from paygw_batch.settings.configuration import load_settings
from paygw_batch.settle.row_order import RowOrder
from tests.support.approving import plan_file, policy, prepare_sheet, submit_and_expect_refusal
from tests.support.program import Program, kenyan_rows, sandbox_toml
from tests.support.software_passkey import CONSOLE, SoftwarePasskey, passkey

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


def approve_by_passkey_in(
    program: Program, path: Path, kind: type[SignedDocument], key: SoftwarePasskey = CLEO
) -> None:
    """Approve the document in a file as the console does."""
    document, rules = read_document(path, kind), load_policy(program)
    asked = approval_text(document, key.public, rules, utc_now())
    approval = Approval(key=key.public.text, approved_at=asked.approved_at, signature=key.sign(asked.text))
    write_document(approve_by_passkey(document, approval, rules, utc_now()), path)


def sign_document(program: Program, path: Path, kind: type[SignedDocument]) -> None:
    """Have Ada sign the document in a file by passkey, as if it had been made in the console."""
    draft = read_document(path, kind).model_copy(update={"maker": ADA.public.text, "approvals": []})
    write_document(sign_by_passkey(draft, ADA.sign(draft.signed_text()), load_policy(program)), path)


def test_plan_approved_by_passkeys_is_sent(console: Program) -> None:
    sheet = prepare_sheet(console)
    sign_document(console, plan_file(console), PlanDocument)
    assert "needs 1 valid approval and has 0" in submit_and_expect_refusal(console)
    approve_by_passkey_in(console, plan_file(console), PlanDocument)
    output = " ".join(console.run("approve", plan_file(console)).stdout.split())
    assert "Prepared by ada at " in output
    assert "Approved by cleo at " in output
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
def test_passkey_approval_depends_on_configuration_of_run(console: Program, old: str, new: str) -> None:
    """It is not valid at another address, for a removed key, or for another person's key."""
    prepare_sheet(console)
    approve_by_passkey_in(console, plan_file(console), PlanDocument)
    console.config.write_text(console.config.read_text().replace(old, new))
    assert "needs 1 valid approval and has 0" in submit_and_expect_refusal(console)


def test_maker_passkey_cannot_approve_own_file_key_plan(console: Program) -> None:
    prepare_sheet(console)
    document = read_document(plan_file(console), PlanDocument)
    at = "2026-11-22T08:00:00.000Z"
    own = Approval(key=ADA.public.text, approved_at=at, signature=ADA.sign(document.approval_text(ADA.public, at)))
    write_document(document.model_copy(update={"approvals": [own]}), plan_file(console))
    assert "that of ada is by the maker of the plan" in submit_and_expect_refusal(console)


def test_order_signed_by_passkeys_is_carried_out_once(console: Program) -> None:
    rows = kenyan_rows(1, amount="9008", prefix="LOST")
    console.config.write_text(console.config.read_text().replace('KES = "1000"', 'KES = "1000000"'))
    sheet, order = console.sheet(rows), console.home / "order.json"
    assert console.json("submit", sheet)["states"] == {"in_doubt": 1}
    settlement = ("2", "--as", "not-received", "--evidence", "Ticket 4711")
    console.json("order", "settle", sheet, *settlement, "--out", order, "--key", console.home / "ada.pem")
    sign_document(console, order, RowOrder)
    assert console.json("carry-out", order)["exit_code"] == 8
    approve_by_passkey_in(console, order, RowOrder)
    assert console.json("carry-out", order)["states"] == {"ready": 1}
    assert console.json("carry-out", order)["exit_code"] == 8


def test_doctor_reports_passkey_unusable_without_console_address(console: Program) -> None:
    message = f"if the key {CLEO.public.fingerprint} is a passkey, it cannot be used"
    assert message not in console.run("doctor").stdout
    console.config.write_text(console.config.read_text().replace(f'origin = "{CONSOLE.origin}"', ""))
    assert message in " ".join(console.run("doctor").stdout.split())
