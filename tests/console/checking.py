"""Sheets are checked in the test's own process, by the same code: another one costs a second each time."""

import pytest

from paygw_batch.compose.actions.check_payout import check_payout
from paygw_batch.compose.actions.payout_folder import PayoutFolder
from paygw_batch.compose.operations import rules_of
from paygw_batch.console.pages import preparing
from paygw_batch.core.batch import PAYOUT
from paygw_batch.run.approval_keys import read_public_key
from paygw_batch.settings.configuration import Settings


def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uploads be checked here from now on."""

    def check(folder: PayoutFolder, settings: Settings, key: str, **_where: object) -> None:
        maker = read_public_key(key)
        assert maker is not None
        check_payout(folder, settings, rules_of(settings, PAYOUT), maker)

    monkeypatch.setattr(preparing, "check_in_process", check)
