"""Orders of two people are kept in the journal with their signatures, and `verify` checks them."""

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
EVIDENCE = "Ticket 4711: the account was closed, and is open again"


def prepare_rejected_batch(program: Program) -> None:
    """Pay a batch with rows 2 and 3 rejected, row 4 in doubt and row 5 paid, too small to need a plan."""
    people = policy(program.home).replace('KES = "1000"', 'KES = "1000000"')
    for name, key in (("ada", ADA), ("cleo", CLEO)):
        own = next(line for line in people.splitlines() if line.startswith(f"{name} = "))
        people = people.replace(own, f'{own.replace("= ", "= [")}, "{key.public.text}"]')
    text = sandbox_toml().replace("[submission]", "[submission]\nquarantine_h = 0")
    program.config.write_text(f'{text}\n[console]\norigin = "{CONSOLE.origin}"\n{people}')
    rows = [
        *kenyan_rows(2, amount="9001", prefix="NO"),
        *kenyan_rows(1, amount="9008", prefix="LOST"),
        *kenyan_rows(1, prefix="GOOD"),
    ]
    assert program.json("submit", program.sheet(rows))["states"] == {"in_doubt": 1, "paid": 1, "rejected": 2}


@pytest.fixture
def rejected_batch(machine_cache: MachineCache) -> Program:
    return machine_cache(prepare_rejected_batch)


def sheet_path(program: Program) -> Path:
    return program.home / "payroll.csv"


def order_path(program: Program) -> Path:
    return program.home / "order.json"


def load_program_settings(program: Program) -> Settings:
    return load_settings(program.config, environ=program.environ)


def write_approved_order(program: Program, *approvers: str, rows: tuple[int, ...] = ()) -> dict[str, Any]:
    """Write Ada's order to send rejected rows again, and have it approved."""
    named = [text for row in rows for text in ("--row", str(row))]
    written = ("--out", order_path(program), "--key", program.home / "ada.pem", "--evidence", EVIDENCE)
    summary = program.json("order", "release", sheet_path(program), *named, *written)
    for name in approvers:
        assert program.json("approve", order_path(program), "--key", program.home / f"{name}.pem")["exit_code"] == 0
    return summary


def carry_out(program: Program) -> dict[str, Any]:
    return program.json("carry-out", order_path(program))


def sent_order_ids(program: Program) -> list[str]:
    return [line["client_orderid"] for line in program.record()]


# Withdrawals


@pytest.mark.parametrize("name", ["ada", "cleo"])
def test_withdrawn_release_order_is_not_carried_out(rejected_batch: Program, name: str) -> None:
    write_approved_order(rejected_batch, "cleo", rows=(2,))
    before = sent_order_ids(rejected_batch)
    withdraw = ("withdraw", order_path(rejected_batch), "--key")
    assert rejected_batch.run(*withdraw, rejected_batch.home / "stranger.pem").exit_code == 8
    assert rejected_batch.run(*withdraw, rejected_batch.home / f"{name}.pem").exit_code == 0
    assert carry_out(rejected_batch)["exit_code"] == 8
    assert sent_order_ids(rejected_batch) == before
    write_approved_order(rejected_batch, "cleo", rows=(2,))
    assert carry_out(rejected_batch)["released"] == 1, "a new order is another one"
    assert rejected_batch.run(*withdraw, rejected_batch.home / "cleo.pem").exit_code == 8, "it was carried out"
    assert rejected_batch.json("verify")["checked"]["withdrawals"] == 1


# Releases


def test_release_order_works_once_naming_both_people(rejected_batch: Program) -> None:
    order = write_approved_order(rejected_batch, "cleo", rows=(2,))
    assert (order["exit_code"], order["document"], [release["row"] for release in order["releases"]]) == (
        0,
        "order",
        [2],
    )
    before = len(sent_order_ids(rejected_batch))
    summary = carry_out(rejected_batch)
    assert (summary["released"], len(sent_order_ids(rejected_batch)) - before) == (1, 1)
    history = rejected_batch.json("status", sheet_path(rejected_batch), "--history")["history"]
    (deed,) = [entry for entry in history if entry["what"] == "released"]
    assert deed["by"].endswith(f", by order {order['order_sha256']}, prepared by ada, approved by cleo")
    assert carry_out(rejected_batch)["exit_code"] == 8
    assert len(sent_order_ids(rejected_batch)) - before == 1


def test_order_without_rows_covers_all_rejected_rows(rejected_batch: Program) -> None:
    assert [release["row"] for release in write_approved_order(rejected_batch)["releases"]] == [2, 3]


@pytest.mark.parametrize("approvers", [(), ("ada",)])
def test_release_order_needs_second_person(rejected_batch: Program, approvers: tuple[str, ...]) -> None:
    write_approved_order(rejected_batch)
    for name in approvers:
        refused = rejected_batch.json(
            "approve", order_path(rejected_batch), "--key", rejected_batch.home / f"{name}.pem"
        )
        assert refused["exit_code"] == 8
    before = sent_order_ids(rejected_batch)
    assert carry_out(rejected_batch)["exit_code"] == 8
    assert sent_order_ids(rejected_batch) == before


def test_release_order_is_refused_after_new_attempt(rejected_batch: Program) -> None:
    write_approved_order(rejected_batch, "cleo")
    assert rejected_batch.json("retry", sheet_path(rejected_batch), "--row", "3")["released"] == 1
    before = sent_order_ids(rejected_batch)
    summary = carry_out(rejected_batch)
    assert (summary["exit_code"], "row 3 was rejected after attempt 1" in summary["message"]) == (8, True)
    assert sent_order_ids(rejected_batch) == before


def test_row_in_doubt_cannot_be_released_by_order(rejected_batch: Program) -> None:
    summary = rejected_batch.json(
        *("order", "release", sheet_path(rejected_batch), "--row", "4", "--evidence", EVIDENCE),
        *("--out", order_path(rejected_batch), "--key", rejected_batch.home / "ada.pem"),
    )
    assert (summary["exit_code"], order_path(rejected_batch).exists()) == (2, False)


def test_approver_sees_rows_and_reason_of_order(rejected_batch: Program) -> None:
    write_approved_order(rejected_batch, rows=(2,))
    output = " ".join(rejected_batch.run("approve", order_path(rejected_batch)).stdout.split())
    for part in ("An order about 1 row of batch", "NO-1", "9,001.00", EVIDENCE, "Prepared by ada"):
        assert part in output


def test_carry_out_refuses_options_of_other_orders(rejected_batch: Program) -> None:
    write_approved_order(rejected_batch, "cleo", rows=(2,))
    before, other = (
        sent_order_ids(rejected_batch),
        rejected_batch.sheet(kenyan_rows(1, amount="7", prefix="OTHER"), "other.csv"),
    )
    assert rejected_batch.json("submit", other)["exit_code"] == 0
    before = sent_order_ids(rejected_batch)
    for wrong in (("--statement", other), ("--batch", other), ("--out", other), ("--out", "x.xlsx", "--for-excel")):
        assert rejected_batch.json("carry-out", order_path(rejected_batch), *wrong)["exit_code"] == 2
    assert sent_order_ids(rejected_batch) == before
    out = rejected_batch.home / "again.csv"
    summary = rejected_batch.json(
        "carry-out", order_path(rejected_batch), "--batch", sheet_path(rejected_batch), "--out", out, "--for-excel"
    )
    assert (summary["released"], summary["waiting"], summary["reconciliation"]) == (1, 0, str(out))


def test_release_order_signed_by_passkeys_is_carried_out(rejected_batch: Program) -> None:
    settings = load_program_settings(rejected_batch)
    rules = require_policy(settings)
    with open_journal_to_read(settings) as journal:
        record = find_batch(journal, str(sheet_path(rejected_batch)))
        draft = draft_order(settings, journal, record, [Decision(3, RowAct.RELEASE, EVIDENCE)], ADA.public)
    order = sign_by_passkey(draft, ADA.sign(draft.signed_text()), rules)
    asked = approval_text(order, CLEO.public, rules, utc_now())
    assert asked.text.startswith(b"paygw-batch order 1 approval\n")
    approval = Approval(key=CLEO.public.text, approved_at=asked.approved_at, signature=CLEO.sign(asked.text))
    write_document(approve_by_passkey(order, approval, rules, utc_now()), order_path(rejected_batch))
    assert carry_out(rejected_batch)["released"] == 1
    assert rejected_batch.json("verify")["checked"]["signed_orders"] == 1


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


def test_verify_counts_orders_kept_in_journal(rejected_batch: Program) -> None:
    assert "signed_orders" not in rejected_batch.json("verify")["checked"]
    settlement = ("4", "--as", "not-received", "--evidence", "Ticket 1")
    key = ("--key", rejected_batch.home / "ada.pem")
    rejected_batch.json(
        "order", "settle", sheet_path(rejected_batch), *settlement, "--out", order_path(rejected_batch), *key
    )
    rejected_batch.json("approve", order_path(rejected_batch), "--key", rejected_batch.home / "cleo.pem")
    assert carry_out(rejected_batch)["resolved"] == 1
    order_path(rejected_batch).unlink()
    write_approved_order(rejected_batch, "cleo")
    carry_out(rejected_batch)
    summary = rejected_batch.json("verify")
    assert (summary["exit_code"], summary["checked"]["signed_orders"]) == (0, 2)


def test_invalid_approval_is_not_stored_with_order(rejected_batch: Program) -> None:
    write_approved_order(rejected_batch, "cleo", "ben")
    rejected_batch.config.write_text(
        "\n".join(line for line in rejected_batch.config.read_text().splitlines() if not line.startswith("ben = "))
    )
    assert carry_out(rejected_batch)["released"] == 2
    assert len(stored_order(rejected_batch).approvals) == 1
    assert rejected_batch.json("verify")["exit_code"] == 0


def test_old_order_survives_removal_of_person(rejected_batch: Program) -> None:
    write_approved_order(rejected_batch, "cleo")
    carry_out(rejected_batch)
    text = rejected_batch.config.read_text()
    for name in ("ada", "cleo"):
        new = f'{name} = "{passkey(f"p-new-{name}").public.text}"'
        text = "\n".join(new if line.startswith(f"{name} = ") else line for line in text.splitlines())
    rejected_batch.config.write_text(text)
    assert rejected_batch.json("verify")["checked"]["signed_orders"] == 1


def changed_orders(order: RowOrder) -> Mapping[str, tuple[RowOrder, str]]:
    """Return the order with one change at a time, and the error for each."""
    content, (row, *others) = order.content, order.content.rows
    (approval,) = order.approvals
    unsigned = "is not signed by the keys"

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


def test_verify_finds_changed_order_in_journal(rejected_batch: Program) -> None:
    write_approved_order(rejected_batch, "cleo")
    carry_out(rejected_batch)
    kept = stored_order(rejected_batch)
    assert check_orders(rejected_batch, kept) == 1
    for other, complaint in changed_orders(kept).values():
        with pytest.raises(JournalCorrupt, match=complaint):
            check_orders(rejected_batch, other)


def test_verify_finds_signed_order_without_facts(rejected_batch: Program) -> None:
    """Two people really signed it, but it was never carried out."""
    write_approved_order(rejected_batch, "cleo", rows=(2,))
    signed = RowOrder.model_validate_json(order_path(rejected_batch).read_text())
    with pytest.raises(JournalCorrupt, match="0 of 1 decisions fit"):
        check_orders(rejected_batch, signed)


def test_verify_finds_changed_kept_order(rejected_batch: Program) -> None:
    write_approved_order(rejected_batch, "cleo")
    carry_out(rejected_batch)
    with closing(sqlite3.connect(rejected_batch.journal)) as database:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'said'"
        for (name,) in database.execute(triggers).fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE said SET text = replace(text, '4711', '4712')")
        database.commit()
    assert rejected_batch.json("verify")["exit_code"] == 7
