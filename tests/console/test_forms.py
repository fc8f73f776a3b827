"""Tests that a form sent twice is applied once, and a form of a stale page not at all."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from copy import copy
from dataclasses import dataclass, field, replace
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
from tests.support.keyed_people import FROM_PAGES, KEYS, TOKEN, PasskeyHouse, key_form
from tests.support.patience import wait_until
from tests.support.people import APPROVER, MAKER, ORIGIN, House, Person, audit_entries, create_sandbox, parse_forms

pytestmark = pytest.mark.usefixtures("in_process_checks")
WRONG = {3: {"amount": '"1,250.00"'}, 4: {"amount": '"2,250.00"'}}


def send_form(person: Person, path: str, form: dict[str, str]) -> Response:
    return person.ask("POST", path, data={"csrf": person.token(), **form}, headers={"origin": ORIGIN})


def rows_left_out(house: House, draft: str) -> set[int]:
    corrections = open_payout_folder(house, draft).corrections
    assert corrections is not None
    return {row.row for row in corrections.left_out}


def test_repeated_leave_out_form_does_not_include_row(house: House, ada: Person) -> None:
    draft = upload_sheet(ada, sheet(5, WRONG))
    path = f"{draft}/leave-out"
    out = ada.shown(path, row="4")
    assert [send_form(ada, path, out).status_code for _ in range(3)] == [303] * 3
    assert rows_left_out(house, draft) == {4}
    back = ada.shown(path, row="4")
    assert [send_form(ada, path, back).status_code for _ in range(2)] == [303] * 2
    assert rows_left_out(house, draft) == set()
    send_form(ada, path, out)
    assert rows_left_out(house, draft) == {4}  # The first page is still up to date.


def test_only_displayed_questions_can_be_answered(ada: Person) -> None:
    draft = upload_sheet(ada, sheet(3))
    for form in ({"question": "payee.twice 0"}, {"question": "payee.twice 0", **ada.shown(f"{draft}/totals")}):
        assert send_form(ada, f"{draft}/answer", form).status_code == 409


def test_every_sheet_form_contains_shown_version(ada: Person) -> None:
    draft = upload_sheet(ada, sheet(5, WRONG))
    forms = [form for kind in ("", "?kind=amount.format") for form in parse_forms(ada.get(f"{draft}{kind}").text)]
    stating = {action: bool({"file", "version"} & set(fields)) for action, fields in forms if f"{draft}/" in action}
    assert (len(stating) > 5, set(stating.values())) == (True, {True})


@dataclass
class RecordedForm:
    """A form with its sender, address and typed fields, as its page shows it now. `make_stale` changes that page."""

    by: Person
    path: str
    typed: dict[str, str] = field(default_factory=dict)
    make_stale: Callable[[], object] | None = None
    content: bytes | None = None
    """A file in the form."""

    def __post_init__(self) -> None:
        self.form = self.by.shown(self.path, **self.typed)

    def send(self, by: Person | None = None, csrf: str = "", *, is_whole: bool = True) -> Response:
        """Send the form. If it is not whole, it has only the token and the typed fields."""
        person = by or self.by
        data = {"csrf": csrf or person.token(), **(self.form if is_whole else {}), **self.typed}
        name = "statement" if self.path.endswith("/statement") else "sheet"
        files = None if self.content is None else {name: ("payroll-november.csv", self.content)}
        return person.ask("POST", self.path, data=data, files=files, headers={"origin": ORIGIN})

    def with_content(self, content: bytes, other: bytes) -> "RecordedForm":
        """Add a file to the form. Its page is stale once the same form was sent with another file."""
        self.content = content
        changed = copy(self)
        changed.content = other
        self.make_stale = self.make_stale or changed.send
        return self


def withdraw(house: House, document: SignedDocument | None) -> None:
    """Withdraw a document as from a terminal, without using the pages."""
    assert document is not None
    withdraw_document(house.console.settings, document, withdraw_on_page(document, APPROVER, utc_now()))


def drafted_order(house: House, order: str) -> SignedDocument | None:
    folder = find_order_folder(house.console.directory / "orders", order.rpartition("/")[2])
    return None if folder is None else folder.order


class Desk:
    """The people of a house, who record forms of every kind."""

    def __init__(self, house: House, set_clock: SetClock) -> None:
        self.house, self.set_clock = house, set_clock
        self.ada, self.ben = house.person(MAKER), house.person(APPROVER)

    def sheet_form(self, act: str, **typed: str) -> RecordedForm:
        draft = upload_sheet(self.ada, sheet(5, WRONG))
        others = sheet(5, {2: {"name": "Eve"}, **WRONG})
        make_stale = partial(self.ada.upload, f"{draft}/again", "payroll-november.csv", others)
        return RecordedForm(self.ada, f"{draft}/{act}", typed, make_stale)

    def form_of_corrected_row(self, act: str, **typed: str) -> RecordedForm:
        recorded = self.sheet_form(act, **typed)
        recorded.make_stale = partial(self.ada.post, recorded.path.replace(act, "mend"), **MEND | {"text": "66.00"})
        return recorded

    def worksheets_form(self) -> RecordedForm:
        draft = upload_sheet(self.ada, build_workbook("October", "November"), "pay.xlsx")
        turn = partial(self.ada.upload, f"{draft}/again", "pay.xlsx", build_workbook("October", "December"))
        chosen = {"worksheet-0": "October", "worksheet-1": "November"}
        return RecordedForm(self.ada, f"{draft}/worksheets", chosen, turn)

    def plan_form(self, act: str, **typed: str) -> RecordedForm:
        draft = upload_sheet(self.ada, sheet(2))
        if act != "sign":
            sign_sheet(self.ada, draft)
        if act == "start":
            self.ben.post(f"{draft}/approve")
        if act == "sign-again":
            withdraw(self.house, open_payout_folder(self.house, draft).plan)

        def make_stale() -> None:
            self.ada.post(f"{draft}/mend", row="2", column="amount", text="701.00")
            sign_sheet(self.ada, draft)

        by = self.ada if act in {"sign", "sign-again", "withdraw"} else self.ben
        return RecordedForm(by, f"{draft}/{act}", typed, make_stale)

    def order_form(self, act: str, **typed: str) -> RecordedForm:
        order = draft_order(self.ada, pay_rows(self.house, "9006.00"), 2)
        if act != "sign":
            self.ada.post(f"{order}/sign")
        if act == "sign-again":
            withdraw(self.house, drafted_order(self.house, order))
        if act == "carry-out":
            path = lock_path(self.house.console.settings.journal_path())
            with closing(RunLock(path, now="2026-11-22T00:00:00.000Z", command="submit")):
                self.ben.post(f"{order}/agree")
        make_stale = partial(self.ada.post, f"{order}/take-back")
        if act == "take-back":
            make_stale = partial(self.ben.post, f"{order}/send-back", reason="It is another ticket")
        by = self.ben if act in {"agree", "send-back"} else self.ada
        return RecordedForm(by, f"{order}/{act}", typed, make_stale)

    def settle_form(self, said: str) -> RecordedForm:
        place = f"/payouts/{pay_rows(self.house, '9006.00')}/rows/2/settle"
        make_stale = partial(self.ben.post, place, said="paid", evidence="Another ticket")
        return RecordedForm(self.ada, place, {"said": said, "evidence": "Ticket 7"}, make_stale)

    def retry_form(self) -> RecordedForm:
        batch = pay_rows(self.house, "9001.00", "9006.00")

        def make_stale() -> None:
            order = draft_order(self.ada, batch, 3)
            self.ada.post(f"{order}/sign")
            self.ben.post(f"{order}/agree")

        return RecordedForm(self.ada, f"/payouts/{batch}/retry", {"row-2": "one", "evidence": "Ticket 7"}, make_stale)

    def statement_form(self, act: str) -> RecordedForm:
        batch = pay_rows(self.house, "9006.00", "9006.10")
        content = b"Order ID,Amount,Currency,Answer\nP-1,9006.00,KES,rejected\n"
        path = f"/payouts/{batch}/statement"
        if act == "upload":
            form_case = RecordedForm(self.ada, path, {"words": "By mail"})
            return form_case.with_content(content, content.replace(b"rejected", b"paid"))
        draft = self.ada.upload(path, "answers.csv", content, words="By mail").headers["location"]
        return RecordedForm(self.ada, f"{draft}/{act}", {}, partial(settle, self.ben, batch, 2, "paid"))

    def run_form(self, act: str) -> RecordedForm:
        batch = pay_rows(self.house, "9008.00")
        self.set_clock(timedelta(hours=25))
        order = draft_order(self.ada, batch, 2, "not-received")
        self.ada.post(f"{order}/sign")
        self.ben.post(f"{order}/agree")

        def make_stale() -> None:
            if (run := last_run(self.house.console.runs, batch)) is not None:
                os.kill(run.pid, signal.SIGKILL)
                wait_until(lambda: not run.is_alive, "the run lives on")
            assert self.ben.post(f"/payouts/{batch}/continue").status_code == 303

        if act == "pause":
            assert self.ada.post(f"/payouts/{batch}/continue").status_code == 303
        return RecordedForm(self.ada, f"/payouts/{batch}/{act}", {}, make_stale)


PLAN_ACTS = ("start", "sign", "sign-again", "approve", "withdraw")
ORDER_ACTS = ("sign", "take-back", "sign-again", "agree", "carry-out")
MEND = {"row": "4", "column": "amount", "text": "55.00"}
FORM_CASES: dict[str, Callable[[Desk], RecordedForm]] = {
    "/sign-in": lambda desk: RecordedForm(desk.ada, "/sign-in", {"name": MAKER}),
    "/language": lambda desk: RecordedForm(desk.ada, "/language", {"language": "fr", "back": "/people"}),
    "/sign-out": lambda desk: RecordedForm(desk.ada, "/sign-out"),
    "/new": lambda desk: RecordedForm(desk.ada, "/new").with_content(sheet(3), sheet(4)),
    "/sheets/{sheet}/again": lambda desk: desk.sheet_form("again").with_content(sheet(6), sheet(6)),
    "/sheets/{sheet}/reading": lambda desk: desk.sheet_form("reading", reference="payroll-2026-11"),
    "/sheets/{sheet}/worksheets": Desk.worksheets_form,
    "/sheets/{sheet}/totals": lambda desk: desk.sheet_form("totals", stated_rows="5", stated_sums="KES 1.00"),
    "/sheets/{sheet}/mend-kind": lambda desk: desk.sheet_form("mend-kind", kind="amount.format"),
    "/sheets/{sheet}/mend-kind corrected": lambda desk: desk.form_of_corrected_row("mend-kind", kind="amount.format"),
    "/sheets/{sheet}/mend": lambda desk: desk.sheet_form("mend", **MEND),
    "/sheets/{sheet}/mend corrected": lambda desk: desk.form_of_corrected_row("mend", **MEND),
    "/sheets/{sheet}/leave-out": lambda desk: desk.sheet_form("leave-out", row="4", out="yes"),
    "/sheets/{sheet}/leave-out corrected": lambda desk: desk.form_of_corrected_row("leave-out", row="4", out="yes"),
    "/sheets/{sheet}/remove": lambda desk: desk.sheet_form("remove"),
    **{f"/sheets/{{sheet}}/{act}": partial(Desk.plan_form, act=act) for act in PLAN_ACTS},
    "/payouts/{batch}/retry": Desk.retry_form,
    "/sheets/{sheet}/send-back": lambda desk: desk.plan_form("send-back", reason="One is wrong"),
    "/payouts/{batch}/rows/{row:int}/settle": lambda desk: desk.settle_form("paid"),
    "/payouts/{batch}/rows/{row:int}/settle by two": lambda desk: desk.settle_form("rejected"),
    "/payouts/{batch}/statement": lambda desk: desk.statement_form("upload"),
    **{f"/statements/{{statement}}/{act}": partial(Desk.statement_form, act=act) for act in ("remove", "carry-out")},
    **{f"/orders/{{order}}/{act}": partial(Desk.order_form, act=act) for act in ORDER_ACTS},
    "/orders/{order}/send-back": lambda desk: desk.order_form("send-back", reason="It is another ticket"),
    **{f"/payouts/{{batch}}/{act}": partial(Desk.run_form, act=act) for act in ("pause", "continue")},
    "/people/check": lambda desk: RecordedForm(desk.ada, "/people/check", {"check": "verify"}),
}
TESTED_ELSEWHERE = {"/sign-in/passkey", "/invitation/{token}", "/sheets/{sheet}/answer"}
"""Forms that need people with passkeys, tested below, and the one that accepts only its page's question, above."""
STATELESS = {"/sign-in", "/language", "/sign-out", "/people/check"}
"""Forms that mean the same on an old page."""


def test_every_form_is_tested() -> None:
    posts = {route.path for route in ROUTES if route.method == "POST"}
    assert {name.partition(" ")[0] for name in FORM_CASES} | TESTED_ELSEWHERE == posts


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """Return the people of a house in which a started run only waits."""
    check_in_process(monkeypatch)
    house = House(create_sandbox(tmp_path, behaviour=DECLINES))
    if not str(request.node.callspec.params["path"]).startswith("/sheets/"):
        waive_approval(house.program)
        house = House(house.program)
    waits = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(300)"
    house.console = replace(house.console, program=(sys.executable, "-S", "-c", waits))
    house.app = console_app(house.console)
    yield Desk(house, shifted_clock(monkeypatch))
    runs = (folder.glob("*.json") for folder in (house.console.runs, house.console.directory / HEALTH_FOLDER))
    for record in chain.from_iterable(runs):
        if (run := last_run(record.parent, record.stem.partition(".")[0])) is not None and run.is_alive:
            os.kill(run.pid, signal.SIGKILL)


def console_state(house: House) -> tuple[object, ...]:
    """Return everything that forms can change: the journal's facts and evidence, and the console's files."""
    files = {path: path.read_bytes() for path in house.console.directory.rglob("*") if path.is_file()}
    if not house.console.settings.journal_path().exists():
        return (files,)
    with journal_for_planning(house.console.settings) as journal:
        history = [journal.history(record.number) for record in journal.batches()]
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
        needs_page = path not in {*STATELESS, "/new", "/payouts/{batch}/statement"}
        assert not needs_page or form_case.send(is_whole=False).status_code == 409
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
    house, path = PasskeyHouse(create_sandbox(tmp_path)), f"/invitation/{TOKEN}"
    house.console.access.invitations.invite(APPROVER, TOKEN, house.console.now())
    form = key_form(KEYS[APPROVER])
    first, second = (house.stranger().ask("POST", path, data=form, headers=FROM_PAGES) for _ in range(2))
    assert (first.status_code, second.status_code, first.text) == (200, 200, second.text)
    assert [act for _, act, *_ in audit_entries(house)] == ["make a passkey"]


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("act", "typed"),
    [
        *(("mend", {"row": "2", "column": "amount", "text": "701.00"}), ("leave-out", {"row": "2", "out": "yes"})),
        *(("totals", {"stated_rows": "3", "stated_sums": ""}), ("reading", {"reference": "payroll-2026-11"})),
        *(("again", {}), ("remove", {})),
    ],
)
def test_changing_signed_sheet_withdraws_plan(house: House, ada: Person, act: str, typed: dict[str, str]) -> None:
    draft = upload_sheet(ada, sheet(3))
    sign_sheet(ada, draft)
    plan = open_payout_folder(house, draft).plan
    assert plan is not None
    path = f"{draft}/{act}"
    answer = ada.upload(path, "payroll.csv", sheet(4)) if act == "again" else ada.post(path, **typed)
    assert answer.status_code == 303, answer.text
    with journal_for_planning(house.console.settings) as journal:
        assert [(withdrawal.sha256, withdrawal.by) for withdrawal in journal.withdrawals()] == [(plan.digest(), MAKER)]


def test_withdrawn_plan_is_reported_and_not_approved(house: House, ada: Person) -> None:
    ben = house.person(APPROVER)
    draft = upload_sheet(ada, sheet(3))
    sign_sheet(ada, draft)
    folder = open_payout_folder(house, draft)
    form, plan = ben.shown(f"{draft}/approve"), folder.plan
    withdraw(house, plan)
    assert send_form(ben, f"{draft}/approve", form).status_code == 409
    assert folder.plan == plan
    page = ben.get(f"{draft}/plan").text
    assert (f"{APPROVER} withdrew the " in page, f"{draft}/approve" in page) == (True, False)
    assert f"{APPROVER} withdrew the " in ada.get("/").text
    # Its maker signs another plan of the same payments on the page.
    again = ada.post(f"{draft}/sign-again")
    assert (again.status_code, again.headers["location"]) == (303, f"{draft}/plan")
    sign_sheet(ada, draft)
    renewed = folder.plan
    assert plan is not None
    assert renewed is not None
    assert (renewed.content == plan.content, renewed.digest() == plan.digest()) == (True, False)
    assert ben.post(f"{draft}/approve").status_code == 303
    assert "Start the payout" in ben.get(f"{draft}/plan").text


def test_withdrawn_order_is_signed_again_on_page(house: House, ada: Person) -> None:
    waive_approval(house.program)
    batch, ben = pay_rows(house, "9006.00"), house.person(APPROVER)
    place = draft_order(ada, batch, 2)
    ada.post(f"{place}/sign")
    withdraw(house, drafted_order(house, place))
    page = ben.get(place).text
    assert (f"{APPROVER} withdrew the " in page, f"{place}/agree" in page) == (True, False)
    assert ada.post(f"{place}/sign-again").status_code == 303
    assert ada.post(f"{place}/sign").status_code == 303
    assert ben.post(f"{place}/agree").status_code == 303
    assert ben.get(place).headers["location"] == f"/payouts/{batch}"


def test_unfinished_requests_do_not_block_other_visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paygw_batch.console.console_app.HEAD_LIMIT_S", 0.3)

    async def app(_scope: object, _receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    async def drip_head(port: int) -> None:
        """Open a connection that never finishes its head, until the server closes it."""
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer), suppress(ConnectionError):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
            while True:
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.02)

    async def play() -> bytes:
        with closing(listen_on_port(0)) as listener:
            ready, port = asyncio.Event(), listener.getsockname()[1]
            serving = asyncio.create_task(serve_pages(app, listener, on_ready=ready.set))
            await ready.wait()
            await asyncio.gather(*(drip_head(port) for _ in range(300)), return_exceptions=True)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(writer):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
            serving.cancel()
            return answer

    assert b"here" in asyncio.run(asyncio.wait_for(play(), 60))
