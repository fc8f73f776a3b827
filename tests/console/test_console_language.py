"""The language of the pages: a person chooses it in the foot, without a script, and it stays with the browser."""

import re
from html import unescape

import pytest

from paygw_batch.console.console_app import ROUTES
from paygw_batch.console.pages.people_page import RESULTS_NOTED
from paygw_batch.console.rendering import LANGUAGE_COOKIE, when
from paygw_batch.journal import AuditResult
from paygw_batch.language import say, speaking
from tests.console.people import MAKER, ORIGIN, House, Person
from tests.test_catalogue import messages

PAGES = (
    ("/sign-in", "sign_in"),
    ("/", "overview"),
    ("/new", "new"),
    ("/payees?text=nobody", "payee"),
    ("/people", "people"),
    ("/no-such-page", "error"),
)
SHEET = b"""country,client_orderid,amount,account_name,account_number,phone
KE,P-1,abc,Jane,254712345001,+254712345001
"""


def sentences(template: str) -> set[str]:
    """Return the texts that a template has of the catalogue, and those of every page."""
    wanted = {f"paygw_batch/console/templates/{name}.html" for name in (template, "base", "parts")}
    found = {message for message, place in messages() if place in wanted and isinstance(message, str)}
    with speaking("fr"):
        return {text for text in found if "%(" not in text and say(text) != text}


def texts(page: str) -> set[str]:
    """Return the texts of a page, each as it stands between two tags or in a label."""
    between = re.findall(r">([^<]+)<", page.partition("<body>")[2]) + re.findall(r'aria-label="([^"]+)"', page)
    return {unescape(text).strip() for text in between}


def choose(person: Person, language: str, back: str = "/") -> str:
    """Choose a language as the foot of a page does; return where the browser is led."""
    form = {"language": language, "back": back}
    answer = person.ask("POST", "/language", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 303
    return answer.headers["location"]


@pytest.mark.share(5)
@pytest.mark.parametrize(("address", "template"), PAGES)
def test_a_page_in_french_has_no_english_sentence_of_its_template(house: House, address: str, template: str) -> None:
    person = house.stranger() if address == "/sign-in" else house.person(MAKER)
    english = sentences(template)
    before = person.get(address).text
    assert '<html lang="en">' in before
    assert texts(before) & english
    choose(person, "fr")
    page = person.get(address).text
    assert '<html lang="fr">' in page
    assert texts(page) & english == set()


def test_a_checked_sheet_is_in_the_language_of_its_maker(house: House) -> None:
    ada = house.person(MAKER)
    choose(ada, "fr")
    answer = ada.upload("/new", "payroll.csv", SHEET)
    page = ada.get(answer.headers["location"]).text
    assert "Enregistrer" in page
    assert texts(page) & sentences("check") == set()
    assert "is not" not in page


def test_the_cookie_is_for_the_pages_alone_and_lasts(house: House) -> None:
    form = {"language": "fr", "back": "/payees?text=Jane"}
    answer = house.stranger().ask("POST", "/language", data=form, headers={"origin": ORIGIN})
    cookie = answer.headers["set-cookie"].lower()
    assert answer.headers["location"] == "/payees?text=Jane"
    assert all(part in cookie for part in (f"{LANGUAGE_COOKIE}=fr", "httponly", "samesite=strict", "max-age"))


@pytest.mark.parametrize("wrong", ["xx", "", "../fr", "FR", "fr\\x"])
def test_a_language_that_there_is_not_changes_nothing(house: House, wrong: str) -> None:
    person = house.stranger()
    choose(person, wrong)
    assert LANGUAGE_COOKIE not in person.client.cookies
    page = person.get("/sign-in", cookie=f"{LANGUAGE_COOKIE}={wrong}")
    assert page.status_code == 200
    assert '<html lang="en">' in page.text


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example/", "/\\evil.example", "", "x"])
def test_no_other_site_is_led_to(house: House, back: str) -> None:
    assert choose(house.stranger(), "fr", back) == "/"


def test_another_site_does_not_choose(house: House) -> None:
    answer = house.stranger().ask(
        "POST", "/language", data={"language": "fr"}, headers={"origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_without_a_choice_the_pages_speak_the_language_of_the_process(house: House) -> None:
    with speaking("fr"):
        assert '<html lang="fr">' in house.stranger().get("/sign-in").text


@pytest.mark.parametrize(
    ("accepted", "shown"), [("fr-SN,fr;q=0.9,en;q=0.8", "fr"), ("de, en-GB;q=0.7", "en"), ("de", "en"), ("en,fr", "en")]
)
def test_stranger_reads_first_language_of_browser(house: House, accepted: str, shown: str) -> None:
    page = house.stranger().get("/sign-in", **{"accept-language": accepted})
    assert f'<html lang="{shown}">' in page.text


def test_every_act_of_the_audit_trail_has_words() -> None:
    with speaking("fr"):
        assert not [route for route in ROUTES if say(route.audit_action) == route.audit_action]
    assert set(RESULTS_NOTED) == {result.value for result in AuditResult}


def test_a_time_is_read_in_the_language_of_the_page() -> None:
    assert when("2026-05-01T09:05:00Z") == "1 May 2026, 09:05 UTC"
    with speaking("fr"):
        assert when("2026-05-01T09:05:00Z") == "1 mai 2026, 09:05 UTC"
