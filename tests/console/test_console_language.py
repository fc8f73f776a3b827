"""Tests the language of the pages, which people choose in the footer, and other words for every message."""

import re
import time
from pathlib import Path

import pytest

from paygw_batch.console.console_app import ROUTES
from paygw_batch.console.pages.people_page import AUDIT_RESULTS
from paygw_batch.console.rendering import LANGUAGE_COOKIE, format_time
from paygw_batch.journal import AuditResult
from paygw_batch.language import language_context, say
from tests.console.french import choose_language, page_texts, template_sentences
from tests.console.preparing import digest, sheet, sign_sheet, upload_sheet
from tests.support.people import APPROVER, MAKER, ORIGIN, House, Person, create_sandbox, parse_forms
from tests.support.planted_words import reworded_catalogue

PAGES = (
    *(("/sign-in", "sign_in"), ("/", "overview"), ("/new", "new"), ("/payees?text=nobody", "payee")),
    *(("/people", "people"), ("/no-such-page", "error")),
)


@pytest.mark.share(5)
@pytest.mark.parametrize(("address", "template"), PAGES)
def test_french_page_is_fully_translated(house: House, address: str, template: str) -> None:
    person = house.stranger() if address == "/sign-in" else house.person(MAKER)
    english = template_sentences(template)
    before = person.get(address).text
    assert '<html lang="en">' in before
    assert page_texts(before) & english
    choose_language(person, "fr")
    page = person.get(address).text
    assert '<html lang="fr">' in page
    assert page_texts(page) & english == set()


def test_checked_sheet_is_in_maker_language(ada: Person) -> None:
    choose_language(ada, "fr")
    heading, row = sheet(1, {1: {"amount": "abc"}}).split(b"\n")
    page = ada.get(upload_sheet(ada, heading.lower().replace(b" ", b"_") + b"\n" + row)).text
    assert ("Enregistrer" in page, "is not" in page) == (True, False)
    assert page_texts(page) & template_sentences("check") == set()


def test_language_cookie_is_http_only_and_persistent(house: House) -> None:
    form = {"language": "fr", "back": "/payees?text=Jane"}
    answer = house.stranger().ask("POST", "/language", data=form, headers={"origin": ORIGIN})
    cookie = answer.headers["set-cookie"].lower()
    assert answer.headers["location"] == "/payees?text=Jane"
    assert all(part in cookie for part in (f"{LANGUAGE_COOKIE}=fr", "httponly", "samesite=strict", "max-age"))


def test_unknown_language_changes_nothing(house: House) -> None:
    for wrong in ("xx", "", "../fr", "FR", "fr\\x"):
        person = house.stranger()
        choose_language(person, wrong)
        assert LANGUAGE_COOKIE not in person.client.cookies
        page = person.get("/sign-in", cookie=f"{LANGUAGE_COOKIE}={wrong}")
        assert (page.status_code, '<html lang="en">' in page.text) == (200, True), wrong


def test_forms_never_redirect_to_another_site(house: House) -> None:
    names = ("//evil.example", "https://evil.example/", "/\\evil.example", "", "x", "javascript:alert(1)")
    for address in (*names, "\t//evil.example", "/\t/evil.example", "/\n/evil.example"):
        stranger = house.stranger()
        assert choose_language(stranger, "fr", address) == "/", address
        answer = stranger.ask("POST", "/sign-in", data={"name": MAKER, "to": address}, headers={"origin": ORIGIN})
        assert answer.headers["location"] == "/", address
        page = house.stranger().ask("GET", "/sign-in", params={"to": address}).text
        assert 'name="to" value=""' in page, address


@pytest.mark.parametrize(
    ("accepted", "shown"), [("fr-SN,fr;q=0.9,en;q=0.8", "fr"), ("de, en-GB;q=0.7", "en"), ("de", "en"), ("en,fr", "en")]
)
def test_signed_out_pages_use_browser_language(house: House, accepted: str, shown: str) -> None:
    page = house.stranger().get("/sign-in", **{"accept-language": accepted})
    assert f'<html lang="{shown}">' in page.text
    with language_context("fr"):  # The default is the language of the process.
        assert '<html lang="fr">' in house.stranger().get("/sign-in").text


def test_times_and_audit_actions_are_translated() -> None:
    assert format_time("2026-05-01T09:05:00Z") == "1 May 2026, 09:05 UTC"
    with language_context("fr"):
        assert format_time("2026-05-01T09:05:00Z") == "1 mai 2026, 09:05 UTC"
        assert not [route for route in ROUTES if say(route.audit_action) == route.audit_action]
    assert set(AUDIT_RESULTS) == {result.value for result in AuditResult}


@pytest.mark.parametrize(("further", "zone"), [("", "EAT"), ('time_zone = "Africa/Lagos"', "WAT")])
@pytest.mark.usefixtures("in_process_checks")
def test_times_default_to_machine_time_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further: str, zone: str
) -> None:
    ada = House(create_sandbox(tmp_path, further=further)).person(MAKER)
    draft = upload_sheet(ada, sheet(1))
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Africa/Nairobi")
        time.tzset()
        page = ada.get(draft).text
    time.tzset()
    assert re.search(rf"Uploaded by <bdi>{MAKER}</bdi>, \d+ \w+ \d{{4}}, \d\d:\d\d {zone}", page)


WRONG = {1: {"amount": '"1,250.00"'}, 2: {"amount": '"1.000"'}, 3: {"amount": '"1,250.00"', "country": "Kenya"}}
WRONG |= {4: {"country": "kenya"}, 5: {"currency": "UGX"}, 6: {"currency": "TZS"}, 7: {"name": ""}}


def offered_forms(person: Person, page: str) -> object:
    drawn = {"csrf", "file", "answers", "digest", "code", "key", "version", "back"}
    return [
        (path.rpartition("/")[2], {name: text for name, text in fields.items() if name not in drawn})
        for path, fields in parse_forms(person.get(page).text)
    ]


def run_story(house: House) -> object:
    """Correct a sheet with the offered forms, sign it, and approve it."""
    ada, ben, seen = house.person(MAKER), house.person(APPROVER), []
    draft = upload_sheet(ada, sheet(13, WRONG))
    seen.append(offered_forms(ada, draft))
    for kind in ("amount.format", "country.unknown", "currency.mismatch"):
        seen.append(ada.post(f"{draft}/mend-kind", kind=kind).status_code)
        seen.append(offered_forms(ada, draft))
    seen += [ada.post(f"{draft}/leave-out", row=row).status_code for row in ("3", "8")]
    sign_sheet(ada, draft)
    seen.append(offered_forms(ben, f"{draft}/plan"))
    seen.append(ben.post(f"{draft}/approve", digest=digest(ben, draft)).status_code)
    seen.append(offered_forms(ben, f"{draft}/plan"))
    return seen


@pytest.mark.usefixtures("in_process_checks")
def test_rewording_pages_changes_no_result(tmp_path: Path) -> None:
    (planted := tmp_path / "planted").mkdir()
    plain = run_story(House(create_sandbox(tmp_path)))
    assert "'text': '1250.00'" in str(plain)
    with reworded_catalogue():
        assert run_story(House(create_sandbox(planted))) == plain
