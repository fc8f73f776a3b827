"""Tests that checking only a correction of a large sheet equals checking the whole file."""

import json

import pytest

from paygw_batch.console.pages import preparing
from paygw_batch.console.payout_folder import PayoutFolder
from tests.console.preparing import open_payout_folder, upload_sheet
from tests.support.people import House, Person

HEADER = "client_orderid,country,currency,amount,account_name,account_number,phone"
ROWS = (
    "A-1,KE,KES,abc,Joan Otieno,254712345678,254712345678",
    "A-2,KE,KES,100.00,John Okello,254712345679,254712345679",
    "A-3,KE,KES,x,Mary Were,254712345680,254712345680",
    "A-3,KE,KES,70.00,Mary Were,254712345680,254712345680",
)


@pytest.fixture
def path(in_process_checks: None, ada: Person, monkeypatch: pytest.MonkeyPatch) -> str:
    del in_process_checks
    monkeypatch.setattr(preparing, "MAX_IN_PROCESS_BYTES", 0)
    path = upload_sheet(ada, "\n".join((HEADER, *ROWS)).encode())
    get_when_checked(ada, path)
    return path


def get_when_checked(ada: Person, path: str) -> str:
    for running in list(preparing._check_threads.values()):
        running.join(60)
    return ada.get(path).text


def check_results(folder: PayoutFolder) -> dict[str, object]:
    """Return the check results, except whether the plan was drafted."""
    checked = json.loads((folder.path / "checked.json").read_bytes())
    checked.pop("is_drafted")
    return {**checked, "found": (folder.path / "found.parquet").read_bytes()}


def test_incremental_check_matches_full_check(house: House, ada: Person, path: str) -> None:
    folder = open_payout_folder(house, path)
    corrections = (("2", "amount", "55.00"), ("4", "client_orderid", "A-4"), ("4", "amount", "70"))
    for row, column, text in (*corrections, ("5", "amount", "abc")):
        assert ada.post(f"{path}/mend", row=row, column=column, text=text).status_code == 303
        again = check_results(folder)
        folder.remove_check_result()
        (folder.cache / "sheet.json").unlink()
        get_when_checked(ada, path)
        get_when_checked(ada, path)
        assert check_results(folder) == again, (row, column)


def test_plan_page_waits_for_full_check(house: House, ada: Person, path: str) -> None:
    for row, column, text in (("2", "amount", "55.00"), ("4", "amount", "60.00"), ("5", "client_orderid", "A-5")):
        ada.post(f"{path}/mend", row=row, column=column, text=text)
    folder = open_payout_folder(house, path)
    assert folder.draft is None
    assert f'href="{path}/plan"' in ada.get(path).text
    assert "data-reload-ms" in ada.get(f"{path}/plan").text
    assert "Sign and send for approval" in get_when_checked(ada, f"{path}/plan")
    assert folder.draft is not None


def test_sheet_uploaded_again_is_read_from_file(house: House, ada: Person, path: str) -> None:
    folder = open_payout_folder(house, path)
    assert folder.corrections is not None
    assert folder.reading_key(folder.corrections) in json.loads((folder.cache / "sheet.json").read_bytes())["reading"]
    ada.upload(f"{path}/again", "pay.csv", "\n".join((HEADER, ROWS[1])).encode())
    assert "Every row can be paid" in get_when_checked(ada, path)
