"""Tests access to the pages: roles, form tokens, sessions, host names and headers."""

import pytest

from paygw_batch.console.console_app import ROUTES
from paygw_batch.console.permissions import Action, Member, Role, may
from paygw_batch.console.web_guard import HEADERS
from paygw_batch.errors import ConfigurationError
from tests.support.people import APPROVER, AUDITOR, MAKER, ORIGIN, PEOPLE, House, address

ALLOWED = {
    Action.LOOK: {Role.MAKER, Role.APPROVER, Role.AUDITOR},
    Action.SEE_SHEET: {Role.MAKER, Role.APPROVER},
    Action.PREPARE: {Role.MAKER},
    Action.CORRECT: {Role.MAKER},
    Action.APPROVE: {Role.APPROVER},
    Action.START: {Role.MAKER, Role.APPROVER},
    Action.SETTLE: {Role.MAKER, Role.APPROVER},
    Action.ORDER: {Role.MAKER},
    Action.AGREE: {Role.APPROVER},
    Action.DOWNLOAD: {Role.MAKER, Role.APPROVER},
    Action.CHECK: {Role.MAKER, Role.APPROVER, Role.ADMINISTRATOR},
    Action.STAY: set(Role),
    Action.ADMINISTER: {Role.MAKER, Role.APPROVER, Role.AUDITOR, Role.ADMINISTRATOR},
}
"""A second copy of the permission table, to compare with."""
SIGNED_IN_ROUTES = [route for route in ROUTES if route.action is not None]


@pytest.mark.parametrize("act", Action)
def test_each_action_allows_only_its_roles(act: Action) -> None:
    assert {role for role in Role if may(Member("x", frozenset({role})), act)} == ALLOWED[act]


def test_person_without_role_may_do_nothing() -> None:
    assert not any(may(Member("x", frozenset()), act) for act in Action)


def test_maker_cannot_approve_own_payout() -> None:
    both = Member("Ada", frozenset({Role.MAKER, Role.APPROVER}))
    assert may(both, Action.CORRECT, "Ada")
    assert not may(both, Action.APPROVE, "Ada")
    assert may(both, Action.APPROVE, "Ben")
    assert not may(both, Action.CORRECT, "Ben")
    assert may(both, Action.ORDER, "Ada")
    assert not may(both, Action.AGREE, "Ada")
    assert may(both, Action.AGREE, "Ben")
    assert not may(both, Action.ORDER, "Ben")


def test_signed_out_person_cannot_see_pages(house: House) -> None:
    stranger = house.stranger()
    for screen in SIGNED_IN_ROUTES:
        if screen.method == "GET":
            answer = stranger.get(address(screen))
            assert answer.status_code == (401 if screen.is_poll else 303), screen.path
            assert screen.is_poll or answer.headers["location"].partition("?")[0] == "/sign-in"


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


def test_pages_have_no_inline_script_or_style(house: House) -> None:
    for name in PEOPLE.values():
        person = house.person(name)
        for screen in ROUTES:
            if screen.method == "GET":
                text = person.get(address(screen)).text
                assert not [part for part in ("<style", " style=", " onclick=", "<script>") if part in text]


def test_signing_out_invalidates_copied_session_cookie(house: House) -> None:
    person = house.person(MAKER)
    kept = person.client.cookies["payouts"]
    assert person.post("/sign-out", csrf=person.token("/")).status_code == 303
    copy = house.stranger()
    copy.client.cookies.set("payouts", kept)
    assert copy.get("/").status_code == 303


def test_sign_in_lists_people_only_in_sandbox(house: House) -> None:
    real = house.program.config.read_text().replace('base_url = "sandbox"', 'base_url = "https://gateway.example"')
    real = real.replace('"journal.sqlite3"', '"real.sqlite3"')
    house.program.config.write_text(real.replace('sandbox_keys = "keys"', ""))
    house.program.make_journal()
    other = House(house.program)
    page = other.stranger().get("/sign-in").text
    assert MAKER not in page
    assert "Real money: https://gateway.example" in page
    answer = other.stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": ORIGIN})
    assert answer.status_code == 403


def test_session_cookie_is_secure_behind_proxy(house: House) -> None:
    text = house.program.config.read_text()
    house.program.config.write_text(text.replace("[console]", '[console]\norigin = "https://pay.example"'))
    person = House(house.program).stranger()
    headers = {"host": "pay.example", "origin": "https://pay.example"}
    answer = person.ask("POST", "/sign-in", data={"name": MAKER}, headers=headers)
    assert answer.headers["set-cookie"].startswith("__Host-payouts=")
    assert "Secure" in answer.headers["set-cookie"]
    assert "strict-transport-security" in answer.headers


def test_person_cannot_be_auditor_and_maker(house: House) -> None:
    text = house.program.config.read_text()
    house.program.config.write_text(text.replace(f'"{AUDITOR}" =', f'"{MAKER.upper()}" ='))
    with pytest.raises(ConfigurationError, match="listed as auditor"):
        House(house.program)


def test_every_form_requires_token_of_its_session(house: House) -> None:
    asked = set()
    for name, member in ((MAKER, house.console.members[0]), (APPROVER, house.console.members[1])):
        person, other = house.person(name), house.person(name)
        for token in (None, other.token()):
            form = {} if token is None else {"csrf": token}
            for screen in SIGNED_IN_ROUTES:
                if screen.method == "POST" and may(member, screen.action or Action.LOOK):
                    answer = person.ask("POST", address(screen), data=form, headers={"origin": ORIGIN})
                    assert answer.status_code == 403, (screen.path, token)
                    asked.add(screen.path)
        assert person.get("/").status_code == 200  # None of them signed the person out.
    assert asked == {screen.path for screen in SIGNED_IN_ROUTES if screen.method == "POST"}
