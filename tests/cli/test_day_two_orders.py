"""Orders of two people to settle rows or to send them again, kept in the journal, where `verify` checks them."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from paygw_batch.approval.policy import require_policy
from paygw_batch.approval.signed_document import (
    Approval,
    approval_text,
    approve_by_passkey,
    sign_by_passkey,
    write_document,
)
from paygw_batch.clock import utc_now
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal import JournalReader
from paygw_batch.opening.open_journal import find_batch, open_journal_to_read
from paygw_batch.settings.configuration import Settings, load_settings
from paygw_batch.settle.kept_documents import check_recorded_orders
from paygw_batch.settle.row_order import Decision, RowAct, RowOrder
from paygw_batch.settle.settle_rows import draft_order
from tests.cli.conftest import MachineCache
from tests.support.approving import policy
from tests.support.program import Program, kenyan_rows, sandbox_toml
from tests.support.software_passkey import CONSOLE, passkey

ADA, CLEO = passkey("p-ada"), passkey("r-cleo")
EVIDENCE = "Ticket 4711, answered by support on the phone"
AS_BEFORE = {"in_doubt": 2, "accepted": 1, "paid": 1, "rejected": 2}


def prepare_doubtful_batch(program: Program) -> None:
    """Pay a batch with rows 2 and 3 in doubt, row 4 accepted, 5 paid, 6 and 7 rejected, too small to need a plan."""
    people = policy(program.home).replace('KES = "1000"', 'KES = "1000000"')
    for name, key in (("ada", ADA), ("cleo", CLEO)):
        own = next(line for line in people.splitlines() if line.startswith(f"{name} = "))
        people = people.replace(own, f'{own.replace("= ", "= [")}, "{key.public.text}"]')
    text = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(f'{text}\n[console]\norigin = "{CONSOLE.origin}"\n{people}')
    rows = [
        *kenyan_rows(1, amount="9008", prefix="LOST"),
        *kenyan_rows(1, amount="9007", prefix="TAKEN"),
        *kenyan_rows(1, amount="9002", prefix="LATER"),
        *kenyan_rows(1, prefix="GOOD"),
        *kenyan_rows(2, amount="9001", prefix="NO"),
    ]
    assert program.json("submit", program.sheet(rows))["states"] == AS_BEFORE


@pytest.fixture
def program(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_doubtful_batch)


def order_path(program: Program) -> Path:
    return program.home / "order.json"


def key_path(program: Program, name: str) -> Path:
    return program.home / f"{name}.pem"


def resolve(program: Program, how: str, *arguments: str | Path) -> dict[str, Any]:
    return program.json("resolve", how, program.home / "payroll.csv", *arguments)


def write_settle_order(
    program: Program, *arguments: str | Path, maker: str = "ada", out: Path | None = None
) -> dict[str, Any]:
    written = ("--out", out or order_path(program), "--key", key_path(program, maker))
    return program.json("order", "settle", program.home / "payroll.csv", *arguments, *written)


def write_approved_order(program: Program, *approvers: str, row: int = 2, word: str = "not-received") -> Path:
    """Write Ada's order to settle a row, and have it approved."""
    settlement = (str(row), "--as", word, "--evidence", EVIDENCE)
    assert write_settle_order(program, *settlement)["exit_code"] == 0
    for name in approvers:
        assert program.json("approve", order_path(program), "--key", key_path(program, name))["exit_code"] == 0
    return order_path(program)


def carry_out(program: Program, *arguments: str | Path) -> dict[str, Any]:
    return program.json("carry-out", order_path(program), *arguments)


def read_states(program: Program) -> dict[str, int]:
    found: dict[str, int] = program.json("status", program.home / "payroll.csv")["states"]
    return found


def write_statement(program: Program, *lines: str) -> Path:
    path = program.home / "statement.csv"
    path.write_text("\n".join(["Order ID;Amount;Currency;Status", *lines]) + "\n")
    return path


# One person


@pytest.mark.parametrize(("row", "word"), [(2, "not-received"), (4, "rejected")])
def test_one_person_cannot_authorize_second_payment(program: Program, row: int, word: str) -> None:
    words = (str(row), "--as", word, "--evidence", EVIDENCE)
    result = program.run("resolve", "row", program.home / "payroll.csv", *words)
    error_output = " ".join(result.stderr.split())
    assert result.exit_code == 8
    for part in (
        f"This would allow row {row} to be paid again, so two people must agree. Nothing was settled.",
        "To write an order, run `paygw-batch order settle ",
        "--out ORDER.json --key KEY`.",
        "`paygw-batch approve ORDER.json --key KEY`",
        "Then carry it out with `paygw-batch carry-out ORDER.json`.",
    ):
        assert part in error_output
    assert read_states(program) == AS_BEFORE


def test_one_person_decides_without_approval_policy(program: Program) -> None:
    program.config.write_text(program.config.read_text().partition("[approval]")[0])
    assert resolve(program, "row", "2", "--as", "not-received", "--evidence", EVIDENCE)["resolved"] == 1
    refused = write_settle_order(program, "3", "--as", "rejected", "--evidence", EVIDENCE)
    assert (refused["exit_code"], "has no [approval]" in refused["message"]) == (2, True)


# Two people


def test_order_takes_effect_only_when_carried_out(program: Program) -> None:
    head = program.json("verify")
    write_approved_order(program, "cleo")
    assert read_states(program) == AS_BEFORE
    assert {**program.json("verify"), "seconds": 0} == {**head, "seconds": 0}


def test_approver_sees_rows_states_reasons_and_sums(program: Program) -> None:
    write_approved_order(program)
    result = program.run("approve", order_path(program), "--key", key_path(program, "cleo"))
    output = " ".join(result.stdout.split())
    parts = ("An order for 1 row of batch", "LOST-1", "doubt", "not-received", "9,008.00", "Ticket", "4711")
    for part in (*parts, "Prepared by ada at ", "Approved by cleo. The order has 1 of 1 required approval."):
        assert part in output


# One use, and only while it is up to date


def test_order_is_carried_out_once(program: Program) -> None:
    """The row is paid again and lost again; evidence about the first attempt says nothing about the second."""
    write_approved_order(program, "cleo")
    carry_out(program)
    again = carry_out(program)
    why = "row 2 was in doubt after attempt 1 and is now not sent yet after attempt 1"
    assert (again["exit_code"], why in again["message"]) == (8, True)
    assert program.json("resume", program.home / "payroll.csv")["states"] == AS_BEFORE
    again = carry_out(program)
    why = "row 2 was in doubt after attempt 1 and is now in doubt after attempt 2"
    assert (again["exit_code"], why in again["message"]) == (8, True)
    assert read_states(program) == AS_BEFORE


def test_outdated_order_changes_nothing(program: Program) -> None:
    rows = ("2", "3", "--as", "not-received", "--evidence", EVIDENCE)
    write_settle_order(program, *rows)
    program.json("approve", order_path(program), "--key", key_path(program, "cleo"))
    resolve(program, "row", "3", "--as", "paid", "--evidence", EVIDENCE)
    refused = carry_out(program)
    assert "row 3 was in doubt after attempt 1 and is now paid" in refused["message"]
    assert read_states(program) == {"in_doubt": 1, "accepted": 1, "paid": 2, "rejected": 2}


def test_order_releases_only_its_own_hold(program: Program) -> None:
    """A ready row stays ready when its hold is lifted, so the order must not work a second time."""

    def hold(word: str) -> int:
        statement = write_statement(program, f"LOST-1;9008;KES;{word}")
        return int(resolve(program, "statement", statement, "--yes")["held"])

    write_approved_order(program, "cleo")
    carry_out(program)
    assert hold("approved") == 1
    assert resolve(program, "row", "2", "--as", "not-received", "--evidence", EVIDENCE)["exit_code"] == 8
    write_approved_order(program, "cleo")
    assert carry_out(program)["resolved"] == 1
    assert carry_out(program)["exit_code"] == 8
    assert hold("processing") == 1
    again = carry_out(program)
    why = "row 2 is now held for a different reason than when the order was made"
    assert (again["exit_code"], why in again["message"]) == (8, True)


def test_order_for_another_journal_is_refused(program: Program) -> None:
    write_approved_order(program, "cleo")
    text = program.config.read_text()
    program.config.write_text(text.replace('"journal.sqlite3"', '"other.sqlite3"'))
    program.json("submit", program.home / "payroll.csv", "--out", program.home / "other.csv")
    refused = carry_out(program)
    assert (refused["exit_code"], "it is for the journal" in refused["message"]) == (8, False)
    assert "The order is for the journal " in refused["message"]


def test_order_is_refused_during_quarantine(program: Program) -> None:
    write_approved_order(program, "cleo")
    text = program.config.read_text()
    program.config.write_text(text.replace("quarantine_h = 0", "quarantine_h = 24"))
    refused = carry_out(program)
    assert (refused["exit_code"], "you can settle it as not received" in refused["message"]) == (2, True)
    settlement = ("3", "--as", "not-received", "--evidence", EVIDENCE)
    new = write_settle_order(program, *settlement, out=program.home / "new.json")
    assert new["exit_code"] == 2
    assert read_states(program) == AS_BEFORE


def test_expired_or_changed_order_is_refused(program: Program) -> None:
    write_approved_order(program, "cleo")
    text = program.config.read_text()
    program.config.write_text(text.replace("expires_h = 72", "expires_h = 0.000001"))
    assert "the approval by cleo expired at 20" in carry_out(program)["message"]
    program.config.write_text(text)
    document = json.loads(order_path(program).read_text())
    document["content"]["rows"][0]["row"] = 3
    order_path(program).write_text(json.dumps(document))
    assert "changed after its maker signed it" in carry_out(program)["message"]
    assert read_states(program) == AS_BEFORE


def test_plan_and_order_are_not_interchangeable(program: Program) -> None:
    write_approved_order(program, "cleo")
    sheet = program.sheet(kenyan_rows(2, amount="600000"), name="large.csv")
    refused = program.json("submit", sheet, "--plan", order_path(program))
    assert (refused["exit_code"], "is not a plan that this version can read" in refused["message"]) == (8, True)
    plan = program.home / "large.plan.json"
    program.json("plan", sheet, "--out", plan, "--key", key_path(program, "ada"))
    no_order = program.run("carry-out", plan)
    assert (no_order.exit_code, "`paygw-batch submit SHEET --plan PLAN`" in no_order.stderr) == (8, True)


def test_conflicting_order_options_are_refused(program: Program) -> None:
    settlement = ("2", "--as", "rejected", "--evidence", "x")
    for arguments in (
        settlement[:3],
        ("2", "--evidence", "x"),
        settlement[1:],
        (*settlement, "--again"),
        (*settlement, "--matching-only"),
        (*settlement, "--as-of", "2026-11-23"),
        ("2", "--as", "release", "--evidence", "x"),
        ("2", "--statement", "s.csv"),
        ("--as", "paid", "--statement", "s.csv"),
    ):
        assert write_settle_order(program, *arguments)["exit_code"] == 2, arguments
    assert write_settle_order(program, *settlement, out=program.home / "order.txt")["exit_code"] == 2
    sheet = program.home / "payroll.csv"
    assert program.run("order", "settle", sheet, *settlement, "--out", order_path(program)).exit_code == 2
    assert not order_path(program).exists()


def test_settle_order_is_carried_out_without_options(program: Program) -> None:
    write_approved_order(program, "cleo")
    program.json("submit", program.sheet(kenyan_rows(1, prefix="NEW", amount="5"), name="other.csv"))
    other = ("--batch", program.home / "other.csv")
    for wrong in (other, ("--out", "x.csv"), ("--out", "x.csv", "--for-excel"), ("--force",)):
        refused = carry_out(program, *wrong)
        assert (refused["exit_code"], "The order is about batch" in refused["message"]) == (2, wrong == other)
    assert read_states(program) == AS_BEFORE
    assert carry_out(program, "--batch", program.home / "payroll.csv")["resolved"] == 1


# Releases


def load_program_settings(program: Program) -> Settings:
    return load_settings(program.config, environ=program.environ)


def write_release_order(program: Program, *approvers: str, rows: tuple[int, ...] = ()) -> dict[str, Any]:
    """Write Ada's order to send rejected rows again, and have it approved."""
    named = [text for row in rows for text in ("--row", str(row))]
    written = ("--out", order_path(program), "--key", key_path(program, "ada"), "--evidence", EVIDENCE)
    summary = program.json("order", "release", program.home / "payroll.csv", *named, *written)
    for name in approvers:
        assert program.json("approve", order_path(program), "--key", key_path(program, name))["exit_code"] == 0
    return summary


def sent_order_ids(program: Program) -> list[str]:
    return [line["client_orderid"] for line in program.record()]


def test_release_order_is_refused_after_new_attempt(program: Program) -> None:
    order = write_release_order(program, "cleo")
    assert [release["row"] for release in order["releases"]] == [6, 7], "all rejected rows, because it names none"
    assert program.json("retry", program.home / "payroll.csv", "--row", "7")["released"] == 1
    before = sent_order_ids(program)
    summary = carry_out(program)
    assert (summary["exit_code"], "row 7 was rejected after attempt 1" in summary["message"]) == (8, True)
    assert sent_order_ids(program) == before


def test_approver_sees_rows_and_reason_of_order(program: Program) -> None:
    write_release_order(program, rows=(6,))
    output = " ".join(program.run("approve", order_path(program)).stdout.split())
    for part in ("An order for 1 row of batch", "NO-1", "9,001.00", EVIDENCE, "Prepared by ada"):
        assert part in output


def test_carry_out_refuses_options_of_other_orders(program: Program) -> None:
    write_release_order(program, "cleo", rows=(6,))
    other = program.sheet(kenyan_rows(1, amount="7", prefix="OTHER"), "other.csv")
    assert program.json("submit", other)["exit_code"] == 0
    before = sent_order_ids(program)
    for wrong in (("--statement", other), ("--batch", other), ("--out", other), ("--out", "x.xlsx", "--for-excel")):
        assert program.json("carry-out", order_path(program), *wrong)["exit_code"] == 2
    assert sent_order_ids(program) == before
    out = program.home / "again.csv"
    summary = program.json(
        "carry-out", order_path(program), "--batch", program.home / "payroll.csv", "--out", out, "--for-excel"
    )
    assert (summary["released"], summary["waiting"], summary["reconciliation"]) == (1, 0, str(out))


def test_release_order_signed_by_passkeys_is_carried_out(program: Program) -> None:
    settings = load_program_settings(program)
    rules = require_policy(settings)
    with open_journal_to_read(settings) as journal:
        record = find_batch(journal, str(program.home / "payroll.csv"))
        draft = draft_order(settings, journal, record, [Decision(7, RowAct.RELEASE, EVIDENCE)], ADA.public)
    order = sign_by_passkey(draft, ADA.sign(draft.signed_text()), rules)
    asked = approval_text(order, CLEO.public, rules, utc_now())
    assert asked.text.startswith(b"paygw-batch order 1 approval\n")
    approval = Approval(key=CLEO.public.text, approved_at=asked.approved_at, signature=CLEO.sign(asked.text))
    write_document(approve_by_passkey(order, approval, rules, utc_now()), order_path(program))
    assert carry_out(program)["released"] == 1
    assert program.json("verify")["checked"]["signed_orders"] == 1


# Orders in the journal


class ChangedJournal:
    """A journal with manipulated orders."""

    def __init__(self, journal: JournalReader, orders: list[str]) -> None:
        self._journal = journal
        self._orders = orders

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def signed_orders(self, batch: str = "") -> Sequence[str]:
        return self._orders if batch else ()


def stored_order(program: Program) -> RowOrder:
    """Return the only signed order in the journal."""
    with open_journal_to_read(load_program_settings(program)) as journal:
        (text,) = journal.signed_orders(journal.batches()[0].batch)
    return RowOrder.model_validate_json(text)


def check_orders(program: Program, *orders: RowOrder) -> int:
    with open_journal_to_read(load_program_settings(program)) as journal:
        changed = ChangedJournal(journal, [order.model_dump_json() for order in orders])
        return check_recorded_orders(cast("JournalReader", changed))


def test_verify_counts_stored_orders(program: Program) -> None:
    assert "signed_orders" not in program.json("verify")["checked"]
    settlement = ("2", "--as", "not-received", "--evidence", "Ticket 1")
    key = ("--key", program.home / "ada.pem")
    program.json("order", "settle", program.home / "payroll.csv", *settlement, "--out", order_path(program), *key)
    program.json("approve", order_path(program), "--key", program.home / "cleo.pem")
    assert carry_out(program)["resolved"] == 1
    order_path(program).unlink()
    write_release_order(program, "cleo")
    carry_out(program)
    summary = program.json("verify")
    assert (summary["exit_code"], summary["checked"]["signed_orders"]) == (0, 2)


def test_invalid_approval_is_not_stored_with_order(program: Program) -> None:
    write_release_order(program, "cleo", "ben")
    program.config.write_text(
        "\n".join(line for line in program.config.read_text().splitlines() if not line.startswith("ben = "))
    )
    assert carry_out(program)["released"] == 2
    assert len(stored_order(program).approvals) == 1
    assert program.json("verify")["exit_code"] == 0


def test_old_order_stays_valid_after_person_is_removed(program: Program) -> None:
    write_release_order(program, "cleo")
    carry_out(program)
    text = program.config.read_text()
    for name in ("ada", "cleo"):
        new = f'{name} = "{passkey(f"p-new-{name}").public.text}"'
        text = "\n".join(new if line.startswith(f"{name} = ") else line for line in text.splitlines())
    program.config.write_text(text)
    assert program.json("verify")["checked"]["signed_orders"] == 1


def changed_orders(order: RowOrder) -> Mapping[str, tuple[RowOrder, str]]:
    """Return the order with one change at a time, and the error for each."""
    content, (row, *others) = order.content, order.content.rows
    (approval,) = order.approvals
    unsigned = "is not signed with the keys"

    def with_content(**update: object) -> RowOrder:
        return order.model_copy(update={"content": content.model_copy(update=update)})

    return {
        "the reason": (with_content(rows=[row.model_copy(update={"evidence": "Ticket 4712"}), *others]), unsigned),
        "the batch": (with_content(batch="f" * 16), unsigned),
        "a row": (with_content(rows=[row.model_copy(update={"row": 5}), *others]), unsigned),
        "an attempt": (with_content(rows=[row.model_copy(update={"attempt": 2}), *others]), unsigned),
        "the maker": (order.model_copy(update={"maker": approval.key}), unsigned),
        "the time": (order.model_copy(update={"made_at": "2026-11-22T08:00:00.000Z"}), unsigned),
        "no approval": (order.model_copy(update={"approvals": []}), unsigned),
        "an approval twice": (order.model_copy(update={"approvals": [approval, approval]}), unsigned),
        "another's approval": (
            order.model_copy(update={"approvals": [approval.model_copy(update={"key": ADA.public.text})]}),
            unsigned,
        ),
    }


def test_order_check_finds_changed_order(program: Program) -> None:
    write_release_order(program, "cleo")
    signed = RowOrder.model_validate_json(order_path(program).read_text())
    with pytest.raises(JournalCorrupt, match="0 of 2 decisions agree"):  # It was never carried out.
        check_orders(program, signed)
    carry_out(program)
    kept = stored_order(program)
    assert check_orders(program, kept) == 1
    for other, complaint in changed_orders(kept).values():
        with pytest.raises(JournalCorrupt, match=complaint):
            check_orders(program, other)


def test_verify_finds_changed_stored_order(program: Program) -> None:
    write_release_order(program, "cleo")
    carry_out(program)
    with closing(sqlite3.connect(program.journal)) as database:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'said'"
        for (name,) in database.execute(triggers).fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE said SET text = replace(text, '4711', '4712')")
        database.commit()
    assert program.json("verify")["exit_code"] == 7
