"""Tests threats in requests: permissions, forged forms, stolen sessions, host names and bodies."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Mount, Route

from paygw_batch.console import web_guard
from paygw_batch.console.console_app import ROUTES, console_app
from paygw_batch.console.web_guard import MAX_FORM_BYTES
from tests.console.preparing import sheet, sign_sheet, upload_sheet
from tests.support.keyed_people import PasskeyHouse
from tests.support.people import APPROVER, MAKER, ORIGIN, PEOPLE, House, Person, address, create_sandbox, newest_entries
from tests.support.software_passkey import passkey

pytestmark = pytest.mark.usefixtures("in_process_checks")
MIB = 1 << 20
OWN = b"127.0.0.1:8460"
STRANGERS = "nobody is signed in here"
EVERYONE = "maker, approver, auditor, administrator"
RULES = {
    "GET /": "maker, approver, auditor",
    "GET /invitation/{token}": STRANGERS,
    "GET /new": "maker",
    "GET /new/sample": "maker, approver",
    "GET /new/template": "maker, approver",
    "GET /orders/{order}": "maker, approver, auditor",
    "GET /payees": "maker, approver, auditor",
    "GET /payees/advice": "maker, approver",
    "GET /payouts/{batch}": "maker, approver, auditor",
    "GET /payouts/{batch}/advices": "maker, approver",
    "GET /payouts/{batch}/rows/{row:int}/advice": "maker, approver",
    "GET /payouts/{batch}/progress": "maker, approver, auditor",
    "GET /payouts/{batch}/questions.{ending}": "maker, approver",
    "GET /payouts/{batch}/retry": "maker",
    "GET /payouts/{batch}/rows/{row:int}/settle": "maker, approver",
    "GET /payouts/{batch}/statement": "maker, approver",
    "GET /payouts/{batch}/reconciliation.{ending}": "maker, approver",
    "GET /payouts/{batch}/rows/{row:int}": "maker, approver, auditor",
    "GET /people": EVERYONE,
    "GET /session": EVERYONE,
    "GET /session/stay": EVERYONE,
    "GET /sheets/{sheet}": "maker, approver",
    "GET /sheets/{sheet}/marked": "maker, approver",
    "GET /sheets/{sheet}/plan": "maker, approver, auditor",
    "GET /sheets/{sheet}/people": "maker, approver, auditor",
    "GET /sheets/{sheet}/people.csv": "maker, approver",
    "GET /sign-in": STRANGERS,
    "GET /statements/{statement}": "maker, approver",
    "GET /workers": EVERYONE,
    "POST /invitation/{token}": STRANGERS,
    "POST /language": STRANGERS,
    "POST /new": "maker",
    "POST /orders/{order}/agree": "approver, and not who prepared it",
    "POST /orders/{order}/carry-out": "maker, approver",
    "POST /orders/{order}/send-back": "approver, and not who prepared it",
    "POST /orders/{order}/sign": "maker who prepared it",
    "POST /orders/{order}/sign-again": "maker who prepared it",
    "POST /orders/{order}/take-back": "maker who prepared it",
    "POST /payouts/{batch}/continue": "maker, approver",
    "POST /payouts/{batch}/pause": "maker, approver",
    "POST /payouts/{batch}/retry": "maker",
    "POST /payouts/{batch}/rows/{row:int}/settle": "maker, approver",
    "POST /payouts/{batch}/statement": "maker, approver",
    "POST /people/check": "maker, approver, administrator",
    "POST /sheets/{sheet}/again": "maker who prepared it",
    "POST /sheets/{sheet}/approve": "approver, and not who prepared it",
    "POST /sheets/{sheet}/leave-out": "maker who prepared it",
    "POST /sheets/{sheet}/mend": "maker who prepared it",
    "POST /sheets/{sheet}/mend-kind": "maker who prepared it",
    "POST /sheets/{sheet}/reading": "maker who prepared it",
    "POST /sheets/{sheet}/remove": "maker who prepared it",
    "POST /sheets/{sheet}/answer": "maker who prepared it",
    "POST /sheets/{sheet}/send-back": "approver, and not who prepared it",
    "POST /sheets/{sheet}/sign": "maker who prepared it",
    "POST /sheets/{sheet}/sign-again": "maker who prepared it",
    "POST /sheets/{sheet}/start": "maker, approver",
    "POST /sheets/{sheet}/totals": "maker who prepared it",
    "POST /sheets/{sheet}/withdraw": "maker who prepared it",
    "POST /sheets/{sheet}/worksheets": "maker who prepared it",
    "POST /sign-in": STRANGERS,
    "POST /sign-in/passkey": STRANGERS,
    "POST /sign-out": EVERYONE,
    "POST /statements/{statement}/carry-out": "maker, approver",
    "POST /statements/{statement}/remove": "maker, approver",
}
"""Who may ask for each path, written down a second time. A new path needs a line here: say who it is for."""
OF_THE_OWNER = {"maker who prepared it": True, "approver, and not who prepared it": False}


def test_every_route_has_access_rule(house: House) -> None:
    assert {f"{route.method} {route.path}" for route in ROUTES} == set(RULES)
    app: Any = console_app(house.console)
    served = app._app.routes
    methods = {
        f"{method} {route.path}" for route in served if isinstance(route, Route) for method in route.methods or ()
    }
    assert methods == set(RULES) | {rule.replace("GET ", "HEAD ") for rule in RULES}
    assert [route.path for route in served if isinstance(route, Mount)] == ["/static"]
    assert all(isinstance(route, Route | Mount) for route in served)


@pytest.mark.parametrize("name", PEOPLE.values())
def test_every_route_enforces_its_access_rule(house: House, name: str) -> None:
    person = house.person(name)
    role = next(role for role, route in PEOPLE.items() if route == name)
    for route in ROUTES:
        rule = RULES[f"{route.method} {route.path}"]
        assert (route.action is None) == (rule == STRANGERS)
        if route.action is None or route.path == "/sign-out":
            continue
        ask = person.get if route.method == "GET" else person.post
        answer = ask(address(route))
        assert (answer.status_code == 403) == (role not in rule), (route.path, answer.status_code)
        assert answer.status_code < 500, route.path


@pytest.fixture
def house_of_two_makers(house: House) -> House:
    """Return a house in which two people may both prepare and approve."""
    text = house.program.config.read_text()
    lines = text.splitlines()
    own = {name: next(line for line in lines if line.startswith(f'"{name}" = ')) for name in (MAKER, APPROVER)}
    text = text.replace(own[MAKER], f"{own[MAKER]}\n{own[APPROVER]}", 1)
    place = text.index("[approval.approvers]")
    house.program.config.write_text(f"{text[:place]}[approval.approvers]\n{own[MAKER]}{text[place + 20 :]}")
    return House(house.program)


@pytest.mark.long
def test_sheet_routes_distinguish_maker_from_other_people(house_of_two_makers: House) -> None:
    ada, ben = house_of_two_makers.person(MAKER), house_of_two_makers.person(APPROVER)
    forms = {
        "mend": {"row": "2", "column": "amount", "text": "9.00"},
        "mend-kind": {"kind": "amount.format"},
        "leave-out": {"row": "2"},
    }
    for rule, who in sorted(RULES.items()):
        method, _, path = rule.partition(" ")
        if not path.startswith("/sheets/{sheet}/") or method != "POST" or who not in OF_THE_OWNER:
            continue
        act = path.rpartition("/")[2]
        for person, is_owner in ((ada, True), (ben, False)):
            place = upload_sheet(ada, sheet(2))
            if act in {"approve", "send-back"}:
                sign_sheet(ada, place)
            before = snapshot(house_of_two_makers, place)
            answer = person.post(f"{place}/{act}", **forms.get(act, {}))
            assert (answer.status_code == 403) == (is_owner != OF_THE_OWNER[who]), (rule, person.name)
            if answer.status_code == 403:
                assert snapshot(house_of_two_makers, place) == before


def snapshot(house: House, place: str) -> dict[Path, bytes]:
    folder = house.console.directory / place.rpartition("/")[2]
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.share(3)
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "HEAD"])
def test_unexpected_http_methods_change_nothing(house: House, ada: Person, method: str) -> None:
    place = upload_sheet(ada, sheet(1))
    before = snapshot(house, place)
    for path in (place, f"{place}/mend", f"{place}/remove", "/sign-out", "/new"):
        assert ada.ask(method, path).status_code in {200, 404, 405}
    assert snapshot(house, place) == before
    assert ada.get("/").status_code == 200


def test_csrf_form_without_session_token_changes_nothing(house: House, ada: Person) -> None:
    place = upload_sheet(ada, sheet(2))
    before = snapshot(house, place)
    own = ada.token("/")
    other = house.person(MAKER).token("/")
    form = {"row": "2", "column": "amount", "text": "9.00"}
    tokens: list[dict[str, Any]] = [{}, {"csrf": ""}, {"csrf": other}, {"csrf": own[:-1]}, {"csrf": own.upper()}]
    tokens += [{"csrf": f"{own} "}, {"csrf": [other, ""]}, {"CSRF": own}, {"csrf": "\u00e4" * 64}]
    for token in tokens:
        answer = ada.ask("POST", f"{place}/mend", data=form | token, headers={"origin": ORIGIN})
        assert answer.status_code == 403, token
    in_the_address = ada.ask("POST", f"{place}/mend?csrf={own}", data=form, headers={"origin": ORIGIN})
    assert in_the_address.status_code == 403
    for kind in ("text/plain", "application/json"):
        headers = {"origin": ORIGIN, "content-type": kind}
        assert ada.ask("POST", f"{place}/mend", content=f"csrf={own}", headers=headers).status_code == 403
    assert snapshot(house, place) == before


def test_csrf_forms_must_come_from_own_origin(house: House) -> None:
    person = house.person(MAKER)
    token = person.token("/")
    for route in ROUTES:
        if route.method == "POST":
            origins = ("null", "https://evil.example", ORIGIN.replace("http:", "https:"))
            sites = ({"origin": ORIGIN, "sec-fetch-site": site} for site in ("cross-site", "same-site"))
            for headers in ({}, *({"origin": origin} for origin in origins), *sites, {"referer": f"{ORIGIN}/"}):
                answer = person.ask("POST", address(route), data={"csrf": token}, headers=headers)
                assert answer.status_code == 403, (route.path, headers)
    assert person.get("/").status_code == 200


def test_get_requests_change_nothing(house: House, ada: Person) -> None:
    """An image on another site can send a GET request, so viewing a page must change nothing."""
    place = upload_sheet(ada, sheet(2))
    token = ada.token("/")
    before = snapshot(house, place)
    for route in ROUTES:
        path = address(route).replace("0" * 16, place.rpartition("/")[2])
        ada.get(f"{path}?row=2&column=amount&text=9.00&csrf={token}")
    assert snapshot(house, place) == before


def test_stolen_stored_session_values_are_useless(house: House) -> None:
    person = house.person(MAKER)
    cookie = person.client.cookies["payouts"]
    kept = house.program.journal.with_name("journal.sqlite3.sessions")
    files = b"".join(path.read_bytes() for path in kept.parent.glob(f"{kept.name}*"))
    assert cookie.encode() not in files
    token = person.token("/")
    assert cookie not in "".join(person.get(path).text for path in ("/", "/people", "/new"))
    digest_of = hashlib.sha256(cookie.encode())
    for guess in (token, digest_of.hexdigest(), cookie[:-1], cookie.swapcase(), f"{cookie}x", "", "*", "%"):
        thief = house.stranger()
        thief.client.cookies.set("payouts", guess)
        assert thief.get("/").status_code == 303, guess


def test_session_fixation_is_prevented_by_new_ids(house: House) -> None:
    victim = house.stranger()
    victim.client.cookies.set("payouts", "chosen-by-another")
    answer = victim.ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": ORIGIN})
    first, set_by = answer.cookies["payouts"], answer.headers["set-cookie"]
    assert first != "chosen-by-another"
    assert "HttpOnly" in set_by
    assert "samesite=strict" in set_by.lower()
    again = victim.ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": ORIGIN})
    assert again.cookies["payouts"] != first
    for old in ("chosen-by-another", first):
        thief = house.stranger()
        thief.client.cookies.set("payouts", old)
        assert thief.get("/").status_code == 303


@pytest.fixture
def keyed(tmp_path: Path) -> PasskeyHouse:
    return PasskeyHouse(create_sandbox(tmp_path))


def test_sign_in_brute_force_is_recorded_without_lockout(keyed: PasskeyHouse) -> None:
    thief, eve = keyed.stranger(), passkey("p-eve")
    nonce = thief.begin_sign_in()
    for number in range(60):
        seen = (None, nonce)[number % 2]
        assert thief.sign_in(eve, seen).status_code == 403
    assert thief.get("/").status_code == 303
    entries = newest_entries(keyed.console.settings, limit=999)
    assert len(entries) == 60
    assert {(route.who, route.act, route.result) for route in entries} == {("", "use passkey", "refused")}
    assert keyed.person(MAKER).get("/").status_code == 200


FORGED = {
    "x-forwarded-host": "evil.example",
    "x-forwarded-proto": "https",
    "x-forwarded-for": "192.0.2.1",
    "x-forwarded-prefix": "/evil",
    "x-forwarded-user": MAKER,
    "x-real-ip": "192.0.2.1",
    "x-original-url": "/people",
    "x-rewrite-url": "/people",
    "x-http-method-override": "POST",
    "forwarded": 'host="evil.example";proto=https',
    "remote-user": MAKER,
}


def test_forged_proxy_headers_are_ignored(house: House) -> None:
    person = house.person(MAKER)
    for path in ("/", "/people", "/sign-in", "/nothing"):
        plain, forged = person.get(path), person.get(path, **FORGED)
        assert (forged.status_code, forged.text) == (plain.status_code, plain.text)
    stranger = house.stranger().get("/", **FORGED)
    assert (stranger.status_code, stranger.headers["location"]) == (303, "/sign-in")
    answer = house.stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": ORIGIN, **FORGED})
    assert "Secure" not in answer.headers["set-cookie"]
    headers = {**FORGED, "origin": "https://evil.example"}
    assert house.stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "hosts",
    [[], [b""], [b"evil.example"], [b"127.0.0.1"], [b"127.0.0.1:1"], [b"127.0.0.1:8460", b"evil.example"], [OWN] * 2],
)
def test_wrong_or_repeated_host_header_is_refused(house: House, hosts: list[bytes]) -> None:
    assert send_request(house.app, headers=[(b"host", host) for host in hosts])[0] == 421


def send_request(
    app: Any, *, headers: list[tuple[bytes, bytes]], method: str = "GET", path: str = "/sign-in", body: Any = None
) -> tuple[int, int]:
    """Send a request to an application, and return the status and the number of body chunks it read."""
    sent: list[dict[str, Any]] = []
    pieces: Iterator[dict[str, Any]] = iter(body or [{"type": "http.request", "body": b""}])
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        piece = next(pieces, None)
        if piece is None:
            await asyncio.Event().wait()
        assert piece is not None
        return piece

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8460),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], taken


def test_upload_bomb_is_refused_by_content_length(house: House) -> None:
    headers = [(b"host", b"127.0.0.1:8460"), (b"content-length", str(10 * 1024 * MIB).encode())]
    assert send_request(house.app, headers=headers, method="POST", path="/new") == (413, 0)
    headers = [(b"host", OWN), (b"content-length", str(MAX_FORM_BYTES + 1).encode())]
    assert send_request(house.app, headers=headers, method="POST", path="/sign-out") == (413, 0)
    for length in (b"-1", b"1e9", b"0x10", b"1, 2", b""):
        headers = [(b"host", b"127.0.0.1:8460"), (b"content-length", length)]
        assert send_request(house.app, headers=headers, method="POST", path="/new") == (413, 0)


def endless_body(size: int) -> Iterator[dict[str, Any]]:
    while True:
        yield {"type": "http.request", "body": b"x" * size, "more_body": True}


def test_upload_bomb_without_length_is_aborted(house: House) -> None:
    cookie = house.person(MAKER).client.cookies["payouts"]
    headers = [
        (b"host", b"127.0.0.1:8460"), (b"transfer-encoding", b"chunked"), (b"cookie", f"payouts={cookie}".encode()),
        (b"origin", ORIGIN.encode()), (b"content-type", b"application/x-www-form-urlencoded"),
    ]  # fmt: skip
    status, taken = send_request(house.app, headers=headers, method="POST", path="/sign-out", body=endless_body(65_536))
    assert status == 413
    assert taken == MAX_FORM_BYTES // 65_536 + 1
    newest = newest_entries(house.console.settings, limit=1)[0]
    assert (newest.who, newest.act, newest.result) == (MAKER, "sign out", "refused")


def test_slow_upload_leaves_no_file(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = house.person(MAKER).client.cookies["payouts"]
    monkeypatch.setattr(web_guard, "BODY_LIMIT_S", 0.01)
    headers = [
        (b"host", OWN), (b"content-length", b"5000"), (b"cookie", f"payouts={cookie}".encode()),
        (b"origin", ORIGIN.encode()), (b"content-type", b"multipart/form-data; boundary=x"),
    ]  # fmt: skip
    first = [{"type": "http.request", "body": b"--x\r\n", "more_body": True}]
    assert send_request(house.app, headers=headers, method="POST", path="/new", body=first) == (413, 2)
    assert not list(house.console.directory.glob("*"))


def test_form_bomb_with_many_fields_is_refused(ada: Person) -> None:
    form = "&".join(f"a{n}=" for n in range(3_000)) + f"&csrf={ada.token('/')}"
    headers = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    answer = ada.ask("POST", "/sign-out", content=form, headers=headers)
    assert answer.status_code == 403
    assert ada.get("/").status_code == 200


@pytest.mark.share(5)
@pytest.mark.parametrize(
    "path",
    [
        "/static/../permissions.py",
        "/static/..%2fpermissions.py",
        "/static/%2e%2e/permissions.py",
        "/static//etc/passwd",
        "/static/pages.css/../../page.py",
        "/sheets/..%2f..%2fkeys",
        "/sheets/../runs",
        "/sheets/....//....//keys",
        "/sheets/runs",
        "/sheets/invitations",
        "/sheets/%00",
        "/sheets/" + "0" * 15 + "%0a",
        "/payouts/..%2f..%2fjournal.sqlite3",
        "/payouts/*",
        "/payouts/0000000000000000/reconciliation.../../paygw.toml",
        "/payouts/0000000000000000/reconciliation.csv%00.html",
        "/payouts/0000000000000000/rows/-1",
        "/payouts/0000000000000000/rows/99999999999999999999999",
        "/payouts/0000000000000000/rows/2e3",
        "/invitation/..%2f..%2fpaygw.toml",
        "/.git/config",
    ],
)
def test_path_traversal_reveals_no_file(house: House, path: str) -> None:
    for person in (house.person(MAKER), house.stranger()):
        answer = person.get(path)
        assert answer.status_code in {303, 404}, answer.status_code
        assert "evil.example" not in answer.headers.get("location", "")
        assert not [secret for secret in ("-----BEGIN", "base_url") if secret in answer.text]


@pytest.mark.parametrize("path", ["//evil.example/", "//evil.example/%2f..", "/\\evil.example", "http://evil.example/"])
def test_path_like_another_site_is_not_found(house: House, path: str) -> None:
    assert send_request(house.app, headers=[(b"host", OWN)], path=path)[0] == 404
