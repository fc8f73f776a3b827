"""People with keys, and plans that they make and approve."""

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.approval.signed_document import signed, write_document
from tests.support.program import Program, kenyan_rows


def key(home: Path, name: str) -> str:
    """Make a key with openssl, as the documentation says, and return its public half as one line."""
    path = home / f"{name}.pem"
    private, public = _made.__wrapped__(name) if path.exists() else _made(name)
    path.write_bytes(private)
    path.chmod(0o600)
    return public


@cache
def _made(_name: str) -> tuple[bytes, str]:
    """Everybody has one key for all homes of the tests: openssl costs more than most commands."""
    made = subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519"], check=True, capture_output=True).stdout
    shown = subprocess.run(["openssl", "pkey", "-pubout"], input=made, check=True, capture_output=True).stdout
    return made, shown.decode().splitlines()[1]


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


def prepared(program: Program, *approvers: str, rows: int = 3) -> Path:
    """Return a sheet with a plan by ada beside it, approved by whom is named."""
    sheet = program.sheet(kenyan_rows(rows))
    program.json("plan", sheet, "--out", plan_of(program), "--key", program.home / "ada.pem")
    for name in approvers:
        assert program.json("approve", plan_of(program), "--key", program.home / f"{name}.pem")["exit_code"] == 0
    return sheet


def plan_of(program: Program) -> Path:
    return program.home / "payroll.plan.json"


def refused(program: Program, *arguments: str | Path) -> str:
    """Submit, which must be refused for want of approval with nothing sent or written; return why."""
    result = program.run("submit", program.home / "payroll.csv", *arguments)
    assert result.exit_code == 8, result.output
    assert program.record() == []
    assert not (program.home / "payroll.reconciliation.csv").exists()
    assert program.json("status")["batches"] == []
    return result.stderr


def signed_again(program: Program, change: Callable[[dict[str, Any]], object], *, by: str = "ada") -> None:
    """Change the plan as its maker could, by hand: sign it again, and let it be approved anew."""
    document = json.loads(plan_of(program).read_text())
    change(document)
    read = PlanDocument.model_validate_json(json.dumps({**document, "approvals": []}))
    write_document(signed(read, load_approval_key(program.home / f"{by}.pem", None)), plan_of(program))


def edited(program: Program, change: "dict[str, object]") -> None:
    document = json.loads(plan_of(program).read_text())
    plan_of(program).write_text(json.dumps({**document, **change}))
