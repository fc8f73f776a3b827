"""Threats to approvals: forged, given twice, given for something else than what was shown, or used twice."""

import html
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import PasskeySignature, RelyingParty, from_base64url, to_base64url
from paygw_batch.approval.plan_document import PlanDocument, read_plan
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.payout_folder import CheckedSheet, PayoutFolder
from paygw_batch.console.start_run import start_run, started_run
from tests.console.checking import checked_here
from tests.console.preparing import digest, finished, sheet, signed, uploaded
from tests.support.keyed_people import KEYS, PAGES, PasskeyHouse, PasskeyPerson, parts_of, value
from tests.support.patience import PATIENCE_S
from tests.support.people import APPROVER, MAKER, House, Person, set_up
from tests.support.program import Program
from tests.support.software_passkey import SoftwarePasskey, flipped, passkey


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    checked_here(monkeypatch)


@pytest.fixture
def keyed(tmp_path: Path) -> PasskeyHouse:
    return PasskeyHouse(set_up(tmp_path))


def plan_of(house: House, place: str) -> PlanDocument:
    return read_plan(house.console.directory / place.rpartition("/")[2] / "plan.json")


class Forgeries:
    """A plan that waits for Ben, and what somebody else hands in for him."""

    def __init__(self, house: PasskeyHouse) -> None:
        self.house = house
        self.ada, self.ben = house.person(MAKER), house.person(APPROVER)
        self.place = house.prepared(self.ada, sheet(2))
        self.page = self.ben.get(f"{self.place}/plan").text
        self.form = {
            "digest": value(self.page, "digest"),
            "approved_at": value(self.page, "approved_at"),
            **self.ben.signature_for(self.page),
        }

    def hand_in(self, **changed: str) -> int:
        return self.ben.post(f"{self.place}/approve", **self.form | changed).status_code

    @property
    def is_approved(self) -> bool:
        return bool(plan_of(self.house, self.place).approvals)


@pytest.fixture
def forgeries(keyed: PasskeyHouse) -> Forgeries:
    return Forgeries(keyed)


@pytest.mark.long
def test_forged_approval_with_flipped_bit_is_refused(forgeries: Forgeries) -> None:
    """Every eighth bit here, through the pages; every bit is flipped in tests/approval/test_passkey.py."""
    for part in ("client_data", "authenticator_data", "signature"):
        plain = from_base64url(forgeries.form[part]) or b""
        for number, other in enumerate(flipped(plain)):
            if number % 8 == number // 8 % 8:
                assert forgeries.hand_in(**{part: to_base64url(other)}) == 409
    assert not forgeries.is_approved
    assert forgeries.hand_in() == 303
    assert forgeries.is_approved


def forged(forgeries: Forgeries, how: str) -> dict[str, str]:
    ben, page = forgeries.ben, forgeries.page
    match how:
        case "no signature":
            return {"client_data": "", "authenticator_data": "", "signature": ""}
        case "a passkey that nobody listed":
            return ben.signature_for(page, passkey("p-eve", PAGES))
        case "the maker's passkey":
            return ben.signature_for(page, KEYS[MAKER])
        case "his passkey at another site":
            return ben.signature_for(page, passkey("p-ben", RelyingParty("https://pay.example.evil.test")))
        case "his sign-in":
            return ben.signature_for(forgeries.house.stranger().get("/sign-in").text)
        case "another time":
            return {"approved_at": "2026-11-22T00:00:00.000Z"}
        case "a time of his that is long ago":
            return {"approved_at": "2020-01-01T00:00:00.000Z"}
        case "another payout":
            other = forgeries.house.prepared(forgeries.ada, sheet(3).replace(b"P-", b"Q-"), "other.csv")
            return ben.signature_for(ben.get(f"{other}/plan").text)
        case "the maker's signature":
            own = plan_of(forgeries.house, forgeries.place).signature
            assert isinstance(own, PasskeySignature)
            return parts_of(own)
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    "how",
    [
        "no signature",
        "a passkey that nobody listed",
        "the maker's passkey",
        "his passkey at another site",
        "his sign-in",
        "another time",
        "a time of his that is long ago",
        "another payout",
        "the maker's signature",
    ],
)
def test_forged_approval_signed_for_other_purpose_is_refused(forgeries: Forgeries, how: str) -> None:
    assert forgeries.hand_in(**forged(forgeries, how)) == 409
    assert not forgeries.is_approved
    assert forgeries.ben.post(f"{forgeries.place}/start", digest=forgeries.form["digest"]).status_code == 409
    assert started_run(forgeries.house.console.directory / "runs", batch_of(forgeries.house, forgeries.place)) is None
    assert forgeries.hand_in() == 303  # nothing of it stands in the way of the true one


def batch_of(house: House, place: str) -> str:
    checked = PayoutFolder(house.console.directory / place.rpartition("/")[2]).checked
    assert isinstance(checked, CheckedSheet)
    return checked.batch


BEN_AT_HOME, CLEO = passkey("p-ben-at-home", PAGES), passkey("p-cleo", PAGES)


@pytest.fixture
def strict(tmp_path: Path) -> PasskeyHouse:
    """Two approvals are needed. Ben has two passkeys, Cleo approves as well, and Ada may approve what others made."""
    program = set_up(tmp_path)
    PasskeyHouse(program)  # writes the configuration with passkeys
    text = program.config.read_text().replace("[approval.makers]", "[approval]\nneeded = 2\n[approval.makers]")
    own = f'"{APPROVER}" = "{KEYS[APPROVER].public.text}"'
    both = f'"{APPROVER}" = ["{KEYS[APPROVER].public.text}", "{BEN_AT_HOME.public.text}"]'
    others = f'"{MAKER}" = "{KEYS[MAKER].public.text}"\n"Cleo" = "{CLEO.public.text}"'
    program.config.write_text(text.replace(own, f"{both}\n{others}"))
    return PasskeyHouse(program)


def by(house: PasskeyHouse, key: SoftwarePasskey) -> PasskeyPerson:
    """Return the person who signs in by a passkey."""
    person = house.stranger()
    person.key = key
    assert person.sign_in(key).status_code == 303
    return person


def is_begun(person: PasskeyPerson, house: PasskeyHouse, place: str) -> bool:
    """Start a payout, whether the page offers it or not; return whether a run was begun."""
    person.post(f"{place}/start", digest=plan_of(house, place).digest())
    return started_run(house.console.directory / "runs", batch_of(house, place)) is not None


def approve_past_the_page(person: PasskeyPerson, house: PasskeyHouse, place: str) -> int:
    """Approve with a true signature of the person's passkey, although the page does not ask for it."""
    assert person.key is not None
    plan, approved_at = plan_of(house, place), timestamp(utc_now())
    signature = person.key.sign(plan.approval_text(person.key.public, approved_at))
    form = {"digest": plan.digest(), "approved_at": approved_at, **parts_of(signature)}
    return person.post(f"{place}/approve", **form).status_code


def test_person_with_two_passkeys_counts_once(strict: PasskeyHouse) -> None:
    ben = strict.person(APPROVER)
    place = strict.prepared(strict.person(MAKER), sheet(2))
    assert approve(ben, place) == 303
    at_home = by(strict, BEN_AT_HOME)
    page = at_home.get(f"{place}/plan").text
    assert "data-challenge" not in page  # it asks him for nothing more
    assert "Start the payout" not in page
    again = at_home.post(f"{place}/approve", digest=plan_of(strict, place).digest(), approved_at=timestamp(utc_now()))
    assert again.status_code == 409
    approve_past_the_page(at_home, strict, place)
    assert len(plan_of(strict, place).approvals) == 1
    assert not is_begun(ben, strict, place)


def test_payout_needs_two_approvers_other_than_maker(strict: PasskeyHouse) -> None:
    ada, ben, cleo = strict.person(MAKER), strict.person(APPROVER), by(strict, CLEO)
    place = strict.prepared(ada, sheet(2))
    assert not is_begun(ben, strict, place)
    assert approve_past_the_page(ada, strict, place) == 403
    assert approve(ben, place) == 303
    assert approve_past_the_page(ada, strict, place) == 403
    approved_by = [approval.key for approval in plan_of(strict, place).approvals]
    assert approved_by == [KEYS[APPROVER].public.text]
    assert not is_begun(ben, strict, place)
    assert strict.program.record() == []
    assert approve(cleo, place) == 303
    assert "Start the payout" in ben.get(f"{place}/plan").text
    assert is_begun(ben, strict, place)
    assert "<strong>2</strong> Paid" in finished(ada, place)
    assert len(strict.program.record()) == 2


def approve(person: PasskeyPerson, place: str) -> int:
    page = person.get(f"{place}/plan").text
    form = {"digest": value(page, "digest"), "approved_at": value(page, "approved_at")}
    return person.post(f"{place}/approve", **form, **person.signature_for(page)).status_code


FIGURE = re.compile(r"(?<![\w.,/-])\d[\d,\u202f]*(?:\.\d+)?(?![\w])")
TIME = re.compile(r"\d+ [A-Z][a-z]{2} \d{4}, \d\d:\d\d UTC")


def test_signed_text_contains_every_shown_figure(house: House, ada: Person, ben: Person) -> None:
    """The page for the approver: counts, sums, amounts, accounts, changes. Its time and its steps are no figures."""
    place = uploaded(ada, sheet(7))
    assert ada.post(f"{place}/mend", row="3", column="amount", text="7123.45").status_code == 303
    assert ada.post(f"{place}/leave-out", row="5").status_code == 303
    signed(ada, place)
    page = ben.get(f"{place}/plan").text
    main = page.partition("<main")[2].partition("</main>")[0]
    main = re.sub(r'(?s)<ol class="steps">.*?</ol>|<span class="code">.*?</span>', "", main)
    shown = html.unescape(re.sub(r"<[^>]*>", " ", main))
    text = plan_of(house, place).signed_text().decode()
    figures = {re.sub("[,\u202f]", "", one) for one in FIGURE.findall(TIME.sub("", shown))}
    assert {"7123.45", "102.00"} <= figures
    assert {one for one in figures if one not in text} == set()
    # How many people are paid is what the text says of the rows.
    content = plan_of(house, place).content
    people = [int(one.replace("\u202f", "")) for one in re.findall(r"to ([\d\u202f]+) people</p>", main)]
    assert people == [content.rows] == [6]


def both_at_once(one: Callable[[], int], other: Callable[[], int]) -> tuple[int, int]:
    """Make two requests in the same moment, each from a thread of its own."""
    gate, answers = threading.Barrier(2), [0, 0]

    def run(place: int, ask: Callable[[], int]) -> None:
        gate.wait()
        answers[place] = ask()

    threads = [threading.Thread(target=run, args=each) for each in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers[0], answers[1]


def test_simultaneous_mending_and_approval_leave_no_approval(house: House, ada: Person, ben: Person) -> None:
    """Whichever is first: a correction takes plan and approval away, or the approval is for a plan that is gone."""
    place = uploaded(ada, sheet(2))
    tokens = {"ada": ada.token("/"), "ben": ben.token("/")}
    for amount in ("701.00", "702.00", "703.00", "704.00"):
        signed(ada, place)
        shown = digest(ben, place)
        mended, approved = both_at_once(
            lambda: (
                ada.post(
                    f"{place}/mend",
                    csrf=tokens["ada"],
                    row="2",
                    column="amount",
                    text=amount,  # noqa: B023 (joined within)
                ).status_code
            ),
            lambda: ben.post(f"{place}/approve", csrf=tokens["ben"], digest=shown).status_code,  # noqa: B023 (as above)
        )
        assert mended == 303
        assert approved in {303, 409}
        folder = PayoutFolder(house.console.directory / place.rpartition("/")[2])
        assert folder.plan is None
        assert "to be sent" not in ben.get(f"{place}/plan").text
    assert house.program.record() == []


def test_repeated_click_and_stale_tab_act_once(house: House, ada: Person, ben: Person) -> None:
    place = uploaded(ada, sheet(2))
    form = ada.shown(f"{place}/sign")
    signed(ada, place)
    first = plan_of(house, place)
    assert ada.post(f"{place}/sign", **form).status_code == 303  # a second click: the plan is the one that was signed
    assert plan_of(house, place) == first
    shown = digest(ben, place)
    assert {ben.post(f"{place}/approve", digest=shown).status_code for _ in range(3)} <= {303, 409}
    document = plan_of(house, place)
    assert len({one.key for one in document.approvals}) == len(document.approvals) == 1
    assert ada.post(f"{place}/sign", **form).status_code == 303
    assert plan_of(house, place) == document  # a stale tab of the maker's takes no approval away
    for _ in range(2):
        assert ben.post(f"{place}/start", digest=shown).status_code == 303
    assert "<strong>2</strong> Paid" in finished(ada, place)
    assert ben.post(f"{place}/approve", digest=shown).status_code == 303  # a second click, though it was started
    assert len(house.program.record()) == 2


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[list[str]]:
    """Yield a command that runs until the test ends."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    yield ["/bin/sh", "-c", f"read x < {gate}"]
    with gate.open("w"):
        pass


def test_simultaneous_starts_create_one_process(tmp_path: Path, endless: list[str]) -> None:
    runs = tmp_path / "runs"
    pids = set()
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait()
        pids.add(start_run(runs, "0" * 16, endless, by="Ben", environ={}).pid)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 1


def test_simultaneous_starts_by_consoles_send_rows_once(house: House, ada: Person, ben: Person) -> None:
    """Two processes that serve the same journal know nothing of each other; the journal does."""
    place = uploaded(ada, sheet(3))
    signed(ada, place)
    shown = digest(ben, place)
    ben.post(f"{place}/approve", digest=shown)
    program: Program = house.program
    folder = house.console.directory / place.rpartition("/")[2]
    command: list[str | Path] = ["submit", next((folder / "sheet").iterdir()), "--wait", "--skip-invalid", "--force"]
    command += ["--plan", folder / "plan.json", "--mended", folder / "mending.json", "--out", program.home / "x.csv"]
    other = program.start(*command)
    ben.post(f"{place}/start", digest=shown)
    assert other.wait(PATIENCE_S) in {0, 4, 5}
    other.communicate()
    assert "<strong>3</strong> Paid" in finished(ada, place)
    assert len(program.record()) == 3
