"""Finds, locks and checks a payout in preparation, for all of its screens."""

import contextvars
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock, RLock, Thread

from paygw_batch.actions.check_payout import check_again, check_payout, is_kept, remember, unreadable
from paygw_batch.actions.payout_folder import CheckedSheet, PayoutFolder, UnreadableSheet
from paygw_batch.actions.start_run import started_run
from paygw_batch.console.permissions import Act, Member
from paygw_batch.console.sheet_process import IN_PROCESS_BYTES, check_in_process
from paygw_batch.console.visits import ActRefused, Console, PageNotFound, PageOutdated, Visit
from paygw_batch.errors import ConfigurationError, SheetError
from paygw_batch.language import mark, say
from paygw_batch.run.approval_keys import ApprovalKey, PublicKey, load_approval_key, plain_name
from paygw_batch.wiring.approvals import listed_people
from paygw_batch.wiring.journal import journal_for_planning

_locks: defaultdict[str, RLock] = defaultdict(RLock)
Check = CheckedSheet | UnreadableSheet
_checks: dict[str, Thread] = {}
"""The checks of large sheets that go on, by the number of the payout."""
_starting = Lock()
RUNS = "runs"
NO_SUCH_SHEET = mark("There is no such sheet. It may have been removed.")
ONLY_MAKER = mark("Only {name}, who uploaded the sheet, can change it.")
STARTED = mark("This payout has already started, so its sheet can no longer be changed.")


def folder(visit: Visit) -> PayoutFolder:
    """Return the payout in preparation of an address. Raises as `Visit.gone` says if there is none."""
    found = PayoutFolder.named(visit.console.directory, visit.path("sheet"))
    if found is None:
        raise visit.gone(say(NO_SUCH_SHEET))
    return found


@contextmanager
def made_once(number: str) -> Iterator[None]:
    """Let one visit at a time make the thing `number`: a second click waits for the first."""
    with _locks[number]:
        yield


@contextmanager
def changing(visit: Visit) -> Iterator[PayoutFolder]:
    """Yield the payout of an address for a change: one at a time. Raises `ActRefused` unless the person may make it."""
    with made_once(folder(visit).number):  # an address of nothing makes no lock
        found = folder(visit)
        visit.require(Act.MEND, found.uploaded.by, say(ONLY_MAKER, name=found.uploaded.by))
        if found.plan is not None and (result := found.checked) is not None and is_started(visit, result):
            raise PageOutdated(say(STARTED))
        yield found


def require_version(visit: Visit, found: PayoutFolder) -> None:
    """Raise `PageOutdated` unless the form is of a page that showed the sheet as it is now."""
    if visit.form.get("version") != found.version:
        raise PageOutdated(say("The sheet has been changed since this page was opened. Reload it and check again."))


def checked(visit: Visit, found: PayoutFolder, *, to_sign: bool = False) -> Check:
    """Return the result of the check of a sheet as it is now; it is checked where it was not.

    The bytes of an upload are read first in a process with limits. A small sheet that was read there is read here after
    that; of a large one, the corrected rows are judged again, and before its plan is shown (`to_sign`) it is checked as
    a whole. A sheet that needs more than the limits is a result as well.
    """
    with made_once(found.number):
        found = PayoutFolder(found.path)  # another visit may have changed it while this one waited
        if (result := _known(found, to_sign=to_sign)) is not None:
            return result
        key, console = own_key(visit.console, found.uploaded.by), visit.console
        settings, rules, memory = console.settings, console.rules, console.memories.of(found.number)
        if found.was_read and _is_small(found):
            check_payout(found, settings, rules, key)
        elif found.checked is not None or not check_again(found, settings, rules, memory):
            try:
                check_in_process(found, settings, key.text, config=console.config, environ=console.environ)
            except SheetError as error:
                found.write_checked(unreadable(error))
            if isinstance(result := found.checked, CheckedSheet) and not result.is_ready:
                remember(found, settings, rules, memory)
        result = found.checked
    if result is None:
        raise SheetError(say("The sheet could not be checked."), hint=say("Upload it again."))
    return result


def _known(found: PayoutFolder, *, to_sign: bool) -> Check | None:
    """Return the result of the check that was made, unless it was not enough to sign."""
    result = found.checked
    is_enough = not to_sign or not isinstance(result, CheckedSheet) or result.is_drafted or not result.is_ready
    return result if is_enough else None


def checked_or_reading(visit: Visit, found: PayoutFolder, *, to_sign: bool = False) -> Check | None:
    """Return the result of the check, or None while a large sheet is checked: that goes on without anybody's page."""
    if (result := _known(found, to_sign=to_sign)) is not None:
        return result
    if _is_small(found) or (found.checked is None and is_kept(found)):
        return checked(visit, found, to_sign=to_sign)
    own_key(visit.console, found.uploaded.by)  # a person who is no longer a maker gets a sentence, and nothing is begun
    with _starting:
        running = _checks.get(found.number)
        if running is None or not running.is_alive():
            speaking = contextvars.copy_context()
            check = partial(checked, visit, found, to_sign=to_sign)
            _checks[found.number] = Thread(target=speaking.run, args=(check,), daemon=True)
            _checks[found.number].start()
    return None


def readable(visit: Visit, found: PayoutFolder) -> CheckedSheet:
    """Return the result of the check of a sheet that could be read. Raises `PageNotFound` for one that could not."""
    result = checked(visit, found)
    if isinstance(result, UnreadableSheet):
        raise PageNotFound(say("The sheet could not be read."))
    return result


def _is_small(found: PayoutFolder) -> bool:
    return found.sheet.stat().st_size <= IN_PROCESS_BYTES


def opened_batch(visit: Visit, found: CheckedSheet) -> str | None:
    """Return the batch of a checked sheet, where the journal has it by now."""
    with journal_for_planning(visit.console.settings) as journal:
        opened = journal.batch(found.batch)
        return None if opened is None else opened.batch


def is_started(visit: Visit, found: Check) -> bool:
    """Whether a payout is in the journal, or a run is about to write it there."""
    if isinstance(found, UnreadableSheet):
        return False
    run = started_run(visit.console.directory / RUNS, found.batch)
    return opened_batch(visit, found) is not None or (run is not None and run.is_alive)


def own_key(console: Console, name: str) -> PublicKey:
    """Return the key with which a maker signs on these pages: the one in the sandbox's folder, or a passkey."""
    if (key := sandbox_key(console, name)) is not None:
        return key.public
    people = listed_people(console.settings).listed
    keys = next((one.maker_keys for one in people if plain_name(one.name) == plain_name(name)), ())
    passkeys = [key for key in keys if not key.is_file_key]
    if not (passkeys or keys):
        raise ActRefused(say("{name} can no longer prepare payouts.", name=name))
    return (passkeys or list(keys))[0]


def sandbox_key(console: Console, name: str) -> ApprovalKey | None:
    """Return the private key of a person in the sandbox; None with a real gateway, if nobody else has one."""
    folder = console.settings.console.sandbox_keys
    if folder is None or not console.settings.uses_sandbox:
        return None
    path = folder / f"{name}.pem"
    if path.parent != folder or not path.exists():
        return None
    return load_approval_key(path, None)


def required_key(console: Console, member: Member) -> ApprovalKey:
    """Return the key that signs for a person. Raises `ConfigurationError` if there is none."""
    key = sandbox_key(console, member.name)
    if key is None:
        raise ConfigurationError(
            say("There is no key to sign with for {name}.", name=member.name),
            hint=say("In the sandbox the administrator makes one; with a real gateway people sign with a passkey."),
            for_terminal=False,
        )
    return key
