"""Tests settling rows and trying them again on the pages, by one or two people."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from paygw_batch.console.pages.orders import (
    OrderAgreement,
    OrderFolder,
    StatementFolder,
    UploadedStatement,
    find_order_folder,
    statement_folders,
)
from paygw_batch.console.start_run import last_run
from paygw_batch.console.visits import Visit
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.journal import Entry
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal
from paygw_batch.opening.open_journal import open_journal_to_read
from paygw_batch.settle.kept_documents import check_recorded_orders
from tests.console.checking import check_in_process
from tests.console.french import choose_language, page_texts, template_sentences
from tests.console.preparing import waive_approval
from tests.console.settling import DECLINES, PAYS, TICKET, draft_order, pay_rows, settle
from tests.support.clocks import SetClock, shifted_clock
from tests.support.clusters import ClusterProgram
from tests.support.journal_rows import outcome_of
from tests.support.patience import wait_until
from tests.support.people import (
    APPROVER,
    AUDITOR,
    MAKER,
    ORIGIN,
    House,
    Person,
    audit_entries,
    create_sandbox,
    parse_forms,
)
from tests.support.postgres_server import PostgresServer

DAY = timedelta(hours=25)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return shifted_clock(monkeypatch)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(create_sandbox(tmp_path, behaviour=DECLINES))
    waive_approval(house.program)
    house = House(house.program)
    yield house
    house.console.sessions.close()


def hidden_value(page: str, name: str) -> str:
    match = re.search(rf'name="{name}" value="([^"]*)"', page)
    return "" if match is None else match.group(1)


def send_order_form(person: Person, order: str, path_end: str, **form: str) -> int:
    """Send a form of an order's current page and return the status."""
    fields = {"digest": hidden_value(person.get(order).text, "digest"), **form}
    return person.post(f"{order}/{path_end}", **fields).status_code


def row_state(person: Person, batch: str, row: int) -> str:
    match = re.search(r'<span class="state (\w+)">', person.get(f"/payouts/{batch}/rows/{row}").text)
    assert match is not None
    return match[1]


def recorded_orders(house: House) -> int:
    with open_journal_to_read(house.console.settings) as journal:
        return check_recorded_orders(journal)


# Settling by one person


def test_single_person_settles_row_as_paid_once(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00", "100.00")
    assert "Settle it" in ada.get(f"/payouts/{batch}/rows/2").text
    assert "Settle it" not in ada.get(f"/payouts/{batch}/rows/3").text
    assert "Settle it" not in house.person(AUDITOR).get(f"/payouts/{batch}/rows/2").text
    page = ben.get(f"/payouts/{batch}/rows/2/settle").text
    assert "What did the gateway say about order P-1?" in page
    assert "There is nothing to settle for this row." in ben.get(f"/payouts/{batch}/rows/3/settle").text
    assert ben.get(f"/payouts/{batch}/rows/9/settle").status_code == 404
    for said, evidence, attempt in (
        ("", TICKET, "1"),
        ("released", TICKET, "1"),
        ("paid", "  ", "1"),
        ("paid", TICKET, "2"),
        ("paid", TICKET, ""),
    ):
        assert settle(ben, batch, 2, said, evidence, attempt)[0] == "409"
    assert settle(ben, batch, 3, "paid")[0] == "409"
    assert settle(house.person(AUDITOR), batch, 2, "paid")[0] == "403"
    assert row_state(ben, batch, 2) == "in_doubt"
    assert settle(ben, batch, 2, "paid") == ("303", f"/payouts/{batch}/rows/2")
    assert settle(ben, batch, 2, "paid") == ("303", f"/payouts/{batch}/rows/2")  # This is a second click.
    assert settle(ben, batch, 2, "paid", "Another ticket")[0] == "409"
    assert settle(house.person(MAKER), batch, 2, "paid")[0] == "409"
    page = ben.get(f"/payouts/{batch}/rows/2").text
    assert page.count("Settled as paid") == 1
    assert "Ticket 7 &lt;b&gt;" in page
    assert house.program.json("verify")["exit_code"] == 0


def test_row_being_sent_is_not_settled(house: House, ada: Person) -> None:
    batch = pay_rows(house, "9006.00")
    lock = RunLock(lock_path(house.console.settings.journal_path()), now="2026-11-22T00:00:00.000Z", command="submit")
    try:
        assert "A payout is running." in ada.get(f"/payouts/{batch}/rows/2/settle").text
        assert settle(ada, batch, 2, "paid")[0] == "409"
    finally:
        lock.close()
    assert row_state(ada, batch, 2) == "in_doubt"


def test_row_answered_during_settling_is_not_settled(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pay_rows(house, "9006.00")
    written = SqliteJournal.settle

    def overtaken(journal: SqliteJournal, entries: Sequence[Entry], **named: object) -> None:
        journal.append([outcome_of(entry.instruction, entry.attempt, OutcomeKind.PAID, entry.at) for entry in entries])
        written(journal, entries, **named)  # type: ignore[arg-type]  # as they were given

    ben = house.person(APPROVER)
    monkeypatch.setattr(SqliteJournal, "settle", overtaken)
    status, page = settle(ben, batch, 2, "paid")
    assert status == "409"
    assert "Row 2 is paid now: the gateway&#39;s answer arrived at the same moment. Nothing was settled." in page
    assert row_state(ben, batch, 2) == "paid"
    assert "Settled as paid" not in ben.get(f"/payouts/{batch}/rows/2").text


# Settling by two people


def test_not_received_needs_quarantine_and_two_people(
    house: House, ada: Person, ben: Person, set_clock: SetClock
) -> None:
    batch = pay_rows(house, "9008.00")
    page = ada.get(f"/payouts/{batch}/rows/2/settle").text
    assert re.search(r'value="not-received" required disabled>.*?Not before \d+ \w+ \d{4}, \d\d:\d\d UTC', page)
    status, answer = settle(ada, batch, 2, "not-received")
    assert (status, "settle it as not received from" in answer) == ("409", True)
    set_clock(DAY)
    assert "disabled" not in ada.get(f"/payouts/{batch}/rows/2/settle").text
    assert settle(ben, batch, 2, "not-received")[0] == "403"  # Only a maker can be the first of two people.
    order = draft_order(ada, batch, 2, "not-received")
    shown = hidden_value(ada.get(order).text, "digest")
    assert draft_order(ada, batch, 2, "not-received") == order  # This is a second click.
    assert "Two people are settling it" in ben.get(f"/payouts/{batch}/rows/2").text
    assert send_order_form(ada, order, "sign") == 303
    assert row_state(ada, batch, 2) == "in_doubt"
    assert send_order_form(ben, order, "agree") == 303
    assert row_state(ada, batch, 2) == "ready"
    assert recorded_orders(house) == 1
    for what in ("agree", "carry-out"):  # This is a second click.
        assert ben.post(f"{order}/{what}", digest=shown).headers["location"] == order
        assert ben.post(f"{order}/{what}", digest="0").status_code == 409
    assert ben.get(order).headers["location"] == f"/payouts/{batch}"
    assert recorded_orders(house) == 1
    assert house.program.json("verify")["exit_code"] == 0


def test_overview_asks_only_second_person(house: House) -> None:
    text = house.program.config.read_text()
    key = re.findall(rf'"{MAKER}" = "(\S+)"', text)[0]
    house.program.config.write_text(
        text.replace("[approval.approvers]\n", f'[approval.approvers]\n"{MAKER}" = "{key}"\n')
    )
    house = House(house.program)
    batch = pay_rows(house, "9006.00")
    ada, ben = house.person(MAKER), house.person(APPROVER)
    order = draft_order(ada, batch, 2)

    def tasks_of(person: Person) -> str:
        return person.get("/").text.partition("<h2>Being settled or retried</h2>")[0]

    assert "You have not signed this order yet: Settle 1 row." in tasks_of(ada)
    assert order not in tasks_of(ben)
    assert send_order_form(ben, order, "sign") == 403
    assert send_order_form(ada, order, "sign", digest="0" * 64) == 409
    assert send_order_form(ada, order, "sign") == 303
    assert send_order_form(ada, order, "sign") == 303  # This is a second click.
    assert order not in tasks_of(ada)
    assert f"{MAKER} asks you to agree: Settle 1 row." in tasks_of(ben)
    assert send_order_form(ada, order, "agree") == 403
    assert "another person must agree" in ada.get(order).text
    assert send_order_form(ben, order, "agree", digest="0" * 64) == 409
    assert send_order_form(ben, order, "carry-out") == 409
    assert send_order_form(ben, order, "take-back") == 403
    assert row_state(ben, batch, 2) == "in_doubt"
    assert send_order_form(ben, order, "agree") == 303
    assert row_state(ben, batch, 2) == "rejected"
    history = ben.get(f"/payouts/{batch}").text
    assert f"prepared by {MAKER}, approved by {APPROVER}" in history
    assert f"asked for by {MAKER}, approved by {APPROVER}: Ticket 7 &lt;b&gt;" in history
    (link,) = re.findall(r'<a href="([^"]+)">What was approved</a>', history)
    seen = house.person(AUDITOR).get(link).text
    assert "This was carried out." in seen
    assert re.search(rf"Agreed</dt><dd><bdi>{APPROVER}</bdi>, \d+ \w+ \d{{4}}", seen)
    assert {action for action, _ in parse_forms(seen)} <= {"/sign-out", "/language"}


def test_returned_order_loses_signature(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    send_order_form(ada, order, "sign")
    assert send_order_form(ben, order, "send-back", reason=" ") == 409
    assert send_order_form(ada, order, "send-back", reason="My own") == 403
    shown = hidden_value(ben.get(order).text, "digest")
    assert send_order_form(ben, order, "send-back", reason="It is another ticket <b>") == 303
    assert send_order_form(ben, order, "send-back", reason="It is another ticket <b>") == 303  # This is a second click.
    assert f"Sent back by {APPROVER}: It is another ticket &lt;b&gt;" in ada.get("/").text
    with open_journal_to_read(house.console.settings) as journal:
        assert [(withdrawal.sha256, withdrawal.by) for withdrawal in journal.withdrawals()] == [(shown, APPROVER)]
    assert send_order_form(ben, order, "agree", digest=shown) == 409
    assert send_order_form(ada, order, "sign") == 409
    assert row_state(ada, batch, 2) == "in_doubt"
    assert send_order_form(ada, order, "take-back") == 303
    assert ada.get(order).status_code == 404
    again = draft_order(ada, batch, 2)
    assert again != order
    assert recorded_orders(house) == 0


def test_order_about_changed_row_is_never_carried_out(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    send_order_form(ada, order, "sign")
    digest = hidden_value(ben.get(order).text, "digest")
    settle(ben, batch, 2, "paid")
    answer = ben.post(f"{order}/agree", digest=digest)
    assert (answer.status_code, "row 2 was in doubt after attempt 1, and is paid after attempt 1" in answer.text) == (
        409,
        True,
    )
    assert "It can no longer be carried out" in ada.get(order).text
    assert "A row has changed since you signed." in ada.get("/").text
    assert row_state(ada, batch, 2) == "paid"
    assert send_order_form(ada, order, "take-back") == 303


def test_order_approved_during_run_waits_for_end(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    send_order_form(ada, order, "sign")
    lock = RunLock(lock_path(house.console.settings.journal_path()), now="2026-11-22T00:00:00.000Z", command="submit")
    try:
        assert send_order_form(ben, order, "agree") == 303
        assert "Rows can be settled when it finishes." in ben.get(order).text
        assert send_order_form(ada, order, "carry-out") == 409
    finally:
        lock.close()
    assert "Agreed: it can be carried out. Settle 1 row." in ada.get("/").text
    assert send_order_form(house.person(AUDITOR), order, "carry-out") == 403
    assert send_order_form(ada, order, "carry-out") == 303
    assert row_state(ada, batch, 2) == "rejected"


def test_order_removed_during_listing_is_skipped(house: House, ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pay_rows(house, "9006.00", "9006.10")
    kept, gone = draft_order(ada, batch, 2), draft_order(ada, batch, 3)
    order_folder = find_order_folder(house.console.directory / "orders", gone.rpartition("/")[2])
    assert order_folder is not None
    check_page = OrderAgreement.__init__

    def remove_first_order(agreement: OrderAgreement, visit: Visit, folder: OrderFolder) -> None:
        if folder.number == order_folder.number:
            order_folder.remove()
        check_page(agreement, visit, folder)

    monkeypatch.setattr(OrderAgreement, "__init__", remove_first_order)
    page = ada.get("/")
    assert (page.status_code, kept in page.text, gone in page.text) == (200, True, False)


def test_settling_actions_are_audited_without_personal_data(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    send_order_form(ben, order, "sign")
    send_order_form(ada, order, "sign")
    send_order_form(ben, order, "agree")
    number = order.rpartition("/")[2]
    assert audit_entries(house)[2:] == [
        (MAKER, "settle row", f"batch {batch}, row 2", "done"),
        (APPROVER, "sign order", f"order {number}", "refused"),
        (MAKER, "sign order", f"order {number}", "done"),
        (APPROVER, "agree to order", f"order {number}", "done"),
    ]
    assert house.program.json("verify")["exit_code"] == 0


def test_signed_order_matches_shown_order(house: House, ada: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    page = ada.get(order).text
    text = (house.console.directory / "orders" / order.rpartition("/")[2] / "draft.json").read_text()
    for figure in re.findall(r'<td class="number">(?:[A-Z]{3} )?([\d\u202f]+\.\d\d)</td>', page):
        plain = figure.replace("\u202f", "")
        assert f'"{plain}"' in text
    assert "Ticket 7 &lt;b&gt;" in page
    send_order_form(ada, order, "sign")
    digest = hidden_value(house.person(APPROVER).get(order).text, "digest")
    code = " ".join(digest[at : at + 4] for at in range(0, 16, 4))
    assert f'<span class="code">{code}</span>' in house.person(APPROVER).get(order).text


# Rejected rows


def choose_rows(person: Person, batch: str, *boxes: str, evidence: str = TICKET) -> Sequence[str]:
    answer = person.post(f"/payouts/{batch}/retry", evidence=evidence, **dict.fromkeys(boxes, "on"))
    return str(answer.status_code), answer.headers.get("location", answer.text)


def test_rejected_rows_are_grouped_by_reason(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9001.00", "9001.50", "9002.00", "100.00", "9006.00")
    page = ada.get(f"/payouts/{batch}/retry").text
    closed, reached = (page.index(text) for text in ("The account is closed.", "The limit of the day is reached."))
    assert closed < reached  # The most frequent reason comes first.
    assert "KES 18\u202f002.50" in page
    assert "Jane 4" not in page
    key = re.findall(r'name="reason-(\w+)"', page)
    only = ada.get(f"/payouts/{batch}/retry?reason={key[1]}").text
    assert ("Jane 3" in only, "Jane 1" in only) == (True, False)
    assert choose_rows(ada, batch)[0] == "409"
    status, page = choose_rows(ada, batch, "row-2", evidence="")
    assert (status, "checked" in page.partition('name="row-2"')[2].partition(">")[0]) == ("409", True)
    for boxes in (("row-5",), ("row-6",), ("row-99",), ("row-2", "row-6")):  # These are paid, in doubt, missing.
        assert choose_rows(ada, batch, *boxes)[0] == "409"
    assert choose_rows(house.person(APPROVER), batch, "row-2")[0] == "403"
    status, order = choose_rows(ada, batch, f"reason-{key[0]}", "row-4")
    assert status == "303"
    assert choose_rows(ada, batch, f"reason-{key[0]}", "row-4")[1] == order  # This is a second click.
    page = ada.get(order).text
    assert "Try 3 rejected rows again" in page
    assert "27\u202f004.50" in page
    assert "Some of these rows are in an open order." in ada.get(f"/payouts/{batch}/retry").text
    assert [send_order_form(ada, order, "sign"), send_order_form(ben, order, "agree")] == [303] * 2
    assert "Start the payout (KES 27\u202f004.50)</button>" in ben.get(order).text
    assert send_order_form(ben, order, "carry-out") == 303
    run = last_run(house.console.runs, batch)
    assert run is not None
    wait_until(lambda: not run.is_alive, "the run does not end")
    page = ada.get(f"/payouts/{batch}").text
    ((rows, said),) = re.findall(r"<strong>To be tried again</strong> \((.*?)\)<span>(.*?)</span>", page)
    assert rows == "3 rows"
    assert f"asked for by {MAKER}, approved by {APPROVER}: Ticket 7 &lt;b&gt;" in said


def test_retry_page_pages_rejected_rows(house: House, ada: Person) -> None:
    batch = pay_rows(house, *["9001.00", "9002.00"] * 14)
    first = ada.get(f"/payouts/{batch}/retry").text
    second = ada.get(f"/payouts/{batch}/retry?after=26").text
    rows = [int(number) for number in re.findall(r'name="row-(\d+)"', first + second)]
    assert rows == list(range(2, 30))
    assert ("Next page" in first, "Next page" in second) == (True, False)
    none = str(
        house.program.json("submit", house.program.sheet(["KE,Q-1,5.00,KES,Ann,254712345777,+254712345777"], "b.csv"))[
            "batch"
        ]
    )
    assert "No row of this payout is rejected." in ada.get(f"/payouts/{none}/retry").text


def test_row_rejected_by_person_waits_for_quarantine(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00", "9001.00")
    order = draft_order(ada, batch, 2)
    send_order_form(ada, order, "sign")
    send_order_form(ben, order, "agree")
    page = ada.get(f"/payouts/{batch}/retry").text
    assert re.search(r'name="row-2"[^>]* disabled', page)
    assert "You can retry it after" in page
    status, answer = choose_rows(ada, batch, "row-2")
    assert (status, "Only a person reported that row 2 was rejected" in answer) == ("409", True)


# Statements


def upload_statement(person: Person, batch: str, *lines: str, heading: str = "Order ID,Amount,Currency,Answer") -> str:
    """Upload a statement and return the address of its preview."""
    content = "\n".join([heading, *lines]).encode()
    answer = person.upload(f"/payouts/{batch}/statement", "answers.csv", content, words="By mail")
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def carry_out(person: Person, place: str, code: str | None = None) -> Sequence[str]:
    sent_code = hidden_value(person.get(place).text, "code") if code is None else code
    answer = person.post(f"{place}/carry-out", code=sent_code)
    return str(answer.status_code), answer.headers.get("location", answer.text)


@pytest.fixture
def doubtful(house: House, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a batch with rows 2 to 5 in doubt, 6 rejected and 7 paid."""
    check_in_process(monkeypatch)
    return pay_rows(house, "9006.00", "9006.10", "9008.20", "9006.30", "9001.00", "100.00")


PAID = "P-1,9006.00,KES,paid"
CONTRARY = "P-5,9001.00,KES,paid"


def test_question_download_contains_orders_but_no_people(house: House, ada: Person, doubtful: str) -> None:
    listed = ada.get(f"/payouts/{doubtful}/questions.csv")
    assert listed.headers["content-disposition"] == 'attachment; filename="payroll.questions.csv"'
    assert [line.split(",")[0] for line in listed.text.splitlines()] == ["order_id", "P-1", "P-2", "P-3", "P-4"]
    assert "Jane" not in listed.text
    assert "254712" not in listed.text
    assert ada.get(f"/payouts/{doubtful}/questions.xlsx").content.startswith(b"PK")
    assert ada.get(f"/payouts/{doubtful}/questions.html").status_code == 404
    assert house.person(AUDITOR).get(f"/payouts/{doubtful}/questions.csv").status_code == 403
    assert not list(house.console.directory.glob(".download-*"))
    assert (MAKER, "download questions", f"batch {doubtful}, ending csv", "done") in audit_entries(house)


def test_paid_statement_is_applied_once_by_single_person(house: House, ada: Person, ben: Person, doubtful: str) -> None:
    place = upload_statement(
        ben, doubtful, PAID, "P-2,9006.10,KES,", "P-6,100.00,KES,paid", CONTRARY, "X-9,1.00,KES,paid"
    )
    page = ben.get(place).text
    assert "2 lines do not match" in page
    for count, what in ((1, "It was paid"), (2, "do not match"), (1, "agree with the journal"), (1, "not decided yet")):
        assert f"<b>{count}</b>{what}" in page
    assert "<b>3</b>stay in doubt" in page
    differs = ben.get(f"{place}?show=differs").text
    assert "Row 6 is rejected in the journal, and paid in the statement." in differs
    assert "The journal has no order X-9" in differs
    silent = ben.get(f"{place}?show=silent").text
    assert "P-3" in silent
    for shown in (page, silent):  # Both show person and amount with the order id.
        assert re.search(r'<bdi>[A-Z][\w ]+</bdi></td><td class="number sum">KES [\d\u202f]+\.\d\d</td>', shown)
    assert ben.get(f"{place}?show=nothing").status_code == 404
    assert carry_out(ben, place, "0" * 16)[0] == "409"
    assert carry_out(house.person(AUDITOR), place, "0" * 16)[0] == "403"
    assert row_state(ada, doubtful, 2) == "in_doubt"
    code = hidden_value(ben.get(place).text, "code")
    assert carry_out(ben, place) == ("303", f"/payouts/{doubtful}")
    assert carry_out(ben, place, code) == ("303", f"/payouts/{doubtful}")  # This is a second click.
    assert [row_state(ada, doubtful, row) for row in (2, 3, 6)] == ["paid", "in_doubt", "rejected"]
    assert ada.get(f"/payouts/{doubtful}").text.count("Settled as paid") == 1
    assert "By mail (Statement answers.csv" in ada.get(f"/payouts/{doubtful}").text
    again = ada.get(
        upload_statement(ada, doubtful, PAID, "P-2,9006.10,KES,", "P-6,100.00,KES,paid", CONTRARY, "X-9,1.00,KES,paid")
    )
    assert "was already applied to this batch at" in again.text
    assert "Settle 1 row" not in again.text


def test_contradicted_row_is_held_and_never_sent(house: House, ada: Person, doubtful: str) -> None:
    place = upload_statement(ada, doubtful, CONTRARY)
    assert "It will be held." in ada.get(place).text
    assert carry_out(ada, place)[0] == "303"
    before = house.program.record()
    (house.program.home / "behaviour.toml").write_text(PAYS)
    assert house.program.json("retry", doubtful)["released"] == 1
    assert house.program.record() == before
    assert "A message from the gateway contradicts this row" in ada.get(f"/payouts/{doubtful}/rows/6").text
    assert "It was paid" in ada.get(f"/payouts/{doubtful}/rows/6/settle").text
    assert settle(ada, doubtful, 6, "paid", attempt="1")[0] == "303"
    assert row_state(ada, doubtful, 6) == "paid"


def test_statement_releasing_rows_needs_two_people(
    house: House, ada: Person, ben: Person, doubtful: str, set_clock: SetClock
) -> None:
    lines = (PAID, "P-2,9006.10,KES,rejected", "P-3,9008.20,KES,not-received")
    early = upload_statement(ada, doubtful, *lines)
    assert "could still be paid" in ada.get(f"{early}?show=differs").text
    set_clock(DAY)
    place = upload_statement(ben, doubtful, *lines)
    assert "Ask someone who prepares payouts to start this" in ben.get(place).text
    assert carry_out(ben, place, hidden_value(ada.get(place).text, "code"))[0] == "403"
    status, order = carry_out(ada, place)
    assert (status, order.startswith("/orders/")) == ("303", True)
    assert carry_out(ada, place)[1] == order  # This is a second click.
    page = ada.get(order).text
    assert "Settle 3 rows" in page
    assert "answers.csv" in page
    assert send_order_form(ada, order, "sign") == 303
    assert [row_state(ada, doubtful, row) for row in (2, 3, 4)] == ["in_doubt"] * 3
    assert send_order_form(ben, order, "agree") == 303
    assert [row_state(ada, doubtful, row) for row in (2, 3, 4, 5)] == ["paid", "rejected", "ready", "in_doubt"]
    assert recorded_orders(house) == 1
    assert "was already applied to this batch at" in ada.get(place).text
    assert house.program.json("verify")["exit_code"] == 0


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("answers.csv", b"order_id,amount\nP-1,1\n", "has no column currency"),
        ("answers.csv", b"", "is empty"),
        ("answers.xlsx", b"PK\x03\x04 not a workbook", "answers.xlsx"),
        (".csv", b"x", "plain file name"),
    ],
)
def test_upload_discards_file_without_statement(
    house: House, name: str, content: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pay_rows(house, "100.00")
    if content:  # One case uses the process with limits, as the pages do.
        check_in_process(monkeypatch)
    answer = house.person(MAKER).upload(f"/payouts/{batch}/statement", name, content)
    assert (answer.status_code, why in answer.text) == (409, True), answer.text
    assert not list((house.console.directory / "statements").glob("*"))
    assert not list(house.console.directory.glob(".upload-*"))


# Languages, hostile texts and databases


def test_settling_pages_escape_hostile_texts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    check_in_process(monkeypatch)
    hostile = "<img src=x onerror=alert(1)>"
    (house.program.home / "behaviour.toml").write_text(DECLINES.replace("The account is closed.", hostile))
    batch = pay_rows(house, "9001.00", "9006.00")
    ada = house.person(MAKER)
    released = choose_rows(ada, batch, "row-2", evidence=hostile)[1]
    settled = settle(ada, batch, 3, "rejected", hostile)[1]
    preview = upload_statement(ada, batch, f"{hostile},1.00,KES,paid")
    for place in (f"/payouts/{batch}/retry", released, settled, preview, f"/payouts/{batch}/rows/2", "/"):
        assert "<img" not in ada.get(place).text, place
    for place in (f"/payouts/{batch}/retry", released, settled, preview):
        assert "&lt;img src=x onerror=alert(1)&gt;" in ada.get(place).text, place


@pytest.mark.long
def test_settling_pages_are_french_when_chosen(ada: Person, doubtful: str) -> None:
    choose_language(ada, "fr")
    order, preview = draft_order(ada, doubtful, 2), upload_statement(ada, doubtful, PAID, CONTRARY)
    for address, template in (
        (f"/payouts/{doubtful}/rows/2/settle", "settle"),
        (order, "order"),
        (f"/payouts/{doubtful}/retry", "retry"),
        (f"/payouts/{doubtful}/statement", "statement"),
        (preview, "statement_preview"),
        ("/", "overview"),
    ):
        assert page_texts(ada.get(address).text) & template_sentences(template) == set(), address


def test_settling_pages_work_with_postgres_journal(tmp_path: Path, postgres_server: PostgresServer) -> None:
    program = ClusterProgram(tmp_path, create_sandbox(tmp_path, behaviour=DECLINES).config)
    waive_approval(program)
    database = postgres_server.new_database()
    program.write_url(postgres_server.url(database))
    program.make_journal()
    house = House(program)
    batch = pay_rows(house, "9006.00", "9006.10", "9001.00")
    ada, ben = house.person(MAKER), house.person(APPROVER)
    assert ada.get(f"/payouts/{batch}/questions.csv").text.count("\n") == 3
    assert carry_out(ada, upload_statement(ada, batch, PAID))[0] == "303"
    for order in (draft_order(ada, batch, 3), choose_rows(ada, batch, "row-4")[1]):
        assert send_order_form(ada, order, "sign") == 303
        assert send_order_form(ben, order, "agree") == 303
    assert [row_state(ada, batch, row) for row in (2, 3, 4)] == ["paid", "rejected", "rejected"]
    assert send_order_form(ben, order, "carry-out") == 303
    run = last_run(house.console.runs, batch)
    assert run is not None
    wait_until(lambda: not run.is_alive, "the run does not end")
    assert ada.get(order).headers["location"] == f"/payouts/{batch}"
    assert [line["client_orderid"] for line in program.record()][-1] == "P-3-r2"
    assert recorded_orders(house) == 2
    house.console.sessions.close()
    postgres_server.drop_database(database)


# Signed statements


def count_requests(house: House, order_id: str) -> int:
    return sum(line["client_orderid"].startswith(order_id) for line in house.program.record())


GATEWAYS_KEY = Ed25519PrivateKey.generate()


@pytest.fixture
def house_with_proof(house: House) -> Iterator[House]:
    """Configure a key for signed statements of the gateway."""
    pem = GATEWAYS_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (house.program.home / "gateway.public.pem").write_bytes(pem)
    config = house.program.config
    evidence = '\n[evidence]\nstatements = "signed"\nstatement_key = "gateway.public.pem"\n'
    config.write_text(config.read_text() + evidence)
    signed_house = House(house.program)
    yield signed_house
    signed_house.console.sessions.close()


def declining_statement(house: House, batch: str) -> bytes:
    """Return a statement that rejects row 2 at the time of its attempt."""
    questions = house.person(MAKER).get(f"/payouts/{batch}/questions.csv").text
    (line,) = [question for question in csv.DictReader(questions.splitlines()) if question["order_id"] == "P-1"]
    return f"Order ID,Amount,Currency,Status,Time\nP-1,9006.00,KES,declined,{line['sent_at']}\n".encode()


def test_settling_page_shows_earliest_retry_time(house: House) -> None:
    batch = pay_rows(house, "9006.00")
    page = house.person(MAKER).get(f"/payouts/{batch}/rows/2/settle").text
    assert "No money left" not in page
    assert re.search(r"No payment was made. You can retry it after \d+ \w+ \d{4}, \d\d:\d\d UTC", page)


@pytest.mark.parametrize("is_signed", [False, True])
def test_only_signed_statement_allows_immediate_retry(house_with_proof: House, doubtful: str, is_signed: bool) -> None:
    house = house_with_proof
    content = declining_statement(house, doubtful)
    ada, ben = house.person(MAKER), house.person(APPROVER)
    files = {"statement": ("answers.csv", content)}
    if is_signed:
        files["signature"] = ("answers.csv.sig", GATEWAYS_KEY.sign(content))
    place = f"/payouts/{doubtful}/statement"
    uploaded = ada.ask("POST", place, data={"csrf": ada.token()}, files=files, headers={"origin": ORIGIN})
    preview = uploaded.headers["location"]
    assert ("s signature proves the statement" in ada.get(preview).text) == is_signed
    _, order = carry_out(ada, preview)
    assert send_order_form(ada, order, "sign") == 303
    shown = ben.get(order).text
    assert ("can be paid again at once" in shown) == is_signed
    assert ("can be paid again, not before" in shown) != is_signed
    assert send_order_form(ben, order, "agree") == 303
    assert row_state(ada, doubtful, 2) == "rejected"
    before = count_requests(house, "P-1")
    house.program.json("retry", doubtful)
    assert count_requests(house, "P-1") - before == is_signed
    with open_journal_to_read(house.console.settings) as journal:
        (row,) = journal.rows(1, numbers={2})
    assert row.possible_duplicate_of == 1


def test_statement_with_wrong_signature_is_discarded(house_with_proof: House, doubtful: str) -> None:
    house = house_with_proof
    content = declining_statement(house, doubtful)
    ada = house.person(MAKER)
    files = {
        "statement": ("answers.csv", content + b"\n"),
        "signature": ("answers.csv.sig", GATEWAYS_KEY.sign(content)),
    }
    place = f"/payouts/{doubtful}/statement"
    answer = ada.ask("POST", place, data={"csrf": ada.token()}, files=files, headers={"origin": ORIGIN})
    assert (answer.status_code, "s signature of answers.csv" in answer.text) == (409, True)
    assert not list((house.console.directory / "statements").glob("*"))


def test_removed_statement_does_not_hide_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded = UploadedStatement("b-1", "answers.csv", "ada", "2026-11-24T08:00:00.000Z", "ticket 7", "")
    for name in ("there", "gone"):
        folder = StatementFolder(tmp_path / name)
        folder.path.mkdir()
        folder.write_json(StatementFolder.MARKER_FILE, uploaded)

    def read(folder: StatementFolder) -> UploadedStatement:
        if folder.number == "gone":
            folder.remove()
        return UploadedStatement(**json.loads((folder.path / StatementFolder.MARKER_FILE).read_bytes()))

    monkeypatch.setattr(StatementFolder, "uploaded", property(read))
    assert [folder.number for folder in statement_folders(tmp_path, "b-1")] == ["there"]
