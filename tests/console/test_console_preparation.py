"""Tests preparing a payout: correcting, leaving out, signing, approving, starting, and refusals."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from paygw_batch.approval.plan_document import read_plan
from paygw_batch.console import payout_folder
from paygw_batch.console.pages import preparing
from paygw_batch.journal import Occasion
from paygw_batch.notices.delivery import list_notices
from tests.console.preparing import (
    EIGHT_DEFECTS,
    digest,
    open_payout_folder,
    payable_count,
    sheet,
    sign_sheet,
    upload_sheet,
    wait_until_finished,
    waive_approval,
)
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
from tests.support.receivers import SECRET, webhook

pytestmark = pytest.mark.usefixtures("in_process_checks")


def test_corrections_are_shown_until_payout_is_paid(house: House, ada: Person, ben: Person) -> None:
    draft = upload_sheet(ada, sheet(wrong=EIGHT_DEFECTS))
    page = ada.get(draft).text
    assert "8 of 12 rows cannot be paid yet" in page
    assert ("Client Order ID" in page, 'name="text" value="1250.00"' in page) == (True, True)  # "Use 1250.00"
    for number, column, text, payable in (
        *((4, "amount", "1250.00", "5"), (5, "amount", "twelve", "5"), (5, "amount", "112.00", "6")),
        *((6, "country", "KE", "7"), (7, "account_name", "Halima Abdi", "8"), (8, "currency", "", "9")),
        (11, "client_orderid", "P-10", "11"),
    ):
        assert ada.post(f"{draft}/mend", row=str(number), column=column, text=text).status_code == 303
        page = ada.get(draft).text
        assert payable_count(page) == payable
        assert ("twelve is not a plain number" in page) == (text == "twelve")
    assert ada.post(f"{draft}/leave-out", row="9").status_code == 303
    assert "11 of 12 rows can be paid; 1 is left out" in ada.get(draft).text

    payout = open_payout_folder(house, draft)
    payout.write_upload(replace(payout.uploaded, at="2026-01-02T08:00:00.000Z"))
    plan = ada.get(f"{draft}/plan").text
    assert "2 Jan 2026" not in plan  # The plan is newer than the upload.
    assert "<b>Row 4</b> <bdi>Jane 3</bdi>" in plan
    assert "Amount was 1,250.00 and is now 1250.00" in plan
    assert '<th scope="row" class="number" data-label="Row">9</th>' in plan.partition("Left out")[2]
    code = sign_sheet(ada, draft)
    assert "another person must approve it" in ada.get(f"{draft}/plan").text
    assert f"{draft}/plan" in ben.get("/").text.partition("<h2>Payouts</h2>")[0]
    assert re.fullmatch(r"\w{4} \w{4} \w{4} \w{4}", code)
    assert f'<span class="code">{code}</span>' in ben.get(f"{draft}/plan").text
    assert ben.post(f"{draft}/approve", digest=digest(ben, draft)).status_code == 303
    assert "Everything is ready. When the payout starts, 11 payments will be sent." in ben.get(f"{draft}/plan").text
    shown = digest(ben, draft)
    for _ in range(3):  # A double click starts one payout.
        assert ben.post(f"{draft}/start", digest=shown).status_code == 303
    page = wait_until_finished(ada, draft)
    assert ("<strong>11</strong> Paid" in page, "<strong>1</strong> Left out" in page) == (True, True)
    assert len(house.program.record()) == 11
    trail = [entry[:2] for entry in audit_entries(house) if entry[1] in {"sign", "approve payout", "start"}]
    assert trail[:3] == [(MAKER, "sign"), (APPROVER, "approve payout"), (APPROVER, "start")]
    assert re.search(r"<strong>Approved</strong><span>[^<]+&middot; <bdi>Ben Okello</bdi></span>", page), page
    (link,) = re.findall(r'<a href="([^"]+)">What was approved</a>', page)
    for person, account in ((ben, "254712345001"), (house.person(AUDITOR), "...001")):
        seen = person.get(link).text
        assert re.search(rf"Approved</dt><dd><bdi>{APPROVER}</bdi>, \d+ \w+ \d{{4}}", seen), person.name
        assert "Amount was 1,250.00 and is now 1250.00" in seen or person.name == AUDITOR
        assert (code in seen, account in seen) == (True, True), person.name
        assert {action for action, _ in parse_forms(seen)} <= {"/sign-out", "/language"}, person.name
    # A started payout can no longer be changed, and the same sheet sends nothing twice.
    assert ada.post(f"{draft}/mend", row="4", column="amount", text="1.00").status_code == 409
    assert "None of the 2 rows is new, so nothing would be sent" in ada.get(upload_sheet(ada, sheet(2))).text


def test_identical_corrections_are_grouped_after_amounts(ada: Person) -> None:
    wrong = {1: {"country": "Kenya"}, 2: {"country": "Kenya"}, 3: {"amount": '"1,250.00"'}}
    draft = upload_sheet(ada, sheet(4, wrong))
    for number, column, text in (("2", "country", "KE"), ("3", "country", "KE"), ("4", "amount", "1250.00")):
        ada.post(f"{draft}/mend", row=number, column=column, text=text)
    lines = re.findall(r"<li><b>(.*?)</li>", ada.get(f"{draft}/plan").text.partition("Corrected after the upload")[2])
    assert [re.sub(r"<.*?>", "", line).partition(" (")[0] for line in lines] == [
        "Row 4 Jane 3 &middot; Amount was 1,250.00 and is now 1250.00",
        "2 rows &middot; Country was Kenya and is now KE",
    ]


def test_file_name_cannot_escape_folder(house: House, ada: Person) -> None:
    for name in ("../../etc/passwd.csv", "..\\..\\x.csv", "/etc/x.csv"):
        kept = open_payout_folder(house, upload_sheet(ada, sheet(1), name)).path / "sheet"
        assert [path.name for path in kept.iterdir()] == [re.split(r"[/\\]", name)[-1]]
        assert [path.stat().st_mode & 0o777 for path in (kept, *kept.iterdir())] == [0o700, 0o600]
    for name in (".csv", "x" * 101 + ".csv"):
        assert ada.upload("/new", name, sheet(1)).status_code == 409
    assert "We cannot read this sheet yet" in ada.get(upload_sheet(ada, sheet(1), "notes.docx")).text


def test_oversized_upload_is_refused(house: House) -> None:
    text = house.program.config.read_text()
    house.program.config.write_text(text.replace("[console]", "[console]\nmax_upload_mib = 1"))
    ada = House(house.program).person(MAKER)
    assert ada.upload("/new", "large.csv", b"x" * (2 << 20)).status_code == 413
    assert not list(house.console.directory.glob("*"))
    draft = upload_sheet(ada, sheet(1))
    assert ada.upload(f"{draft}/again", "large.csv", b"x" * (2 << 20)).status_code == 413
    assert ada.upload(f"{draft}/again", "../.x", sheet(1)).status_code == 409
    assert ada.upload(f"{draft}/again", "fits.csv", b"x" * (600 << 10)).status_code == 303


def test_correction_form_refuses_invalid_text_and_cells(ada: Person) -> None:
    draft = upload_sheet(ada, sheet(2))
    wrong = [("2", "amount", "1\n2", 409), ("2", "amount", "1" * 501, 409), ("2", "nothing", "1", 404)]
    for number, column, text, status in (*wrong, ("77", "amount", "1", 404)):
        assert ada.post(f"{draft}/mend", row=number, column=column, text=text).status_code == status
    assert ada.post(f"{draft}/leave-out", row="-1").status_code == 404
    assert ada.get("/sheets/../../etc").status_code in {303, 404}
    assert ada.get("/sheets/ffffffffffffffff").status_code == 404


def test_computed_amounts_are_rounded_only_on_request(house: House, ada: Person) -> None:
    amounts = {1: {"amount": "45833.3333"}, 2: {"amount": "45833.335"}, 3: {"amount": "45.833"}}
    draft = upload_sheet(ada, sheet(4, amounts))
    page = ada.get(f"{draft}?kind=amount.decimals").text
    assert ("1 of 4 rows can be paid" in page, "Use the suggested value in all 2 cells" in page) == (True, True)
    assert ada.post(f"{draft}/mend-kind", kind="amount.decimals").status_code == 303
    assert "1 of 4 rows cannot be paid yet" in ada.get(draft).text
    ada.post(f"{draft}/leave-out", row="4", out="yes")
    sign_sheet(ada, draft)
    shown = house.person(APPROVER).get(f"{draft}/plan").text
    for was, now in (("45833.3333", "45833.33"), ("45833.335", "45833.34")):
        assert f"was {was} and is now {now}" in shown


def test_answered_question_is_not_asked_again(house: House, ada: Person) -> None:
    pay_from_command_line(house, sheet(4).replace(b"P-", b"OCT-"))
    draft = upload_sheet(ada, sheet(4))
    page = ada.get(draft).text
    assert ("Has this already been paid?" in page, "Check what will be paid</a>" in page) == (True, False)
    question = re.findall(r'name="question" value="([^"]+)"', page)[0]
    assert ada.post(f"{draft}/answer", question="sheet.repeats_a_batch 0").status_code == 409
    assert ada.post(f"{draft}/answer", question=question).status_code == 303
    ada.post(f"{draft}/leave-out", row="5", out="yes")
    assert 'name="question"' not in ada.get(draft).text
    sign_sheet(ada, draft)
    assert "Could someone be paid twice?" in house.person(APPROVER).get(f"{draft}/plan").text


@pytest.mark.parametrize("in_process_bytes", [1_000_000, 0])
def test_draft_is_rebuilt_after_another_payout(
    house: House, ada: Person, ben: Person, monkeypatch: pytest.MonkeyPatch, in_process_bytes: int
) -> None:
    monkeypatch.setattr(preparing, "MAX_IN_PROCESS_BYTES", in_process_bytes)

    def code_shown() -> str:
        wait_until(lambda: 'class="code"' in ada.get(f"{draft}/plan").text, "no plan is shown")
        return str(re.findall(r'class="code">([^<]+)', ada.get(f"{draft}/plan").text)[0])

    draft = upload_sheet(ada, sheet(4))
    before, form = code_shown(), ada.shown(f"{draft}/sign")
    pay_from_command_line(house, sheet(1).replace(b"P-", b"E-"))
    assert ada.ask("POST", f"{draft}/sign", data=form, headers={"origin": ORIGIN}).status_code == 409
    assert open_payout_folder(house, draft).plan is None
    assert code_shown() != before
    assert sign_sheet(ada, draft) == code_shown()
    ben.post(f"{draft}/approve", digest=digest(ben, draft))
    ben.post(f"{draft}/start", digest=digest(ben, draft))
    assert "<strong>4</strong> Paid" in wait_until_finished(ada, draft)


def test_payout_page_reads_signed_plan_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    draft, ben = upload_sheet(house.person(MAKER), sheet(2)), house.person(APPROVER)
    sign_sheet(house.person(MAKER), draft)
    ben.post(f"{draft}/approve")
    ben.post(f"{draft}/start")
    ada = House(house.program).person(MAKER)  # Only the files and the run of the first console remain.
    finished = wait_until_finished(ada, draft)
    assert ("What was approved" in finished, "<strong>2</strong> Paid" in finished) == (True, True)
    assert len(house.program.record()) == 2
    page, read_noted = ada.get(f"{draft}/plan").headers["location"], Mock(wraps=read_plan)
    monkeypatch.setattr(payout_folder, "read_plan", read_noted)
    assert "What was approved" in ada.get(page).text
    assert read_noted.call_args_list == []
    plan = open_payout_folder(house, draft).plan_file
    plan.write_text(plan.read_text().replace("Jane 1", "Jane X"))
    ada.get(page)  # another file is read again, and is not the plan that opened the payout
    assert read_noted.call_args_list == [call(plan)]


def pay_from_command_line(house: House, content: bytes) -> None:
    program, path = house.program, house.program.home / "earlier.csv"
    plain = waive_approval(program)
    path.write_bytes(content)
    assert program.json("submit", path)["exit_code"] == 0
    program.config.write_text(plain)


def listed_names(page: str) -> list[str]:
    """Return the names in a list of people, in order."""
    table = page[page.rindex("<table>") :]
    return re.findall(r'data-label="Row">\d+</th><td class="lead"><bdi>([^<]*)</bdi>', table)


def test_people_list_can_be_searched_and_sorted(ada: Person, ben: Person) -> None:
    draft = upload_sheet(ada, sheet(120))
    sign_sheet(ada, draft)
    people = f"{draft}/people"
    page = ben.get(f"{draft}/plan").text
    assert listed_names(page) == [f"Jane {n}" for n in range(120, 70, -1)]
    assert "254712345120" in page
    for query, listed in (
        *(("order=smallest", range(1, 51)), ("order=row&after=100", range(101, 121)), ("after=99999999", (1,))),
        *(("text=jane+117", (117,)), ("text=2345099", (99,)), ("text=nobody", ())),
    ):
        assert listed_names(ben.get(f"{people}?{query}").text) == [f"Jane {n}" for n in listed], query


def test_auditor_sees_only_masked_people(house: House, ada: Person) -> None:
    draft = upload_sheet(ada, sheet(3))
    taken = ada.get(f"{draft}/people.csv")
    assert (taken.status_code, taken.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    lines = list(csv.reader(io.StringIO(taken.text)))
    assert lines[0] == ["row", "name", "account", "currency", "amount", "known_since", "differs"]
    assert [line[0] for line in lines[1:]] == ["2", "3", "4"]
    assert lines[2] == ["3", "Jane 2", "254712345002", "KES", "102.00", "", ""]
    sign_sheet(ada, draft)
    grace = house.person(AUDITOR)
    for page in (grace.get(f"{draft}/{name}").text for name in ("plan", "people")):
        assert listed_names(page) == ["Jane 3", "Jane 2", "Jane 1"]
        assert ("25471234" in page, "...001" in page) == (False, True)
    assert listed_names(grace.get(f"{draft}/people?text=25471").text) == []
    for path in ("/", f"{draft}/plan", "/payees?text=Jane", "/people"):
        page = grace.get(path).text
        assert {action for action, _ in parse_forms(page)} <= {"/sign-out", "/language", "/payees"}, path
        assert ("<h1" in page, "254712345" in page) == (True, False), path
    assert grace.get(upload_sheet(ada, b"%PDF-1.4", "scan.csv")).status_code == 403  # Its page shows accounts.


def test_plan_marks_changed_digits_amounts_and_strangers(house: House, ada: Person) -> None:
    pay_from_command_line(house, sheet(4))
    changed = sheet(5, {2: {"amount": "408.00"}}).replace(b"254712345003,", b"254712999003,")
    draft = upload_sheet(ada, changed.replace(b"P-", b"Q-").replace(b".00,", b".50,"))
    whole, masked = ada.get(f"{draft}/plan").text, house.person(AUDITOR).get(f"{draft}/plan").text
    for shown in ("1 changed account", "1 amount differs", "1 new person"):
        assert shown in whole
    for digits in ("<mark>345</mark>003", "<mark>999</mark>003"):
        assert (f"254712{digits}" in whole, f"******{digits}" in masked) == (True, True)
    assert "254712345003" not in masked


def test_approver_sees_left_out_people(house: House, ada: Person) -> None:
    draft = upload_sheet(ada, sheet(4, {2: {"amount": "12-Jan"}}))
    ada.post(f"{draft}/mend", row="3", column="amount", text="55.00")
    ada.post(f"{draft}/leave-out", row="3")
    sign_sheet(ada, draft)
    page = house.person(APPROVER).get(f"{draft}/plan").text
    left_out = page[page.index("<summary>Left out") :]
    assert "1 row, KES 55.00" in left_out
    assert "<bdi>Jane 2</bdi>" in left_out.partition("</details>")[0]
    assert f"left out by {MAKER}" in left_out
    assert "12-Jan" not in page


def test_signing_in_browser_sends_notice_with_link(tmp_path: Path) -> None:
    program = create_sandbox(tmp_path, further='origin = "http://localhost:8460"')
    with webhook() as posts:
        (secret := program.home / "hook").write_text(SECRET)
        secret.chmod(0o600)
        notices = f'\n[notices]\nwebhook = "{posts.url}"\nwebhook_secret_file = "hook"\n'
        program.config.write_text(program.config.read_text() + notices)
        house = House(program)
        ada = house.person(MAKER)
        code = sign_sheet(ada, place := upload_sheet(ada, sheet(2)))
        wait_until(lambda: posts.got)
    (notice,) = list_notices(house.console.settings)
    assert (notice.occasion, notice.recipient, notice.tries) == (Occasion.PLAN_WAITS, "webhook", 1)
    said = {"code": code, "maker": MAKER, "link": f"http://localhost:8460{place}/plan"}
    assert said.items() <= (notice.content or {}).items()
    assert "Jane" not in str(notice.content)


def test_maker_sees_why_plan_was_returned(ada: Person, ben: Person) -> None:
    draft = upload_sheet(ada, sheet(2))
    sign_sheet(ada, draft)
    shown = digest(ben, draft)
    assert ben.post(f"{draft}/send-back", digest=shown, reason=" ").status_code == 409
    assert ben.post(f"{draft}/send-back", digest=shown, reason="Row 2 was paid in cash <b>").status_code == 303
    needing = ada.get("/").text.partition("<h2>Payouts</h2>")[0]
    assert "Sent back by Ben Okello: Row 2 was paid in cash &lt;b&gt;" in needing
    assert "Row 2 was paid in cash &lt;b&gt;" in ada.get(draft).text
    ada.post(f"{draft}/leave-out", row="2")
    sign_sheet(ada, draft)
    assert ben.post(f"{draft}/approve", digest=shown).status_code == 409


@pytest.mark.long
def test_simultaneous_payouts_run_one_by_one(house: House, ada: Person, ben: Person) -> None:
    team_a, team_b = (
        sheet(3).replace(b"P-", prefix).replace(b"25471234500", number).replace(b"Jane", name)
        for prefix, number, name in ((b"A-", b"25471234510", b"Ann"), (b"B-", b"25471234520", b"Bob"))
    )
    last_month = team_a + b"\n" + team_b.partition(b"\n")[2]
    for contents, count in (([last_month.replace(b"-", b"-OCT-").replace(b",10", b",9")], 6), ([team_a, team_b], 3)):
        places = [upload_sheet(ada, content) for content in contents]
        for place in places:
            sign_sheet(ada, place)
            ben.post(f"{place}/approve")
        for place in places:
            ben.post(f"{place}/start")
        for place in places:
            assert f"<strong>{count}</strong> Paid" in wait_until_finished(ada, place)
    assert len(house.program.record()) == 12
