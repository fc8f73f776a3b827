"""Tests threats to approvals: forged, repeated, reused, or given for something else."""

import html
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import PasskeySignature, RelyingParty
from paygw_batch.approval.plan_document import PlanDocument, read_plan
from paygw_batch.clock import timestamp, utc_now
from paygw_batch.console.start_run import last_run, start_run
from tests.console.preparing import digest, open_payout_folder, sheet, sign_sheet, upload_sheet, wait_until_finished
from tests.support.keyed_people import KEYS, PAGES, PasskeyHouse, PasskeyPerson, hidden_value
from tests.support.patience import PATIENCE_S
from tests.support.people import APPROVER, MAKER, House, Person, create_sandbox
from tests.support.software_passkey import SoftwarePasskey, passkey

pytestmark = pytest.mark.usefixtures("in_process_checks")


def plan_of(house: House, draft: str) -> PlanDocument:
    return read_plan(open_payout_folder(house, draft).plan_file)


def is_started(house: House, draft: str) -> bool:
    return last_run(house.console.runs, plan_of(house, draft).content.batch) is not None


class Forgeries:
    """A plan that waits for Ben's approval, and forged approvals in his name."""

    def __init__(self, home: Path) -> None:
        self.house = house = PasskeyHouse(create_sandbox(home))
        self.ada, self.ben = house.person(MAKER), house.person(APPROVER)
        self.draft = house.prepared(self.ada, sheet(2))
        self.page = self.ben.get(f"{self.draft}/plan").text
        shown = {name: hidden_value(self.page, name) for name in ("digest", "approved_at")}
        self.form = shown | self.ben.signature_for(self.page)

    def submit(self, **changed: str) -> int:
        return self.ben.post(f"{self.draft}/approve", **self.form | changed).status_code


def sign_other_payout(forgeries: Forgeries) -> dict[str, str]:
    other = forgeries.house.prepared(forgeries.ada, sheet(3).replace(b"P-", b"Q-"), "other.csv")
    return forgeries.ben.signature_for(forgeries.ben.get(f"{other}/plan").text)


def copy_maker_signature(forgeries: Forgeries) -> dict[str, str]:
    own = plan_of(forgeries.house, forgeries.draft).signature
    assert isinstance(own, PasskeySignature)
    return own.model_dump()


ELSEWHERE = passkey("p-ben", RelyingParty("https://pay.example.evil.test"))
FORGED: dict[str, Callable[[Forgeries], dict[str, str]]] = {
    "no signature": lambda _: dict.fromkeys(("client_data", "authenticator_data", "signature"), ""),
    "a passkey that nobody listed": lambda case: case.ben.signature_for(case.page, passkey("p-eve", PAGES)),
    "the maker's passkey": lambda case: case.ben.signature_for(case.page, KEYS[MAKER]),
    "his passkey at another site": lambda case: case.ben.signature_for(case.page, ELSEWHERE),
    "his sign-in": lambda case: case.ben.signature_for(case.house.stranger().get("/sign-in").text),
    "another time": lambda _: {"approved_at": "2026-11-22T00:00:00.000Z"},
    "a time of his that is long ago": lambda _: {"approved_at": "2020-01-01T00:00:00.000Z"},
    "another payout": sign_other_payout,
    "the maker's signature": copy_maker_signature,
}


@pytest.mark.share(3)
@pytest.mark.parametrize("forgery", FORGED)
def test_signature_for_another_purpose_is_refused_as_approval(tmp_path: Path, forgery: str) -> None:
    forgeries = Forgeries(tmp_path)
    assert forgeries.submit(**FORGED[forgery](forgeries)) == 409
    assert plan_of(forgeries.house, forgeries.draft).approvals == []
    assert forgeries.ben.post(f"{forgeries.draft}/start", digest=forgeries.form["digest"]).status_code == 409
    assert not is_started(forgeries.house, forgeries.draft)
    assert forgeries.submit() == 303  # The forgery does not block the genuine approval.


BEN_AT_HOME, CLEO = passkey("p-ben-at-home", PAGES), passkey("p-cleo", PAGES)


@pytest.fixture
def strict_house(tmp_path: Path) -> PasskeyHouse:
    """Return a house with two needed approvals, where Ben has two passkeys and Ada may approve others' plans."""
    program = create_sandbox(tmp_path)
    PasskeyHouse(program)  # This writes the configuration with passkeys.
    text = program.config.read_text().replace("[approval.makers]", "[approval]\nneeded = 2\n[approval.makers]")
    own = f'"{APPROVER}" = "{KEYS[APPROVER].public.text}"'
    both = f'"{APPROVER}" = ["{KEYS[APPROVER].public.text}", "{BEN_AT_HOME.public.text}"]'
    others = f'"{MAKER}" = "{KEYS[MAKER].public.text}"\n"Cleo" = "{CLEO.public.text}"'
    program.config.write_text(text.replace(own, f"{both}\n{others}"))
    return PasskeyHouse(program)


def sign_in(house: PasskeyHouse, key: SoftwarePasskey) -> PasskeyPerson:
    person = house.stranger()
    person.key = key
    assert person.sign_in(key).status_code == 303
    return person


def start_and_check(person: PasskeyPerson, house: PasskeyHouse, draft: str) -> bool:
    """Start a payout even if the page does not offer it, and return whether a run was started."""
    person.post(f"{draft}/start", digest=plan_of(house, draft).digest())
    return is_started(house, draft)


def approve_without_form(person: PasskeyPerson, house: PasskeyHouse, draft: str) -> int:
    """Approve with a genuine signature although the page does not ask for one."""
    assert person.key is not None
    plan, approved_at = plan_of(house, draft), timestamp(utc_now())
    signature = person.key.sign(plan.approval_text(person.key.public, approved_at)).model_dump()
    form = {"digest": plan.digest(), "approved_at": approved_at, **signature}
    return person.post(f"{draft}/approve", **form).status_code


def test_person_with_two_passkeys_approves_once(strict_house: PasskeyHouse) -> None:
    ben = strict_house.person(APPROVER)
    draft = strict_house.prepared(strict_house.person(MAKER), sheet(2))
    assert approve(ben, draft) == 303
    at_home = sign_in(strict_house, BEN_AT_HOME)
    page = at_home.get(f"{draft}/plan").text
    assert "data-challenge" not in page  # It does not ask him again.
    assert "Start the payout" not in page
    form = {"digest": plan_of(strict_house, draft).digest(), "approved_at": timestamp(utc_now())}
    assert at_home.post(f"{draft}/approve", **form).status_code == 409
    approve_without_form(at_home, strict_house, draft)
    assert len(plan_of(strict_house, draft).approvals) == 1
    assert not start_and_check(ben, strict_house, draft)


def test_payout_needs_two_approvers_other_than_maker(strict_house: PasskeyHouse) -> None:
    ada, ben, cleo = strict_house.person(MAKER), strict_house.person(APPROVER), sign_in(strict_house, CLEO)
    draft = strict_house.prepared(ada, sheet(2))
    assert not start_and_check(ben, strict_house, draft)
    assert approve_without_form(ada, strict_house, draft) == 403
    assert approve(ben, draft) == 303
    assert approve_without_form(ada, strict_house, draft) == 403
    approved_by = [approval.key for approval in plan_of(strict_house, draft).approvals]
    assert approved_by == [KEYS[APPROVER].public.text]
    assert not start_and_check(ben, strict_house, draft)
    assert strict_house.program.record() == []
    assert approve(cleo, draft) == 303
    assert "Start the payout" in ben.get(f"{draft}/plan").text
    assert start_and_check(ben, strict_house, draft)
    assert "<strong>2</strong> Paid" in wait_until_finished(ada, draft)
    assert len(strict_house.program.record()) == 2


def approve(person: PasskeyPerson, draft: str) -> int:
    page = person.get(f"{draft}/plan").text
    form = {name: hidden_value(page, name) for name in ("digest", "approved_at")}
    return person.post(f"{draft}/approve", **form, **person.signature_for(page)).status_code


FIGURE = re.compile(r"(?<![\w.,/-])\d[\d,\u202f]*(?:\.\d+)?(?![\w])")
TIME = re.compile(r"\d+ [A-Z][a-z]{2} \d{4}, \d\d:\d\d UTC")


def test_signed_text_contains_every_shown_figure(house: House, ada: Person, ben: Person) -> None:
    """Compares counts, sums, amounts, accounts and changes, but not times and step numbers."""
    draft = upload_sheet(ada, sheet(7))
    assert ada.post(f"{draft}/mend", row="3", column="amount", text="7123.45").status_code == 303
    assert ada.post(f"{draft}/leave-out", row="5").status_code == 303
    sign_sheet(ada, draft)
    page = ben.get(f"{draft}/plan").text
    main = page.partition("<main")[2].partition("</main>")[0]
    main = re.sub(r'(?s)<ol class="steps">.*?</ol>|<span class="code">.*?</span>', "", main)
    shown = html.unescape(re.sub(r"<[^>]*>", " ", main))
    plan = plan_of(house, draft)
    text = plan.signed_text().decode()
    figures = {re.sub("[,\u202f]", "", figure) for figure in FIGURE.findall(TIME.sub("", shown))}
    assert {"7123.45", "102.00"} <= figures
    assert {figure for figure in figures if figure not in text} == set()
    assert [part in text for part in ('"becomes":"7123.45"', '"value":"102.00"')] == [True, True]
    # The number of people follows from the rows of the signed text.
    assert re.findall(r"to ([\d\u202f]+) people</p>", main) == [str(plan.content.rows)] == ["6"]


def run_simultaneously(*calls: Callable[[], int]) -> list[int]:
    """Make calls at the same time, each from its own thread."""
    gate = threading.Barrier(len(calls))
    with ThreadPoolExecutor(len(calls)) as pool:
        return [*pool.map(lambda call: (gate.wait(), call())[1], calls)]


def test_simultaneous_correction_discards_approval(house: House, ada: Person, ben: Person) -> None:
    """If the correction is first, the approval is refused; if the approval is first, it is withdrawn."""
    draft = upload_sheet(ada, sheet(2))
    tokens = {"ada": ada.token("/"), "ben": ben.token("/")}
    for amount in ("701.00", "702.00", "703.00", "704.00"):
        sign_sheet(ada, draft)
        shown = digest(ben, draft)
        form = {"csrf": tokens["ada"], "row": "2", "column": "amount", "text": amount}
        corrected, approved = run_simultaneously(
            lambda: ada.post(f"{draft}/mend", **form).status_code,  # noqa: B023 (joined within)
            lambda: ben.post(f"{draft}/approve", csrf=tokens["ben"], digest=shown).status_code,  # noqa: B023 (as above)
        )
        assert corrected == 303
        assert approved in {303, 409}
        assert open_payout_folder(house, draft).plan is None
        assert "to be sent" not in ben.get(f"{draft}/plan").text
    assert house.program.record() == []


def test_stale_tab_of_maker_removes_no_approval(house: House, ada: Person, ben: Person) -> None:
    draft = upload_sheet(ada, sheet(2))
    form = ada.shown(f"{draft}/sign")
    sign_sheet(ada, draft)
    assert ben.post(f"{draft}/approve").status_code == 303
    document = plan_of(house, draft)
    assert ada.post(f"{draft}/sign", **form).status_code == 303
    assert (plan_of(house, draft), len(document.approvals)) == (document, 1)


def test_simultaneous_starts_create_one_process(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    command = ["/bin/sh", "-c", f"read x < {pipe}"]
    start = partial(start_run, tmp_path / "runs", "0" * 16, command, by="Ben", environ={})
    pids = run_simultaneously(*[lambda: start().pid] * 8)
    with pipe.open("w"):  # The process ends.
        assert len({*pids}) == 1


def test_simultaneous_starts_by_two_processes_send_rows_once(house: House, ada: Person, ben: Person) -> None:
    """Only the journal can coordinate two processes that serve the same payout."""
    draft = upload_sheet(ada, sheet(3))
    sign_sheet(ada, draft)
    ben.post(f"{draft}/approve")
    shown, program, folder = digest(ben, draft), house.program, open_payout_folder(house, draft)
    command: list[str | Path] = ["submit", folder.sheet, "--wait", "--skip-invalid", "--force"]
    command += ["--plan", folder.plan_file, "--mended", folder.corrections_file, "--out", program.home / "x.csv"]
    other = program.start(*command)
    ben.post(f"{draft}/start", digest=shown)
    assert other.wait(PATIENCE_S) in {0, 4, 5}
    other.communicate()
    assert "<strong>3</strong> Paid" in wait_until_finished(ada, draft)
    assert len(program.record()) == 3
