"""Tests threats in requests: permissions, forged forms, stolen sessions, host names and bodies."""

import asyncio
import hashlib
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from paygw_batch.console import web_guard
from paygw_batch.console.console_app import ROUTES, console_app
from paygw_batch.console.permissions import Action, Member, Role, may
from paygw_batch.console.web_guard import HEADERS, MAX_FORM_BYTES
from paygw_batch.errors import ConfigurationError
from tests.console.preparing import sheet, sign_sheet, upload_sheet
from tests.support.keyed_people import PasskeyHouse
from tests.support.people import (
    APPROVER,
    AUDITOR,
    MAKER,
    ORIGIN,
    PEOPLE,
    House,
    Person,
    add_role,
    address,
    create_sandbox,
    newest_entries,
)
from tests.support.software_passkey import passkey

pytestmark = pytest.mark.usefixtures("in_process_checks")
OWN = b"127.0.0.1:8460"
STRANGERS, EVERYONE = "nobody is signed in here", f"everyone: {', '.join(Role)}"
WHO_MAY = {
    STRANGERS: (
        *("GET /invitation/{token}", "GET /sign-in", "POST /invitation/{token}", "POST /language", "POST /sign-in"),
        "POST /sign-in/passkey",
    ),
    EVERYONE: ("GET /session", "GET /session/stay", "POST /sign-out"),
    "maker, approver, auditor, administrator": ("GET /people", "GET /workers"),
    "maker, approver, auditor": (
        *("GET /", "GET /orders/{order}", "GET /payees", "GET /payouts/{batch}", "GET /payouts/{batch}/progress"),
        *("GET /payouts/{batch}/rows/{row:int}", "GET /sheets/{sheet}/plan", "GET /sheets/{sheet}/people"),
    ),
    "maker, approver, administrator": ("POST /people/check",),
    "maker, approver": (
        *("GET /new/sample", "GET /new/template", "GET /payees/advice", "GET /payouts/{batch}/advices"),
        *("GET /payouts/{batch}/rows/{row:int}/advice", "GET /payouts/{batch}/questions.{ending}"),
        *("GET /payouts/{batch}/rows/{row:int}/settle", "GET /payouts/{batch}/statement"),
        *("GET /payouts/{batch}/reconciliation.{ending}", "GET /sheets/{sheet}", "GET /sheets/{sheet}/marked"),
        *("GET /sheets/{sheet}/people.csv", "GET /statements/{statement}", "POST /orders/{order}/carry-out"),
        *("POST /payouts/{batch}/continue", "POST /payouts/{batch}/pause", "POST /payouts/{batch}/statement"),
        *("POST /payouts/{batch}/rows/{row:int}/settle", "POST /sheets/{sheet}/start"),
        *("POST /statements/{statement}/carry-out", "POST /statements/{statement}/remove"),
    ),
    "maker": ("GET /new", "GET /payouts/{batch}/retry", "POST /new", "POST /payouts/{batch}/retry"),
    "approver, and not who prepared it": (
        *("POST /orders/{order}/agree", "POST /orders/{order}/send-back"),
        *("POST /sheets/{sheet}/approve", "POST /sheets/{sheet}/send-back"),
    ),
    "maker who prepared it": (
        *("POST /orders/{order}/sign", "POST /orders/{order}/sign-again", "POST /orders/{order}/take-back"),
        *("POST /sheets/{sheet}/again", "POST /sheets/{sheet}/leave-out", "POST /sheets/{sheet}/mend"),
        *("POST /sheets/{sheet}/mend-kind", "POST /sheets/{sheet}/reading", "POST /sheets/{sheet}/remove"),
        *("POST /sheets/{sheet}/answer", "POST /sheets/{sheet}/sign", "POST /sheets/{sheet}/sign-again"),
        *("POST /sheets/{sheet}/totals", "POST /sheets/{sheet}/withdraw", "POST /sheets/{sheet}/worksheets"),
    ),
}
"""Who may ask for each path, written down a second time. A new path needs a place here: say who it is for."""
RULES = {route: rule for rule, routes in WHO_MAY.items() for route in routes}


def test_every_route_has_access_rule(house: House) -> None:
    actions = {f"{route.method} {route.path}": route.action for route in ROUTES}
    assert (set(actions), set(actions.values())) == (set(RULES), {None, *Action})
    for route, action in actions.items():
        allowed = {role for role in Role if action is not None and may(Member("x", frozenset({role})), action)}
        assert allowed == {role for role in Role if role in RULES[route]}, route
    app: Any = console_app(house.console)
    *pages, static = app._app.routes
    methods = {f"{method} {page.path}" for page in pages for method in page.methods}
    assert methods == set(RULES) | {rule.replace("GET ", "HEAD ") for rule in RULES}
    assert static.path == "/static"


@pytest.mark.parametrize("role", PEOPLE)
def test_every_route_enforces_rule_and_audits_action(house: House, role: Role) -> None:
    person = house.person(PEOPLE[role])
    token = person.token()
    for route in ROUTES:
        rule = RULES[f"{route.method} {route.path}"]
        assert (route.action is None) == (rule == STRANGERS)
        if route.path in {"/sign-in", "/sign-out"}:
            continue
        before = len(newest_entries(house.console.settings, limit=999))
        data = {"csrf": token} if route.method == "POST" else None
        status = person.ask(route.method, address(route), data=data, headers={"origin": ORIGIN}).status_code
        assert status < 500, route.path
        assert rule == STRANGERS or (status == 403) == (role not in rule), (route.path, status)
        is_recorded = len(newest_entries(house.console.settings, limit=999)) > before
        does = (route.method == "POST" and route.path != "/language") or route.action is Action.DOWNLOAD
        assert is_recorded == (does or status == 403), (route.method, route.path, status)


def test_signed_out_person_cannot_see_pages(house: House) -> None:
    stranger = house.stranger()
    for route in ROUTES:
        if route.method == "GET" and route.action is not None:
            answer = stranger.get(address(route))
            assert answer.status_code == (401 if route.is_poll else 303), route.path
            assert route.is_poll or answer.headers["location"].partition("?")[0] == "/sign-in"


def test_person_with_two_roles_cannot_approve_own_payout() -> None:
    both = Member("Ada", frozenset({Role.MAKER, Role.APPROVER}))
    for own, of_others in ((Action.CORRECT, Action.APPROVE), (Action.ORDER, Action.AGREE)):
        assert [may(both, act, who) for act in (own, of_others) for who in ("Ada", "Ben")] == [True, False, False, True]
    assert not any(may(Member("x", frozenset()), act) for act in Action)


def test_person_cannot_be_auditor_and_maker(house: House) -> None:
    text = house.program.config.read_text()
    house.program.config.write_text(text.replace(f'"{AUDITOR}" =', f'"{MAKER.upper()}" ='))
    with pytest.raises(ConfigurationError, match="listed as auditor"):
        House(house.program)


@pytest.mark.long
def test_sheet_routes_distinguish_maker_from_other_people(house: House) -> None:
    for name, roles in ((MAKER, "approvers"), (APPROVER, "makers")):
        add_role(house.program, name, roles)
    house = House(house.program)
    ada, ben = house.person(MAKER), house.person(APPROVER)
    forms = {
        "mend": {"row": "2", "column": "amount", "text": "9.00"},
        "mend-kind": {"kind": "amount.format"},
        "leave-out": {"row": "2"},
    }
    for of_the_owner in (True, False):
        routes = WHO_MAY["maker who prepared it" if of_the_owner else "approver, and not who prepared it"]
        for act in (route.rpartition("/")[2] for route in routes if route.startswith("POST /sheets/")):
            for person, is_owner in ((ada, True), (ben, False)):
                draft = upload_sheet(ada, sheet(2))
                if act in {"approve", "send-back"}:
                    sign_sheet(ada, draft)
                before = snapshot(house, draft)
                answer = person.post(f"{draft}/{act}", **forms.get(act, {}))
                assert (answer.status_code == 403) == (is_owner != of_the_owner), (act, person.name)
                if answer.status_code == 403:
                    assert snapshot(house, draft) == before


def test_second_maker_cannot_change_sheet(house: House, ada: Person) -> None:
    draft = upload_sheet(ada, sheet(2))
    add_role(house.program, APPROVER, "makers")
    ben, before = House(house.program).person(APPROVER), snapshot(house, draft)
    mended = {"row": "2", "column": "amount", "text": "9.00"}
    for act, form in {"mend": mended, "leave-out": {"row": "2"}, "remove": {}, "sign": {}}.items():
        assert ben.post(f"{draft}/{act}", **form).status_code == 403, act
    assert snapshot(house, draft) == before


def snapshot(house: House, draft: str) -> dict[Path, bytes]:
    folder = house.console.directory / draft.rpartition("/")[2]
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_get_request_or_unexpected_method_changes_nothing(house: House, ada: Person) -> None:
    """An image on another site can send a GET request, so viewing a page must change nothing."""
    draft = upload_sheet(ada, sheet(2))
    token, before = ada.token("/"), snapshot(house, draft)
    for route in ROUTES:
        path = address(route).replace("0" * 16, draft.rpartition("/")[2])
        ada.get(f"{path}?row=2&column=amount&text=9.00&csrf={token}")
    assert snapshot(house, draft) == before
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "HEAD"):
        for path in (draft, f"{draft}/mend", f"{draft}/remove", "/sign-out", "/new"):
            assert ada.ask(method, path).status_code in {200, 404, 405}, (method, path)
    assert snapshot(house, draft) == before
    assert ada.get("/").status_code == 200


def test_csrf_form_without_session_token_changes_nothing(house: House, ada: Person) -> None:
    draft = upload_sheet(ada, sheet(2))
    before = snapshot(house, draft)
    own = ada.token("/")
    other = house.person(MAKER).token("/")
    form = {"row": "2", "column": "amount", "text": "9.00"}
    tokens: list[dict[str, Any]] = [{}, {"csrf": ""}, {"csrf": other}, {"csrf": own[:-1]}, {"csrf": own.upper()}]
    tokens += [{"csrf": f"{own} "}, {"csrf": [other, ""]}, {"CSRF": own}, {"csrf": "\u00e4" * 64}]
    for token in tokens:
        answer = ada.ask("POST", f"{draft}/mend", data=form | token, headers={"origin": ORIGIN})
        assert answer.status_code == 403, token
    assert ada.ask("POST", f"{draft}/mend?csrf={own}", data=form, headers={"origin": ORIGIN}).status_code == 403
    for kind in ("text/plain", "application/json"):
        headers = {"origin": ORIGIN, "content-type": kind}
        assert ada.ask("POST", f"{draft}/mend", content=f"csrf={own}", headers=headers).status_code == 403
    assert snapshot(house, draft) == before


@pytest.mark.parametrize("role", [Role.MAKER, Role.APPROVER])
def test_csrf_forms_require_own_origin_and_token(house: House, role: Role) -> None:
    person = house.person(PEOPLE[role])
    own, other = person.token("/"), house.person(PEOPLE[role]).token("/")
    origins = ("null", "https://evil.example", ORIGIN.replace("http:", "https:"))
    foreign = [{}, {"referer": f"{ORIGIN}/"}, *({"origin": origin} for origin in origins)]
    foreign += [{"origin": ORIGIN, "sec-fetch-site": site} for site in ("cross-site", "same-site")]
    asked = 0
    for route in (route for route in ROUTES if route.method == "POST"):
        forms: list[tuple[dict[str, str], dict[str, str]]] = [({"csrf": own}, headers) for headers in foreign]
        if role in RULES[f"POST {route.path}"]:
            forms += [(form, {"origin": ORIGIN}) for form in ({}, {"csrf": other})]
        for form, headers in forms:
            answer = person.ask("POST", address(route), data=form, headers=headers)
            assert answer.status_code == 403, (route.path, form, headers)
        asked += len(forms)
    refusals = newest_entries(house.console.settings, limit=999)[:-2]
    assert len(refusals) == asked
    assert {(entry.who, entry.result) for entry in refusals} == {(person.name, "refused")}
    assert person.get("/").status_code == 200  # None of them signed the person out.


def test_stolen_stored_session_values_are_useless(house: House, tmp_path_factory: pytest.TempPathFactory) -> None:
    person = house.person(MAKER)
    cookie = person.client.cookies["payouts"]
    kept = house.program.journal.with_name("journal.sqlite3.sessions")
    files = b"".join(path.read_bytes() for path in kept.parent.glob(f"{kept.name}*"))
    assert cookie.encode() not in files
    token = person.token("/")
    assert cookie not in "".join(person.get(path).text for path in ("/", "/people", "/new"))
    digest_of = hashlib.sha256(cookie.encode())
    for guess in (token, digest_of.hexdigest(), cookie[:-1], cookie.swapcase(), f"{cookie}x", "", "*", "%"):
        assert not is_signed_in(house, guess), guess
    elsewhere = House(create_sandbox(tmp_path_factory.mktemp("elsewhere")))
    assert not is_signed_in(house, elsewhere.person(MAKER).client.cookies["payouts"])
    assert is_signed_in(house, cookie)
    assert person.post("/sign-out", csrf=token).status_code == 303
    assert not is_signed_in(house, cookie)


def is_signed_in(house: House, cookie: str) -> bool:
    copy = house.stranger()
    copy.client.cookies.set("payouts", cookie)
    return copy.get("/").status_code == 200


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
    assert not any(is_signed_in(house, old) for old in ("chosen-by-another", first))


def test_session_cookie_is_secure_behind_proxy(house: House) -> None:
    text = house.program.config.read_text()
    house.program.config.write_text(text.replace("[console]", '[console]\norigin = "https://pay.example"'))
    headers = {"host": "pay.example", "origin": "https://pay.example"}
    answer = House(house.program).stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers=headers)
    assert answer.headers["set-cookie"].startswith("__Host-payouts=")
    assert "Secure" in answer.headers["set-cookie"]
    assert "strict-transport-security" in answer.headers


def test_sign_in_lists_people_only_in_sandbox(house: House) -> None:
    real = house.program.config.read_text().replace('base_url = "sandbox"', 'base_url = "https://gateway.example"')
    real = real.replace('"journal.sqlite3"', '"real.sqlite3"')
    house.program.config.write_text(real.replace('sandbox_keys = "keys"', ""))
    house.program.make_journal()
    stranger = House(house.program).stranger()
    page = stranger.get("/sign-in").text
    assert (MAKER in page, "Real money: https://gateway.example" in page) == (False, True)
    assert stranger.ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": ORIGIN}).status_code == 403


def test_every_response_has_security_headers(house: House) -> None:
    person = house.person(MAKER)
    answers = [person.get(path) for path in ("/", "/nothing", "/static/pages.css", "/static/../permissions.py")]
    answers.append(person.ask("POST", "/sign-out", headers={"origin": ORIGIN}))
    answers += [house.stranger().get("/"), house.stranger().get("/", host="evil.example")]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS), answer.status_code
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert [answer.status_code for answer in answers] == [200, 404, 200, 404, 403, 303, 421]


def test_repeated_sign_in_attempts_lock_nobody_out(tmp_path: Path) -> None:
    keyed = PasskeyHouse(create_sandbox(tmp_path))
    thief, eve = keyed.stranger(), passkey("p-eve")
    nonce = thief.begin_sign_in()
    for number in range(60):
        assert thief.sign_in(eve, (None, nonce)[number % 2]).status_code == 403
    assert thief.get("/").status_code == 303
    entries = newest_entries(keyed.console.settings, limit=999)
    assert len(entries) == 60
    assert {(route.who, route.act, route.result) for route in entries} == {("", "use passkey", "refused")}
    assert keyed.person(MAKER).get("/").status_code == 200


FORGED = {
    **dict.fromkeys(("x-forwarded-for", "x-real-ip"), "192.0.2.1"),
    **dict.fromkeys(("x-forwarded-user", "remote-user"), MAKER),
    **dict.fromkeys(("x-original-url", "x-rewrite-url"), "/people"),
    "x-forwarded-host": "evil.example",
    "x-forwarded-proto": "https",
    "x-forwarded-prefix": "/evil",
    "x-http-method-override": "POST",
    "forwarded": 'host="evil.example";proto=https',
}


def test_forged_proxy_headers_are_ignored(house: House) -> None:
    person = house.person(MAKER)
    for path in ("/", "/people", "/sign-in", "/nothing"):
        plain, forged = person.get(path), person.get(path, **FORGED)
        assert (forged.status_code, forged.text) == (plain.status_code, plain.text)
    assert house.stranger().get("/", **FORGED).headers["location"] == "/sign-in"
    answer = house.stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": ORIGIN, **FORGED})
    assert "Secure" not in answer.headers["set-cookie"]
    headers = {**FORGED, "origin": "https://evil.example"}
    assert house.stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers=headers).status_code == 403


def test_wrong_or_repeated_host_header_is_refused(house: House) -> None:
    wrong = [[b""], [b"evil.example"], [b"127.0.0.1"], [b"127.0.0.1:1"], [OWN, b"evil.example"], [OWN] * 2]
    for hosts in (*wrong, []):
        assert send_request(house.app, headers=[(b"host", host) for host in hosts])[0] == 421, hosts


def send_request(app: Any, *, headers: Any, method: str = "GET", path: str = "/sign-in", body: Any = None) -> Any:
    """Send a request to an application, and return the status and the number of body chunks it read."""
    sent: list[dict[str, Any]] = []
    pieces: Iterator[dict[str, Any]] = iter(body or [{"type": "http.request", "body": b""}])
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        if (piece := next(pieces, None)) is None:
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


def test_upload_bomb_is_refused_or_aborted(house: House) -> None:
    sizes = [("/new", str(10 << 30)), ("/sign-out", str(MAX_FORM_BYTES + 1))]
    sizes += [("/new", length) for length in ("-1", "1e9", "0x10", "1, 2", "")]
    for path, length in sizes:
        headers = [(b"host", OWN), (b"content-length", length.encode())]
        assert send_request(house.app, headers=headers, method="POST", path=path) == (413, 0), length
    body = repeat({"type": "http.request", "body": b"x" * 65_536, "more_body": True})
    headers = [*upload_headers(house, b"application/x-www-form-urlencoded"), (b"transfer-encoding", b"chunked")]
    answer = send_request(house.app, headers=headers, method="POST", path="/sign-out", body=body)
    assert answer == (413, MAX_FORM_BYTES // 65_536 + 1)
    newest = newest_entries(house.console.settings, limit=1)[0]
    assert (newest.who, newest.act, newest.result) == (MAKER, "sign out", "refused")


def upload_headers(house: House, kind: bytes) -> list[tuple[bytes, bytes]]:
    cookie = house.person(MAKER).client.cookies["payouts"].encode()
    given = {b"host": OWN, b"cookie": b"payouts=" + cookie, b"origin": ORIGIN.encode(), b"content-type": kind}
    return [*given.items()]


def test_slow_upload_leaves_no_file(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_guard, "BODY_LIMIT_S", 0.01)
    first = [{"type": "http.request", "body": b"--x\r\n", "more_body": True}]
    headers = [*upload_headers(house, b"multipart/form-data; boundary=x"), (b"content-length", b"5000")]
    assert send_request(house.app, headers=headers, method="POST", path="/new", body=first) == (413, 2)
    assert not list(house.console.directory.glob("*"))


def test_form_bomb_with_many_fields_is_refused(ada: Person) -> None:
    form = "&".join(f"a{n}=" for n in range(3_000)) + f"&csrf={ada.token('/')}"
    headers = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    assert ada.ask("POST", "/sign-out", content=form, headers=headers).status_code == 403
    assert ada.get("/").status_code == 200


def test_path_traversal_reveals_no_file(house: House) -> None:
    payout = f"/payouts/{'0' * 16}"
    for path in (
        *("/static/../permissions.py", "/static/..%2fpermissions.py", "/static/%2e%2e/permissions.py", "/.git/config"),
        *("/static//etc/passwd", "/static/pages.css/../../page.py", "/sheets/..%2f..%2fkeys", "/sheets/../runs"),
        *("/sheets/....//....//keys", "/sheets/runs", "/sheets/invitations", "/sheets/%00", f"/sheets/{'0' * 15}%0a"),
        *("/payouts/..%2f..%2fjournal.sqlite3", "/payouts/*", f"{payout}/reconciliation.../../paygw.toml"),
        *(f"{payout}/reconciliation.csv%00.html", f"{payout}/rows/-1", f"{payout}/rows/{'9' * 23}"),
        *(f"{payout}/rows/2e3", "/invitation/..%2f..%2fpaygw.toml"),
    ):
        for person in (house.person(MAKER), house.stranger()):
            answer = person.get(path)
            assert answer.status_code in {303, 404}, path
            assert "evil.example" not in answer.headers.get("location", "")
            assert not [secret for secret in ("-----BEGIN", "base_url") if secret in answer.text], path
    for path in ("//evil.example/", "//evil.example/%2f..", "/\\evil.example", "http://evil.example/"):
        assert send_request(house.app, headers=[(b"host", OWN)], path=path)[0] == 404, path
