"""Stories from `init` to the reconciliation with only the documented settings."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.console.documented import (
    Account,
    compose_account,
    create_person,
    local_account,
    pay_through_pages,
    serve_account_pages,
    set_up_endpoint,
    systemd_account,
)
from tests.console.preparing import sheet
from tests.support.keyed_people import PasskeyPerson, key_form
from tests.support.long_part import long
from tests.support.people import APPROVER, MAKER
from tests.support.ports import free_port, wait_for_server
from tests.support.postgres_server import PostgresServer


def sign_up(account: Account, name: str) -> PasskeyPerson:
    """Invite a person, list the new passkey, and return the person signed in."""
    person = create_person(account, name)
    assert person.key is not None
    token = json.loads(account.command("--json", "invite", name))["link"].rpartition("/")[2]
    form = key_form(person.key, token=token)
    answer = person.ask("POST", f"/invitation/{token}", data=form, headers={"origin": account.origin})
    assert f'<code id="line">{person.key.public.text}</code>' in answer.text
    account.list_key(name, person.key.public.text)
    return person


def pay_twice(account: Account) -> None:
    """Pay a sheet by two people, and another one after a restart of the console."""
    with serve_account_pages(account):
        ada, ben = (sign_up(account, name) for name in (MAKER, APPROVER))
        for person in (ada, ben):
            assert person.key is not None
            assert person.sign_in(person.key).status_code == 303
        october = pay_through_pages(ada, ben, sheet(3), "october.csv")
    with serve_account_pages(account):
        november = pay_through_pages(ada, ben, sheet(2).replace(b"P-", b"N-").replace(b".00", b".50"), "november.csv")
    assert [line["state"] for line in [*october, *november]] == ["paid"] * 5
    assert [line["client_orderid"] for line in account.record()] == [f"P-{n}" for n in (1, 2, 3)] + ["N-1", "N-2"]


@pytest.mark.parametrize("place", [long(local_account), systemd_account])
def test_documented_setup_pays_two_sheets(tmp_path: Path, place: Callable[[Path], Account]) -> None:
    account, port = place(tmp_path), free_port()
    set_up_endpoint(account, port)
    with account.running("sandbox", "--port", str(port)) as gateway:
        wait_for_server(port, gateway)
        pay_twice(account)


@pytest.mark.long
def test_compose_setup_pays_two_sheets(tmp_path: Path, postgres_server: PostgresServer) -> None:
    name = postgres_server.new_database()
    with compose_account(tmp_path, postgres_server.url(name)) as account:
        pay_twice(account)
    postgres_server.drop_database(name)


@pytest.mark.long
def test_documented_sandbox_pays_two_sheets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # The example sheet is written there.
    account = local_account(tmp_path)
    account.command("init", "--sandbox")
    account.name_people()
    pay_twice(account)
