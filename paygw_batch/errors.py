"""Exceptions: each means that the program cannot go on.

The docstring of an error is its general message, `hint` is what a person should do next, and `exit_code` is the exit
code of the program. A failure that is expected, and after which the program continues, is a value and never one of
these: a defect of a row, the outcome of a request, a fault of the transport. No message may carry a secret or a payee's
data.
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
"""The usual reasons of the operating system, marked for the catalogue because `say(error.strerror)` shows them."""


class PaygwError(Exception):
    """The program cannot continue."""

    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = ""
    code: str = ""
    """The stable code of a defect of a whole sheet; empty for any other error."""
    for_terminal: ClassVar[bool] = False
    """Whether the hints name commands, files or settings. The pages of the console do not show such hints."""
    default_page_hint: ClassVar[str] = ""

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, option: str = "", for_terminal: bool | None = None
    ) -> None:
        self.option = option
        """The option of `submit` that lets the sheet through, if there is one. A cover note may give it too."""
        self.message = message or say((type(self).__doc__ or "").strip().splitlines()[0])
        self.hint = say(self.default_hint) if hint is None else hint
        is_for_terminal = bool(option) or (self.for_terminal if for_terminal is None else for_terminal)
        self.page_hint = say(self.default_page_hint) if hint is None else "" if is_for_terminal else hint
        """The hint for a person who uses the console's pages."""
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
    default_hint = "`paygw-batch COMMAND --help` shows its usage."


class PeopleForgotten(UsageError):
    """People of this batch were forgotten: its sheet, and their names and numbers, are gone."""

    for_terminal = True
    default_hint = "Nothing was sent or written. `paygw-batch status BATCH --history` shows who forgot them, and when."


class ConfigurationError(PaygwError):
    """The configuration cannot be used."""

    exit_code = 2
    for_terminal = True
    default_hint = "`paygw-batch doctor` lists everything that is missing or wrong."


class SheetError(PaygwError):
    """The sheet cannot be used; nothing was sent."""

    exit_code = 3
    default_hint = "Nothing was sent. Correct the sheet, or choose the right one, and run the command again."


class StatementError(SheetError):
    """The statement cannot be used; nothing was settled."""

    default_hint = (
        "Nothing was settled. Ask for the statement again, or choose the right one, and run the command again."
    )


class QuestionKind(StrEnum):
    """The kinds of questions that a sheet can leave open."""

    REFERENCE = "reference"
    """The name of the payment run, from which order ids are derived."""
    ENCODING = "encoding"
    WORKSHEET = "worksheet"
    NUMBERS = "numbers"
    NAMES = "names"


class SheetQuestion(SheetError):
    """The sheet can be read in more than one way; nothing was sent.

    `asks` names the question, and `question` is its text. `choices` are the possible answers, the likeliest first; if
    it is empty, any text may be the answer. `samples` are texts of the sheet, read as the first choice says; for
    worksheets, the number of rows of each choice.
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
    """A payment run has a reference that differs only in its spelling from one that was used; nothing was sent."""

    code = "client_orderid.look_alike"


class OpenSheetQuestion(SheetError):
    """A person must first answer a question about the sheet; nothing was sent.

    `code` names the question: `sheet.repeats_a_batch`, `payee.twice` or `reference.used`.
    """

    def __init__(self, code: str, message: str, *, hint: str, option: str) -> None:
        super().__init__(message, hint=hint, option=option)
        self.code = code


class ApprovalError(PaygwError):
    """The approval is missing, out of date or by the wrong person; nothing was sent."""

    exit_code = 8
    for_terminal = True


class DocumentWithdrawn(ApprovalError):
    """The signed plan or order was withdrawn: no copy of it is valid any longer."""

    default_hint = "Nothing was sent or settled. Make a new one, and have it approved."


class OutputError(PaygwError):
    """A file cannot be written."""

    exit_code = 2
    for_terminal = True
    default_hint = "No file was left incomplete. Choose another path or free some disk space, then run again."


class JournalError(PaygwError):
    """The journal cannot be used."""

    exit_code = 7
    for_terminal = True
    default_hint = "Nothing was sent. `paygw-batch doctor` shows which journal is used; --journal names another."


class HolderKind(StrEnum):
    """The kind of process that holds a lock, as written in the lock's file."""

    RUN = "run"
    """A run, which keeps the lock until it ends."""
    LISTENER = "listener"
    """A listener, which keeps the journal for a moment at a time, to record notifications."""
    STARTING = "starting"
    """A process that has the lock, and has not written its kind yet."""
    WORKER = "worker"
    """A worker, which sends rows for commands and keeps the journal for a moment at a time."""


class JournalHeld(JournalError):
    """Another run is using this journal."""

    default_hint = default_page_hint = "Wait until it finishes, then run again."
    holder: HolderKind = HolderKind.RUN


class StaleRows(JournalError):
    """Another process changed a row at the same moment; nothing was written."""

    default_hint = "Run the same command again."


class JournalMissing(JournalError):
    """There is no journal, and this command doesn't create one."""

    default_hint = "`paygw-batch journal new` creates one."


class JournalOutdated(JournalError):
    """The journal's tables were made by an older version of this program."""


class JournalNotAdopted(JournalError):
    """No one has confirmed that this copy of the journal is the newest one."""

    default_hint = (
        "Find out whether a newer copy exists, on this machine or elsewhere. If this is the newest one, confirm "
        "it with `paygw-batch journal adopt`."
    )


class JournalCorrupt(JournalError):
    """The journal is damaged."""

    default_hint = "Send nothing from it. Keep the file, and restore the newest copy that passes `verify`."


class JournalTooOld(JournalError):
    """The journal is older than the newest order that was sent from it."""

    default_hint = "Restore the newest journal file. Sending from this one could pay rows twice."


class SentLogDamaged(JournalError):
    """This computer's record of sent payments is damaged, so the last rows that it sent are not known."""

    default_hint = (
        "Nothing was sent. Put the newest files back. Only if they are lost, and you know that the journal is the "
        "newest one: remove them (left-* and beside.*), and confirm it with `paygw-batch journal adopt`. For a "
        "journal in PostgreSQL remove nothing, and run `paygw-batch journal roll-call --accept-loss`."
    )


class OpenRollCall(JournalError):
    """The database was restored or replaced, and some hosts have not confirmed their rows yet."""

    default_hint = (
        "Run `paygw-batch journal roll-call` on each of these hosts. One that is gone for good is retired by "
        "`paygw-batch journal retire HOST`: rows that it could have sent are then in doubt."
    )


class JournalUnwritable(JournalError):
    """The journal can no longer be written; nothing more was sent."""

    default_hint = "Fix the disk (space, permissions), then run again. Rows in flight will be in doubt."


class AuditUnwritable(JournalError):
    """The audit trail of the console can no longer be written."""


class SessionsBroken(JournalError):
    """The file of sessions of the console cannot be read or written."""

    default_hint = (
        "Fix the disk (space, permissions). While the console is off, you can remove a damaged file, with its -wal "
        "and -shm files if there are any. Everyone must then sign in again."
    )
