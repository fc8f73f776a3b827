"""Finds, locks and checks a payout in preparation, for all of its screens."""

import contextvars
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, RLock, Thread
from typing import Any

from paygw_batch.compose.actions.check_payout import check_payout, unreadable
from paygw_batch.compose.actions.payout_folder import PayoutFolder, folder_of
from paygw_batch.compose.actions.start_run import started_run
from paygw_batch.compose.approvals import required_policy
from paygw_batch.compose.journal import journal_to_plan_with
from paygw_batch.console.members import Member
from paygw_batch.console.permissions import Act
from paygw_batch.console.sheet_process import IN_PROCESS_BYTES, check_in_process
from paygw_batch.console.visits import ActRefused, Console, PageNotFound, Visit
from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.language import say
from paygw_batch.run.approval_keys import ApprovalKey, PublicKey, load_approval_key
from paygw_batch.run.people import plain_name

_locks: defaultdict[str, RLock] = defaultdict(RLock)
_checks: dict[str, Thread] = {}
"""The checks of large sheets that go on, by the number of the payout."""
_starting = Lock()
RUNS = "runs"


def folder(visit: Visit) -> PayoutFolder:
    """Return the payout in preparation of an address. Raises `PageNotFound` where there is none."""
    found = folder_of(visit.console.directory, visit.path("sheet"))
    if found is None:
        raise PageNotFound(say("There is no such sheet. It may have been removed."))
    return found


@contextmanager
def changing(visit: Visit, act: Act = Act.MEND) -> Iterator[PayoutFolder]:
    """Yield the payout of an address for a change: one at a time. Raises `ActRefused` unless the person may make it."""
    with _locks[visit.path("sheet")]:
        found = folder(visit)
        visit.require(act, found.uploaded.by, _why_not(act, found))
        if found.plan is not None and (summary := found.checked) is not None and is_started(visit, summary):
            raise ActRefused(say("This payout was started already: its sheet does not change any more."))
        yield found


def _why_not(act: Act, found: PayoutFolder) -> str:
    if act is Act.APPROVE:
        return say("You prepared this payout: another person has to approve it.")
    return say("Only {name}, who uploaded the sheet, can change it.", name=found.uploaded.by)


def checked(visit: Visit, found: PayoutFolder) -> Mapping[str, Any]:
    """Return the summary of a sheet as it is now; it is checked where it was not.

    The bytes of an upload are read first in a process with limits. A small sheet that was read there is read here after
    that: a mended cell then answers at once. A sheet that needs more than the limits is a result as well.
    """
    with _locks[found.number]:
        if (summary := found.checked) is not None:
            return summary
        key, console = own_key(visit.console, found.uploaded.by), visit.console
        if found.was_read and _is_small(found):
            check_payout(found, console.settings, console.rules, key)
        else:
            try:
                check_in_process(found, console.settings, key.text, config=console.config, environ=console.environ)
            except SheetError as error:
                found.write_checked(unreadable(error))
        summary = found.checked
    if summary is None:
        raise SheetError(say("The sheet could not be checked."), hint=say("Upload it again."))
    return summary


def checked_or_reading(visit: Visit, found: PayoutFolder) -> Mapping[str, Any] | None:
    """Return the summary of a sheet, or None while a large one is checked: that goes on without anybody's page."""
    if (summary := found.checked) is not None:
        return summary
    if _is_small(found):
        return checked(visit, found)
    own_key(visit.console, found.uploaded.by)  # who is no maker any more is told so, and nothing is begun
    with _starting:
        check = _checks.get(found.number)
        if check is None or not check.is_alive():
            speaking = contextvars.copy_context()
            _checks[found.number] = Thread(target=speaking.run, args=(checked, visit, found), daemon=True)
            _checks[found.number].start()
    return None


def readable(visit: Visit, found: PayoutFolder) -> Mapping[str, Any]:
    """Return the summary of a sheet that could be read. Raises `PageNotFound` for one that could not."""
    summary = checked(visit, found)
    if summary["error"] is not None:
        raise PageNotFound(say("The sheet could not be read."))
    return summary


def _is_small(found: PayoutFolder) -> bool:
    return found.sheet.stat().st_size <= IN_PROCESS_BYTES


def opened_batch(visit: Visit, summary: Mapping[str, Any]) -> str | None:
    """Return the batch of a checked sheet, where the journal has it by now."""
    if summary["error"] is not None:
        return None
    with journal_to_plan_with(visit.console.settings) as journal:
        return next((one.batch for one in journal.batches() if one.batch == summary["batch"]), None)


def is_started(visit: Visit, summary: Mapping[str, Any]) -> bool:
    """Whether a payout is in the journal, or a run is about to write it there."""
    if opened_batch(visit, summary) is not None:
        return True
    run = None if summary["error"] is not None else started_run(visit.console.directory / RUNS, str(summary["batch"]))
    return run is not None and run.is_alive


def own_key(console: Console, name: str) -> PublicKey:
    """Return the key with which a maker signs on these pages: the one in the sandbox's folder, or a passkey."""
    if (key := sandbox_key(console, name)) is not None:
        return key.public
    people = required_policy(console.settings).people.listed
    keys = next((one.maker_keys for one in people if plain_name(one.name) == plain_name(name)), ())
    passkeys = [key for key in keys if not key.may_be_in_a_file]
    if not (passkeys or keys):
        raise ActRefused(say("{name} is no maker any more.", name=name))
    return (passkeys or list(keys))[0]


def sandbox_key(console: Console, name: str) -> ApprovalKey | None:
    """Return the private key of a person in the sandbox; None with a real gateway, where nobody else has one."""
    folder = console.settings.console.sandbox_keys
    if folder is None or not console.settings.uses_sandbox:
        return None
    path = folder / f"{name}.pem"
    if path.parent != folder or not path.exists():
        return None
    return load_approval_key(path, None)


def required_key(console: Console, member: Member) -> ApprovalKey:
    """Return the key that signs for a person. Raises `ConfigurationError` where there is none."""
    key = sandbox_key(console, member.name)
    if key is None:
        raise ConfigurationError(
            say("There is no key to sign with for {name}.", name=member.name),
            hint=say("In the sandbox the administrator makes one; with a real gateway people sign with a passkey."),
        )
    return key
