"""Tests that a form sent twice is applied once, and a form of a stale page not at all."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from httpx import Response

from paygw_batch.approval.signed_document import SignedDocument
from paygw_batch.clock import utc_now
from paygw_batch.console.console_app import ROUTES, console_app, listen_on_port, serve_pages
from paygw_batch.console.pages.orders import find_order_folder
from paygw_batch.console.pages.people_page import HEALTH_FOLDER
from paygw_batch.console.start_run import last_run
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.settle.kept_documents import withdraw_on_page
from paygw_batch.submit.approvals import withdraw_document
from tests.console.checking import check_in_process
from tests.console.preparing import build_workbook, open_payout_folder, sheet, sign_sheet, upload_sheet, waive_approval
from tests.console.settling import DECLINES, draft_order, pay_rows, settle
from tests.support.clocks import SetClock, shifted_clock
from tests.support.keyed_people import FROM_PAGES, KEYS, PasskeyHouse, key_form
from tests.support.patience import wait_until
from tests.support.people import APPROVER, MAKER, ORIGIN, House, Person, audit_entries, create_sandbox, parse_forms

pytestmark = pytest.mark.usefixtures("in_process_checks")
WRONG = {3: {"amount": '"1,250.00"'}, 4: {"amount": '"2,250.00"'}}


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return shifted_clock(monkeypatch)


def send_form(person: Person, path: str, form: dict[str, str], content: bytes | None = None) -> Response:
    """Send exactly this form, as from an earlier page."""
    files = None if content is None else {"sheet": ("payroll-november.csv", content)}
    data = {"csrf": person.token(), **form}
    return person.ask("POST", path, data=data, files=files, headers={"origin": ORIGIN})


def sheet_state(house: House, place: str) -> tuple[object, ...]:
    folder = open_payout_folder(house, place)
    corrections = folder.corrections
    assert corrections is not None
    edits = {(edit.row, edit.column, edit.now) for edit in corrections.edits}
    uploaded_ = replace(folder.uploaded, at="")
    return (folder.sheet.read_bytes(), edits, {row.row for row in corrections.left_out}, corrections.columns, uploaded_)


FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "mend": ("mend", {"row": "4", "column": "amount", "text": "55.00"}),
    "mend a kind": ("mend-kind", {"kind": "amount.format"}),
    "leave out": ("leave-out", {"row": "4", "out": "yes"}),
    "totals": ("totals", {"stated_rows": "5", "stated_sums": "KES 1.00"}),
    "reading": ("reading", {"reference": "payroll-2026-11"}),
    "another file": ("again", {}),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["mend", "mend a kind", "leave out"])
def test_form_opened_before_correction_changes_nothing(house: House, ada: Person, name: str) -> None:
    act, typed = FORMS[name]
    place = upload_sheet(ada, sheet(5, WRONG))
    path = f"{place}/{act}"
    form = {**ada.shown(path, **typed), **typed}
    assert ada.post(f"{place}/mend", row="4", column="amount", text="66.00").status_code == 303
    before = sheet_state(house, place)
    assert send_form(ada, path, form).status_code == 409
    assert sheet_state(house, place) == before


@pytest.mark.share(5)
@pytest.mark.parametrize("name", FORMS)
def test_form_without_shown_state_changes_nothing(house: House, ada: Person, name: str) -> None:
    act, typed = FORMS[name]
    place = upload_sheet(ada, sheet(5, WRONG))
    before = sheet_state(house, place)
    assert send_form(ada, f"{place}/{act}", typed, sheet(6) if act == "again" else None).status_code == 409
    assert sheet_state(house, place) == before


def test_repeated_leave_out_form_does_not_include_row(house: House, ada: Person) -> None:
    place = upload_sheet(ada, sheet(5, WRONG))
    path = f"{place}/leave-out"
    out = ada.shown(path, row="4")
    assert [send_form(ada, path, out).status_code for _ in range(3)] == [303] * 3
    assert sheet_state(house, place)[2] == {4}
    back = ada.shown(path, row="4")
    assert [send_form(ada, path, back).status_code for _ in range(2)] == [303] * 2
    assert sheet_state(house, place)[2] == set()
    send_form(ada, path, out)
    assert sheet_state(house, place)[2] == {4}  # The first page is still up to date.


def test_only_displayed_questions_can_be_answered(ada: Person) -> None:
    place = upload_sheet(ada, sheet(3))
    for form in ({"question": "payee.twice 0"}, {"question": "payee.twice 0", **ada.shown(f"{place}/totals")}):
        assert send_form(ada, f"{place}/answer", form).status_code == 409


def test_every_sheet_form_contains_shown_version(ada: Person) -> None:
    place = upload_sheet(ada, sheet(5, WRONG))
    forms = [form for kind in ("", "?kind=amount.format") for form in parse_forms(ada.get(f"{place}{kind}").text)]
    stating = {action: bool({"file", "version"} & set(fields)) for action, fields in forms if f"{place}/" in action}
    assert (len(stating) > 5, set(stating.values())) == (True, {True})


TESTED_ELSEWHERE = {
    "/sign-in/passkey": "test_repeated_sign_in_response_signs_in_once",
    "/invitation/{token}": "test_repeated_invitation_form_shows_same_line",
}
"""Forms that need people with passkeys: the tests that play them."""


_MAKER_ACTIONS = {"sign", "sign-again", "withdraw"}


@dataclass
class RecordedForm:
    """A form with its sender, address and fields. `other` may not send it, and `make_stale` makes its page stale."""

    by: Person
    path: str
    form: dict[str, str]
    make_stale: Callable[[], object] | None = None
    file: tuple[str, bytes] | None = None

    def send(self, by: Person | None = None, csrf: str = "") -> Response:
        files = None if self.file is None else {self.file[0]: ("payroll-november.csv", self.file[1])}
        person = by or self.by
        data = {"csrf": csrf or person.token(), **self.form}
        return person.ask("POST", self.path, data=data, files=files, headers={"origin": ORIGIN})


class Desk:
    """The people of a house, who record forms of every kind."""

    def __init__(self, house: House, set_clock: SetClock) -> None:
        self.house, self.set_clock = house, set_clock
        self.ada, self.ben = house.person(MAKER), house.person(APPROVER)

    def record_form(self, by: Person, path: str, make_stale: Callable[[], object] | None, **typed: str) -> RecordedForm:
        return RecordedForm(by, path, {**by.shown(path, **typed), **typed}, make_stale)

    def sheet_form(self, act: str, **typed: str) -> RecordedForm:
        place = upload_sheet(self.ada, sheet(5, WRONG))
        others = sheet(5, {2: {"name": "Eve"}, **WRONG})
        make_stale = partial(self.ada.upload, f"{place}/again", "payroll-november.csv", others)
        return self.record_form(self.ada, f"{place}/{act}", make_stale, **typed)

    def of_workbook(self) -> RecordedForm:
        place = upload_sheet(self.ada, build_workbook("October", "November"), "pay.xlsx")
        turn = partial(self.ada.upload, f"{place}/again", "pay.xlsx", build_workbook("October", "December"))
        chosen = {"worksheet-0": "October", "worksheet-1": "November"}
        return self.record_form(self.ada, f"{place}/worksheets", turn, **chosen)

    def plan_form(self, act: str, **typed: str) -> RecordedForm:
        place = upload_sheet(self.ada, sheet(2))
        if act != "sign":
            sign_sheet(self.ada, place)
        if act == "start":
            self.ben.post(f"{place}/approve", **self.ben.shown(f"{place}/approve"))
        if act == "sign-again":
            self.withdraw(open_payout_folder(self.house, place).plan)

        def make_stale() -> None:
            self.ada.post(f"{place}/mend", row="2", column="amount", text="701.00")
            sign_sheet(self.ada, place)

        return self.record_form(self.ada if act in _MAKER_ACTIONS else self.ben, f"{place}/{act}", make_stale, **typed)

    def withdraw(self, document: SignedDocument | None) -> None:
        """Withdraw a document as from a terminal, without using the pages."""
        assert document is not None
        withdraw_document(self.house.console.settings, document, withdraw_on_page(document, APPROVER, utc_now()))

    def order_form(self, act: str, **typed: str) -> RecordedForm:
        batch = pay_rows(self.house, "9006.00")
        order = draft_order(self.ada, batch, 2)
        if act != "sign":
            self.ada.post(f"{order}/sign")
        if act == "sign-again":
            order_folder = find_order_folder(self.house.console.directory / "orders", order.rpartition("/")[2])
            self.withdraw(None if order_folder is None else order_folder.order)
        if act == "carry-out":
            path = self.house.console.settings.journal_path()
            lock = RunLock(lock_path(path), now="2026-11-22T00:00:00.000Z", command="submit")
            self.ben.post(f"{order}/agree")
            lock.close()

        def make_stale() -> None:
            if act == "take-back":
                self.ben.post(f"{order}/send-back", reason="It is another ticket")
            else:
                self.ada.post(f"{order}/take-back")

        by = self.ben if act in {"agree", "send-back"} else self.ada
        return self.record_form(by, f"{order}/{act}", make_stale, **typed)

    def settle_form(self, said: str) -> RecordedForm:
        batch = pay_rows(self.house, "9006.00")
        place = f"/payouts/{batch}/rows/2/settle"
        make_stale = partial(self.ben.post, place, said="paid", evidence="Another ticket")
        return self.record_form(self.ada, place, make_stale, said=said, evidence="Ticket 7")

    def retry_form(self) -> RecordedForm:
        batch = pay_rows(self.house, "9001.00", "9006.00")

        def make_stale() -> None:
            order = draft_order(self.ada, batch, 3)
            self.ada.post(f"{order}/sign")
            self.ben.post(f"{order}/agree")

        typed = {"row-2": "one", "evidence": "Ticket 7"}
        return self.record_form(self.ada, f"/payouts/{batch}/retry", make_stale, **typed)

    def statement_form(self, act: str) -> RecordedForm:
        batch = pay_rows(self.house, "9006.00", "9006.10")
        content = b"Order ID,Amount,Currency,Answer\nP-1,9006.00,KES,rejected\n"
        path = f"/payouts/{batch}/statement"
        if act == "upload":
            form_case = self.record_form(self.ada, path, None, words="By mail")
            form_case.file = ("statement", content)

            def make_stale() -> None:
                other = ("statement", content.replace(b"rejected", b"paid"))
                assert RecordedForm(self.ada, path, form_case.form, None, other).send().status_code == 303

            form_case.make_stale = make_stale
            return form_case
        place = self.ada.upload(path, "answers.csv", content, words="By mail").headers["location"]
        return self.record_form(self.ada, f"{place}/{act}", partial(settle, self.ben, batch, 2, "paid"))

    def run_form(self, act: str) -> RecordedForm:
        batch = pay_rows(self.house, "9008.00")
        self.set_clock(timedelta(hours=25))
        order = draft_order(self.ada, batch, 2, "not-received")
        self.ada.post(f"{order}/sign")
        self.ben.post(f"{order}/agree")
        runs = self.house.console.runs

        def make_stale() -> None:
            run = last_run(runs, batch)
            if run is not None:
                os.kill(run.pid, signal.SIGKILL)
                wait_until(lambda: not run.is_alive, "the run lives on")
            assert self.ben.post(f"/payouts/{batch}/continue").status_code == 303

        if act == "pause":
            assert self.ada.post(f"/payouts/{batch}/continue").status_code == 303
        return self.record_form(self.ada, f"/payouts/{batch}/{act}", make_stale)

    def upload_form(self) -> RecordedForm:
        form_case = self.record_form(self.ada, "/new", None)
        form_case.file = ("sheet", sheet(3))
        form_case.make_stale = lambda: RecordedForm(self.ada, "/new", form_case.form, None, ("sheet", sheet(4))).send()
        return form_case

    def corrected_file_form(self) -> RecordedForm:
        form_case = self.sheet_form("again")
        form_case.file = ("sheet", sheet(6))
        return form_case


FORM_CASES: dict[str, Callable[[Desk], RecordedForm]] = {
    "/sign-in": lambda desk: RecordedForm(desk.ada, "/sign-in", {"name": MAKER}),
    "/language": lambda desk: RecordedForm(desk.ada, "/language", {"language": "fr", "back": "/people"}),
    "/sign-out": lambda desk: RecordedForm(desk.ada, "/sign-out", {}),
    "/new": Desk.upload_form,
    "/sheets/{sheet}/again": Desk.corrected_file_form,
    "/sheets/{sheet}/reading": lambda desk: desk.sheet_form("reading", reference="payroll-2026-11"),
    "/sheets/{sheet}/worksheets": Desk.of_workbook,
    "/sheets/{sheet}/totals": lambda desk: desk.sheet_form("totals", stated_rows="5", stated_sums="KES 1.00"),
    "/sheets/{sheet}/mend": lambda desk: desk.sheet_form("mend", row="4", column="amount", text="55.00"),
    "/sheets/{sheet}/mend-kind": lambda desk: desk.sheet_form("mend-kind", kind="amount.format"),
    "/sheets/{sheet}/leave-out": lambda desk: desk.sheet_form("leave-out", row="4", out="yes"),
    "/sheets/{sheet}/remove": lambda desk: desk.sheet_form("remove"),
    "/sheets/{sheet}/sign": lambda desk: desk.plan_form("sign"),
    "/sheets/{sheet}/sign-again": lambda desk: desk.plan_form("sign-again"),
    "/sheets/{sheet}/withdraw": lambda desk: desk.plan_form("withdraw"),
    "/sheets/{sheet}/approve": lambda desk: desk.plan_form("approve"),
    "/sheets/{sheet}/send-back": lambda desk: desk.plan_form("send-back", reason="One is wrong"),
    "/sheets/{sheet}/start": lambda desk: desk.plan_form("start"),
    "/payouts/{batch}/rows/{row:int}/settle": lambda desk: desk.settle_form("paid"),
    "/payouts/{batch}/rows/{row:int}/settle by two": lambda desk: desk.settle_form("rejected"),
    "/payouts/{batch}/retry": Desk.retry_form,
    "/payouts/{batch}/statement": lambda desk: desk.statement_form("upload"),
    "/statements/{statement}/carry-out": lambda desk: desk.statement_form("carry-out"),
    "/statements/{statement}/remove": lambda desk: desk.statement_form("remove"),
    "/orders/{order}/sign": lambda desk: desk.order_form("sign"),
    "/orders/{order}/sign-again": lambda desk: desk.order_form("sign-again"),
    "/orders/{order}/agree": lambda desk: desk.order_form("agree"),
    "/orders/{order}/send-back": lambda desk: desk.order_form("send-back", reason="It is another ticket"),
    "/orders/{order}/take-back": lambda desk: desk.order_form("take-back"),
    "/orders/{order}/carry-out": lambda desk: desk.order_form("carry-out"),
    "/payouts/{batch}/pause": lambda desk: desk.run_form("pause"),
    "/payouts/{batch}/continue": lambda desk: desk.run_form("continue"),
    "/people/check": lambda desk: desk.record_form(desk.ada, "/people/check", None, check="verify"),
}
QUESTION_PATH = "/sheets/{sheet}/answer"
"""The form tested above, which accepts only the question that its page asked."""
STATELESS = {"/sign-in", "/language", "/sign-out", "/people/check"}
"""Forms that mean the same on an old page."""


def test_every_form_is_tested() -> None:
    posts = {route.path for route in ROUTES if route.method == "POST"}
    assert {name.partition(" ")[0] for name in FORM_CASES} | {*TESTED_ELSEWHERE, QUESTION_PATH} == posts


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, set_clock: SetClock
) -> Iterator[Desk]:
    """Return the people of a house in which a started run only waits."""
    check_in_process(monkeypatch)
    house = House(create_sandbox(tmp_path, behaviour=DECLINES))
    if not str(request.node.callspec.params["path"]).startswith("/sheets/"):
        waive_approval(house.program)
        house = House(house.program)
    waits = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(300)"
    house.console = replace(house.console, program=(sys.executable, "-S", "-c", waits))
    house.app = console_app(house.console)
    yield Desk(house, set_clock)
    runs = (folder.glob("*.json") for folder in (house.console.runs, house.console.directory / HEALTH_FOLDER))
    for record in chain.from_iterable(runs):
        run = last_run(record.parent, record.stem.partition(".")[0])
        if run is not None and run.is_alive:
            os.kill(run.pid, signal.SIGKILL)


def console_state(house: House) -> tuple[object, ...]:
    """Return everything that forms can change: the journal's facts and evidence, and the console's files."""
    files = {path: path.read_bytes() for path in house.console.directory.rglob("*") if path.is_file()}
    if not house.console.settings.journal_path().exists():
        return (files,)
    with journal_for_planning(house.console.settings) as journal:
        records = journal.batches()
        history = [journal.history(record.number) for record in records]
        return files, journal.head().seq, list(journal.withdrawals()), history


@pytest.mark.share(5)
@pytest.mark.parametrize("path", FORM_CASES)
def test_every_repeated_form_is_applied_once(desk: Desk, path: str) -> None:
    form_case = FORM_CASES[path](desk)
    before, token = console_state(desk.house), form_case.by.token("/people")
    if path not in {"/sign-in", "/language"}:  # A token of another session is refused.
        stranger = desk.ben if form_case.by is desk.ada else desk.ada
        assert form_case.send(stranger, csrf=token).status_code == 403
        assert console_state(desk.house) == before
    first = form_case.send(csrf=token)
    assert first.status_code == 303, first.text
    once = console_state(desk.house)
    assert once != before or path in STATELESS
    second = form_case.send(csrf=token)
    assert (second.status_code, second.headers["location"]) == (303, first.headers["location"]), second.text
    assert console_state(desk.house) == once


@pytest.mark.share(5)
@pytest.mark.parametrize("path", [name for name in FORM_CASES if name not in STATELESS])
def test_stale_form_changes_nothing_and_returns_to_page(desk: Desk, path: str) -> None:
    form_case = FORM_CASES[path](desk)
    assert form_case.make_stale is not None
    form_case.make_stale()
    before = console_state(desk.house)
    answer = form_case.send()
    assert answer.status_code == 409, answer.headers.get("location", answer.text)
    assert console_state(desk.house) == before
    assert re.search(r'<a class="button action" href="/[^"]+">Reload</a>', answer.text)


def test_repeated_sign_in_response_signs_in_once(tmp_path: Path) -> None:
    house = PasskeyHouse(create_sandbox(tmp_path))
    ada, nonce = house.stranger(), house.stranger().begin_sign_in()
    answers = [ada.sign_in(KEYS[MAKER], nonce) for _ in range(2)]
    assert [(answer.status_code, answer.headers.get("location")) for answer in answers] == [(303, "/")] * 2
    assert [act for _, act, *_ in audit_entries(house)] == ["sign in"]
    assert house.stranger().sign_in(KEYS[MAKER], nonce).status_code == 403


def test_repeated_invitation_form_shows_same_line(tmp_path: Path) -> None:
    house = PasskeyHouse(create_sandbox(tmp_path))
    token = "T" * 43
    house.console.access.invitations.invite(APPROVER, token, house.console.now())
    form = key_form(KEYS[APPROVER], token=token)
    path = f"/invitation/{token}"
    first, second = (house.stranger().ask("POST", path, data=form, headers=FROM_PAGES) for _ in range(2))
    assert (first.status_code, second.status_code, first.text) == (200, 200, second.text)
    assert [act for _, act, *_ in audit_entries(house)] == ["make a passkey"]


@pytest.mark.share(3)
@pytest.mark.parametrize("act", ["mend", "leave-out", "totals", "reading", "again", "remove"])
def test_changing_signed_sheet_withdraws_plan(house: House, ada: Person, act: str) -> None:
    typed = {
        "mend": {"row": "2", "column": "amount", "text": "701.00"},
        "leave-out": {"row": "2", "out": "yes"},
        "totals": {"stated_rows": "3", "stated_sums": ""},
        "reading": {"reference": "payroll-2026-11"},
    }.get(act, {})
    place = upload_sheet(ada, sheet(3))
    sign_sheet(ada, place)
    plan = open_payout_folder(house, place).plan
    assert plan is not None
    path = f"{place}/{act}"
    answer = ada.upload(path, "payroll.csv", sheet(4)) if act == "again" else ada.post(path, **typed)
    assert answer.status_code == 303, answer.text
    with journal_for_planning(house.console.settings) as journal:
        assert [(withdrawal.sha256, withdrawal.by) for withdrawal in journal.withdrawals()] == [(plan.digest(), MAKER)]


def test_withdrawn_plan_is_reported_and_not_approved(house: House, ada: Person) -> None:
    ben = house.person(APPROVER)
    place = upload_sheet(ada, sheet(3))
    sign_sheet(ada, place)
    folder = open_payout_folder(house, place)
    form, plan = ben.shown(f"{place}/approve"), folder.plan
    assert plan is not None
    withdraw_document(house.console.settings, plan, withdraw_on_page(plan, APPROVER, utc_now()))
    assert send_form(ben, f"{place}/approve", form).status_code == 409
    assert folder.plan == plan
    page = ben.get(f"{place}/plan").text
    assert f"{APPROVER} withdrew the " in page
    assert f"{place}/approve" not in page
    assert f"{APPROVER} withdrew the " in ada.get("/").text
    # Its maker signs another plan of the same payments on the page.
    again = ada.post(f"{place}/sign-again")
    assert (again.status_code, again.headers["location"]) == (303, f"{place}/plan")
    sign_sheet(ada, place)
    renewed = folder.plan
    assert renewed is not None
    assert renewed.content == plan.content
    assert renewed.digest() != plan.digest()
    assert ben.post(f"{place}/approve").status_code == 303
    assert "Start the payout" in ben.get(f"{place}/plan").text


def test_withdrawn_order_is_signed_again_on_page(house: House, ada: Person) -> None:
    waive_approval(house.program)
    batch, ben = pay_rows(house, "9006.00"), house.person(APPROVER)
    place = draft_order(ada, batch, 2)
    ada.post(f"{place}/sign")
    folder = find_order_folder(house.console.directory / "orders", place.rpartition("/")[2])
    assert folder is not None
    order = folder.order
    assert order is not None
    withdraw_document(house.console.settings, order, withdraw_on_page(order, APPROVER, utc_now()))
    assert f"{APPROVER} withdrew the " in ben.get(place).text
    assert f"{place}/agree" not in ben.get(place).text
    assert ada.post(f"{place}/sign-again").status_code == 303
    assert ada.post(f"{place}/sign").status_code == 303
    assert ben.post(f"{place}/agree").status_code == 303
    assert ben.get(place).headers["location"] == f"/payouts/{batch}"


async def request_while_crowded(listener: socket.socket, count: int) -> bytes:
    """Open connections that never finish their heads, and return the answer to one more request."""
    port = listener.getsockname()[1]

    async def drip() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
            try:
                while not reader.at_eof():
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            except ConnectionError:
                pass
            return await reader.read()

    crowd = [asyncio.create_task(drip()) for _ in range(count)]
    await asyncio.gather(*crowd, return_exceptions=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return await reader.read()


def test_unfinished_requests_do_not_block_other_visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paygw_batch.console.console_app.HEAD_LIMIT_S", 0.3)

    async def app(_scope: object, _receive: object, send: Callable[..., object]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": b"here"})  # type: ignore[misc]

    async def play() -> bytes:
        with closing(listen_on_port(0)) as listener:
            ready = asyncio.Event()
            serving = asyncio.create_task(serve_pages(app, listener, ready=ready.set))
            await ready.wait()
            try:
                return await asyncio.wait_for(request_while_crowded(listener, 300), 60)
            finally:
                serving.cancel()

    assert b"here" in asyncio.run(play())
