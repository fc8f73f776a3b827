"""Uploads are read in the test's own process, by the same code: another one costs a second each time."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import read_public_key
from paygw_batch.console import visits
from paygw_batch.console.check_payout import check_payout, mark_payout
from paygw_batch.console.pages.orders import READING, StatementFolder, read_statement_of
from paygw_batch.console.payout_folder import PayoutFolder
from paygw_batch.console.sheet_process import CHECKING, MARKING
from paygw_batch.core.batch import PAYOUT
from paygw_batch.opening.given_sheet import rules_of
from paygw_batch.settings.configuration import Settings


def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sheets be checked and marked, and statements read, here from now on."""
    monkeypatch.setattr(visits, "run_within_limits", run_here)


def run_here(program: str, given: Sequence[str], settings: Settings, **_where: object) -> bool:
    """Do what a program for an upload does, without limits."""
    path, *more = given
    if program == READING:
        read_statement_of(StatementFolder(Path(path)), settings)
        return True
    folder, rules = PayoutFolder(Path(path)), rules_of(settings, PAYOUT)
    if program == CHECKING:
        maker = read_public_key(more[0])
        assert maker is not None
        check_payout(folder, settings, rules, maker)
    else:
        assert program == MARKING
        mark_payout(folder, settings, rules, Path(more[0]))
    return True
