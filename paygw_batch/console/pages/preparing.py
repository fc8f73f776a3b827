"""Finds, locks and checks a payout in preparation, for all pages about it."""

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock, Thread
from typing import Any

from starlette.responses import Response

from paygw_batch.approval.approval_keys import PublicKey, plain_name
from paygw_batch.approval.policy import listed_people, sandbox_key
from paygw_batch.console.check_payout import check_again, check_payout, is_kept, remember, unreadable
from paygw_batch.console.pages.agreement import withdraw
from paygw_batch.console.payout_folder import CheckedSheet, PayoutFolder, UnreadableSheet
from paygw_batch.console.permissions import Act
from paygw_batch.console.sheet_process import CHECKING, IN_PROCESS_BYTES
from paygw_batch.console.start_run import started_run
from paygw_batch.console.visits import ActRefused, Console, PageNotFound, PageOutdated, Visit, made_once
from paygw_batch.errors import SheetError
from paygw_batch.language import mark, say
from paygw_batch.opening.open_journal import journal_for_planning
from paygw_batch.sheet.check.mending import Mending

Check = CheckedSheet | UnreadableSheet
_checks: dict[str, Thread] = {}
"""The threads that check large sheets, by the number of the payout."""
_starting = Lock()
NO_SUCH_SHEET = mark("There is no such sheet. It may have been removed.")
ONLY_MAKER = mark("Only {name}, who uploaded the sheet, can change it.")
STARTED = mark("This payout has already started, so its sheet can no longer be changed.")


def folder(visit: Visit) -> PayoutFolder:
    """Return the payout in preparation in an address. Raises the error of `Visit.gone` if there is none."""
    payout = PayoutFolder.named(visit.console.directory, visit.path("sheet"))
    if payout is None:
        raise visit.gone(say(NO_SUCH_SHEET))
    return payout


@contextmanager
def changing(visit: Visit) -> Iterator[PayoutFolder]:
    """Yield the payout in an address for one change at a time.

    Raises `ActRefused` unless the person may change it, and `PageOutdated` if it has started.
    """
    with made_once(folder(visit).number):  # a wrong address creates no lock
        payout = folder(visit)
        visit.require(Act.MEND, payout.uploaded.by, say(ONLY_MAKER, name=payout.uploaded.by))
        if payout.plan is not None and (result := payout.checked) is not None and is_started(visit, result):
            raise PageOutdated(say(STARTED))
        yield payout


def require_version(visit: Visit, payout: PayoutFolder) -> None:
    """Raise `PageOutdated` unless the page of the form showed the present version of the sheet."""
    if visit.form.get("version") != payout.version:
        raise PageOutdated(say("The sheet has been changed since this page was opened. Reload it and check again."))


def checked(visit: Visit, payout: PayoutFolder, *, to_sign: bool = False) -> Check:
    """Return the result of the check of the present sheet, which is checked now if necessary.

    An upload is first read in a process with limits. If a sheet exceeds them, the result says so. Later a small sheet
    is read in this process. A large sheet is kept as it was read, and its file is read again only before its plan is
    shown (`to_sign`).
    """
    with made_once(payout.number):
        payout = PayoutFolder(payout.path)  # another visit may have changed the files meanwhile
        if (result := _known(payout, to_sign=to_sign)) is not None:
            return result
        key, console = own_key(visit.console, payout.uploaded.by), visit.console
        settings, rules, memory = console.settings, console.rules, console.memories(payout.number)
        if payout.was_read and _is_small(payout):
            check_payout(payout, settings, rules, key)
        elif payout.checked is not None or not check_again(payout, settings, rules, memory):
            if not console.ran_within_limits(CHECKING, str(payout.path), key.text):
                error = SheetError(
                    say("The sheet is too large: checking it needs more memory or time than is allowed."),
                    hint=say("Split it, and upload the parts."),
                )
                payout.write_checked(unreadable(error))
            payout = PayoutFolder(payout.path)  # a first check may take over the answers of an earlier payout
            if isinstance(result := payout.checked, CheckedSheet) and not result.is_ready:
                remember(payout, settings, rules, memory)
        result = payout.checked
    if result is None:
        raise SheetError(say("The sheet could not be checked."), hint=say("Upload it again."))
    return result


def _known(payout: PayoutFolder, *, to_sign: bool) -> Check | None:
    """Return the result of an earlier check; None if there is none, or if it is not enough `to_sign` a plan."""
    result = payout.checked
    is_enough = not to_sign or not isinstance(result, CheckedSheet) or result.is_drafted or not result.is_ready
    return result if is_enough else None


def checked_or_reading(visit: Visit, payout: PayoutFolder, *, to_sign: bool = False) -> Check | None:
    """Return the result of the check; None while a large sheet is being checked in the background."""
    if (result := _known(payout, to_sign=to_sign)) is not None:
        return result
    if _is_small(payout) or (payout.checked is None and is_kept(payout)):
        return checked(visit, payout, to_sign=to_sign)
    # This raises `ActRefused` for a person who is no longer a maker, before a check is begun.
    own_key(visit.console, payout.uploaded.by)
    with _starting:
        running = _checks.get(payout.number)
        if running is None or not running.is_alive():
            speaking = contextvars.copy_context()
            check = partial(checked, visit, payout, to_sign=to_sign)
            _checks[payout.number] = Thread(target=speaking.run, args=(check,), daemon=True)
            _checks[payout.number].start()
    return None


def recheck(visit: Visit, payout: PayoutFolder, mending: Mending, **answers: Any) -> None:
    """Withdraw the plan of a payout, and check its sheet again with other corrections and the maker's `answers`."""
    withdraw(visit, payout.plan)
    payout.mend(mending)
    if answers:
        payout.note(replace(payout.uploaded, **answers))
    checked_or_reading(visit, payout)


def readable(visit: Visit, payout: PayoutFolder) -> CheckedSheet:
    """Return the result of the check of a sheet. Raises `PageNotFound` if the sheet could not be read."""
    result = checked(visit, payout)
    if isinstance(result, UnreadableSheet):
        raise PageNotFound(say("The sheet could not be read."))
    return result


def _is_small(payout: PayoutFolder) -> bool:
    return payout.sheet.stat().st_size <= IN_PROCESS_BYTES


def opened_batch(visit: Visit, result: CheckedSheet) -> str | None:
    """Return the id of the batch of a checked sheet if the journal has the batch; None if not."""
    with journal_for_planning(visit.console.settings) as journal:
        opened = journal.batch(result.batch)
        return None if opened is None else opened.batch


def is_started(visit: Visit, result: Check) -> bool:
    """Return whether a payout is in the journal, or a run is alive that will store it there."""
    if isinstance(result, UnreadableSheet):
        return False
    run = started_run(visit.console.runs, result.batch)
    return opened_batch(visit, result) is not None or (run is not None and run.is_alive)


def own_key(console: Console, name: str) -> PublicKey:
    """Return a maker's key: the one in the sandbox's folder, or a passkey. Raises `ActRefused` for a former maker."""
    if (key := sandbox_key(console.settings, name)) is not None:
        return key.public
    people = listed_people(console.settings).listed
    keys = next((person.maker_keys for person in people if plain_name(person.name) == plain_name(name)), ())
    passkeys = [key for key in keys if not key.is_file_key]
    if not (passkeys or keys):
        raise ActRefused(say("{name} can no longer prepare payouts.", name=name))
    return (passkeys or list(keys))[0]


_BLOCK_BYTES = 1024 * 1024


def reading_page(visit: Visit, payout: PayoutFolder) -> Response:
    """Return the page that is shown while a sheet is read. It estimates one row for each line of a text file."""
    size, rows = payout.sheet.stat().st_size, 0
    if not payout.sheet.name.lower().endswith((".xlsx", ".parquet")):
        with payout.sheet.open("rb") as file:
            rows = sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))
    return visit.page("reading.html", uploaded=payout.uploaded, rows=rows, kib=size // 1024)
