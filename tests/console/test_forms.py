"""Every form says what it wants and what its page showed: sent twice it is done once, from a stale page not at all."""

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
from paygw_batch.console.pages.orders import order_folder_of
from paygw_batch.console.pages.people_page import HEALTH
from paygw_batch.console.payout_folder import all_folders
from paygw_batch.console.start_run import started_run
from paygw_batch.journal.lock import RunLock, lock_path
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.settle.kept_documents import withdrawn_at_a_page
from paygw_batch.submit.approvals import withdraw_document
from tests.console.checking import checked_here
from tests.console.preparing import folder_of, sheet, signed, uploaded, without_approval
from tests.console.settling import DECLINES, drafted, paid, settle
from tests.support.clocks import SetClock, clock_of
from tests.support.keyed_people import FROM_PAGES, KEYS, PasskeyHouse, made
from tests.support.patience import until
from tests.support.people import APPROVER, MAKER, ORIGIN, House, Person, forms_of, set_up, trail_of

pytestmark = pytest.mark.usefixtures("checks_here")
WRONG = {3: {"amount": '"1,250.00"'}, 4: {"amount": '"2,250.00"'}}


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return clock_of(monkeypatch)


def sent(person: Person, path: str, form: dict[str, str], content: bytes | None = None) -> Response:
    """Send exactly this form, as a page of some time ago has it."""
    files = None if content is None else {"sheet": ("payroll-november.csv", content)}
    data = {"csrf": person.token(), **form}
    return person.ask("POST", path, data=data, files=files, headers={"origin": ORIGIN})


def state(house: House, place: str) -> tuple[object, ...]:
    """Return everything about a sheet that a form can change."""
    found = folder_of(house, place)
    mending = found.mending
    assert mending is not None
    edits = {(one.row, one.column, one.now) for one in mending.edits}
    uploaded_ = replace(found.uploaded, at="")
    return found.sheet.read_bytes(), edits, {one.row for one in mending.left_out}, mending.columns, uploaded_


FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "mend": ("mend", {"row": "4", "column": "amount", "text": "55.00"}),
    "mend to nothing": ("mend", {"row": "4", "column": "amount", "text": ""}),
    "mend a kind": ("mend-kind", {"kind": "amount.format"}),
    "leave out": ("leave-out", {"row": "4", "out": "yes"}),
    "totals": ("totals", {"stated_rows": "5", "stated_sums": "KES 1.00"}),
    "reading": ("reading", {"reference": "payroll-2026-11"}),
    "another file": ("again", {}),
}


@pytest.mark.share(5)
@pytest.mark.parametrize("name", FORMS)
def test_repeated_sheet_form_is_applied_once(house: House, ada: Person, name: str) -> None:
    act, typed = FORMS[name]
    place = uploaded(ada, sheet(5, WRONG))
    path, content = f"{place}/{act}", sheet(6) if act == "again" else None
    form = {**ada.shown(path, **typed), **typed}
    before = state(house, place)
    assert sent(ada, path, form, content).status_code == 303
    once = state(house, place)
    assert once != before
    assert sent(ada, path, form, content).status_code == 303
    assert state(house, place) == once


@pytest.mark.share(5)
@pytest.mark.parametrize("name", FORMS)
def test_form_for_replaced_file_changes_nothing(house: House, ada: Person, name: str) -> None:
    """The second tab still shows the file of before, and its form would be about another person's row."""
    act, typed = FORMS[name]
    place = uploaded(ada, sheet(5, WRONG))
    path = f"{place}/{act}"
    form = {**ada.shown(path, **typed), **typed}
    others = sheet(5, {2: {"name": "Somebody Else"}, **WRONG})
    assert ada.upload(f"{place}/again", "payroll-november.csv", others).status_code == 303
    before = state(house, place)
    assert sent(ada, path, form, sheet(6) if act == "again" else None).status_code == 409
    assert state(house, place) == before


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["mend", "mend a kind", "leave out"])
def test_form_shown_before_mending_changes_nothing(house: House, ada: Person, name: str) -> None:
    act, typed = FORMS[name]
    place = uploaded(ada, sheet(5, WRONG))
    path = f"{place}/{act}"
    form = {**ada.shown(path, **typed), **typed}
    assert ada.post(f"{place}/mend", row="4", column="amount", text="66.00").status_code == 303
    before = state(house, place)
    assert sent(ada, path, form).status_code == 409
    assert state(house, place) == before


@pytest.mark.share(5)
@pytest.mark.parametrize("name", FORMS)
def test_form_without_shown_state_changes_nothing(house: House, ada: Person, name: str) -> None:
    act, typed = FORMS[name]
    place = uploaded(ada, sheet(5, WRONG))
    before = state(house, place)
    assert sent(ada, f"{place}/{act}", typed, sheet(6) if act == "again" else None).status_code == 409
    assert state(house, place) == before


def test_left_out_row_returns_only_by_explicit_form(house: House, ada: Person) -> None:
    place = uploaded(ada, sheet(5, WRONG))
    path = f"{place}/leave-out"
    out = ada.shown(path, row="4")
    assert [sent(ada, path, out).status_code for _ in range(3)] == [303] * 3
    assert state(house, place)[2] == {4}
    back = ada.shown(path, row="4")
    assert [sent(ada, path, back).status_code for _ in range(2)] == [303] * 2
    assert state(house, place)[2] == set()
    sent(ada, path, out)
    assert state(house, place)[2] == {4}  # the first page says what it wants, and the row is as it showed it


def test_repeated_upload_creates_one_payout(house: House, ada: Person) -> None:
    form = ada.shown("/new")
    first, second = (sent(ada, "/new", form, sheet(3)) for _ in range(2))
    assert first.headers["location"] == second.headers["location"]
    assert len(list(all_folders(house.console.directory))) == 1
    assert sent(ada, "/new", form, sheet(4)).status_code == 409
    assert sent(house.person(APPROVER), "/new", form, sheet(3)).status_code in {403, 409}
    assert len(list(all_folders(house.console.directory))) == 1
    assert sent(ada, "/new", ada.shown("/new"), sheet(3)).headers["location"] != first.headers["location"]


def test_sheet_is_removed_only_in_shown_version(house: House, ada: Person) -> None:
    place = uploaded(ada, sheet(5, WRONG))
    stale = ada.shown(f"{place}/remove")
    ada.post(f"{place}/mend", row="4", column="amount", text="55.00")
    assert sent(ada, f"{place}/remove", stale).status_code == 409
    form = ada.shown(f"{place}/remove")
    assert [sent(ada, f"{place}/remove", form).headers.get("location") for _ in range(2)] == ["/", "/"]
    assert list(all_folders(house.console.directory)) == []


def test_only_shown_questions_are_answered(ada: Person) -> None:
    place = uploaded(ada, sheet(3))
    for form in ({"question": "payee.twice 0"}, {"question": "payee.twice 0", **ada.shown(f"{place}/totals")}):
        assert sent(ada, f"{place}/answer", form).status_code == 409


def test_every_sheet_form_states_shown_version(ada: Person) -> None:
    place = uploaded(ada, sheet(5, WRONG))
    found = [
        (action, fields)
        for kind in ("", "?kind=amount.format")
        for action, fields in forms_of(ada.get(f"{place}{kind}").text)
        if action.startswith(f"{place}/")
    ]
    assert len(found) > 10
    assert [action for action, fields in found if not {"file", "version"} & set(fields)] == []


# Every form of the pages


ELSEWHERE = {
    "/sign-in/passkey": "test_repeated_sign_in_answer_signs_in_once",
    "/invitation/{token}": "test_repeated_invitation_form_shows_same_line",
}
"""Forms that need people with passkeys: the tests that play them."""


_OF_THE_MAKER = {"sign", "sign-again", "withdraw"}


@dataclass
class Sent:
    """A form as its page had it: who sends it, where, with what; `other` may not, and `turn` makes the page stale."""

    by: Person
    path: str
    form: dict[str, str]
    turn: Callable[[], object] | None = None
    file: tuple[str, bytes] | None = None

    def send(self, by: Person | None = None, csrf: str = "") -> Response:
        files = None if self.file is None else {self.file[0]: ("payroll-november.csv", self.file[1])}
        person = by or self.by
        data = {"csrf": csrf or person.token(), **self.form}
        return person.ask("POST", self.path, data=data, files=files, headers={"origin": ORIGIN})


class Desk:
    """The people of a house, and what a scene begins with."""

    def __init__(self, house: House, set_clock: SetClock) -> None:
        self.house, self.set_clock = house, set_clock
        self.ada, self.ben = house.person(MAKER), house.person(APPROVER)

    def sent(self, by: Person, path: str, turn: Callable[[], object] | None, **typed: str) -> Sent:
        return Sent(by, path, {**by.shown(path, **typed), **typed}, turn)

    def of_sheet(self, act: str, **typed: str) -> Sent:
        place = uploaded(self.ada, sheet(5, WRONG))
        turn = partial(
            self.ada.upload, f"{place}/again", "payroll-november.csv", sheet(5, {2: {"name": "Eve"}, **WRONG})
        )
        return self.sent(self.ada, f"{place}/{act}", turn, **typed)

    def of_plan(self, act: str, **typed: str) -> Sent:
        place = uploaded(self.ada, sheet(2))
        if act != "sign":
            signed(self.ada, place)
        if act == "start":
            self.ben.post(f"{place}/approve", **self.ben.shown(f"{place}/approve"))
        if act == "sign-again":
            self.withdraw(folder_of(self.house, place).plan)

        def turn() -> None:
            self.ada.post(f"{place}/mend", row="2", column="amount", text="701.00")
            signed(self.ada, place)

        return self.sent(self.ada if act in _OF_THE_MAKER else self.ben, f"{place}/{act}", turn, **typed)

    def withdraw(self, document: SignedDocument | None) -> None:
        """Withdraw a document as a person at a terminal does: the pages are told nothing."""
        assert document is not None
        withdraw_document(self.house.console.settings, document, withdrawn_at_a_page(document, APPROVER, utc_now()))

    def of_order(self, act: str, **typed: str) -> Sent:
        batch = paid(self.house, "9006.00")
        order = drafted(self.ada, batch, 2)
        if act != "sign":
            self.ada.post(f"{order}/sign")
        if act == "sign-again":
            found = order_folder_of(self.house.console.directory / "orders", order.rpartition("/")[2])
            self.withdraw(None if found is None else found.order)
        if act == "carry-out":
            path = self.house.console.settings.journal_path()
            lock = RunLock(lock_path(path), now="2026-11-22T00:00:00.000Z", command="submit")
            self.ben.post(f"{order}/agree")
            lock.close()

        def turn() -> None:
            if act == "take-back":
                self.ben.post(f"{order}/send-back", reason="It is another ticket")
            else:
                self.ada.post(f"{order}/take-back")

        return self.sent(self.ben if act in {"agree", "send-back"} else self.ada, f"{order}/{act}", turn, **typed)

    def of_row(self, said: str) -> Sent:
        batch = paid(self.house, "9006.00")
        place = f"/payouts/{batch}/rows/2/settle"
        turn = partial(self.ben.post, place, said="paid", evidence="Another ticket")
        return self.sent(self.ada, place, turn, said=said, evidence="Ticket 7")

    def of_retry(self) -> Sent:
        batch = paid(self.house, "9001.00", "9006.00")

        def turn() -> None:
            order = drafted(self.ada, batch, 3)
            self.ada.post(f"{order}/sign")
            self.ben.post(f"{order}/agree")

        return self.sent(self.ada, f"/payouts/{batch}/retry", turn, **{"row-2": "one", "evidence": "Ticket 7"})

    def of_statement(self, act: str) -> Sent:
        batch = paid(self.house, "9006.00", "9006.10")
        content = b"Order ID,Amount,Currency,Answer\nP-1,9006.00,KES,rejected\n"
        path = f"/payouts/{batch}/statement"
        if act == "upload":
            one = self.sent(self.ada, path, None, words="By mail")
            one.file = ("statement", content)

            def turn() -> None:
                other = Sent(self.ada, path, one.form, None, ("statement", content.replace(b"rejected", b"paid")))
                assert other.send().status_code == 303

            one.turn = turn
            return one
        place = self.ada.upload(path, "answers.csv", content, words="By mail").headers["location"]
        return self.sent(self.ada, f"{place}/{act}", partial(settle, self.ben, batch, 2, "paid"))

    def of_run(self, act: str) -> Sent:
        batch = paid(self.house, "9008.00")
        self.set_clock(timedelta(hours=25))
        order = drafted(self.ada, batch, 2, "not-received")
        self.ada.post(f"{order}/sign")
        self.ben.post(f"{order}/agree")
        runs = self.house.console.runs

        def turn() -> None:
            run = started_run(runs, batch)
            if run is not None:
                os.kill(run.pid, signal.SIGKILL)
                until(lambda: not run.is_alive, "the run lives on")
            assert self.ben.post(f"/payouts/{batch}/continue").status_code == 303

        if act == "pause":
            assert self.ada.post(f"/payouts/{batch}/continue").status_code == 303
        return self.sent(self.ada, f"/payouts/{batch}/{act}", turn)

    def of_upload(self) -> Sent:
        one = self.sent(self.ada, "/new", None)
        one.file = ("sheet", sheet(3))
        one.turn = lambda: Sent(self.ada, "/new", one.form, None, ("sheet", sheet(4))).send()
        return one

    def again(self) -> Sent:
        one = self.of_sheet("again")
        one.file = ("sheet", sheet(6))
        return one


SCENES: dict[str, Callable[[Desk], Sent]] = {
    "/sign-in": lambda desk: Sent(desk.ada, "/sign-in", {"name": MAKER}),
    "/language": lambda desk: Sent(desk.ada, "/language", {"language": "fr", "back": "/people"}),
    "/sign-out": lambda desk: Sent(desk.ada, "/sign-out", {}),
    "/new": Desk.of_upload,
    "/sheets/{sheet}/again": Desk.again,
    "/sheets/{sheet}/reading": lambda desk: desk.of_sheet("reading", reference="payroll-2026-11"),
    "/sheets/{sheet}/totals": lambda desk: desk.of_sheet("totals", stated_rows="5", stated_sums="KES 1.00"),
    "/sheets/{sheet}/mend": lambda desk: desk.of_sheet("mend", row="4", column="amount", text="55.00"),
    "/sheets/{sheet}/mend-kind": lambda desk: desk.of_sheet("mend-kind", kind="amount.format"),
    "/sheets/{sheet}/leave-out": lambda desk: desk.of_sheet("leave-out", row="4", out="yes"),
    "/sheets/{sheet}/remove": lambda desk: desk.of_sheet("remove"),
    "/sheets/{sheet}/sign": lambda desk: desk.of_plan("sign"),
    "/sheets/{sheet}/sign-again": lambda desk: desk.of_plan("sign-again"),
    "/sheets/{sheet}/withdraw": lambda desk: desk.of_plan("withdraw"),
    "/sheets/{sheet}/approve": lambda desk: desk.of_plan("approve"),
    "/sheets/{sheet}/send-back": lambda desk: desk.of_plan("send-back", reason="One is wrong"),
    "/sheets/{sheet}/start": lambda desk: desk.of_plan("start"),
    "/payouts/{batch}/rows/{row:int}/settle": lambda desk: desk.of_row("paid"),
    "/payouts/{batch}/rows/{row:int}/settle by two": lambda desk: desk.of_row("rejected"),
    "/payouts/{batch}/retry": Desk.of_retry,
    "/payouts/{batch}/statement": lambda desk: desk.of_statement("upload"),
    "/statements/{statement}/carry-out": lambda desk: desk.of_statement("carry-out"),
    "/statements/{statement}/remove": lambda desk: desk.of_statement("remove"),
    "/orders/{order}/sign": lambda desk: desk.of_order("sign"),
    "/orders/{order}/sign-again": lambda desk: desk.of_order("sign-again"),
    "/orders/{order}/agree": lambda desk: desk.of_order("agree"),
    "/orders/{order}/send-back": lambda desk: desk.of_order("send-back", reason="It is another ticket"),
    "/orders/{order}/take-back": lambda desk: desk.of_order("take-back"),
    "/orders/{order}/carry-out": lambda desk: desk.of_order("carry-out"),
    "/payouts/{batch}/pause": lambda desk: desk.of_run("pause"),
    "/payouts/{batch}/continue": lambda desk: desk.of_run("continue"),
    "/people/check": lambda desk: desk.sent(desk.ada, "/people/check", None, check="verify"),
}
OF_A_QUESTION = "/sheets/{sheet}/answer"
"""Played above: nothing but the question that the page asked counts."""
STATELESS = {"/sign-in", "/language", "/sign-out", "/people/check"}
"""What these want is no other thing on an old page."""


def test_every_form_is_tested() -> None:
    posts = {route.path for route in ROUTES if route.method == "POST"}
    assert {name.partition(" ")[0] for name in SCENES} | {*ELSEWHERE, OF_A_QUESTION} == posts


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, set_clock: SetClock
) -> Iterator[Desk]:
    """Return the people of a house in which a started run is a process that waits."""
    checked_here(monkeypatch)
    house = House(set_up(tmp_path, behaviour=DECLINES))
    if not str(request.node.callspec.params["path"]).startswith("/sheets/"):
        without_approval(house.program)
        house = House(house.program)
    waits = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(300)"
    house.console = replace(house.console, program=(sys.executable, "-S", "-c", waits))
    house.app = console_app(house.console)
    yield Desk(house, set_clock)
    runs = (folder.glob("*.json") for folder in (house.console.runs, house.console.directory / HEALTH))
    for record in chain.from_iterable(runs):
        run = started_run(record.parent, record.stem.partition(".")[0])
        if run is not None and run.is_alive:
            os.kill(run.pid, signal.SIGKILL)


def whole(house: House) -> tuple[object, ...]:
    """Return everything that a form can change: the journal's facts and evidence, and each file of the pages."""
    files = {path: path.read_bytes() for path in house.console.directory.rglob("*") if path.is_file()}
    if not house.console.settings.journal_path().exists():
        return (files,)
    with journal_for_planning(house.console.settings) as journal:
        records = journal.batches()
        history = [journal.history(one.number) for one in records]
        return files, journal.head().seq, list(journal.withdrawals()), history


@pytest.mark.share(5)
@pytest.mark.parametrize("path", SCENES)
def test_every_repeated_form_is_applied_once(desk: Desk, path: str) -> None:
    one = SCENES[path](desk)
    before, token = whole(desk.house), one.by.token("/people")
    if path not in {"/sign-in", "/language"}:  # the token of another session
        stranger = desk.ben if one.by is desk.ada else desk.ada
        assert one.send(stranger, csrf=token).status_code == 403
        assert whole(desk.house) == before
    first = one.send(csrf=token)
    assert first.status_code == 303, first.text
    once = whole(desk.house)
    assert once != before or path in STATELESS
    second = one.send(csrf=token)
    assert (second.status_code, second.headers["location"]) == (303, first.headers["location"]), second.text
    assert whole(desk.house) == once


@pytest.mark.share(5)
@pytest.mark.parametrize("path", [name for name in SCENES if name not in STATELESS])
def test_stale_form_changes_nothing_and_returns_to_page(desk: Desk, path: str) -> None:
    one = SCENES[path](desk)
    assert one.turn is not None
    one.turn()
    before = whole(desk.house)
    answer = one.send()
    assert answer.status_code == 409, answer.headers.get("location", answer.text)
    assert whole(desk.house) == before
    assert re.search(r'<a class="button action" href="/[^"]+">Reload</a>', answer.text)


def test_repeated_sign_in_answer_signs_in_once(tmp_path: Path) -> None:
    house = PasskeyHouse(set_up(tmp_path))
    ada, begun = house.stranger(), house.stranger().begun()
    answers = [ada.sign_in(KEYS[MAKER], begun) for _ in range(2)]
    assert [(one.status_code, one.headers.get("location")) for one in answers] == [(303, "/")] * 2
    assert [act for _, act, *_ in trail_of(house)] == ["sign in"]
    assert house.stranger().sign_in(KEYS[MAKER], begun).status_code == 403


def test_repeated_invitation_form_shows_same_line(tmp_path: Path) -> None:
    house = PasskeyHouse(set_up(tmp_path))
    token = "T" * 43
    house.console.access.invitations.invite(APPROVER, token, house.console.now())
    form = made(KEYS[APPROVER], token=token)
    first, second = (
        house.stranger().ask("POST", f"/invitation/{token}", data=form, headers=FROM_PAGES) for _ in range(2)
    )
    assert (first.status_code, second.status_code) == (200, 200), first.text
    assert first.text == second.text
    assert [act for _, act, *_ in trail_of(house)] == ["make a passkey"]


# Changes of a signed sheet


@pytest.mark.share(3)
@pytest.mark.parametrize("act", ["mend", "leave-out", "totals", "reading", "again", "remove"])
def test_changing_signed_sheet_withdraws_plan(house: House, ada: Person, act: str) -> None:
    typed = {
        "mend": {"row": "2", "column": "amount", "text": "701.00"},
        "leave-out": {"row": "2", "out": "yes"},
        "totals": {"stated_rows": "3", "stated_sums": ""},
        "reading": {"reference": "payroll-2026-11"},
    }.get(act, {})
    place = uploaded(ada, sheet(3))
    signed(ada, place)
    plan = folder_of(house, place).plan
    assert plan is not None
    path = f"{place}/{act}"
    answer = ada.upload(path, "payroll.csv", sheet(4)) if act == "again" else ada.post(path, **typed)
    assert answer.status_code == 303, answer.text
    with journal_for_planning(house.console.settings) as journal:
        assert [(one.sha256, one.by) for one in journal.withdrawals()] == [(plan.digest(), MAKER)]


def test_withdrawn_plan_is_reported_and_not_approved(house: House, ada: Person) -> None:
    ben = house.person(APPROVER)
    place = uploaded(ada, sheet(3))
    signed(ada, place)
    found = folder_of(house, place)
    form, plan = ben.shown(f"{place}/approve"), found.plan
    assert plan is not None
    withdraw_document(house.console.settings, plan, withdrawn_at_a_page(plan, APPROVER, utc_now()))
    assert sent(ben, f"{place}/approve", form).status_code == 409
    assert found.plan == plan
    page = ben.get(f"{place}/plan").text
    assert f"was withdrawn by {APPROVER}" in page
    assert f"{place}/approve" not in page
    assert f"was withdrawn by {APPROVER}" in ada.get("/").text
    # Its maker signs it again on the page: another plan of the same payments.
    again = ada.post(f"{place}/sign-again")
    assert (again.status_code, again.headers["location"]) == (303, f"{place}/plan")
    signed(ada, place)
    renewed = found.plan
    assert renewed is not None
    assert renewed.content == plan.content
    assert renewed.digest() != plan.digest()
    assert ben.post(f"{place}/approve").status_code == 303
    assert "Start the payout" in ben.get(f"{place}/plan").text


def test_withdrawn_order_is_signed_again_on_page(house: House, ada: Person) -> None:
    without_approval(house.program)
    batch, ben = paid(house, "9006.00"), house.person(APPROVER)
    place = drafted(ada, batch, 2)
    ada.post(f"{place}/sign")
    found = order_folder_of(house.console.directory / "orders", place.rpartition("/")[2])
    assert found is not None
    order = found.order
    assert order is not None
    withdraw_document(house.console.settings, order, withdrawn_at_a_page(order, APPROVER, utc_now()))
    assert f"was withdrawn by {APPROVER}" in ben.get(place).text
    assert f"{place}/agree" not in ben.get(place).text
    assert ada.post(f"{place}/sign-again").status_code == 303
    assert ada.post(f"{place}/sign").status_code == 303
    assert ben.post(f"{place}/agree").status_code == 303
    assert ben.get(place).headers["location"] == f"/payouts/{batch}"


# Connections that never finish a head


async def crowded(listener: socket.socket, count: int) -> bytes:
    """Open connections that never finish their heads, and return the answer of one more request after a while."""
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


def test_unfinished_requests_do_not_block_visitors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
                return await asyncio.wait_for(crowded(listener, 300), 60)
            finally:
                serving.cancel()

    assert b"here" in asyncio.run(play())
