"""Sheets are checked in the test's own process, by the same code: another one costs a second each time."""

from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import read_public_key
from paygw_batch.console.check_payout import check_payout, mark_payout
from paygw_batch.console.pages import new_payout_page, preparing
from paygw_batch.console.payout_folder import PayoutFolder
from paygw_batch.core.batch import PAYOUT
from paygw_batch.opening.given_sheet import rules_of
from paygw_batch.settings.configuration import Settings


def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uploads be checked and marked here from now on."""

    def check(folder: PayoutFolder, settings: Settings, key: str, **_where: object) -> None:
        maker = read_public_key(key)
        assert maker is not None
        check_payout(folder, settings, rules_of(settings, PAYOUT), maker)

    def mark(folder: PayoutFolder, settings: Settings, path: Path, **_where: object) -> None:
        mark_payout(folder, settings, rules_of(settings, PAYOUT), path)

    monkeypatch.setattr(preparing, "check_in_process", check)
    monkeypatch.setattr(new_payout_page, "mark_in_process", mark)
