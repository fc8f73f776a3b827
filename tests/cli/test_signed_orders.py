"""Orders of two people stay in the journal with their signatures, and `verify` holds them against the facts."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from paygw_batch.approval.policy import required_policy
from paygw_batch.approval.signed_document import (
    Approval,
    approval_text,
    approve_by_passkey,
    made_by_passkey,
    write_document,
)
from paygw_batch.clock import utc_now
from paygw_batch.errors import JournalCorrupt
from paygw_batch.journal import JournalReader
from paygw_batch.opening.open_journal import find_batch, journal_to_read
from paygw_batch.settings.configuration import Settings, load_settings
from paygw_batch.settle.kept_documents import check_kept_orders
from paygw_batch.settle.row_order import Decision, RowAct, RowOrder
from paygw_batch.settle.settle_rows import draft_order
from tests.cli.conftest import Kept
from tests.support.approving import policy
from tests.support.program import Program, kenyan_rows, sandbox_toml
from tests.support.software_passkey import CONSOLE, passkey

ADA, CLEO = passkey("p-ada"), passkey("r-cleo")
EVIDENCE = "Ticket 4711: the account was closed, and is open again"


def begin_rejected(program: Program) -> None:
    """A batch of which rows 2 and 3 are rejected, row 4 is in doubt, and 5 is paid; too small to need a plan."""
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
def rejected(kept: Kept) -> Program:
    return kept(begin_rejected)


def sheet_of(program: Program) -> Path:
    return program.home / "payroll.csv"


def order_of(program: Program) -> Path:
    return program.home / "order.json"


def settings_in(program: Program) -> Settings:
    return load_settings(program.config, environ=program.environ)


def ordered(program: Program, *approvers: str, rows: tuple[int, ...] = ()) -> dict[str, Any]:
    """Write ada's order to send rejected rows again, and have it approved."""
    named = [text for row in rows for text in ("--row", str(row))]
    written = ("--out", order_of(program), "--key", program.home / "ada.pem", "--evidence", EVIDENCE)
    made = program.json("order", "release", sheet_of(program), *named, *written)
    for name in approvers:
        assert program.json("approve", order_of(program), "--key", program.home / f"{name}.pem")["exit_code"] == 0
    return made


def carry_out(program: Program) -> dict[str, Any]:
    return program.json("carry-out", order_of(program))


def sent(program: Program) -> list[str]:
    return [line["client_orderid"] for line in program.record()]


# Withdrawals


@pytest.mark.parametrize("name", ["ada", "cleo"])
def test_withdrawn_release_order_is_not_carried_out(rejected: Program, name: str) -> None:
    ordered(rejected, "cleo", rows=(2,))
    before = sent(rejected)
    withdraw = ("withdraw", order_of(rejected), "--key")
    assert rejected.run(*withdraw, rejected.home / "stranger.pem").exit_code == 8
    assert rejected.run(*withdraw, rejected.home / f"{name}.pem").exit_code == 0
    assert carry_out(rejected)["exit_code"] == 8
    assert sent(rejected) == before
    ordered(rejected, "cleo", rows=(2,))
    assert carry_out(rejected)["released"] == 1, "a new order is another one"
    assert rejected.run(*withdraw, rejected.home / "cleo.pem").exit_code == 8, "it was carried out"
    assert rejected.json("verify")["checked"]["withdrawals"] == 1


# Releases


def test_release_order_works_once_naming_both_people(rejected: Program) -> None:
    made = ordered(rejected, "cleo", rows=(2,))
    assert (made["exit_code"], made["document"], [one["row"] for one in made["releases"]]) == (0, "order", [2])
    before = len(sent(rejected))
    done = carry_out(rejected)
    assert (done["released"], len(sent(rejected)) - before) == (1, 1)
    history = rejected.json("status", sheet_of(rejected), "--history")["history"]
    (deed,) = [one for one in history if one["what"] == "released"]
    assert deed["by"].endswith(f", by order {made['order_sha256']}, prepared by ada, approved by cleo")
    assert carry_out(rejected)["exit_code"] == 8
    assert len(sent(rejected)) - before == 1


def test_order_without_rows_names_all_rejected_rows(rejected: Program) -> None:
    assert [one["row"] for one in ordered(rejected)["releases"]] == [2, 3]


@pytest.mark.parametrize("approvers", [(), ("ada",)])
def test_release_order_needs_second_person(rejected: Program, approvers: tuple[str, ...]) -> None:
    ordered(rejected)
    for name in approvers:
        refused = rejected.json("approve", order_of(rejected), "--key", rejected.home / f"{name}.pem")
        assert refused["exit_code"] == 8
    before = sent(rejected)
    assert carry_out(rejected)["exit_code"] == 8
    assert sent(rejected) == before


def test_release_order_is_refused_after_new_attempt(rejected: Program) -> None:
    ordered(rejected, "cleo")
    assert rejected.json("retry", sheet_of(rejected), "--row", "3")["released"] == 1
    before = sent(rejected)
    told = carry_out(rejected)
    assert (told["exit_code"], "row 3 was rejected after attempt 1" in told["message"]) == (8, True)
    assert sent(rejected) == before


def test_row_in_doubt_cannot_be_released_by_order(rejected: Program) -> None:
    made = rejected.json(
        *("order", "release", sheet_of(rejected), "--row", "4", "--evidence", EVIDENCE),
        *("--out", order_of(rejected), "--key", rejected.home / "ada.pem"),
    )
    assert (made["exit_code"], order_of(rejected).exists()) == (2, False)


def test_approver_sees_rows_and_reason_of_order(rejected: Program) -> None:
    ordered(rejected, rows=(2,))
    shown = " ".join(rejected.run("approve", order_of(rejected)).stdout.split())
    for part in ("An order about 1 row of batch", "NO-1", "9,001.00", EVIDENCE, "Prepared by ada"):
        assert part in shown


def test_carry_out_refuses_options_of_other_orders(rejected: Program) -> None:
    ordered(rejected, "cleo", rows=(2,))
    before, other = sent(rejected), rejected.sheet(kenyan_rows(1, amount="7", prefix="OTHER"), "other.csv")
    assert rejected.json("submit", other)["exit_code"] == 0
    before = sent(rejected)
    for wrong in (("--statement", other), ("--batch", other), ("--out", other), ("--out", "x.xlsx", "--for-excel")):
        assert rejected.json("carry-out", order_of(rejected), *wrong)["exit_code"] == 2
    assert sent(rejected) == before
    out = rejected.home / "again.csv"
    told = rejected.json("carry-out", order_of(rejected), "--batch", sheet_of(rejected), "--out", out, "--for-excel")
    assert (told["released"], told["waiting"], told["reconciliation"]) == (1, 0, str(out))


def test_release_order_signed_by_passkeys_is_carried_out(rejected: Program) -> None:
    settings = settings_in(rejected)
    rules = required_policy(settings)
    with journal_to_read(settings) as journal:
        record = find_batch(journal, str(sheet_of(rejected)))
        draft = draft_order(settings, journal, record, [Decision(3, RowAct.RELEASE, EVIDENCE)], ADA.public)
    made = made_by_passkey(draft, ADA.sign(draft.signed_text()), rules)
    asked = approval_text(made, CLEO.public, rules, utc_now())
    assert asked.text.startswith(b"paygw-batch order 1 approval\n")
    approval = Approval(key=CLEO.public.text, approved_at=asked.approved_at, signature=CLEO.sign(asked.text))
    write_document(approve_by_passkey(made, approval, rules, utc_now()), order_of(rejected))
    assert carry_out(rejected)["released"] == 1
    assert rejected.json("verify")["checked"]["signed_orders"] == 1


# What the journal keeps


class ChangedJournal:
    """A journal that keeps other orders than the one it is made of: what a hostile hand would write."""

    def __init__(self, journal: JournalReader, orders: list[str]) -> None:
        self._journal = journal
        self._orders = orders

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def signed_orders(self, batch: str = "") -> Sequence[str]:
        return self._orders if batch else ()


def kept_in(program: Program) -> RowOrder:
    """Return the one signed order that the journal keeps."""
    with journal_to_read(settings_in(program)) as journal:
        (text,) = journal.signed_orders(journal.batches()[0].batch)
    return RowOrder.model_validate_json(text)


def check(program: Program, *orders: RowOrder) -> int:
    with journal_to_read(settings_in(program)) as journal:
        changed = ChangedJournal(journal, [one.model_dump_json() for one in orders])
        return check_kept_orders(cast("JournalReader", changed))


def test_verify_counts_orders_kept_in_journal(rejected: Program) -> None:
    assert "signed_orders" not in rejected.json("verify")["checked"]
    settlement = ("4", "--as", "not-received", "--evidence", "Ticket 1")
    key = ("--key", rejected.home / "ada.pem")
    rejected.json("order", "settle", sheet_of(rejected), *settlement, "--out", order_of(rejected), *key)
    rejected.json("approve", order_of(rejected), "--key", rejected.home / "cleo.pem")
    assert carry_out(rejected)["resolved"] == 1
    order_of(rejected).unlink()
    ordered(rejected, "cleo")
    carry_out(rejected)
    told = rejected.json("verify")
    assert (told["exit_code"], told["checked"]["signed_orders"]) == (0, 2)


def test_invalid_approval_is_not_stored_with_order(rejected: Program) -> None:
    ordered(rejected, "cleo", "ben")
    rejected.config.write_text(
        "\n".join(line for line in rejected.config.read_text().splitlines() if not line.startswith("ben = "))
    )
    assert carry_out(rejected)["released"] == 2
    assert len(kept_in(rejected).approvals) == 1
    assert rejected.json("verify")["exit_code"] == 0


def test_removing_person_keeps_old_order_valid(rejected: Program) -> None:
    ordered(rejected, "cleo")
    carry_out(rejected)
    text = rejected.config.read_text()
    for name in ("ada", "cleo"):
        new = f'{name} = "{passkey(f"p-new-{name}").public.text}"'
        text = "\n".join(new if line.startswith(f"{name} = ") else line for line in text.splitlines())
    rejected.config.write_text(text)
    assert rejected.json("verify")["checked"]["signed_orders"] == 1


def changed(order: RowOrder) -> Mapping[str, tuple[RowOrder, str]]:
    """Return the order with one thing changed, and the complaint about each."""
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


def test_verify_finds_changed_order_in_journal(rejected: Program) -> None:
    ordered(rejected, "cleo")
    carry_out(rejected)
    kept = kept_in(rejected)
    assert check(rejected, kept) == 1
    for other, complaint in changed(kept).values():
        with pytest.raises(JournalCorrupt, match=complaint):
            check(rejected, other)


def test_verify_finds_signed_order_without_facts(rejected: Program) -> None:
    """Two people signed it truly, and no fact came of it."""
    ordered(rejected, "cleo", rows=(2,))
    signed = RowOrder.model_validate_json(order_of(rejected).read_text())
    with pytest.raises(JournalCorrupt, match="0 of 1 decisions fit"):
        check(rejected, signed)


def test_verify_finds_changed_kept_order(rejected: Program) -> None:
    ordered(rejected, "cleo")
    carry_out(rejected)
    with closing(sqlite3.connect(rejected.journal)) as database:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'said'"
        for (name,) in database.execute(triggers).fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE said SET text = replace(text, '4711', '4712')")
        database.commit()
    assert rejected.json("verify")["exit_code"] == 7
