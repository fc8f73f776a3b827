"""Tests that actions and refusals on the pages are audited, or not done if that is impossible."""

import pytest

from paygw_batch.errors import AuditUnwritable
from paygw_batch.journal.place import JournalPlace
from tests.support.people import AUDITOR, MAKER, ORIGIN, House, audit_entries


def test_signing_in_and_out_is_audited(house: House) -> None:
    house.person(MAKER).ask("POST", "/sign-out", headers={"origin": ORIGIN})
    assert audit_entries(house) == [(MAKER, "sign in", "sandbox", "done"), (MAKER, "sign out", "", "refused")]
    person = house.person(MAKER)
    person.post("/sign-out", csrf=person.token("/"))
    assert audit_entries(house)[2:] == [(MAKER, "sign in", "sandbox", "done"), (MAKER, "sign out", "", "done")]


def test_refused_sign_in_is_audited(house: House) -> None:
    house.stranger().ask("POST", "/sign-in", data={"name": "Eve"}, headers={"origin": ORIGIN})
    house.stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": "https://evil.test"})
    house.stranger().ask("POST", "/sign-in/passkey", data={"nonce": "x"}, headers={"origin": ORIGIN})
    assert audit_entries(house) == [
        ("", "choose person", "", "refused"),
        ("", "choose person", "", "refused"),
        ("", "use passkey", "", "refused"),
    ]


def test_invitation_token_is_not_audited(house: House) -> None:
    token = "T" * 43
    house.stranger().ask("POST", f"/invitation/{token}", headers={"origin": ORIGIN})
    assert audit_entries(house) == [("", "take invitation", "", "refused")]


def test_viewing_pages_is_not_audited(house: House) -> None:
    person = house.person(AUDITOR)
    for path in ("/", "/sign-in", "/payouts/0123456789abcdef", "/nothing"):
        person.get(path)
    assert len(audit_entries(house)) == 1


def test_action_is_refused_without_audit_trail(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    person = house.person(MAKER)
    token = person.token("/")

    def raise_unwritable(*_: object) -> None:
        raise AuditUnwritable("The audit trail cannot be written. Nothing was done.")

    with monkeypatch.context() as patched:
        patched.setattr(JournalPlace, "add_audit_entry", raise_unwritable)
        answer = person.post("/sign-out", csrf=token)
        assert (answer.status_code, "Nothing was done" in answer.text) == (409, True)
        assert (
            house.stranger().ask("POST", "/sign-in", data={"name": MAKER}, headers={"origin": ORIGIN}).status_code
            == 409
        )
    assert person.get("/").status_code == 200
