"""Finds, locks and checks a payout in preparation, for all of its pages."""

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock, Thread
from typing import Any

from starlette.responses import Response

from paygw_batch.approval.approval_keys import PublicKey, normalise_name
from paygw_batch.approval.policy import configured_people, load_sandbox_key
from paygw_batch.console.check_payout import (
    check_payout,
    fill_memory,
    has_cached_sheet,
    recheck_cached_sheet,
    unreadable_result,
)
from paygw_batch.console.pages.agreement import withdraw
from paygw_batch.console.payout_folder import CheckedSheet, PayoutFolder, UnreadableSheet
from paygw_batch.console.permissions import Action
from paygw_batch.console.sheet_process import CHECK_PROGRAM, MAX_IN_PROCESS_BYTES
from paygw_batch.console.start_run import last_run
from paygw_batch.console.visits import ActionRefused, Console, PageNotFound, PageOutdated, Visit, hold_lock
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.sheet.check.corrections import Corrections

CheckResult = CheckedSheet | UnreadableSheet
_BLOCK_BYTES = 1024 * 1024
_check_threads: dict[str, Thread] = {}
_start_lock = Lock()
NO_SUCH_SHEET = mark("This sheet does not exist. It may have been removed.")
ONLY_MAKER = mark("Only {name}, who uploaded the sheet, can change it.")
STARTED = mark("This payout has already started, so its sheet can no longer be changed.")


def require_folder(visit: Visit) -> PayoutFolder:
    """Return the payout in preparation named in the address. Raises `Visit.missing_error` if it does not exist."""
    payout = PayoutFolder.find(visit.console.directory, visit.path_param("sheet"))
    if payout is None:
        raise visit.missing_error(say(NO_SUCH_SHEET))
    return payout


@contextmanager
def lock_for_change(visit: Visit) -> Iterator[PayoutFolder]:
    """Lock the payout for a change. Raises `ActionRefused` if not allowed, or `PageOutdated` if started."""
    with hold_lock(require_folder(visit).number):  # An invalid address creates no lock.
        payout = require_folder(visit)
        visit.require(Action.CORRECT, payout.uploaded.by, say(ONLY_MAKER, name=payout.uploaded.by))
        if payout.plan is not None and (result := payout.check_result) is not None and is_started(visit, result):
            raise PageOutdated(say(STARTED))
        yield payout


def require_version(visit: Visit, payout: PayoutFolder) -> None:
    """Raise `PageOutdated` unless the form's page showed the current version of the sheet."""
    if visit.form.get("version") != payout.version:
        raise PageOutdated(say("The sheet has been changed since this page was opened. Reload it and check again."))


def ensure_checked(visit: Visit, payout: PayoutFolder, *, to_sign: bool = False) -> CheckResult:
    """Return the check result of the current sheet, checking it now if necessary.

    A new upload is read in a process with limits, and the result says if it exceeds them. Later, a small sheet is read
    in this process. A large sheet is cached, and its file is read again only to draft a plan (`to_sign`).
    """
    with hold_lock(payout.number):
        payout = PayoutFolder(payout.path)  # Another request may have just changed the files.
        if (result := _sufficient_result(visit, payout, to_sign=to_sign)) is not None:
            return result
        key, console = maker_key(visit.console, payout.uploaded.by), visit.console
        settings, rules, memory = console.settings, console.rules, console.memories(payout.number)
        if payout.was_read and _is_small(payout):
            check_payout(payout, settings, rules, key)
        elif payout.check_result is not None or not recheck_cached_sheet(payout, settings, rules, memory):
            if not console.run_on_upload(CHECK_PROGRAM, str(payout.path), key.text):
                error = SheetError(
                    say("The sheet is too large. Checking it would take more memory or time than allowed."),
                    hint=say("Split it and upload the parts."),
                )
                payout.write_check_result(unreadable_result(error))
            payout = PayoutFolder(payout.path)  # A first check may reuse the answers of an earlier payout.
            if isinstance(result := payout.check_result, CheckedSheet) and not result.is_ready:
                fill_memory(payout, settings, rules, memory)
        result = payout.check_result
    if result is None:
        raise SheetError(say("The sheet could not be checked."), hint=say("Upload it again."))
    return result


def _sufficient_result(visit: Visit, payout: PayoutFolder, *, to_sign: bool) -> CheckResult | None:
    """Return the existing check result if it suffices, otherwise None.

    With `to_sign`, the plan must also be drafted, and no batch may have been opened since the check.
    """
    result = payout.check_result
    if not to_sign or not isinstance(result, CheckedSheet) or not result.is_ready or payout.plan_file.exists():
        return result
    with journal_for_planning(visit.console.settings) as journal:
        return result if result.is_drafted and len(journal.batches()) == result.batches else None


def start_check(visit: Visit, payout: PayoutFolder, *, to_sign: bool = False) -> CheckResult | None:
    """Check a sheet and return the result, or check a large sheet in the background and return None."""
    if (result := _sufficient_result(visit, payout, to_sign=to_sign)) is not None:
        return result
    if _is_small(payout) or (payout.check_result is None and has_cached_sheet(payout)):
        return ensure_checked(visit, payout, to_sign=to_sign)
    # Refuse a former maker before starting the check.
    maker_key(visit.console, payout.uploaded.by)
    with _start_lock:
        thread = _check_threads.get(payout.number)
        if thread is None or not thread.is_alive():
            context = contextvars.copy_context()
            run_check = partial(ensure_checked, visit, payout, to_sign=to_sign)
            _check_threads[payout.number] = Thread(target=context.run, args=(run_check,), daemon=True)
            _check_threads[payout.number].start()
    return None


def recheck(visit: Visit, payout: PayoutFolder, corrections: Corrections, **answers: Any) -> None:
    """Withdraw a payout's plan and recheck its sheet with new corrections and `answers`."""
    withdraw(visit, payout.plan)
    payout.replace_corrections(corrections)
    if answers:
        payout.write_upload(replace(payout.uploaded, **answers))
    start_check(visit, payout)


def require_readable(visit: Visit, payout: PayoutFolder) -> CheckedSheet:
    """Return the check result of a readable sheet. Raises `PageNotFound` if the sheet could not be read."""
    result = ensure_checked(visit, payout)
    if isinstance(result, UnreadableSheet):
        raise PageNotFound(say("The sheet could not be read."))
    return result


def _is_small(payout: PayoutFolder) -> bool:
    return payout.sheet.stat().st_size <= MAX_IN_PROCESS_BYTES


def find_opened_batch(visit: Visit, result: CheckedSheet) -> str | None:
    """Return a checked sheet's batch id, or None if the batch is not in the journal."""
    with journal_for_planning(visit.console.settings) as journal:
        return None if journal.batch(result.batch) is None else result.batch


def is_started(visit: Visit, result: CheckResult) -> bool:
    """Return whether a payout is in the journal, or a running process is about to add it."""
    if isinstance(result, UnreadableSheet):
        return False
    run = last_run(visit.console.runs, result.batch)
    return find_opened_batch(visit, result) is not None or (run is not None and run.is_alive)


def maker_key(console: Console, name: str) -> PublicKey:
    """Return a maker's public key, preferably a passkey. Raises `ActionRefused` if the person is no longer a maker."""
    if (key := load_sandbox_key(console.settings, name)) is not None:
        return key.public
    people = configured_people(console.settings).listed
    keys = next((person.maker_keys for person in people if normalise_name(person.name) == normalise_name(name)), ())
    if not keys:
        raise ActionRefused(say("{name} can no longer prepare payouts.", name=name))
    return next((key for key in keys if not key.is_file_key), keys[0])


def reading_page(visit: Visit, payout: PayoutFolder) -> Response:
    """Render the page shown while a sheet is being read. For a text file, every line counts as a row."""
    size, rows = payout.sheet.stat().st_size, 0
    if not payout.sheet.name.lower().endswith((".xlsx", ".parquet")):
        with payout.sheet.open("rb") as file:
            rows = sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))
    return visit.page("reading.html", uploaded=payout.uploaded, rows=rows, kib=size // 1024)
