"""Stories of preparing and approving payouts that need no browser."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import unescape

import pytest

from paygw_batch.approval.approval_keys import RelyingParty, load_approval_key
from paygw_batch.approval.plan_document import PlanDocument, read_plan
from paygw_batch.approval.signed_document import Approval, write_document
from paygw_batch.console.console_app import ROUTES
from paygw_batch.console.payout_folder import PayoutFolder
from paygw_batch.notices.delivery import list_notices
from paygw_batch.opening.open_journal import open_journal_to_read
from tests.console.marks import MarkupChecker
from tests.console.preparing import (
    digest,
    open_payout_folder,
    row,
    sheet,
    sign_sheet,
    submit_sheet,
    upload_sheet,
    wait_until_finished,
)
from tests.support.people import APPROVER, AUDITOR, MAKER, ORIGIN, PORT, House, Person, address, create_sandbox
from tests.support.program import Program
from tests.support.software_passkey import PRESENT_AND_VERIFIED, SoftwarePasskey, passkey

pytestmark = pytest.mark.usefixtures("in_process_checks")


# 4


def approve_as_maker(house: House, folder: PayoutFolder) -> PlanDocument:
    """Return the plan with the maker's own approval, as she could write it into the file."""
    key = load_approval_key(house.program.home / "keys" / f"{MAKER}.pem", None)
    document = read_plan(folder.plan_file)
    now = datetime.now(UTC).isoformat()
    own = Approval(key=key.public.text, approved_at=now, signature=key.sign(document.approval_text(key.public, now)))
    return document.model_copy(update={"approvals": [own]})


@pytest.mark.share(2)
@pytest.mark.parametrize("is_approver_too", [False, True])
def test_story_4_maker_cannot_approve_own_payout(house: House, *, is_approver_too: bool) -> None:
    if is_approver_too:
        text = house.program.config.read_text()
        own = next(line for line in text.splitlines() if line.startswith(f'"{MAKER}" = '))
        house.program.config.write_text(text.replace("[approval.approvers]\n", f"[approval.approvers]\n{own}\n"))
        house = House(house.program)
    ada = house.person(MAKER)
    place = upload_sheet(ada, sheet(2))
    sign_sheet(ada, place)
    folder = open_payout_folder(house, place)
    assert "Approve</button>" not in ada.get(f"{place}/plan").text
    assert "another person must approve it" in ada.get(f"{place}/plan").text
    by_route = ada.post(f"{place}/approve", digest=read_plan(folder.plan_file).digest())
    assert by_route.status_code == 403
    key = house.program.home / "keys" / f"{MAKER}.pem"
    by_command_line = house.program.run("approve", folder.plan_file, "--key", key)
    assert by_command_line.exit_code == 8
    assert f"{MAKER} made this plan" in by_command_line.output
    write_document(approve_as_maker(house, folder), folder.plan_file)
    code, message = submit_sheet(house.program, folder)
    assert code == 8
    assert f"that of {MAKER} is by the maker of the plan" in message
    assert ada.post(f"{place}/start", digest=read_plan(folder.plan_file).digest()).status_code == 409
    assert "Approved</dt><dd>by no one yet" in ada.get(f"{place}/plan").text
    assert house.program.record() == []


# 6


def test_story_6_returned_plan_loses_signature(house: House, ada: Person, ben: Person) -> None:
    place = upload_sheet(ada, sheet(2))
    sign_sheet(ada, place)
    folder, shown = open_payout_folder(house, place), digest(ben, place)
    earlier_plan = read_plan(folder.plan_file)
    assert ben.post(f"{place}/send-back", digest=shown, reason=" ").status_code == 409
    assert ben.post(f"{place}/send-back", digest=shown, reason="Row 2 was paid in cash <b>").status_code == 303
    assert not folder.plan_file.exists()
    needing = ada.get("/").text.partition("<h2>Payouts</h2>")[0]
    assert "Sent back by Ben Okello: Row 2 was paid in cash &lt;b&gt;" in needing
    assert "Row 2 was paid in cash &lt;b&gt;" in ada.get(place).text
    assert ben.post(f"{place}/approve", digest=shown).status_code == 409
    with open_journal_to_read(house.console.settings) as journal:
        assert [(withdrawal.sha256, withdrawal.by) for withdrawal in journal.withdrawals()] == [
            (earlier_plan.digest(), APPROVER)
        ]
    ada.post(f"{place}/leave-out", row="2")
    sign_sheet(ada, place)
    assert ben.post(f"{place}/approve", digest=shown).status_code == 409
    write_document(earlier_plan, folder.plan_file)  # Somebody restores a copy.
    assert submit_sheet(house.program, folder)[0] == 8
    key = house.program.home / "keys" / f"{APPROVER}.pem"
    assert house.program.run("approve", folder.plan_file, "--key", key).exit_code == 8
    assert submit_sheet(house.program, folder)[0] == 8  # The copy is approved, but for other content.
    assert house.program.record() == []


# 7

CONSOLE = RelyingParty(f"http://localhost:{PORT}")
ADAS, BENS, ANOTHER = passkey("p-ada", CONSOLE), passkey("p-ben", CONSOLE), passkey("p-another", CONSOLE)


def passkey_fields(key: SoftwarePasskey, page: str, flags: int = PRESENT_AND_VERIFIED) -> dict[str, str]:
    """Return the fields that a browser adds to a form after signing its challenge."""
    (challenge,) = re.findall(r'data-challenge="([^"]+)"', page)
    client_data = key.client_data(challenge, "webauthn.get", {})
    made = key.sign(b"", client_data=client_data, authenticator_data=key.authenticator_data(flags))
    hidden = dict(re.findall(r'type="hidden" name="(nonce|approved_at|digest|code)" value="([^"]*)"', page))
    return {
        **hidden,
        "client_data": made.client_data,
        "authenticator_data": made.authenticator_data,
        "signature": made.signature,
        "credential": key.credential_id,
    }


def replace_key(program: Program, name: str, key: SoftwarePasskey) -> None:
    """Replace a person's key in the configuration with a passkey."""
    lines = program.config.read_text().splitlines()
    listed = (f'"{name}" = "{key.public.text}"' if line.startswith(f'"{name}" = ') else line for line in lines)
    program.config.write_text("\n".join(listed) + "\n")


def replace_line(program: Program, old: str, new: str) -> None:
    text = program.config.read_text()
    assert old in text
    program.config.write_text(text.replace(old, new, 1))


def passkey_person(house: House, key: SoftwarePasskey) -> Person:
    person = house.stranger()
    form = passkey_fields(key, person.get("/sign-in").text)
    answer = person.ask("POST", "/sign-in/passkey", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 303, answer.text
    return person


@dataclass
class WaitingPayout:
    """A payout that its maker signed by passkey and that waits for approval."""

    house: House
    place: str

    @property
    def folder(self) -> PayoutFolder:
        return open_payout_folder(self.house, self.place)

    def approve(self, key: SoftwarePasskey = BENS, flags: int = PRESENT_AND_VERIFIED) -> int:
        ben = passkey_person(self.house, BENS)
        form = passkey_fields(key, ben.get(f"{self.place}/plan").text, flags)
        return ben.post(f"{self.place}/approve", **form).status_code

    def assert_not_approved(self) -> None:
        """Fail unless the pages, the start and `submit` all report a missing approval."""
        house = House(self.house.program)
        ada = passkey_person(house, ADAS)
        assert "Approved</dt><dd>by no one yet" in ada.get(f"{self.place}/plan").text
        assert ada.post(f"{self.place}/start", digest=read_plan(self.folder.plan_file).digest()).status_code == 409
        assert not list(house.console.directory.glob("runs/*"))
        assert submit_sheet(house.program, self.folder)[0] == 8
        assert house.program.record() == []


@pytest.fixture
def waiting_payout(house: House) -> WaitingPayout:
    """Return a payout signed by Ada's passkey. Ben has only a passkey as well."""
    program = house.program
    replace_line(program, 'sandbox_keys = "keys"', f'origin = "{CONSOLE.origin}"')
    replace_line(program, "[approval.makers]", "[approval]\nexpires_h = 72\n[approval.makers]")
    replace_key(program, MAKER, ADAS)
    replace_key(program, APPROVER, BENS)
    house = House(program)
    ada = passkey_person(house, ADAS)
    place = upload_sheet(ada, sheet(2))
    assert ada.post(f"{place}/sign", **passkey_fields(ADAS, ada.get(f"{place}/plan").text)).status_code == 303
    return WaitingPayout(house, place)


def test_story_7_timely_passkey_signature_approves_payout(waiting_payout: WaitingPayout) -> None:
    assert waiting_payout.approve() == 303
    assert submit_sheet(waiting_payout.house.program, waiting_payout.folder)[0] == 0
    assert len(waiting_payout.house.program.record()) == 2


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("key", "flags"),
    [
        pytest.param(BENS, 0x01, id="without a fingerprint"),
        pytest.param(BENS, 0x04, id="with nobody there"),
        pytest.param(passkey("p-ben", RelyingParty("http://localhost:9")), PRESENT_AND_VERIFIED, id="at other pages"),
        pytest.param(ANOTHER, PRESENT_AND_VERIFIED, id="by another key"),
        pytest.param(ADAS, PRESENT_AND_VERIFIED, id="by the maker's key"),
    ],
)
def test_story_7_invalid_passkey_approval_is_refused(
    waiting_payout: WaitingPayout, key: SoftwarePasskey, flags: int
) -> None:
    assert waiting_payout.approve(key, flags) == 409
    waiting_payout.assert_not_approved()


def test_story_7_expired_approval_does_not_count(waiting_payout: WaitingPayout) -> None:
    assert waiting_payout.approve() == 303
    replace_line(waiting_payout.house.program, "expires_h = 72", "expires_h = 0.0000001")
    waiting_payout.assert_not_approved()
    assert "expired at" in submit_sheet(waiting_payout.house.program, waiting_payout.folder)[1]


def test_story_7_approval_by_removed_key_is_invalid(waiting_payout: WaitingPayout) -> None:
    assert waiting_payout.approve() == 303
    replace_key(waiting_payout.house.program, APPROVER, ANOTHER)
    waiting_payout.assert_not_approved()


def test_story_7_approval_for_other_endpoint_sends_nothing(waiting_payout: WaitingPayout) -> None:
    assert waiting_payout.approve() == 303
    program = waiting_payout.house.program
    replace_line(program, 'endpoint_id = "1000"', 'endpoint_id = "2000"')
    replace_line(program, "journal.sqlite3", "other.sqlite3")
    code, message = submit_sheet(program, waiting_payout.folder)
    assert code == 8
    assert "sandbox/1000" in message
    assert program.record() == []


# 9


@pytest.mark.long
def test_story_9_simultaneous_payouts_run_in_turn(house: House, ada: Person, ben: Person) -> None:
    team_a, team_b = (
        sheet(3).replace(b"P-", prefix).replace(b"25471234500", number).replace(b"Jane", name)
        for prefix, number, name in ((b"A-", b"25471234510", b"Ann"), (b"B-", b"25471234520", b"Bob"))
    )
    last_month = team_a + b"\n" + team_b.partition(b"\n")[2]
    places = [upload_sheet(ada, last_month.replace(b"-", b"-OCT-").replace(b",10", b",9"), "october.csv")]
    start_both(ada, ben, places)
    assert "<strong>6</strong> Paid" in wait_until_finished(ada, places[0])
    places = [upload_sheet(ada, team_a, "A.csv"), upload_sheet(ada, team_b, "B.csv")]
    start_both(ada, ben, places)
    for place in places:
        assert "<strong>3</strong> Paid" in wait_until_finished(ada, place)
    assert len(house.program.record()) == 12


def start_both(ada: Person, ben: Person, places: Sequence[str]) -> None:
    for place in places:
        sign_sheet(ada, place)
        ben.post(f"{place}/approve", digest=digest(ben, place))
    for place in places:
        ben.post(f"{place}/start", digest=digest(ben, place))


# 16


def snapshot(house: House) -> Mapping[str, str]:
    """Return digests of the files of an installation without sessions, and the journal's facts and notices."""
    settings, asking = house.console.settings, re.compile(r"\.(sqlite3(-\w+)?$|sessions)")
    files = (path for path in house.program.home.rglob("*") if path.is_file() and not asking.search(path.name))
    digests = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    with open_journal_to_read(settings) as journal:
        return {**digests, "facts": journal.head().hash, "notices": str(list_notices(settings))}


def test_story_16_auditor_can_change_nothing(house: House, ada: Person) -> None:
    waits, opened = upload_sheet(ada, sheet(2)), upload_sheet(ada, b"%PDF-1.4", "scan.csv")
    sign_sheet(ada, waits)
    number = waits.rpartition("/")[2]
    grace = house.person(AUDITOR)
    before = snapshot(house)
    posts = [
        route for route in ROUTES if route.method == "POST" and route.act is not None and route.path != "/sign-out"
    ]
    assert len(posts) > 10
    for route in posts:
        place = address(route).replace("/sheets/" + "0" * 16, f"/sheets/{number}")
        form = {
            "digest": plan_document_digest(house, waits),
            "row": "2",
            "column": "amount",
            "text": "1.00",
            "reason": "x",
        }
        assert grace.post(place, **form).status_code == 403, place
    assert grace.upload("/new", "x.csv", sheet(1)).status_code == 403
    assert grace.upload(f"{waits}/again", "x.csv", sheet(1)).status_code == 403
    for path in ("/", f"{waits}/plan", "/payees?text=Jane", "/people"):
        page = grace.get(path)
        assert page.status_code == 200
        acts = set(re.findall(r'<form[^>]* action="([^"]+)"', page.text))
        assert acts <= {"/sign-out", "/language", "/payees"}, path
        assert "254712345" not in page.text, path
    assert grace.get(opened).status_code == 403  # A sheet in preparation shows accounts.
    assert grace.get(f"{waits}/marked").status_code == 403
    assert snapshot(house) == before


def plan_document_digest(house: House, place: str) -> str:
    return read_plan(open_payout_folder(house, place).plan_file).digest()


# 17

HOSTILE = """<script src=//evil.example></script><img src=x onerror=alert(1)>'" onfocus=alert(2) {{7777*7777}}"""
HOSTILE_NAME = "<svg onload=alert(3)>'&quot;.csv"
BEHAVIOUR = f"""
[[rule]]
amount_whole = 9001
status = "declined"
message = '''{HOSTILE}'''
commits = false
[[rule]]
amount_whole = 9006
fault = "garbage"
"""


def hostile_sheet() -> bytes:
    """Return a sheet of hostile texts with a rejected, a doubtful and an invalid row."""
    quoted = HOSTILE.replace('"', '""')
    lines = [
        row(1, name=f'"{quoted}"', amount="9001.00", id="X-1") + f',"{quoted}"',
        row(2, name=f'"{quoted}"', amount="9006.00", id="X-2") + f',"{quoted}"',
        row(3, amount=f'"{quoted}"', name=f'"{quoted}"', country=f'"{quoted}"') + f',"{quoted}"',
    ]
    return "\n".join(
        [f'Country,Client Order ID,Amount,Currency,Account name,account_number,phone,Team,"{quoted}"', *lines]
    ).encode()


def pages_with_hostile_texts(house: House, ada: Person, ben: Person) -> Iterator[tuple[Person, str]]:
    """Yield every page with texts of senders or the gateway, and its viewer."""
    place = upload_sheet(ada, hostile_sheet(), HOSTILE_NAME)
    yield ada, place
    yield ben, place
    assert ada.post(f"{place}/mend", row="4", column="account_name", text=HOSTILE).status_code == 303
    assert ada.post(f"{place}/mend", row="4", column="account_name", text="plain").status_code == 303
    for kind in ("mended", "to-mend", "country.unknown", "amount.format", "row.look_alike", HOSTILE.replace(" ", "+")):
        yield ada, f"{place}?kind={kind}"
    assert ada.post(f"{place}/leave-out", row="4").status_code == 303
    assert ada.post(f"{place}/reading", reference=HOSTILE[:50], worksheet="").status_code == 303
    yield ada, place
    assert ada.post(f"{place}/reading", reference="", worksheet="").status_code == 303
    unread = upload_sheet(ada, hostile_sheet().replace(b"Amount", b"A<b>mount"), "unread.csv")
    yield ada, unread
    sign_sheet(ada, place)
    assert ben.post(f"{place}/send-back", digest=digest(ben, place), reason=HOSTILE).status_code == 303
    yield ada, "/"
    yield ada, place
    sign_sheet(ada, place)
    for person in (ada, ben, house.person(AUDITOR)):
        yield person, f"{place}/plan"
    ben.post(f"{place}/approve", digest=digest(ben, place))
    ben.post(f"{place}/start", digest=digest(ben, place))
    page = wait_until_finished(ada, place)
    batch = re.findall(r"/payouts/(\w{16,})/", page)[0]
    yield ada, f"/payouts/{batch}/rows/3/settle"
    settled = ada.post(f"/payouts/{batch}/rows/3/settle", said="paid", evidence=HOSTILE, attempt="1")
    assert settled.status_code == 303, settled.text
    yield from ((ben, f"/payouts/{batch}{rest}") for rest in ("", "?state=rejected", "/rows/2", "/rows/3"))
    yield ada, f"/payouts/{batch}/retry"
    order = ada.post(f"/payouts/{batch}/retry", evidence=HOSTILE, **{"row-2": "on"})
    assert order.status_code == 303, order.text
    yield ada, order.headers["location"]
    answers = b"Order ID,Amount,Currency,Answer\nX-1,1,KES,paid\n<b onclick=x>,1,KES,paid\n"
    statement = ada.upload(f"/payouts/{batch}/statement", HOSTILE_NAME, answers, words=HOSTILE)
    assert statement.status_code == 303, statement.text
    yield ada, statement.headers["location"]
    yield ada, statement.headers["location"] + "?show=differs"
    yield ben, f"/payouts/{batch}/progress?seen="
    yield ben, "/payees?text=script"
    yield ben, "/payees?text=" + HOSTILE.replace("&", "%26").replace("#", "%23")
    yield from ((ben, path) for path in ("/", "/people", "/no-such-page"))
    yield ada, "/new"


@pytest.mark.long
def test_story_17_hostile_texts_are_escaped(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    house = House(create_sandbox(tmp_path_factory.mktemp("home"), behaviour=BEHAVIOUR))
    ada, ben = house.person(MAKER), house.person(APPROVER)
    shown: dict[str, str] = {}
    for person, path in pages_with_hostile_texts(house, ada, ben):
        answer = person.get(path)
        assert answer.status_code in {200, 404}, (path, answer.status_code)
        assert MarkupChecker(answer.text).violations == [], path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "60481729" not in answer.text, path
        shown[path] = unescape(answer.text)
    seen = [path for path, text in shown.items() if "onerror=alert(1)" in text or "<svg onload=alert(3)>" in text]
    assert len(seen) >= 15, seen  # The hostile texts were really there.
