"""A corrected cell of a large sheet is judged by itself, with the results of a check of the whole file."""

import json

import pytest

from paygw_batch.console.pages import preparing
from paygw_batch.console.payout_folder import PayoutFolder
from tests.support.people import House, Person

HEADER = "client_orderid,country,currency,amount,account_name,account_number,phone"
ROWS = (
    "A-1,KE,KES,abc,Joan Otieno,254712345678,254712345678",
    "A-2,KE,KES,100.00,John Okello,254712345679,254712345679",
    "A-3,KE,KES,x,Mary Were,254712345680,254712345680",
    "A-3,KE,KES,70.00,Mary Were,254712345680,254712345680",
)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Take every sheet for a large one."""
    request.getfixturevalue("checks_here")
    monkeypatch.setattr(preparing, "IN_PROCESS_BYTES", 0)


def uploaded(ada: Person) -> str:
    answer = ada.upload("/new", "pay.csv", "\n".join((HEADER, *ROWS)).encode())
    path = answer.headers["location"]
    waited_for(ada, path)
    return path


def waited_for(ada: Person, path: str) -> str:
    """Return a page when what is behind it has been checked."""
    for running in list(preparing._checks.values()):
        running.join(60)
    return ada.get(path).text


def results(house: House, path: str) -> dict[str, object]:
    """Return all results of the check, but whether the plan was drafted."""
    found = PayoutFolder.named(house.console.directory, path.rpartition("/")[2])
    assert found is not None
    checked = json.loads((found.path / "checked.json").read_bytes())
    checked.pop("is_drafted")
    return {**checked, "found": (found.path / "found.parquet").read_bytes()}


@pytest.mark.usefixtures("large")
def test_incremental_check_equals_whole_check(house: House, ada: Person) -> None:
    path = uploaded(ada)
    for row, column, text in (
        ("2", "amount", "55.00"),
        ("4", "client_orderid", "A-4"),
        ("4", "amount", "70"),
        ("5", "amount", "abc"),
    ):
        assert ada.post(f"{path}/mend", row=row, column=column, text=text).status_code == 303
        again = results(house, path)
        found = PayoutFolder.named(house.console.directory, path.rpartition("/")[2])
        assert found is not None
        found.forget_check()
        (found.kept / "sheet.json").unlink()
        waited_for(ada, path)
        waited_for(ada, path)
        assert results(house, path) == again, (row, column)


@pytest.mark.usefixtures("large")
def test_plan_page_waits_for_whole_file_check(house: House, ada: Person) -> None:
    path = uploaded(ada)
    ada.post(f"{path}/mend", row="2", column="amount", text="55.00")
    ada.post(f"{path}/mend", row="4", column="amount", text="60.00")
    ada.post(f"{path}/mend", row="5", column="client_orderid", text="A-5")
    found = PayoutFolder.named(house.console.directory, path.rpartition("/")[2])
    assert found is not None
    assert found.draft is None
    assert 'href="' + path + '/plan"' in ada.get(path).text
    assert "data-reload-ms" in ada.get(f"{path}/plan").text
    assert "Sign and send for approval" in waited_for(ada, f"{path}/plan")
    assert found.draft is not None


@pytest.mark.usefixtures("large")
def test_sheet_uploaded_again_is_read_from_file(house: House, ada: Person) -> None:
    path = uploaded(ada)
    found = PayoutFolder.named(house.console.directory, path.rpartition("/")[2])
    assert found is not None
    assert found.mending is not None
    assert found.reading(found.mending) in json.loads((found.kept / "sheet.json").read_bytes())["reading"]
    ada.upload(f"{path}/again", "pay.csv", "\n".join((HEADER, ROWS[1])).encode())
    assert "Every row can be paid" in waited_for(ada, path)
