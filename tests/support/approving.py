"""People with keys, and the plans that they make and approve."""

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.approval.signed_document import sign_document, write_document
from tests.support.program import Program, kenyan_rows


def key(home: Path, name: str) -> str:
    """Create a key with openssl, as the documentation says, and return its public half as one line."""
    path = home / f"{name}.pem"
    private, public = _cached_key.__wrapped__(name) if path.exists() else _cached_key(name)
    path.write_bytes(private)
    path.chmod(0o600)
    return public


@cache
def _cached_key(_name: str) -> tuple[bytes, str]:
    """Return a cached key for a person, because openssl takes longer than most commands."""
    created = subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519"], check=True, capture_output=True).stdout
    displayed = subprocess.run(["openssl", "pkey", "-pubout"], input=created, check=True, capture_output=True).stdout
    return created, displayed.decode().splitlines()[1]


def policy(home: Path, *, needed: int = 1, expires_h: float = 72) -> str:
    ada, ben, cleo = (key(home, name) for name in ("ada", "ben", "cleo"))
    key(home, "stranger")
    return f"""
[approval]
needed = {needed}
expires_h = {expires_h}
[approval.from_amount]
KES = "1000"
[approval.makers]
ada = "{ada}"
ben = "{ben}"
[approval.approvers]
ada = "{ada}"
ben = "{ben}"
cleo = "{cleo}"
"""


def prepare_sheet(program: Program, *approvers: str, rows: int = 3) -> Path:
    """Return a sheet with a plan by ada beside it, approved by the named people."""
    sheet = program.sheet(kenyan_rows(rows))
    program.json("plan", sheet, "--out", plan_file(program), "--key", program.home / "ada.pem")
    for name in approvers:
        assert program.json("approve", plan_file(program), "--key", program.home / f"{name}.pem")["exit_code"] == 0
    return sheet


def plan_file(program: Program) -> Path:
    return program.home / "payroll.plan.json"


def submit_and_expect_refusal(program: Program, *arguments: str | Path) -> str:
    """Submit without a valid approval, assert that nothing was sent or written, and return the reason."""
    result = program.run("submit", program.home / "payroll.csv", *arguments)
    assert result.exit_code == 8, result.output
    assert program.record() == []
    assert not (program.home / "payroll.reconciliation.csv").exists()
    assert program.json("status")["batches"] == []
    return result.stderr


def re_sign_plan(program: Program, change: Callable[[dict[str, Any]], object], *, by: str = "ada") -> None:
    """Change the plan as its maker could by hand, sign it again, and collect the approvals again."""
    document = json.loads(plan_file(program).read_text())
    change(document)
    read = PlanDocument.model_validate_json(json.dumps({**document, "approvals": []}))
    write_document(sign_document(read, load_approval_key(program.home / f"{by}.pem", None)), plan_file(program))


def edit_plan(program: Program, change: "dict[str, object]") -> None:
    plan_file(program).write_text(json.dumps({**json.loads(plan_file(program).read_text()), **change}))
