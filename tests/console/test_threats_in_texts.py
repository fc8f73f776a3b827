"""Threats in texts: markup from others on any page, formulas in files, secrets anywhere, deeds without a trace."""

import csv
import io
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paygw_batch.approval.signed_document import in_groups
from paygw_batch.console.console_app import ROUTES
from paygw_batch.console.pages import people_page
from paygw_batch.console.permissions import Act
from paygw_batch.console.rendering import STATIC
from tests.console.checking import checked_here
from tests.console.marks import OUR_FILES, Reader
from tests.console.preparing import digest, finished, paid_payout, sheet, signed, uploaded, without_approval
from tests.support.keyed_people import KEYS, PasskeyHouse, value
from tests.support.people import APPROVER, MAKER, ORIGIN, PEOPLE, House, Person, address, newest_entries, set_up

HOSTILE = "\"'><img src=x onerror=alert(1)><svg onload=alert(2)><script>alert(3)</script><b hx-get=/x style=x>{{71*73}}"
BEHAVIOUR = f"""
[[rule]]
amount_whole = 9001
status = "declined"
message = '''{HOSTILE.replace("'", "")}'''
commits = false
[[rule]]
amount_whole = 9006
fault = "garbage"
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    checked_here(monkeypatch)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, dict[str, str]]]:
    """Return pages on which everything that others may write is hostile, and where they are."""
    with pytest.MonkeyPatch.context() as patch:
        checked_here(patch)
        program = set_up(tmp_path_factory.mktemp("home"), behaviour=BEHAVIOUR)
        without_approval(program)
        house = House(program)
        ada, ben = house.person(MAKER), house.person(APPROVER)
        quoted = HOSTILE.replace('"', '""')
        heading = f'country,client_orderid,amount,currency,account_name,account_number,phone,"{quoted}"'
        lines = [
            f'KE,"<b>{n}",{amount},KES,"{quoted}",254712345{n:03},+254712345{n:03},"{quoted}"'
            for n, amount in enumerate(("9001.00", "9006.00", "100.00"), 1)
        ]
        name = "<svg onload=alert(4)>.csv"
        batch = program.json("submit", program.sheet(lines, name.replace("<", "x"), heading), "--skip-invalid")["batch"]
        ada.post(f"/payouts/{batch}/rows/3/settle", said="paid", evidence=HOSTILE)
        mending = uploaded(ada, "\n".join([heading, *lines]).replace("100.00", '"<i>x"').encode(), name)
        back = uploaded(ada, sheet(3).replace(b"Jane", b"<b onclick=x>Jane").replace(b"P-", b"<i>-"), name)
        signed(ada, back)
        ben.post(f"{back}/send-back", digest=digest(ben, back), reason=HOSTILE)
        waits = uploaded(ada, sheet(4).replace(b"Jane", HOSTILE.replace('"', "").encode()).replace(b"P-", b"W-"), name)
        signed(ada, waits)
        places = {"batch": str(batch), "mending": mending, "back": back, "waits": waits}
        yield house, places


def test_xss_texts_are_escaped_on_every_page(hostile: tuple[House, dict[str, str]]) -> None:
    house, places = hostile
    seen = 0
    for name in PEOPLE.values():
        person = house.person(name)
        for path in every_page(places):
            answer = person.get(path)
            assert answer.status_code < 500, path
            if answer.headers.get("content-type", "").startswith("text/html"):
                seen += HOSTILE[:12] not in answer.text and "onerror" in answer.text
                assert Reader(answer.text).found == [], path
                assert "5183" not in answer.text
    assert seen > 8  # the hostile texts are really on pages


def every_page(places: dict[str, str]) -> Iterator[str]:
    """Yield the address of every page, also with hostile words in it."""
    for one in ROUTES:
        if one.method != "GET" or one.act is Act.DOWNLOAD:
            continue
        for sheet_place in [places["mending"], places["back"], places["waits"]] if "{sheet}" in one.path else [""]:
            path = one.path.replace("{order}", "0" * 16).replace("{statement}", "0" * 16)
            path = path.replace("{batch}", places["batch"]).replace("{sheet}", sheet_place.rpartition("/")[2])
            for row in ("2", "3", "4") if "{row:int}" in path else ("",):
                plain = path.replace("{row:int}", row).replace("{token}", "<b>" + "T" * 40)
                yield plain
                hostile = HOSTILE.replace("&", "%26").replace("#", "%23")
                names = ("text", "state", "kind", "after", "before", "seen", "language", "said")
                yield f"{plain}?{'&'.join(f'{query}={hostile}' for query in names)}"
    yield "/payees?text=img"
    yield f"/{HOSTILE}"
    yield f"/payouts/{HOSTILE}"


def test_xss_downloads_are_attachments_without_markup(hostile: tuple[House, dict[str, str]]) -> None:
    house, places = hostile
    person = house.person(MAKER)
    payout = f"/payouts/{places['batch']}"
    for path in (f"{payout}/reconciliation.html", f"{payout}/advices", "/payees/advice?text=254712345003"):
        answer = person.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "\n" not in answer.headers["content-disposition"]
        assert "<img src=x" not in answer.text
        assert "<script>alert" not in answer.text
        assert "<svg onload" not in answer.text


def test_xss_request_headers_are_never_echoed(house: House) -> None:
    person = house.person(MAKER)
    names = ("user-agent", "referer", "accept-language", "x-forwarded-for", "accept")
    for path in ("/", "/nothing", "/people"):
        answer = person.get(path, **dict.fromkeys(names, "<img-src=x-onerror=alert(1)>"))
        assert "onerror" not in answer.text
    person.client.cookies.set("language", "<img>")
    assert "<img>" not in person.get("/").text


def test_static_files_load_no_third_party_code() -> None:
    """Scripts and styles are ours, each page names one of them, and none of them loads anything else."""
    assert all(path.is_file() for path in OUR_FILES)
    pages = "".join(path.read_text() for path in STATIC.with_name("templates").glob("*.html"))
    assert [path.name for path in OUR_FILES if f"/static/{path.name}" not in pages] == []
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert not re.search(r"\beval\b|new Function|document\.write|importScripts|import\s*\(|https?://|//cdn", text)
    (css,) = (path.read_text() for path in OUR_FILES if path.suffix == ".css")
    assert not re.search(r"@import|url\(|expression", css)


# Files to take away


def test_downloads_escape_formulas(tmp_path: Path) -> None:
    house = House(set_up(tmp_path))
    batch = paid_payout(house.program)
    person = house.person(MAKER)
    lines = list(csv.reader(io.StringIO(person.get(f"/payouts/{batch}/reconciliation.csv").text)))
    cells = [cell for line in lines for cell in line]
    assert "'=1+1" in cells
    assert [cell for cell in cells if re.match(r"[=@\t\r|%]|[+-](?!\d)", cell)] == []
    workbook = zipfile.ZipFile(io.BytesIO(person.get(f"/payouts/{batch}/reconciliation.xlsx").content))
    written = b"".join(workbook.read(name) for name in workbook.namelist() if name.endswith(".xml"))
    for formula in (b"=1+1", b"@SUM(A1)"):
        assert formula in written
    formulas = re.findall(rb"<f[^>]*>([^<]*)</f>", written)
    assert not any(b"1+1" in one or b"@SUM" in one for one in formulas)
    assert not re.search(rb'hyperlink[^>]*Target="(?!mailto)', written)


# Secrets


def test_pages_logs_and_audit_contain_no_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    house = PasskeyHouse(set_up(tmp_path))
    ada, ben = house.person(MAKER), house.person(APPROVER)
    place = house.prepared(ada, sheet(2))
    page = ben.get(f"{place}/plan").text
    form = {"digest": value(page, "digest"), "approved_at": value(page, "approved_at")}
    form |= ben.signature_for(page)
    assert ben.post(f"{place}/approve", **form).status_code == 303
    ben.get("/nothing?csrf=" + ben.token("/"))
    cookies = [person.client.cookies["__Host-payouts"] for person in (ada, ben)]
    tokens = [person.token("/") for person in (ada, ben)]
    pages = [person.get(path) for person in (ada, ben) for path in ("/", "/people", place, f"{place}/plan")]
    shown = "".join(answer.text + str(answer.headers) for answer in pages)
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("journal.sqlite3*"))
    kept += b"".join(path.read_bytes() for path in house.console.directory.rglob("*") if path.is_file())
    ours = [one for one in caplog.records if not one.name.startswith(("httpx", "httpcore", "asyncio"))]  # the browser's
    said = "".join(one.getMessage() for one in ours)
    for cookie in cookies:
        assert cookie not in shown + said
        assert cookie.encode() not in kept
    for token in tokens:
        assert token not in said
        assert token.encode() not in kept
    for secret in (tmp_path / "sandbox-merchant.pem", *tmp_path.glob("keys/*.pem")):
        line = secret.read_text().splitlines()[1] if secret.exists() else "-----BEGIN"
        assert line not in shown + said
    assert all(ben.token("/") not in answer.headers.get("location", "") for answer in pages)
    for name in ("Jane", "254712345"):
        assert name not in said
    assert in_groups(KEYS[MAKER].public.fingerprint) in shown  # what people compare is on the page


def test_unexpected_error_reveals_no_personal_data(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    person = house.person(MAKER)

    def broken(*_: object) -> None:
        raise RuntimeError("Jane Wanjiku 254712345001")

    monkeypatch.setattr(people_page, "running_now", broken)
    answer = person.get("/people")
    assert answer.status_code == 500
    for text in (answer.text, caplog.text):
        assert "Jane" not in text
        assert "254712345001" not in text
    assert "people_page.py" in caplog.text
    assert "Traceback" not in answer.text


# Traces


def test_every_act_refusal_and_download_is_audited(house: House) -> None:
    """Every path that does something, by everyone who may and everyone who may not: one line more in the trail."""
    for name in PEOPLE.values():
        person = house.person(name)
        for one in ROUTES:
            if one.path in {"/sign-in", "/sign-out"}:
                continue
            data = {"csrf": person.token()} if one.method == "POST" else None
            before = len(newest_entries(house.console.settings, limit=999))
            status = person.ask(one.method, address(one), data=data, headers={"origin": ORIGIN}).status_code
            is_noted = len(newest_entries(house.console.settings, limit=999)) > before
            does = (one.method == "POST" and one.path != "/language") or one.act is Act.DOWNLOAD
            assert is_noted == (does or status == 403), (name, one.method, one.path, status)


def test_refused_cross_site_form_is_audited(house: House) -> None:
    person = house.person(MAKER)
    for one in ROUTES:
        if one.method == "POST":
            before = len(newest_entries(house.console.settings, limit=999))
            person.ask("POST", address(one), headers={"origin": "https://evil.example"})
            newest = newest_entries(house.console.settings, limit=999)
            assert len(newest) == before + 1, one.path
            assert (newest[0].result, newest[0].who) == ("refused", MAKER)


def test_audit_trail_contains_every_payout_act(house: House, ada: Person, ben: Person) -> None:
    place = uploaded(ada, sheet(2))
    ada.post(f"{place}/mend", row="2", column="amount", text="7.00")
    signed(ada, place)
    ben.post(f"{place}/approve", digest=digest(ben, place))
    ben.post(f"{place}/start", digest=digest(ben, place))
    finished(ada, place)
    found = [(one.who, one.act, one.result) for one in newest_entries(house.console.settings, limit=99)][::-1]
    assert found[2:] == [
        (MAKER, "upload", "done"),
        (MAKER, "correct cell", "done"),
        (MAKER, "sign", "done"),
        (APPROVER, "approve payout", "done"),
        (APPROVER, "start", "done"),
    ]
