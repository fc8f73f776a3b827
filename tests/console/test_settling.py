"""Tests settling rows and trying them again on the pages, by one or two people."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from httpx import Response

from paygw_batch.console.pages import orders
from paygw_batch.console.pages.orders import OrderAgreement, StatementFolder, UploadedStatement
from paygw_batch.console.visits import Visit
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.opening.open_journal import open_journal_to_read
from tests.console.checking import check_in_process
from tests.console.french import choose_language, page_texts, template_sentences
from tests.console.preparing import waive_approval
from tests.console.settling import DECLINES, TICKET, draft_order, pay_rows, settle
from tests.support.clocks import shifted_clock
from tests.support.keyed_people import hidden_value
from tests.support.people import (
    APPROVER,
    AUDITOR,
    MAKER,
    ORIGIN,
    House,
    Person,
    add_role,
    audit_entries,
    create_sandbox,
    parse_forms,
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    program = create_sandbox(tmp_path, behaviour=DECLINES)
    waive_approval(program)
    house = House(program)
    yield house
    house.console.sessions.close()


def send_order_form(person: Person, order: str, path_end: str, **form: str) -> int:
    """Send a form of an order's current page and return the status."""
    digests = re.findall(r'name="digest" value="([^"]*)"', person.get(order).text)
    return person.post(f"{order}/{path_end}", **{"digest": "".join(digests[:1])} | form).status_code


def row_state(person: Person, batch: str, row: int) -> str:
    (state,) = re.findall(r'<span class="state (\w+)">', person.get(f"/payouts/{batch}/rows/{row}").text)
    return str(state)


def test_second_click_settles_nothing(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00", "100.00")
    assert "Settle this row" in ada.get(f"/payouts/{batch}/rows/2").text
    assert "Settle this row" not in ada.get(f"/payouts/{batch}/rows/3").text
    assert "Settle this row" not in house.person(AUDITOR).get(f"/payouts/{batch}/rows/2").text
    assert "What did the gateway say about order P-1?" in ben.get(f"/payouts/{batch}/rows/2/settle").text
    assert ben.get(f"/payouts/{batch}/rows/9/settle").status_code == 404
    for said, attempt in (("", "1"), ("released", "1"), ("paid", "2"), ("paid", "")):
        assert settle(ben, batch, 2, said, attempt=attempt)[0] == "409"
    assert settle(house.person(AUDITOR), batch, 2, "paid")[0] == "403"
    for _ in range(2):
        assert settle(ben, batch, 2, "paid") == ("303", f"/payouts/{batch}/rows/2")
    page = ben.get(f"/payouts/{batch}/rows/2").text
    assert (page.count("Settled as paid"), "Ticket 7 &lt;b&gt;" in page) == (1, True)


def test_not_received_is_offered_only_after_quarantine(
    house: House, ada: Person, ben: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pay_rows(house, "9008.00")
    page = ada.get(f"/payouts/{batch}/rows/2/settle").text
    assert re.search(r'value="not-received" required disabled>.*?Available after \d+ \w+ \d{4}, \d\d:\d\d UTC', page)
    assert re.search(r"No payment was made. You can retry the row after \d+ \w+ \d{4}, \d\d:\d\d UTC", page)
    assert "you can settle it as not received" in settle(ada, batch, 2, "not-received")[1]
    shifted_clock(monkeypatch)(timedelta(hours=25))
    assert "disabled" not in ada.get(f"/payouts/{batch}/rows/2/settle").text
    order = draft_order(ada, batch, 2, "not-received")
    shown = hidden_value(ada.get(order).text, "digest")
    assert draft_order(ada, batch, 2, "not-received") == order  # This is a second click.
    assert "Two people are settling this row" in ben.get(f"/payouts/{batch}/rows/2").text
    assert [send_order_form(ada, order, "sign"), send_order_form(ben, order, "agree")] == [303] * 2
    for what in ("agree", "carry-out"):  # This is a second click.
        assert ben.post(f"{order}/{what}", digest=shown).headers["location"] == order
        assert ben.post(f"{order}/{what}", digest="0").status_code == 409
    assert ben.get(order).headers["location"] == f"/payouts/{batch}"
    assert "The row may repeat attempt 1." in ben.get(f"/payouts/{batch}/rows/2").text
    assert house.program.json("verify")["checked"]["signed_orders"] == 1


def test_maker_sees_why_order_was_returned(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    send_order_form(ada, order, "sign")
    assert send_order_form(ben, order, "send-back", reason=" ") == 409
    assert send_order_form(ada, order, "send-back", reason="My own") == 403
    for _ in range(2):
        assert send_order_form(ben, order, "send-back", reason="It is another ticket <b>") == 303
    assert f"Sent back by {APPROVER}: It is another ticket &lt;b&gt;" in ada.get("/").text
    assert send_order_form(ada, order, "sign") == 409
    assert send_order_form(ada, order, "take-back") == 303
    assert ada.get(order).status_code == 404
    assert draft_order(ada, batch, 2) != order


def test_overview_asks_only_second_person_to_agree(house: House) -> None:
    add_role(house.program, MAKER, "approvers")
    house = House(house.program)
    batch = pay_rows(house, "9006.00")
    ada, ben = house.person(MAKER), house.person(APPROVER)
    order = draft_order(ada, batch, 2)

    def tasks_of(person: Person) -> str:
        return person.get("/").text.partition("<h2>Being settled or retried</h2>")[0]

    assert "You have not signed this order yet: Settle 1 row." in tasks_of(ada)
    assert order not in tasks_of(ben)
    assert send_order_form(ada, order, "sign", digest="0" * 64) == 409
    assert [send_order_form(ada, order, "sign") for _ in range(2)] == [303] * 2  # This is a second click.
    assert order not in tasks_of(ada)
    assert f"{MAKER} asks you to agree: Settle 1 row." in tasks_of(ben)
    assert "another person must agree" in ada.get(order).text
    assert send_order_form(ben, order, "agree", digest="0" * 64) == 409
    for person, act in ((ada, "agree"), (ben, "sign"), (ben, "take-back"), (ben, "carry-out")):
        assert send_order_form(person, order, act) == (409 if act == "carry-out" else 403), act
        assert row_state(ben, batch, 2) == "in_doubt"
    assert send_order_form(ben, order, "agree") == 303
    assert row_state(ben, batch, 2) == "rejected"
    history = ben.get(f"/payouts/{batch}").text
    assert f"requested by {MAKER}, approved by {APPROVER}: Ticket 7 &lt;b&gt;" in history
    (link,) = re.findall(r'<a href="([^"]+)">What was approved</a>', history)
    seen = house.person(AUDITOR).get(link).text
    assert "This order has been carried out." in seen
    assert re.search(rf"Agreed</dt><dd><bdi>{APPROVER}</bdi>, \d+ \w+ \d{{4}}", seen)
    assert {action for action, _ in parse_forms(seen)} <= {"/sign-out", "/language"}


def test_order_approved_during_run_waits_for_its_end(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    send_order_form(ada, order, "sign")
    path = lock_path(house.console.settings.journal_path())
    with closing(RunLock(path, now="2026-11-22T00:00:00.000Z", command="submit")):
        assert send_order_form(ben, order, "agree") == 303
        assert "Rows can be settled when that payout finishes." in ben.get(order).text
        assert send_order_form(ada, order, "carry-out") == 409
    assert "Agreed: it can be carried out. Settle 1 row." in ada.get("/").text
    assert send_order_form(house.person(AUDITOR), order, "carry-out") == 403
    assert send_order_form(ada, order, "carry-out") == 303
    assert row_state(ada, batch, 2) == "rejected"


def test_order_removed_during_listing_is_skipped(house: House, ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pay_rows(house, "9006.00", "9006.10")
    kept, gone = draft_order(ada, batch, 2), draft_order(ada, batch, 3)
    check_page = OrderAgreement.__init__

    def remove_first_order(agreement: OrderAgreement, visit: Visit, folder: orders.OrderFolder) -> None:
        if gone.endswith(folder.number):
            folder.remove()
        check_page(agreement, visit, folder)

    monkeypatch.setattr(OrderAgreement, "__init__", remove_first_order)
    page = ada.get("/")
    assert (page.status_code, kept in page.text, gone in page.text) == (200, True, False)


def test_signed_order_matches_shown_order(house: House, ada: Person, ben: Person) -> None:
    batch = pay_rows(house, "9006.00")
    order = draft_order(ada, batch, 2)
    number = order.rpartition("/")[2]
    page, text = ada.get(order).text, (house.console.directory / "orders" / number / "draft.json").read_text()
    figures = re.findall(r'<td class="number sum">(?:[A-Z]{3} )?(\d+\.\d\d)</td>', page.replace("\u202f", ""))
    assert figures
    assert [figure for figure in figures if f'"{figure}"' not in text] == []
    assert "Ticket 7 &lt;b&gt;" in page
    assert [send_order_form(person, order, "sign") for person in (ben, ada)] == [403, 303]
    page = ben.get(order).text
    digest = hidden_value(page, "digest")
    assert f'<span class="code">{" ".join(digest[at : at + 4] for at in range(0, 16, 4))}</span>' in page
    send_order_form(ben, order, "agree")
    assert audit_entries(house)[2:] == [
        (MAKER, "settle row", f"batch {batch}, row 2", "done"),
        (APPROVER, "sign order", f"order {number}", "refused"),
        (MAKER, "sign order", f"order {number}", "done"),
        (APPROVER, "agree to order", f"order {number}", "done"),
    ]


def choose_rows(person: Person, batch: str, *boxes: str, evidence: str = TICKET) -> Sequence[str]:
    answer = person.post(f"/payouts/{batch}/retry", evidence=evidence, **dict.fromkeys(boxes, "on"))
    return str(answer.status_code), answer.headers.get("location", answer.text)


def test_rejected_rows_are_grouped_by_reason(house: House, ada: Person) -> None:
    batch = pay_rows(house, "9001.00", "9001.50", "9002.00", "100.00")
    page = ada.get(f"/payouts/{batch}/retry").text
    assert page.index("The account is closed.") < page.index("The limit of the day")  # The most frequent comes first.
    assert ("KES 18\u202f002.50" in page, "Jane 4" in page) == (True, False)
    key = re.findall(r'name="reason-(\w+)"', page)
    only = ada.get(f"/payouts/{batch}/retry?reason={key[1]}").text
    assert ("Jane 3" in only, "Jane 1" in only) == (True, False)
    assert choose_rows(ada, batch)[0] == "409"
    status, page = choose_rows(ada, batch, "row-2", evidence="")
    assert (status, "checked" in page.partition('name="row-2"')[2].partition(">")[0]) == ("409", True)
    status, order = choose_rows(ada, batch, f"reason-{key[0]}", "row-4")
    assert status == "303"
    assert choose_rows(ada, batch, f"reason-{key[0]}", "row-4")[1] == order  # This is a second click.
    page = ada.get(order).text
    assert ("Retry 3 rejected rows" in page, "27\u202f004.50" in page) == (True, True)
    assert "Some of these rows are already in an open order." in ada.get(f"/payouts/{batch}/retry").text


def test_retry_page_paginates_rejected_rows(house: House, ada: Person) -> None:
    batch = pay_rows(house, *["9001.00", "9002.00"] * 14)
    first = ada.get(f"/payouts/{batch}/retry").text
    second = ada.get(f"/payouts/{batch}/retry?after=26").text
    rows = [int(number) for number in re.findall(r'name="row-(\d+)"', first + second)]
    assert rows == list(range(2, 30))
    assert ("Next page" in first, "Next page" in second) == (True, False)
    row = "KE,Q-1,5.00,KES,Ann,254712345777,+254712345777"
    none = house.program.json("submit", house.program.sheet([row], "b.csv"))["batch"]
    assert "No rows in this payout are rejected." in ada.get(f"/payouts/{none}/retry").text


def upload_statement(person: Person, batch: str, *lines: str) -> str:
    """Upload a statement and return the address of its preview."""
    content = "\n".join(["Order ID,Amount,Currency,Answer", *lines]).encode()
    answer = person.upload(f"/payouts/{batch}/statement", "answers.csv", content, words="By mail")
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def carry_out(person: Person, draft: str, code: str | None = None) -> Sequence[str]:
    sent_code = hidden_value(person.get(draft).text, "code") if code is None else code
    answer = person.post(f"{draft}/carry-out", code=sent_code)
    return str(answer.status_code), answer.headers.get("location", answer.text)


@pytest.fixture
def doubtful(house: House, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a batch with rows 2 to 5 in doubt, 6 rejected and 7 paid."""
    check_in_process(monkeypatch)
    return pay_rows(house, "9006.00", "9006.10", "9008.20", "9006.30", "9001.00", "100.00")


PAID = "P-1,9006.00,KES,paid"
CONTRARY = "P-5,9001.00,KES,paid"


def test_question_download_contains_orders_but_no_people(house: House, ada: Person, doubtful: str) -> None:
    questions = f"/payouts/{doubtful}/questions"
    listed = ada.get(f"{questions}.csv")
    assert listed.headers["content-disposition"] == 'attachment; filename="payroll.questions.csv"'
    assert [line.split(",")[0] for line in listed.text.splitlines()] == ["order_id", "P-1", "P-2", "P-3", "P-4"]
    assert not re.search("Jane|254712", listed.text)
    assert ada.get(f"{questions}.xlsx").content.startswith(b"PK")
    assert ada.get(f"{questions}.html").status_code == 404
    assert house.person(AUDITOR).get(f"{questions}.csv").status_code == 403
    assert not list(house.console.directory.glob(".download-*"))
    assert (MAKER, "download questions", f"batch {doubtful}, ending csv", "done") in audit_entries(house)


def test_statement_preview_is_shown_and_applied_once(house: House, ada: Person, ben: Person, doubtful: str) -> None:
    lines = (PAID, "P-2,9006.10,KES,", "P-6,100.00,KES,paid", CONTRARY, "X-9,1.00,KES,paid")
    draft = upload_statement(ben, doubtful, *lines)
    page, differs, silent = (ben.get(f"{draft}{query}").text for query in ("", "?show=differs", "?show=silent"))
    for count, what in ((1, "It was paid"), (2, "do not match"), (1, "agree with the journal"), (1, "not decided yet")):
        assert f"<b>{count}</b>{what}" in page
    assert "<b>3</b>stay in doubt" in page
    assert "Row 6 is rejected in the journal, but paid in the statement." in differs
    assert "The journal has no order X-9" in differs
    assert "P-3" in silent
    for shown in (page, silent):  # Both show person and amount with the order id.
        assert re.search(r'<bdi>[A-Z][\w ]+</bdi></td><td class="number sum">KES [\d\u202f]+\.\d\d</td>', shown)
    assert ben.get(f"{draft}?show=nothing").status_code == 404
    assert carry_out(ben, draft, "0" * 16)[0] == "409"
    assert carry_out(house.person(AUDITOR), draft, "0" * 16)[0] == "403"
    code = hidden_value(page, "code")
    assert [carry_out(ben, draft, code) for _ in range(2)] == [("303", f"/payouts/{doubtful}")] * 2  # A second click.
    assert row_state(ada, doubtful, 2) == "paid"
    page = ada.get(f"/payouts/{doubtful}").text
    assert (page.count("Settled as paid"), "By mail (Statement answers.csv" in page) == (1, True)
    again = ada.get(upload_statement(ada, doubtful, *lines)).text
    assert (" to this batch at" in again, "Settle 1 row" in again) == (True, False)


def test_uploaded_file_without_statement_is_discarded(
    house: House, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pay_rows(house, "100.00")
    for name, content, why in (
        ("answers.csv", b"", "is empty"),  # This one uses the process with limits, as the pages do.
        ("answers.csv", b"order_id,amount\nP-1,1\n", "has no column currency"),
        ("answers.xlsx", b"PK\x03\x04 not a workbook", "answers.xlsx"),
        (".csv", b"x", "ordinary characters"),
    ):
        answer = ada.upload(f"/payouts/{batch}/statement", name, content)
        assert (answer.status_code, why in answer.text) == (409, True), answer.text
        check_in_process(monkeypatch)
    assert not list((house.console.directory / "statements").glob("*"))
    assert not list(house.console.directory.glob(".upload-*"))


@pytest.mark.long
def test_settling_pages_are_translated_into_french(ada: Person, doubtful: str) -> None:
    choose_language(ada, "fr")
    order, preview = draft_order(ada, doubtful, 2), upload_statement(ada, doubtful, PAID, CONTRARY)
    pages = {order: "order", preview: "statement_preview", "/": "overview"}
    pages |= {f"/payouts/{doubtful}/{end}": end.rpartition("/")[2] for end in ("rows/2/settle", "retry", "statement")}
    for address, template in pages.items():
        assert page_texts(ada.get(address).text) & template_sentences(template) == set(), address


def upload_signed(person: Person, batch: str, content: bytes, signature: bytes) -> Response:
    files = {"statement": ("answers.csv", content), "signature": ("answers.csv.sig", signature)}
    data, place = {"csrf": person.token()}, f"/payouts/{batch}/statement"
    return person.ask("POST", place, data=data, files=files, headers={"origin": ORIGIN})


def test_signed_statement_allows_immediate_retry(house: House, doubtful: str) -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (house.program.home / "gateway.public.pem").write_bytes(pem)
    with house.program.config.open("a") as config:
        config.write('\n[evidence]\nstatements = "signed"\nstatement_key = "gateway.public.pem"\n')
    house = House(house.program)
    ada, ben = house.person(MAKER), house.person(APPROVER)
    question = next(csv.DictReader(ada.get(f"/payouts/{doubtful}/questions.csv").text.splitlines()))
    lines = f"Order ID,Amount,Currency,Status,Time\nP-1,9006.00,KES,declined,{question['sent_at']}\n".encode()
    refused = upload_signed(ada, doubtful, lines + b"\n", key.sign(lines))
    assert (refused.status_code, "s signature of answers.csv" in refused.text) == (409, True)
    assert not list((house.console.directory / "statements").glob("*"))
    preview = upload_signed(ada, doubtful, lines, key.sign(lines)).headers["location"]
    assert "it has the gateway&#39;s signature" in ada.get(preview).text
    _, order = carry_out(ada, preview)
    assert carry_out(ada, preview)[1] == order  # This is a second click.
    assert send_order_form(ada, order, "sign") == 303
    assert "can be paid again immediately" in ben.get(order).text
    assert send_order_form(ben, order, "agree") == 303
    assert row_state(ada, doubtful, 2) == "rejected"
    before = len(house.program.record())
    house.program.json("retry", doubtful)
    assert "P-1-r2" in {line["client_orderid"] for line in house.program.record()[before:]}
    with open_journal_to_read(house.console.settings) as journal:
        assert [row.possible_duplicate_of for row in journal.rows(1, numbers={2})] == [1]
    house.console.sessions.close()


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
    assert [folder.number for folder in orders.statement_folders(tmp_path, "b-1")] == ["there"]
