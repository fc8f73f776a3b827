"""Every field that a maker signs: after a change it is refused, or its approver sees the difference."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.order import ForgetOrder
from paygw_batch.approval.plan_document import PlanDocument
from paygw_batch.approval.signed_document import SignedDocument, sign_document, write_document
from paygw_batch.clock import timestamp
from paygw_batch.settle.kept_documents import WithdrawalDocument
from paygw_batch.settle.row_order import RowOrder
from tests.cli.conftest import MachineCache
from tests.support.approving import plan_file, policy
from tests.support.program import KENYAN, Program, kenyan_rows, sandbox_toml

UNSIGNED = frozenset({"signature", "approvals"})
EVERY = "*"
"""A step of a path: the last item of a list, or a key of a mapping."""
KINDS: tuple[tuple[type[SignedDocument], str], ...] = (
    *((PlanDocument, "plan"), (RowOrder, "settle"), (RowOrder, "release"), (ForgetOrder, "forget")),
)
"""Each kind of document with each of its purposes."""
PAID_NUMBER = "254712345009"
Where = tuple[str, ...]


def iterate_fields(kind: Any, where: Where = ()) -> Iterator[tuple[Where, Any]]:
    """Yield the path and the type of every value in a kind of document."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            if where or name not in UNSIGNED:
                yield from iterate_fields(field.annotation, (*where, name))
    elif get_origin(kind) in {list, tuple, dict}:
        yield from iterate_fields(next(arg for arg in reversed(get_args(kind)) if arg is not Ellipsis), (*where, EVERY))
    else:
        yield where, kind


CASES = [
    pytest.param(kind, purpose, where, shape, id=f"{purpose}-{'.'.join(where)}")
    for kind, purpose in KINDS
    for where, shape in iterate_fields(kind)
]


def other_value(value: Any, shape: Any) -> Any:
    if isinstance(shape, type) and issubclass(shape, Enum):
        return next(member.value for member in shape if member.value != value)
    if isinstance(value, int):
        return value + 1
    if value is None or shape is NoneType:
        return "x"
    try:
        return timestamp(datetime.fromisoformat(value) - timedelta(hours=1))
    except ValueError:
        return f"{value}1"


def change_field(document: dict[str, Any], where: Where, shape: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(document))
    inner: Any = copy
    for step in where[:-1]:
        key = _key(inner, step)
        if isinstance(inner, list) and not inner:
            inner.append([1])
        inner = inner[key]
    last = _key(inner, where[-1])
    if isinstance(inner, list) and not inner:
        inner.append(1)  # A maker may add a value where the document has none.
    elif isinstance(inner, dict) and last not in inner:
        inner[last] = 1 if shape is int else "x"
    else:
        inner[last] = other_value(inner[last], shape)
    return copy


def _key(inner: Any, step: str) -> Any:
    if step != EVERY:
        return step
    return list(inner)[-1] if isinstance(inner, dict) else -1


def prepare_company(program: Program) -> None:
    """Set up a company with a paid month, two rejected rows and one in doubt.

    Payouts from KES 10,000,000 need a plan.
    """
    people = policy(program.home).replace('KES = "1000"', 'KES = "10000000"')
    text = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(text + people)
    rows = [*kenyan_rows(2, amount="9001", prefix="NO"), *kenyan_rows(1, amount="9008", prefix="LOST")]
    rows += kenyan_rows(1, prefix="GOOD")
    assert program.json("submit", program.sheet(rows, "before.csv"))["states"]["in_doubt"] == 1


@pytest.fixture
def company(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_company)


def make_document(program: Program, purpose: str) -> Path:
    path, before, config = plan_file(program), program.home / "before.csv", program.config.read_text()
    words: tuple[str | Path, ...]
    match purpose:
        case "plan":
            program.config.write_text(config.replace('KES = "10000000"', 'KES = "1"'))
            words = ("plan", program.sheet(kenyan_rows(3, amount="20", prefix="NEW")))
        case "settle":
            words = ("order", "settle", before, "4", "--as", "not-received", "--evidence", "Ticket 4711")
        case "release":
            words = ("order", "release", before, "--row", "2", "--evidence", "Ticket 4712")
        case _:
            assert purpose == "forget", "a new kind of signed document is made here too"
            program.config.write_text(f"{config}\n[sheet]\nrepeat_days = 0\nlook_alike_days = 0\n")  # old enough
            over = program.sheet([KENYAN.format(id="OVER-1", amount="20", n=9)], "over.csv")
            assert program.run("submit", over).exit_code == 0
            words = ("order", "forget", "--person", PAID_NUMBER)
    result = program.run(*words, "--out", path, "--key", program.home / "ada.pem")
    assert result.exit_code == 0, result.output
    return path


def approve(program: Program, path: Path) -> int:
    return program.run("approve", path, "--key", program.home / "cleo.pem").exit_code


def carry_out(program: Program, purpose: str, path: Path) -> int:
    if purpose == "plan":
        return program.run("submit", program.home / "payroll.csv", "--plan", path).exit_code
    return program.run("carry-out", path).exit_code


def show_document(program: Program, path: Path) -> str:
    """Return the output that an approver sees, without approvals and the document's code, which always differs."""
    result = program.run("approve", path)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    return "\n".join(line for line in lines if "The code of this" not in line and not line.startswith("Approved by"))


def read_states(program: Program) -> object:
    """Return the states of the rows, and whether the journal still knows the paid payee."""
    (batch, *_) = program.json("status", "--sort", "person")["batches"]
    return program.json("status", batch["batch"])["states"], program.json("find", PAID_NUMBER)["payments"]


@pytest.mark.parametrize("purpose", [purpose for _, purpose in KINDS])
def test_unchanged_document_is_carried_out(company: Program, purpose: str) -> None:
    path = make_document(company, purpose)
    original = show_document(company, path)
    assert (approve(company, path), show_document(company, path)) == (0, original)
    before = read_states(company)
    assert carry_out(company, purpose, path) in {0, 4, 5, 6}
    assert len(company.json("status")["batches"]) == 2 or read_states(company) != before or len(company.record()) > 4


@pytest.mark.share(9)
@pytest.mark.parametrize(("kind", "purpose", "where", "shape"), CASES)
def test_changed_signed_field_is_refused_or_shown(
    company: Program, kind: type[SignedDocument], purpose: str, where: Where, shape: Any
) -> None:
    path = make_document(company, purpose)
    original = show_document(company, path)
    text = json.dumps(change_field(json.loads(path.read_text()), where, shape))
    try:
        forged = kind.model_validate_json(text)
    except ValidationError:
        path.write_text(text)
        assert approve(company, path) == 8
        return
    write_document(sign_document(forged, load_approval_key(company.home / "ada.pem", None)), path)
    if (code := approve(company, path)) != 0:
        assert code == 8
        return
    seen = show_document(company, path)
    before, sent = read_states(company), len(company.record())
    is_refused = carry_out(company, purpose, path) in {2, 7, 8}
    if is_refused:
        assert (read_states(company), len(company.record())) == (before, sent), "what is refused does nothing"
    assert is_refused or seen.strip() != original.strip(), f"{where} decides something that nobody sees"


@pytest.mark.parametrize(("kind", "purpose"), KINDS)
def test_digest_covers_every_field_of_document(company: Program, kind: type[SignedDocument], purpose: str) -> None:
    path = make_document(company, purpose)
    document = json.loads(path.read_text())
    digest = kind.model_validate_json(path.read_text()).digest()
    count = 0
    for where, shape in iterate_fields(kind):
        try:
            forged = kind.model_validate_json(json.dumps(change_field(document, where, shape)))
        except ValidationError:
            continue
        assert forged.digest() != digest, where
        count += 1
    assert count > 8


def concrete_kinds(kind: type[SignedDocument]) -> set[type[SignedDocument]]:
    return {one for below in kind.__subclasses__() for one in concrete_kinds(below)} or {kind}


def test_every_kind_of_signed_document_is_tested() -> None:
    ours = {one for one in concrete_kinds(SignedDocument) if one.__module__.startswith("paygw_batch.")}
    assert ours == {kind for kind, _ in KINDS}


@pytest.mark.parametrize("name", [name for name in WithdrawalDocument.model_fields if name != "signature"])
def test_withdrawal_signature_covers_every_field(name: str) -> None:
    withdrawal = WithdrawalDocument(
        journal="j", sha256="0" * 64, by="ada", at="2026-11-24T10:00:00.000Z", key="k", signature=""
    )
    other_ = withdrawal.model_copy(update={name: f"{getattr(withdrawal, name)}1"})
    assert other_.signed_text() != withdrawal.signed_text()
