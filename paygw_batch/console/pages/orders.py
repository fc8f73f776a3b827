"""Keeps orders about rows, and statements, in folders. One person drafts an order, and others approve it.

No file stores how far an order has come: that follows from its files, and from the journal, which keeps every order
that was carried out.
"""

import filecmp
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import ClassVar, Self

from paygw_batch.approval.policy import person
from paygw_batch.approval.signed_document import read_document, write_document
from paygw_batch.clock import timestamp
from paygw_batch.console.pages.agreement import (
    SIGNED_AS,
    Agreement,
    ListedAgreement,
    Stage,
    listed,
    progress_of,
)
from paygw_batch.console.payout_folder import NamedFolder, move_in, new_named_folder
from paygw_batch.console.permissions import Act
from paygw_batch.console.sheet_process import limit_this_process
from paygw_batch.console.start_run import StartedRun, start_run
from paygw_batch.console.visits import Console, PageOutdated, Visit
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.core.shown_states import agreed_by
from paygw_batch.errors import ApprovalError, JournalHeld, PaygwError, SheetError
from paygw_batch.files import write_whole
from paygw_batch.journal import JournalReader, make_directory
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.open_journal import journal_for_planning, run_journal
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import is_kept
from paygw_batch.settle.row_order import RowAct, RowOrder
from paygw_batch.settle.settle_rows import AskedStatement, as_of_time, carry_out_order
from paygw_batch.settle.statement import SIGNATURE_ENDING, statement_as_json, statement_in, statement_of_json
from paygw_batch.submit.approvals import order_problem

READING = "from paygw_batch.console.pages.orders import main; main()"


@dataclass(frozen=True, slots=True)
class UploadedStatement:
    """A statement as it was uploaded for a batch: by whom and when.

    `words` say how the person knows that the gateway made it. `as_of` is the time of lines without a time of their own;
    empty if nobody stated that time.
    """

    batch: str
    name: str
    by: str
    at: str
    words: str
    as_of: str


@dataclass(frozen=True, slots=True)
class UsedStatement:
    """The order that a person drafted from a statement, and the code of the page that showed the statement."""

    by: str
    code: str
    order: str


class StatementFolder(NamedFolder):
    """The folder of one statement."""

    FIRST = "uploaded.json"

    @property
    def uploaded(self) -> UploadedStatement:
        return UploadedStatement(**json.loads((self.path / "uploaded.json").read_bytes()))

    @property
    def file(self) -> Path:
        """The path of the file as received, under the name that its sender gave it."""
        return self.path / "file" / self.uploaded.name

    def has_file(self, uploaded: UploadedStatement, content: Path) -> bool:
        """Return whether this is the same upload: the same person, the same words, and the content of the same file."""
        return replace(uploaded, at=self.uploaded.at) == self.uploaded and filecmp.cmp(
            self.file, content, shallow=False
        )

    @property
    def used(self) -> UsedStatement | None:
        """The order drafted from the statement; None if there was none."""
        path = self.path / "used.json"
        return UsedStatement(**json.loads(path.read_bytes())) if path.exists() else None

    def note_used(self, used: UsedStatement) -> None:
        """Record the order drafted from the statement, so that a second click leads to the same order."""
        self.write_json("used.json", used)

    def keep_signature(self, signature: bytes) -> None:
        """Write the signature of the file beside the file."""
        write_whole(self.file.with_name(f"{self.file.name}{SIGNATURE_ENDING}"), signature)

    @property
    def lines_file(self) -> Path:
        """The path of the file with the lines of the statement. The file is missing if the statement cannot be read."""
        return self.path / "lines.json"

    @property
    def error_file(self) -> Path:
        """The path of the file that says why the statement cannot be read. The file is missing if it can be read."""
        return self.path / "error.txt"

    def asked(self, by: str) -> AskedStatement:
        """Return the statement as the person `by` asks to use it: matching lines count, even if others do not match."""
        uploaded = self.uploaded
        statement = statement_of_json(self.lines_file.read_text(encoding="utf-8"))
        as_of = as_of_time(uploaded.as_of, say("The time")) if uploaded.as_of else None
        return AskedStatement(statement, by, uploaded.words or None, as_of, matching_only=True)


def new_statement_folder(
    directory: Path, content: Path, uploaded: UploadedStatement, number: str | None = None
) -> StatementFolder:
    """Create the folder `number` for an uploaded statement, and move the file `content` into it."""
    path = new_named_folder(directory, number)
    (path / "file").mkdir(mode=0o700)
    move_in(content, path / "file" / uploaded.name)
    folder = StatementFolder(path)
    folder.write_json("uploaded.json", uploaded)
    return folder


def statement_folders(directory: Path, batch: str) -> Sequence[StatementFolder]:
    """Return the statements uploaded for a batch, newest first."""

    def uploaded_at(folder: StatementFolder) -> str | None:
        uploaded = folder.uploaded
        return uploaded.at if uploaded.batch == batch else None

    return StatementFolder.newest_first(directory, uploaded_at)


def read_in_process(folder: StatementFolder, console: Console) -> None:
    """Read a statement in another process. Raises `SheetError` if it cannot be read."""
    if not console.ran_within_limits(READING, str(folder.path)):
        raise SheetError(
            say("The statement is too large: reading it needs more memory or time than is allowed."),
            hint=say("Split it, and upload the parts."),
        )
    if folder.error_file.exists():
        raise SheetError(
            folder.error_file.read_text(encoding="utf-8"),
            hint=say("Nothing was settled. Correct the file, and upload it again."),
        )


def main() -> None:
    """Read one statement. The arguments of the process are the configuration, the journal and the folder."""
    settings = limit_this_process()
    read_statement_of(StatementFolder(Path(sys.argv[3])), settings)


def read_statement_of(folder: StatementFolder, settings: Settings) -> None:
    """Write the lines of a statement into its folder, or the reason why it cannot be read."""
    try:
        write_whole(folder.lines_file, statement_as_json(statement_in(settings, folder.file)).encode())
    except PaygwError as error:
        write_whole(folder.error_file, error.message.encode())


FIRST_PERSON = mark("Ask someone who prepares payouts to start this. A second person then approves it.")
CHOICES: Mapping[str, tuple[str, ...]] = {
    Resolution.PAID: mark_all("It was paid", "It is never sent again."),
    Resolution.REJECTED: mark_all(
        "It was rejected",
        "No payment was made. You can retry it after {again}; it stays marked as a possible duplicate.",
    ),
    Resolution.NOT_RECEIVED: mark_all(
        "The gateway never received it",
        "You can send it again from {again} on; it is marked as a possible duplicate.",
    ),
    RowAct.RELEASE: mark_all("Tried again"),
}
"""The name of each outcome and of each act on the pages. The consequence of an outcome follows its name."""


def choice_name(act: str) -> str:
    return say(CHOICES[act][0])


_DONE = "done"
_drafting = Lock()
ORDERS_SHOWN = "orders"
"""The form field with the numbers of the open orders that the page showed."""


@dataclass(frozen=True, slots=True)
class DraftedOrder:
    """The person who drafted an order, and the time. `sent_back` says who sent it back and why, or is empty."""

    by: str
    at: str
    sent_back: str = ""


class OrderFolder(NamedFolder):
    """The folder of one order."""

    FIRST = "drafted.json"

    @property
    def drafted(self) -> DraftedOrder:
        return DraftedOrder(**json.loads((self.path / "drafted.json").read_bytes()))

    @property
    def draft(self) -> RowOrder:
        """The order without signatures."""
        return read_document(self.path / "draft.json", RowOrder)

    @property
    def order_file(self) -> Path:
        """The path of the signed order."""
        return self.path / "order.json"

    @property
    def order(self) -> RowOrder | None:
        """The signed order with its approvals; None if nobody has signed it."""
        return read_document(self.order_file, RowOrder) if self.order_file.exists() else None

    @property
    def document(self) -> RowOrder:
        """The signed order, or the draft if nobody has signed it."""
        return self.order or self.draft

    def draft_again(self, at: str, sent_back: str) -> None:
        """Remove the signatures, and make a draft with the time `at`. `sent_back` says who sent it back and why."""
        write_document(self.draft.model_copy(update={"made_at": at}), self.path / "draft.json")
        self.write_json("drafted.json", replace(self.drafted, sent_back=sent_back))
        self.order_file.unlink(missing_ok=True)

    def put_away(self) -> None:
        """Move the folder to the folders of carried-out orders, where `order_folder_of` still finds it."""
        done = self.path.parent / _DONE
        if self.path.parent.name != _DONE:
            make_directory(done)
            with suppress(FileNotFoundError):
                os.replace(self.path, done / self.number)  # noqa: PTH105 (as written)
            self.path = done / self.number


def order_folder_of(directory: Path, number: str) -> OrderFolder | None:
    """Return the folder of the open or carried-out order with this number; None if there is no such order."""
    return OrderFolder.named(directory, number) or OrderFolder.named(directory / _DONE, number)


def open_order_folders(directory: Path) -> Sequence[OrderFolder]:
    """Return the folders of open orders, the newest first."""
    return OrderFolder.newest_first(directory, lambda folder: folder.drafted.at)


class OrderAgreement(Agreement[RowOrder]):
    """The agreement about an order for rows of a payout."""

    folder: OrderFolder

    own_act, approving_act, starting_act = Act.ORDER, Act.AGREE, Act.SETTLE
    approve_path, start_path, start_noted = "agree", "carry-out", "carry order out"
    gone = mark("There is no such order. It may have been withdrawn.")
    only_maker = mark("Only {name}, who drafted this, can change it.")
    other_person = mark("You asked for this, so another person must agree.")
    next_steps: ClassVar[Mapping[Stage, str]] = {
        Stage.TO_SIGN: mark("Not signed yet"),
        Stage.SENT_BACK: mark("Sent back"),
        Stage.TO_APPROVE: mark("A second person agrees"),
        Stage.VOID: mark("Sign it again"),
        **dict.fromkeys((Stage.APPROVED, Stage.FAILED), mark("Agreed: it can be carried out")),
        Stage.STARTING: mark("Starting"),
        Stage.OUTDATED: mark("A row has changed: withdraw the order"),
    }
    asks: ClassVar[Mapping[Stage, str]] = {
        Stage.TO_SIGN: mark("You have not signed this order yet: {what}."),
        Stage.TO_APPROVE: mark("{by} asks you to agree: {what}."),
        **dict.fromkeys((Stage.APPROVED, Stage.FAILED), mark("Agreed: it can be carried out. {what}.")),
        Stage.OUTDATED: mark("A row has changed since you signed. Withdraw the order: {what}."),
    }

    def __init__(self, visit: Visit, folder: OrderFolder) -> None:
        drafted = folder.drafted
        self.visit, self.folder, self.drafted, self.signed_file = visit, folder, drafted, folder.order_file
        self.path = self.page = f"/orders/{folder.number}"
        self.maker, self.sent_back = drafted.by, drafted.sent_back
        self.document = folder.order
        self.shown: RowOrder = self.document or folder.draft
        """The signed order, or the draft if nobody has signed it."""
        self.batch, self.what = self.shown.content.batch, what_is_asked(self.shown)

    @classmethod
    def find(cls, visit: Visit) -> Self | None:
        folder = order_folder_of(orders_directory(visit), visit.path("order"))
        return None if folder is None else cls(visit, folder)

    def draft(self) -> RowOrder:
        return self.folder.draft

    @property
    def run(self) -> StartedRun | None:
        """The payout's last run if the order lets rows be sent again; None if it only settles rows."""
        return super().run if self.shown.is_release else None

    def stage_by_itself(self, journal: JournalReader) -> Stage | None:
        """Return the stage of an order that was carried out or sent back. The folder of a carried-out order moves."""
        if self.document is not None and is_kept(journal, self.document):
            self.folder.put_away()
            return Stage.DONE
        return Stage.SENT_BACK if self.sent_back else None

    def recorded_approvers(self, journal: JournalReader) -> Mapping[str, str]:
        record, digest = journal.batch(self.batch), self.shown.digest()
        history = [] if record is None else journal.history(record.number)
        agreed = next((agreed_by(entry.by) for entry in history if entry.order == digest), None)
        latest = max((approval.approved_at for approval in self.shown.approvals), default="")
        return {} if agreed is None else {agreed[1]: latest}

    def outdated(self, journal: JournalReader) -> str | None:
        return order_problem(self.visit.console.settings, journal, self.shown) or None

    def changed(self, _stage: Stage | None = None) -> PageOutdated:
        if self.sent_back:
            return PageOutdated(say("This order was sent back since this page was opened: {who}", who=self.sent_back))
        return PageOutdated(say("This order has changed since this page was opened."))

    def write(self, document: RowOrder) -> None:
        """Store the signed order. The last approval also carries out a settlement order, unless a run is alive."""
        super().write(document)
        with journal_for_planning(self.visit.console.settings) as journal:
            is_approved = progress_of(journal, self).stage is Stage.APPROVED
        if is_approved and not document.is_release:
            with suppress(JournalHeld):  # a person carries the order out later, after the run
                self.start()

    def draft_again(self, sent_back: str = "") -> None:
        """Make the order an unsigned draft again. Its new time gives it another digest."""
        self.folder.draft_again(timestamp(self.visit.console.now()), sent_back)

    def start(self) -> StartedRun | None:
        """Settle the rows, or start the run that sends them. Settling raises `JournalHeld` while a run is alive."""
        visit, console, order = self.visit, self.visit.console, self.document
        runs, by = console.runs, visit.member.name
        if order is not None and order.is_release:
            command = [*console.program, "--json", "carry-out", str(self.folder.order_file)]
            command += ["--wait", "--force", "--out", str(runs / f"{self.batch}.reconciliation.csv"), "--by", by]
            return start_run(runs, self.batch, command, by=by, environ=visit.environ, ended=self.note_end)
        if order is not None:
            with run_journal(console.settings, "console", lambda _sentence: None) as journal:
                folders = _statement_folders(visit, order)
                carry_out_order(console.settings, journal, order, person(by), folders=folders)
            self.folder.put_away()  # only after the commit: until then the order must stay in the list
        return None


def _statement_folders(visit: Visit, order: RowOrder) -> Sequence[Path]:
    """Return the folders in which the statement that an order cites is looked for; empty if the order cites none."""
    if not order.claims_the_gateways_word:
        return []
    uploads = statement_folders(statements_directory(visit), order.content.batch)
    return [folder.file.parent for folder in uploads]


def orders_directory(visit: Visit) -> Path:
    return visit.console.directory / "orders"


def statements_directory(visit: Visit) -> Path:
    return visit.console.directory / "statements"


def drafted_order(visit: Visit, draft: RowOrder) -> OrderFolder:
    """Store an order that the person at the page drafted, and return its folder. A second click stores nothing new.

    Raises `PageOutdated` if another order about one of the rows was drafted since the page was opened.
    """
    shown = visit.form.get(ORDERS_SHOWN, "").split()
    with _drafting:
        folders = open_order_folders(orders_directory(visit))
        for folder in folders:
            is_own = folder.drafted.by == visit.member.name and not folder.drafted.sent_back
            if is_own and folder.document.content == draft.content:
                return folder
        for other in folders:
            content = other.document.content
            is_about = content.batch == draft.content.batch and set(other.document.numbers) & set(draft.numbers)
            if is_about and other.number not in shown:
                raise PageOutdated(
                    say("{name} asked for an order about these rows since this page was opened.", name=other.drafted.by)
                )
        folder = OrderFolder(new_named_folder(orders_directory(visit)))
        write_document(draft, folder.path / "draft.json")
        folder.write_json("drafted.json", DraftedOrder(visit.member.name, timestamp(visit.console.now())))
        return folder


def open_orders(visit: Visit, batch: str = "") -> Sequence[ListedAgreement]:
    """Return the orders that are not carried out yet, of one payout or of all payouts."""
    folders = open_order_folders(orders_directory(visit))
    if not folders:
        return []
    shown = []
    with journal_for_planning(visit.console.settings) as journal:
        for folder in folders:
            try:
                order = OrderAgreement(visit, folder)
                if batch in {"", order.batch} and (progress := progress_of(journal, order)).stage is not Stage.DONE:
                    content, numbers = order.shown.content, order.shown.numbers
                    shown.append(listed(order, progress, content.sheet, order.drafted.at, numbers))
            except (FileNotFoundError, ApprovalError):
                if folder.path.exists():  # without the folder, the order was carried out or taken back meanwhile
                    raise
    return shown


def signed_order_pages(visit: Visit, batch: str) -> Mapping[str, str]:
    """Return the addresses of the orders that these pages carried out for a payout, by the digest of each order."""
    done = OrderFolder.newest_first(orders_directory(visit) / _DONE, lambda folder: folder.drafted.at)
    orders = ((folder.number, *_done_order(folder.path)) for folder in done)
    return {digest: f"/orders/{number}{SIGNED_AS}" for number, of_batch, digest in orders if of_batch == batch}


@lru_cache(maxsize=10_000)
def _done_order(path: Path) -> tuple[str, str]:
    """Return the batch and the digest of a carried-out order, which never changes."""
    order = OrderFolder(path).document
    return order.batch, order.digest()


def what_is_asked(order: RowOrder) -> str:
    """Return the action that an order asks for, in a few words."""
    rows = order.rows
    if order.is_release:
        return say_count(rows, "Try {count:,} rejected row again", "Try {count:,} rejected rows again")
    return say_count(rows, "Settle {count:,} row", "Settle {count:,} rows")
