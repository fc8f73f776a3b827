"""Tests links that pass through the sign-in page, and ended sessions."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.people import ADMINISTRATOR, MAKER, ORIGIN, House, Person


def sign_in_from(house: House, address: str) -> str:
    """Return the redirect of a sign-in that began at an address."""
    one = house.stranger()
    led = one.get(address)
    assert led.status_code == 303
    to = parse_qs(urlsplit(led.headers["location"]).query).get("to", [""])[0]
    page = one.get(led.headers["location"]).text
    assert f'name="to" value="{to.replace("&", "&amp;")}"' in page
    answer = one.ask("POST", "/sign-in", data={"name": MAKER, "to": to}, headers={"origin": ORIGIN})
    return answer.headers["location"]


@pytest.mark.parametrize("address", ["/payouts/0123456789abcdef?state=paid&after=20", "/payees?text=Ada", "/"])
def test_sign_in_continues_to_requested_page(house: House, address: str) -> None:
    assert sign_in_from(house, address) == address


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:1", "/a\nb"])
def test_sign_in_never_redirects_to_other_site(house: House, to: str) -> None:
    one = house.stranger()
    answer = one.ask("POST", "/sign-in", data={"name": MAKER, "to": to}, headers={"origin": ORIGIN})
    assert answer.headers["location"] == "/"
    assert 'name="to" value=""' in house.stranger().ask("GET", "/sign-in", params={"to": to}).text


def test_ended_session_is_explained_at_sign_in(house: House, ada: Person) -> None:
    token = ada.token("/")
    house.console.sessions.sign_out(ada.client.cookies["payouts"])
    form = {"csrf": token, "row": "3", "text": "1"}
    answer = ada.ask("POST", "/sheets/0123456789abcdef/mend", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 303
    assert parse_qs(urlsplit(answer.headers["location"]).query) == {
        "to": ["/sheets/0123456789abcdef"],
        "ended": ["yes"],
    }
    page = ada.get(answer.headers["location"]).text
    assert "a session ends after 15 min without use" in page
    assert ada.get("/").headers["location"] == "/sign-in"  # Without a cookie, nobody was signed out.


def test_page_opened_from_other_site_is_reloaded(house: House) -> None:
    """Browsers do not send the session cookie when another site links to a page."""
    answer = house.stranger().get("/payouts/0123456789abcdef", **{"sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert '<meta http-equiv="refresh" content="0;url=/payouts/0123456789abcdef">' in answer.text


def test_polling_does_not_prolong_session(house: House, ada: Person) -> None:
    assert 'data-session-left-s="900"' in ada.get("/").text
    assert int(ada.get("/session").text) <= 900
    assert ada.get("/session/stay").text == "900"
    assert house.stranger().get("/session").status_code == 401


def test_refusal_page_links_administrator_to_start(house: House) -> None:
    tom = house.person(ADMINISTRATOR)
    page = tom.get("/new")
    assert page.status_code == 403
    assert '<a href="/people">Go to your start page</a>' in page.text
    assert tom.get("/people").status_code == 200


def test_refused_form_keeps_typed_values(ada: Person) -> None:
    answer = ada.upload("/new", "pay.csv", b"x", stated_rows="about 12", stated_sums="KES 5", reference="run-1")
    assert answer.status_code == 409
    assert '<p class="problem" id="stated_rows-problem">Write the number of rows as a plain number' in answer.text
    for kept in ('value="about 12"', 'value="run-1"', ">KES 5</textarea>"):
        assert kept in answer.text
