"""Tests threats in texts: injected markup, formulas, leaked secrets and missing audit entries."""

import logging
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from paygw_batch.approval.signed_document import group_digits
from paygw_batch.console.console_app import ROUTES
from paygw_batch.console.pages import people_page
from paygw_batch.console.permissions import Action
from paygw_batch.console.rendering import STATIC
from tests.console.checking import check_in_process
from tests.console.preparing import digest, sheet, sign_sheet, upload_sheet, waive_approval
from tests.support.checkout import ROOT
from tests.support.keyed_people import KEYS, PasskeyHouse, hidden_value
from tests.support.people import APPROVER, MAKER, PEOPLE, House, create_sandbox

pytestmark = pytest.mark.usefixtures("in_process_checks")
OUR_FILES = [*STATIC.iterdir(), *(ROOT / "paygw_batch/show/static").iterdir()]
TAGS = frozenset(
    {
        *("a", "aside", "b", "bdi", "body", "br", "button", "caption", "code", "dd", "details", "div", "dl"),
        *("dt", "em", "fieldset", "footer", "form", "h1", "h2", "h3", "head", "header", "hr", "html", "input"),
        *("label", "legend", "li", "link", "main", "meta", "nav", "noscript", "ol", "option", "p", "pre"),
        *("rect", "script", "section", "select", "small", "span", "strong", "summary", "svg", "table", "tbody", "td"),
        *("textarea", "tfoot", "th", "thead", "time", "title", "tr", "ul"),
    }
)
ATTRIBUTES = frozenset(
    {
        *("accept", "action", "charset", "class", "colspan", "content", "defer", "dir", "enctype", "for", "height"),
        *("hidden", "href", "http-equiv", "id", "inputmode", "lang", "maxlength", "method", "name", "open"),
        *("rel", "required", "role", "rows", "scope", "selected", "checked", "src", "tabindex", "type"),
        *("disabled", "value", "viewbox", "width", "x", "preserveaspectratio"),
        *("aria-current", "aria-describedby", "aria-hidden", "aria-label", "aria-labelledby"),
        *("data-label", "popover", "popovertarget"),
        *("data-challenge", "data-copied", "data-copy", "data-credential", "data-from", "data-passkey"),
        "data-passkey-problem",
        *("data-reload-ms", "data-rp-id", "data-seen", "data-share", "data-user-id", "data-user-name"),
        *("aria-invalid", "autofocus", "data-session-ended", "data-session-left-s", "data-who"),
    }
)
"""Everything that templates use. Nothing of it runs, loads or styles anything by itself."""


class MarkupChecker(HTMLParser):
    """Parses a page like a browser and records markup that could run or load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.violations: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.violations.append(f"<{tag}>")
        for name, text in attrs:
            if name not in ATTRIBUTES or (name in TARGETS and not is_own_target(tag, text or "")):
                self.violations.append(f"<{tag} {name}={text}>")
        if tag == "script" and "src" not in dict(attrs):
            self.violations.append("<script> of its own")
        if tag == "meta" and dict(attrs).get("http-equiv", "refresh") != "refresh":
            self.violations.append("<meta>")


TARGETS = frozenset({"src", "href", "action", "formaction", "data-from"})


def is_own_target(tag: str, target: str) -> bool:
    """Return whether a link leads to our pages, or whether a loaded file is one of ours."""
    if tag in {"script", "link", "img"}:
        return target.startswith("/static/") and target.removeprefix("/static/") in {path.name for path in OUR_FILES}
    return re.match(r"(/(?!/)|#|\?)", target) is not None


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


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, dict[str, list[str]]]]:
    """Return a house in which all texts of others are hostile, and the addresses of its pages."""
    with pytest.MonkeyPatch.context() as patch:
        check_in_process(patch)
        program = create_sandbox(tmp_path_factory.mktemp("home"), behaviour=BEHAVIOUR)
        waive_approval(program)
        house = House(program)
        ada, ben = house.person(MAKER), house.person(APPROVER)
        quoted = HOSTILE.replace('"', '""')
        heading = f'country,client_orderid,amount,currency,account_name,account_number,phone,"{quoted}"'
        lines = [
            f'KE,"<b>{n}",{amount},KES,"{quoted}",254712345{n:03},+254712345{n:03},"{quoted}"'
            for n, amount in enumerate(("9001.00", "9006.00", "100.00", "9006.00"), 1)
        ]
        name = "<svg onload=alert(4)>.csv"
        batch = program.json("submit", program.sheet(lines, name.replace("<", "x"), heading), "--skip-invalid")["batch"]
        payout = f"/payouts/{batch}"
        ada.post(f"{payout}/rows/3/settle", said="paid", evidence=HOSTILE)
        order = ada.post(f"{payout}/rows/5/settle", said="rejected", evidence=HOSTILE).headers["location"]
        retry = ada.post(f"{payout}/retry", evidence=HOSTILE, **{"row-2": "on"}).headers["location"]
        statement = f'Order ID,Amount,Currency,Answer\n"{quoted}",1.00,KES,paid\n'.encode()
        preview = ada.upload(f"{payout}/statement", "answers.csv", statement, words="By mail").headers["location"]
        mending = upload_sheet(ada, "\n".join([heading, *lines]).replace("100.00", '"<i>x"').encode(), name)
        back = upload_sheet(ada, sheet(3).replace(b"Jane", b"<b onclick=x>Jane").replace(b"P-", b"<i>-"), name)
        sign_sheet(ada, back)
        ben.post(f"{back}/send-back", digest=digest(ben, back), reason=HOSTILE)
        content = sheet(4).replace(b"Jane", HOSTILE.replace('"', "").encode()).replace(b"P-", b"W-")
        waits = upload_sheet(ada, content, name)
        sign_sheet(ada, waits)
        places = {"sheet": (mending, back, waits), "order": (order, retry), "statement": (preview,)}
        numbers = {kind: [place.rpartition("/")[2] for place in several] for kind, several in places.items()}
        yield house, numbers | {"batch": [batch], "row": ["2", "3", "4", "5"], "token": ["<b>" + "T" * 40]}


def test_xss_texts_are_escaped_on_every_page(hostile: tuple[House, dict[str, list[str]]]) -> None:
    house, places = hostile
    seen = 0
    for name in PEOPLE.values():
        person = house.person(name)
        for path in page_paths(places):
            answer = person.get(path)
            assert answer.status_code < 500, path
            if answer.headers.get("content-type", "").startswith("text/html"):
                seen += HOSTILE[:12] not in answer.text and "onerror" in answer.text
                assert MarkupChecker(answer.text).violations == [], path
                assert "5183" not in answer.text
    assert seen > 16  # The hostile texts are really on pages.


def page_paths(places: dict[str, list[str]]) -> Iterator[str]:
    """Yield the addresses of all pages about each hostile object, with hostile queries as well."""
    query = HOSTILE.replace("&", "%26").replace("#", "%23")
    names = ("text", "state", "kind", "after", "before", "seen", "language", "said")
    for route in ROUTES:
        if route.method == "GET" and route.action is not Action.DOWNLOAD:
            for values in product(*(places[name] for name in re.findall(r"{(\w+)", route.path))):
                path = route.path
                for value in values:
                    path = re.sub(r"{[^}]+}", value, path, count=1)
                yield from (path, f"{path}?{'&'.join(f'{name}={query}' for name in names)}")
    yield from ("/payees?text=img", f"/{HOSTILE}", f"/payouts/{HOSTILE}")


def test_xss_downloads_are_attachments_without_markup(hostile: tuple[House, dict[str, list[str]]]) -> None:
    house, places = hostile
    person = house.person(MAKER)
    payout = f"/payouts/{places['batch'][0]}"
    for path in (f"{payout}/reconciliation.html", f"{payout}/advices", "/payees/advice?text=254712345003"):
        answer = person.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "\n" not in answer.headers["content-disposition"]
        assert not [part for part in ("<img src=x", "<script>alert", "<svg onload") if part in answer.text]


def test_xss_request_headers_are_never_echoed(house: House) -> None:
    person = house.person(MAKER)
    names = ("user-agent", "referer", "accept-language", "x-forwarded-for", "accept")
    for path in ("/", "/nothing", "/people"):
        answer = person.get(path, **dict.fromkeys(names, "<img-src=x-onerror=alert(1)>"))
        assert "onerror" not in answer.text
    person.client.cookies.set("language", "<img>")
    assert "<img>" not in person.get("/").text


def test_static_files_load_no_third_party_code() -> None:
    """Every script and style is ours, is used by a page, and loads nothing else."""
    assert all(path.is_file() for path in OUR_FILES)
    pages = "".join(path.read_text() for path in STATIC.with_name("templates").glob("*.html"))
    assert [path.name for path in OUR_FILES if f"/static/{path.name}" not in pages] == []
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert not re.search(r"\beval\b|new Function|document\.write|importScripts|import\s*\(|https?://|//cdn", text)
    (css,) = (path.read_text() for path in OUR_FILES if path.suffix == ".css")
    assert not re.search(r"@import|url\(|expression", css)


def test_pages_logs_and_audit_contain_no_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    house = PasskeyHouse(create_sandbox(tmp_path))
    ada, ben = house.person(MAKER), house.person(APPROVER)
    draft = house.prepared(ada, sheet(2))
    page = ben.get(f"{draft}/plan").text
    form = {name: hidden_value(page, name) for name in ("digest", "approved_at")} | ben.signature_for(page)
    assert ben.post(f"{draft}/approve", **form).status_code == 303
    ben.get("/nothing?csrf=" + ben.token("/"))
    cookies = [person.client.cookies["__Host-payouts"] for person in (ada, ben)]
    tokens = [person.token("/") for person in (ada, ben)]
    pages = [person.get(path) for person in (ada, ben) for path in ("/", "/people", draft, f"{draft}/plan")]
    shown = "".join(answer.text + str(answer.headers) for answer in pages)
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("journal.sqlite3*"))
    kept += b"".join(path.read_bytes() for path in house.console.directory.rglob("*") if path.is_file())
    of_browsers = ("httpx", "httpcore", "asyncio")
    logged = "".join(record.getMessage() for record in caplog.records if not record.name.startswith(of_browsers))
    assert not [secret for secret in cookies if secret in shown + logged or secret.encode() in kept]
    assert not [secret for secret in tokens if secret in logged or secret.encode() in kept]
    for secret in (tmp_path / "sandbox-merchant.pem", *tmp_path.glob("keys/*.pem")):
        line = secret.read_text().splitlines()[1] if secret.exists() else "-----BEGIN"
        assert line not in shown + logged
    assert all(ben.token("/") not in answer.headers.get("location", "") for answer in pages)
    assert not [name for name in ("Jane", "254712345") if name in logged]
    assert group_digits(KEYS[MAKER].public.fingerprint) in shown  # People compare fingerprints, so the page shows them.


def test_unexpected_error_reveals_no_personal_data(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    person = house.person(MAKER)

    monkeypatch.setattr(people_page, "running_process", Mock(side_effect=RuntimeError("Jane Wanjiku 254712345001")))
    answer = person.get("/people")
    assert answer.status_code == 500
    assert not re.search("Jane|254712345001", answer.text + caplog.text)
    assert "people_page.py" in caplog.text
    assert "Traceback" not in answer.text
