"""Reads uploads in the test process with the same code, because another process takes a second."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from paygw_batch.approval.approval_keys import parse_public_key
from paygw_batch.console import visits
from paygw_batch.console.check_payout import check_payout, write_marked_copy
from paygw_batch.console.pages.orders import READ_STATEMENT_PROGRAM, StatementFolder, read_statement
from paygw_batch.console.payout_folder import PayoutFolder
from paygw_batch.console.sheet_process import CHECK_PROGRAM, MARK_PROGRAM
from paygw_batch.core.batch import PAYOUT
from paygw_batch.opening.given_sheet import rules_for
from paygw_batch.settings.configuration import Settings


def check_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the console check sheets and read statements in this process."""
    monkeypatch.setattr(visits, "run_within_limits", run_in_process)


def run_in_process(program: str, arguments: Sequence[str], settings: Settings, **_options: object) -> bool:
    """Run a program for an upload in this process, without limits."""
    path, *more = arguments
    if program == READ_STATEMENT_PROGRAM:
        read_statement(StatementFolder(Path(path)), settings)
        return True
    folder, rules = PayoutFolder(Path(path)), rules_for(settings, PAYOUT)
    if program == CHECK_PROGRAM:
        maker = parse_public_key(more[0])
        assert maker is not None
        check_payout(folder, settings, rules, maker)
    else:
        assert program == MARK_PROGRAM
        write_marked_copy(folder, settings, rules, Path(more[0]))
    return True
