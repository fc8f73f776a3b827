"""`forget` erases people and keeps totals, by one person's decision or by an order of two."""

import json
import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import load_approval_key
from paygw_batch.approval.order import ForgetOrder
from paygw_batch.approval.signed_document import sign_document, write_document
from tests.cli.conftest import MachineCache
from tests.support.approving import policy
from tests.support.checkout import ROOT
from tests.support.clocks import SetClock
from tests.support.program import Program, kenyan_rows, sandbox_toml

YEARS = timedelta(days=3000)
JANE, NUMBER = "Jane Wanjiku", "254712345001"


def compares_with_nothing(program: Program) -> Program:
    """Configure that batches are old enough at once, because no sheet is compared with earlier payments."""
    program.config.write_text(f"{program.config.read_text()}\n[sheet]\nrepeat_days = 0\nlook_alike_days = 0\n")
    return program


def pay_sheet(program: Program) -> None:
    compares_with_nothing(program)
    assert program.json("submit", program.sheet(kenyan_rows(2)))["states"] == {"paid": 2}


@pytest.fixture
def paid(machine_cache: MachineCache) -> Program:
    """Pay a batch of two people that is old enough."""
    return machine_cache(pay_sheet)


def batch_of(program: Program) -> str:
    (batch,) = program.json("status")["batches"]
    return str(batch["batch"])


def left_in(program: Program) -> bool:
    """Return whether any file of the journal still contains data of the payees."""
    content = b"".join(path.read_bytes() for path in program.home.glob("journal.sqlite3*"))
    return any(text in content for text in (b"Wanjiku", b"wanjiku", NUMBER.encode(), b"254712345002"))


def test_forget_preview_changes_nothing_and_lists_files(paid: Program, set_clock: SetClock) -> None:
    set_clock(YEARS)
    for named in ((), ("--dry-run",)):
        summary = paid.json("forget", "--before", "2029-01-01", *named)
        assert (summary["payments"], summary["batches"], summary["exit_code"]) == (2, [batch_of(paid)], 0)
    assert left_in(paid)
    assert sorted(Path(path).name for path in summary["files"]) == ["payroll.csv", "payroll.reconciliation.csv"]


def test_forgetting_people_keeps_totals(paid: Program, set_clock: SetClock) -> None:
    batch, before = batch_of(paid), paid.json("status", batch_of(paid))
    set_clock(YEARS)
    summary = paid.json("forget", "--before", "2029-01-01", "--yes", "--by", "Amina")
    assert (summary["payments"], summary["exit_code"]) == (2, 0)
    assert not left_in(paid)
    after = paid.json("status", batch)
    assert (after["states"], after["totals"]) == (before["states"], before["totals"])
    assert paid.json("verify")["exit_code"] == 0
    assert [paid.json("find", text)["payments"] for text in (JANE, NUMBER)] == [[], []]
    (payment,) = paid.json("find", "PAY-1")["payments"]
    assert (payment["name"], payment["state"], payment["amount"]) == ("", "paid", "1500.50")
    assert "Amina" in paid.run("status", batch, "--history").output
    assert paid.json("forget", "--before", "2029-01-01")["payments"] == 0


def test_forgetting_one_person_keeps_others(paid: Program) -> None:
    assert paid.json("forget", "--person", "+254 712 345 001", "--yes", "--by", "Amina")["payments"] == 1
    (payment,) = paid.json("find", JANE)["payments"]
    assert payment["client_orderid"] == "PAY-2"
    batch, before = batch_of(paid), paid.record()
    for command in (
        *(("reconcile", batch, "--out", paid.home / "again.csv"), ("resume", batch), ("retry", batch)),
        ("submit", paid.home / "payroll.csv"),
    ):
        refused = paid.json(*command)
        assert (refused["exit_code"], "were forgotten" in refused["message"]) == (2, True)
    assert not (paid.home / "again.csv").exists()
    again = paid.run("submit", paid.sheet(kenyan_rows(3), "more.csv"))
    assert (again.exit_code, "delete it" in again.stdout, "Restore" in again.stdout) == (3, True, False)
    assert (paid.record(), paid.json("verify")["exit_code"]) == (before, 0)


def test_people_of_new_batch_are_not_forgotten(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(2)))
    summary = program.json("forget", "--person", NUMBER, "--yes", "--by", "Amina")
    assert (summary["payments"], summary["waiting"]) == (0, [batch_of(program)])
    assert left_in(program)


def test_ambiguous_name_forgets_no_one(paid: Program) -> None:
    for name, why in ((JANE, "2 numbers belong to the name 'Jane Wanjiku'."), ("Jane", "exactly 'Jane'")):
        refused = paid.json("forget", "--person", name)
        assert (refused["exit_code"], why in refused["message"]) == (2, True)


def test_unclear_forget_options_are_refused(paid: Program) -> None:
    before = paid.journal.read_bytes()
    for words in (
        *("", "--before 2029-01-01", "--before yesterday", "--before 2020-01-01 --person x", "--person nobody"),
        *("--before 2020-01-01 --yes", "--before 2020-01-01 --yes --dry-run"),
    ):
        assert paid.json("forget", *words.split())["exit_code"] == 2, words
    assert paid.journal.read_bytes() == before


def test_retention_period_is_configurable(paid: Program, set_clock: SetClock) -> None:
    paid.config.write_text(paid.config.read_text() + "\n[retention]\nyears = 7\n")
    set_clock(timedelta(days=6 * 366))
    assert paid.json("forget")["payments"] == 0
    set_clock(YEARS)
    assert paid.json("forget")["payments"] == 2
    assert left_in(paid)


DOCUMENT = (ROOT / "docs" / "retention.md").read_text()
ALONE, TOGETHER = DOCUMENT.split("## With two people")


def shown_commands(text: str) -> list[list[str]]:
    """Return the commands in a section of the document, with a date that is later than the batches here."""
    lines = re.findall(
        r"^paygw-batch (.*)$", "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)), flags=re.MULTILINE
    )
    return [shlex.split(line.replace("2019-12-31", "2029-01-01"), comments=True) for line in lines]


def test_documented_forget_commands_run(paid: Program, set_clock: SetClock) -> None:
    by_date, by_person = shown_commands(ALONE)[:2], shown_commands(ALONE)[2:]
    summaries = [paid.json(*command) for command in by_person]
    assert [summary["exit_code"] for summary in summaries] == [0, 0, 0]
    assert [summary.get("payments") for summary in summaries] == [1, 1, None]
    set_clock(YEARS)
    summaries = [paid.json(*command) for command in by_date]
    assert [(summary["exit_code"], summary["payments"]) for summary in summaries] == [(0, 1), (0, 1)]
    assert not left_in(paid)


def begin_people(program: Program) -> None:
    program.config.write_text(f"{sandbox_toml()}\n{policy(program.home).replace('1000', '1000000')}")
    assert program.json("submit", program.sheet(kenyan_rows(2)))["states"] == {"paid": 2}


@pytest.fixture
def people(machine_cache: MachineCache) -> Program:
    return compares_with_nothing(machine_cache(begin_people))


def ordered(program: Program, *approvers: str) -> Path:
    order = program.home / "order.json"
    summary = program.json("order", "forget", "--person", NUMBER, "--out", order, "--key", program.home / "ada.pem")
    assert (summary["exit_code"], summary["payments"], summary["maker"]) == (0, 1, "ada")
    for name in approvers:
        assert program.json("approve", order, "--key", program.home / f"{name}.pem")["exit_code"] == 0
    return order


def test_approval_policy_requires_two_people_to_forget(people: Program) -> None:
    assert people.json("forget", "--person", NUMBER, "--yes", "--by", "Amina")["exit_code"] == 8
    assert people.json("carry-out", ordered(people))["exit_code"] == 8
    for wrong in (("--batch", batch_of(people)), ("--statement", "x.csv"), ("--out", "x.csv"), ("--force",)):
        assert people.json("carry-out", ordered(people), *wrong)["exit_code"] == 2
    assert left_in(people)


def test_approved_forget_order_can_be_used_once(people: Program) -> None:
    order = ordered(people, "cleo")
    assert NUMBER not in order.read_text()
    summary = people.json("carry-out", order, "--by", "Amina")
    assert (summary["exit_code"], summary["payments"]) == (0, 1)
    checked = people.json("verify")
    assert (checked["exit_code"], checked["checked"]["signed_orders"]) == (0, 1)
    assert people.json("carry-out", order)["payments"] == 0
    withdrawn = people.json("withdraw", order, "--key", people.home / "ada.pem")
    assert (withdrawn["exit_code"], "already been carried out" in withdrawn["message"]) == (8, True)


def test_documented_forget_order_works_with_two_people(
    people: Program, set_clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(people.home)
    set_clock(YEARS)
    summaries = [people.json(*command) for command in shown_commands(TOGETHER)]
    assert [summary["exit_code"] for summary in summaries] == [0, 0, 0]
    assert not left_in(people)


def test_withdrawn_forget_order_has_no_effect(people: Program) -> None:
    order = ordered(people, "cleo")
    assert people.json("withdraw", order, "--key", people.home / "cleo.pem")["exit_code"] == 0
    assert people.json("carry-out", order)["exit_code"] == 8
    assert left_in(people)


@pytest.mark.parametrize("change", ["instructions", "sha256", "before"])
def test_inconsistent_signed_forget_order_is_refused(people: Program, change: str) -> None:
    """The maker signed inconsistent content, although its batches and row numbers are correct."""
    order = ordered(people)
    document = json.loads(order.read_text())
    others = [3 - number for number in document["content"]["instructions"]]
    document["content"][change] = {"instructions": others, "sha256": "0" * 64, "before": "2029-01-01"}[change]
    read = ForgetOrder.model_validate_json(json.dumps({**document, "approvals": []}))
    write_document(sign_document(read, load_approval_key(people.home / "ada.pem", None)), order)
    assert people.json("approve", order, "--key", people.home / "cleo.pem")["exit_code"] == 0
    assert people.json("carry-out", order)["exit_code"] == 8
    assert people.json("find", NUMBER)["payments"]


def test_forget_order_is_valid_only_for_its_payments(people: Program) -> None:
    order = ordered(people, "cleo")
    second = ordered(people, "ben")
    assert people.json("carry-out", order)["payments"] == 1
    assert people.json("carry-out", second)["payments"] == 0
    other = people.home / "other.json"
    written = ("--out", other, "--key", people.home / "ada.pem")
    assert people.json("order", "forget", "--person", "254712345002", *written)["exit_code"] == 0
    text = other.read_text()
    other.write_text(text.replace('"rows": 1', '"rows": 2'))
    assert people.json("approve", other, "--key", people.home / "cleo.pem")["exit_code"] == 8
