"""Defines the exceptions, each of which means that the program cannot continue.

An exception's docstring is its default message, `hint` is what a person should do next, and `exit_code` is the exit
code of the program. Expected failures after which the program continues are values, never exceptions: a defect in a
row, the outcome of a request, a transport fault. No message may contain a secret or personal data.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from paygw_batch.language import mark_all, say

_SYSTEM_REASONS = mark_all(
    "No such file or directory",
    "Permission denied",
    "Operation not permitted",
    "Is a directory",
    "Not a directory",
    "Not a regular file",
    "File exists",
    "File name too long",
    "No space left on device",
    "Read-only file system",
    "Input/output error",
)
"""Common reasons from the operating system, marked for the catalogue because `say(error.strerror)` shows them."""


class PaygwError(Exception):
    """The program cannot continue."""

    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = ""
    code: str = ""
    """The stable code of a defect in a whole sheet. Empty for any other error."""
    for_terminal: ClassVar[bool] = False
    """Whether the hints name commands, files or settings. Console pages do not show such hints."""
    default_page_hint: ClassVar[str] = ""

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, option: str = "", for_terminal: bool | None = None
    ) -> None:
        self.option = option
        """The option of `submit` that lets the sheet through, if any. A cover note can also set it."""
        self.message = message or say((type(self).__doc__ or "").strip().splitlines()[0])
        self.hint = say(self.default_hint) if hint is None else hint
        is_for_terminal = bool(option) or (self.for_terminal if for_terminal is None else for_terminal)
        self.page_hint = say(self.default_page_hint) if hint is None else "" if is_for_terminal else hint
        """The hint on console pages."""
        super().__init__(self.message)


class InternalError(PaygwError):
    """An internal check failed, so the program stopped."""

    default_hint = "Nothing was lost. Run the same command again, and report this error."


class SigningFailed(PaygwError):
    """The signing process has ended."""

    exit_code = 6
    for_terminal = True
    default_hint = "Nothing was lost. The system may have run out of memory. Run the same command again."


class UsageError(PaygwError):
    """The command is not valid."""

    exit_code = 2
    default_hint = "For help with a command, run `paygw-batch COMMAND --help`."


class PeopleForgotten(UsageError):
    """People of this batch were forgotten. The batch's sheet and the people's names and numbers were deleted."""

    for_terminal = True
    default_hint = (
        "Nothing was sent or written. To see the history of the batch, run `paygw-batch status BATCH --history`."
    )


class ConfigurationError(PaygwError):
    """The configuration cannot be used."""

    exit_code = 2
    for_terminal = True
    default_hint = "To see everything that is missing or wrong, run `paygw-batch doctor`."


class SheetError(PaygwError):
    """The sheet cannot be used, so nothing was sent."""

    exit_code = 3
    default_hint = "Nothing was sent. Correct the sheet, or choose the right one, then run the command again."


class StatementError(SheetError):
    """The statement cannot be used, so nothing was settled."""

    default_hint = (
        "Nothing was settled. Ask for the statement again, or choose the right one, then run the command again."
    )


class QuestionKind(StrEnum):
    """The questions that a sheet can leave open."""

    REFERENCE = "reference"
    """The name of the payment run, from which order ids are derived."""
    ENCODING = "encoding"
    WORKSHEET = "worksheet"
    NUMBERS = "numbers"
    NAMES = "names"


class SheetQuestion(SheetError):
    """The sheet can be read in more than one way, so nothing was sent.

    `choices` are the possible answers, likeliest first, or empty if the answer is any text. `samples` are values from
    the sheet, read by the first choice. For worksheets, they are the number of rows in each choice.
    """

    def __init__(
        self,
        asks: QuestionKind,
        message: str,
        *,
        hint: str,
        question: str,
        choices: Sequence[str] = (),
        samples: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint=hint, option=f"--{asks}")
        self.asks = asks
        self.question = question
        self.choices = tuple(choices)
        self.samples = tuple(samples)


class ReferenceLookAlike(SheetError):
    """The reference of a payment run differs only in spelling from one that was used before, so nothing was sent."""

    code = "client_orderid.look_alike"


class OpenSheetQuestion(SheetError):
    """A person must answer a question about the sheet first, so nothing was sent.

    `code` names the question: `sheet.repeats_a_batch`, `payee.twice` or `reference.used`.
    """

    def __init__(self, code: str, message: str, *, hint: str, option: str) -> None:
        super().__init__(message, hint=hint, option=option)
        self.code = code


class ApprovalError(PaygwError):
    """The approval is missing, out of date or from the wrong person, so nothing was sent."""

    exit_code = 8
    for_terminal = True


class DocumentWithdrawn(ApprovalError):
    """The signed plan or order was withdrawn. Copies of it are no longer valid."""

    default_hint = "Nothing was sent or settled. Make a new plan or order, and have it approved."


class OutputError(PaygwError):
    """A file cannot be written."""

    exit_code = 2
    for_terminal = True
    default_hint = "No file was left incomplete. Choose another path or free some disk space, then try again."


class JournalError(PaygwError):
    """The journal cannot be used."""

    exit_code = 7
    for_terminal = True
    default_hint = "Nothing was sent. `paygw-batch doctor` shows which journal is used. To use another, add --journal."


class HolderKind(StrEnum):
    """The kind of process that holds a lock, as written to the lock file."""

    RUN = "run"
    """A run, which keeps the lock until it ends."""
    LISTENER = "listener"
    """A listener, which takes the lock only briefly, to record notifications."""
    STARTING = "starting"
    """A process that holds the lock but has not written its kind yet."""
    WORKER = "worker"
    """A worker, which sends rows for commands and takes the lock only briefly."""


class JournalHeld(JournalError):
    """Another run is using this journal."""

    default_hint = default_page_hint = "Wait until that has finished, then try again."
    holder: HolderKind = HolderKind.RUN


class StaleRows(JournalError):
    """Another process changed a row at the same moment, so nothing was written."""

    default_hint = "Run the same command again."


class JournalMissing(JournalError):
    """There is no journal, and this command does not create one."""

    default_hint = "To create one, run `paygw-batch journal new`."


class JournalOutdated(JournalError):
    """The journal's tables are from an older version of this program."""


class JournalNotAdopted(JournalError):
    """No one has confirmed that this copy of the journal is the newest one."""

    default_hint = (
        "Find out whether a newer copy exists, on this computer or elsewhere. If this copy is the newest one, confirm "
        "this with `paygw-batch journal adopt`."
    )


class JournalCorrupt(JournalError):
    """The journal is damaged."""

    default_hint = (
        "Do not send anything from this journal. Keep the file, and restore the newest copy that passes `verify`."
    )


class JournalTooOld(JournalError):
    """The journal is older than the last order that was sent from it."""

    default_hint = "Restore the newest journal file, because sending from this one could pay rows twice."


class SentLogDamaged(JournalError):
    """This computer's record of the payments it sent is damaged, so it does not show which rows were sent last."""

    default_hint = (
        "Nothing was sent. Restore the newest files. If they are lost and you know that the journal is the newest one, "
        "remove the files left-* and beside.*, then run `paygw-batch journal adopt`. If the journal is in PostgreSQL, "
        "do not remove anything: run `paygw-batch journal roll-call --accept-loss` instead."
    )


class OpenRollCall(JournalError):
    """The database was restored or replaced, and some hosts have not confirmed their rows yet."""

    default_hint = (
        "Run `paygw-batch journal roll-call` on each of these hosts. If a host is permanently lost, run `paygw-batch "
        "journal retire HOST`. Rows that it could have sent are then in doubt."
    )


class JournalUnwritable(JournalError):
    """The journal can no longer be written, so nothing more was sent."""

    default_hint = "Fix the disk (space, permissions), then try again. Rows in flight will be in doubt."


class AuditUnwritable(JournalError):
    """The console's audit trail can no longer be written."""


class SessionsBroken(JournalError):
    """The console's file of sessions cannot be read or written."""

    default_hint = (
        "Fix the disk (space, permissions). To remove a damaged file, stop the console first, and also remove its "
        "-wal and -shm files. Everyone must then sign in again."
    )
