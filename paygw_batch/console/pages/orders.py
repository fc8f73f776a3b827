"""Stores statements and orders about rows in folders. One person drafts an order, and others approve it.

No file stores an order's progress. It follows from the order's files and from the journal, which records every order
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

from paygw_batch.approval.policy import identify_person
from paygw_batch.approval.signed_document import read_document, write_document
from paygw_batch.clock import timestamp
from paygw_batch.console.pages.agreement import (
    SIGNED_QUERY,
    Agreement,
    ListedAgreement,
    Stage,
    build_list_entry,
    read_progress,
)
from paygw_batch.console.payout_folder import NamedFolder, create_folder, move_upload
from paygw_batch.console.permissions import Action
from paygw_batch.console.sheet_process import limit_this_process
from paygw_batch.console.start_run import StartedRun, start_run
from paygw_batch.console.visits import Console, PageOutdated, Visit
from paygw_batch.core.lifecycle import Resolution
from paygw_batch.core.shown_states import parse_agreement
from paygw_batch.errors import ApprovalError, JournalHeld, PaygwError, SheetError
from paygw_batch.files import write_atomically
from paygw_batch.journal import JournalReader, make_directory
from paygw_batch.language import mark, mark_all, say, say_count
from paygw_batch.opening.open_journal import journal_for_planning, open_journal_for_run
from paygw_batch.settings.configuration import Settings
from paygw_batch.settle.kept_documents import is_recorded
from paygw_batch.settle.row_order import RowAct, RowOrder
from paygw_batch.settle.settle_rows import RequestedStatement, carry_out_order, parse_as_of
from paygw_batch.settle.statement import SIGNATURE_SUFFIX, load_statement, statement_from_json, statement_to_json
from paygw_batch.submit.approvals import invalid_order_reason

READ_STATEMENT_PROGRAM = "from paygw_batch.console.pages.orders import main; main()"


@dataclass(frozen=True, slots=True)
class UploadedStatement:
    """A statement uploaded for a batch: who uploaded it and when.

    `words` say how the person knows that the statement is from the gateway. `as_of` is the time entered for lines
    without a time, or empty.
    """

    batch: str
    name: str
    by: str
    at: str
    words: str
    as_of: str


@dataclass(frozen=True, slots=True)
class StatementUse:
    """The order that a person drafted from a statement, and the code of the statement's page at that time."""

    by: str
    code: str
    order: str


class StatementFolder(NamedFolder):
    """The folder of a statement: the received file and the lines read from it."""

    MARKER_FILE = "uploaded.json"

    @property
    def uploaded(self) -> UploadedStatement:
        return UploadedStatement(**json.loads((self.path / "uploaded.json").read_bytes()))

    @property
    def file(self) -> Path:
        """The path of the received file, which keeps the sender's file name."""
        return self.path / "file" / self.uploaded.name

    def has_file(self, uploaded: UploadedStatement, source: Path) -> bool:
        """Return whether `uploaded`, apart from its time, and the file `source` are identical to this upload."""
        return replace(uploaded, at=self.uploaded.at) == self.uploaded and filecmp.cmp(self.file, source, shallow=False)

    @property
    def statement_use(self) -> StatementUse | None:
        path = self.path / "used.json"
        return StatementUse(**json.loads(path.read_bytes())) if path.exists() else None

    def record_use(self, use: StatementUse) -> None:
        """Record the order drafted from the statement, so that a second click redirects to it."""
        self.write_json("used.json", use)

    def write_signature(self, signature: bytes) -> None:
        write_atomically(self.file.with_name(f"{self.file.name}{SIGNATURE_SUFFIX}"), signature)

    @property
    def lines_file(self) -> Path:
        """The file with the statement's lines. It exists only if the statement can be read."""
        return self.path / "lines.json"

    @property
    def error_file(self) -> Path:
        """The file that says why the statement cannot be read, if it cannot."""
        return self.path / "error.txt"

    def build_requested_statement(self, by: str) -> RequestedStatement:
        """Return the statement as requested by the person `by`. Lines that match no row are ignored."""
        uploaded = self.uploaded
        statement = statement_from_json(self.lines_file.read_text(encoding="utf-8"))
        as_of = parse_as_of(uploaded.as_of, say("The time")) if uploaded.as_of else None
        return RequestedStatement(statement, by, uploaded.words or None, as_of, matching_only=True)


def create_statement_folder(
    directory: Path, source: Path, uploaded: UploadedStatement, folder_name: str | None = None
) -> StatementFolder:
    """Create the folder `folder_name` for an uploaded statement and move the file `source` into it."""
    path = create_folder(directory, folder_name)
    (path / "file").mkdir(mode=0o700)
    move_upload(source, path / "file" / uploaded.name)
    folder = StatementFolder(path)
    folder.write_json("uploaded.json", uploaded)
    return folder


def statement_folders(directory: Path, batch: str) -> Sequence[StatementFolder]:
    """Return the folders of the statements uploaded for a batch, newest first."""

    def uploaded_at(folder: StatementFolder) -> str | None:
        uploaded = folder.uploaded
        return uploaded.at if uploaded.batch == batch else None

    return StatementFolder.list_newest_first(directory, uploaded_at)


def read_statement_in_process(folder: StatementFolder, console: Console) -> None:
    """Read a statement in a separate process. Raises `SheetError` if it cannot be read."""
    if not console.run_on_upload(READ_STATEMENT_PROGRAM, str(folder.path)):
        raise SheetError(
            say("The statement is too large. Reading it would take more memory or time than allowed."),
            hint=say("Split it and upload the parts."),
        )
    if folder.error_file.exists():
        raise SheetError(
            folder.error_file.read_text(encoding="utf-8"),
            hint=say("Nothing was settled. Correct the file and upload it again."),
        )


def main() -> None:
    """Read a statement. Process arguments: the configuration, the journal and the folder."""
    settings = limit_this_process()
    read_statement(StatementFolder(Path(sys.argv[3])), settings)


def read_statement(folder: StatementFolder, settings: Settings) -> None:
    """Write a statement's lines to its folder, or the reason why it cannot be read."""
    try:
        write_atomically(folder.lines_file, statement_to_json(load_statement(settings, folder.file)).encode())
    except PaygwError as error:
        write_atomically(folder.error_file, error.message.encode())


ASK_MAKER_MESSAGE = mark("Ask someone who prepares payouts to start this. A second person then approves it.")
CHOICES: Mapping[str, tuple[str, ...]] = {
    Resolution.PAID: mark_all("It was paid", "It will not be sent again."),
    Resolution.REJECTED: mark_all(
        "It was rejected",
        "No payment was made. You can retry the row after {again}. It stays marked as a possible duplicate.",
    ),
    Resolution.NOT_RECEIVED: mark_all(
        "The gateway never received it",
        "You can send the row again after {again}. It will be marked as a possible duplicate.",
    ),
    RowAct.RELEASE: mark_all("Retried"),
}
"""The name of each outcome or action as shown on pages, and the consequence of each outcome."""


def choice_name(choice: str) -> str:
    return say(CHOICES[choice][0])


_ARCHIVE = "done"
_draft_lock = Lock()
SHOWN_ORDERS_FIELD = "orders"


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """Who drafted an order and when. `sent_back` says who sent it back and why, or is empty."""

    by: str
    at: str
    sent_back: str = ""


class OrderFolder(NamedFolder):
    """The folder of an order: its draft, and the signed order with its approvals."""

    MARKER_FILE = "drafted.json"

    @property
    def draft_record(self) -> DraftRecord:
        return DraftRecord(**json.loads((self.path / "drafted.json").read_bytes()))

    @property
    def draft(self) -> RowOrder:
        return read_document(self.path / "draft.json", RowOrder)

    @property
    def order_file(self) -> Path:
        return self.path / "order.json"

    @property
    def order(self) -> RowOrder | None:
        """The signed order with its approvals, or None if it is not signed yet."""
        return read_document(self.order_file, RowOrder) if self.order_file.exists() else None

    @property
    def document(self) -> RowOrder:
        """The signed order, or the draft if it is not signed yet."""
        return self.order or self.draft

    def redraft(self, at: str, sent_back: str) -> None:
        """Replace the signed order with a draft dated `at`. `sent_back` says who sent it back and why, or is empty."""
        write_document(self.draft.model_copy(update={"made_at": at}), self.path / "draft.json")
        self.write_json("drafted.json", replace(self.draft_record, sent_back=sent_back))
        self.order_file.unlink(missing_ok=True)

    def archive(self) -> None:
        """Move the folder to the archive of carried-out orders, where `find_order_folder` still finds it."""
        archive_directory = self.path.parent / _ARCHIVE
        if self.path.parent.name != _ARCHIVE:
            make_directory(archive_directory)
            with suppress(FileNotFoundError):
                os.replace(self.path, archive_directory / self.number)  # noqa: PTH105 (`os.replace` overwrites on every platform)
            self.path = archive_directory / self.number


def find_order_folder(directory: Path, number: str) -> OrderFolder | None:
    """Return the folder of an open or carried-out order, or None if it does not exist."""
    return OrderFolder.find(directory, number) or OrderFolder.find(directory / _ARCHIVE, number)


def open_order_folders(directory: Path) -> Sequence[OrderFolder]:
    return OrderFolder.list_newest_first(directory, lambda folder: folder.draft_record.at)


class OrderAgreement(Agreement[RowOrder]):
    """The agreement on an order about a payout's rows."""

    folder: OrderFolder

    maker_action, approving_action, starting_action = Action.ORDER, Action.AGREE, Action.SETTLE
    approve_path, start_path, start_audit_action = "agree", "carry-out", "carry order out"
    missing_message = mark("This order does not exist. It may have been withdrawn.")
    not_maker_message = mark("Only {name}, who drafted it, can change it.")
    maker_message = mark("You requested this, so another person must agree.")
    next_steps: ClassVar[Mapping[Stage, str]] = {
        Stage.TO_SIGN: mark("Not signed yet"),
        Stage.SENT_BACK: mark("Sent back"),
        Stage.TO_APPROVE: mark("A second person agrees"),
        Stage.VOID: mark("Sign it again"),
        **dict.fromkeys((Stage.APPROVED, Stage.FAILED), mark("Agreed: it can be carried out")),
        Stage.STARTING: mark("Starting"),
        Stage.OUTDATED: mark("A row has changed: withdraw the order"),
    }
    request_messages: ClassVar[Mapping[Stage, str]] = {
        Stage.TO_SIGN: mark("You have not signed this order yet: {what}."),
        Stage.TO_APPROVE: mark("{by} asks you to agree: {what}."),
        **dict.fromkeys((Stage.APPROVED, Stage.FAILED), mark("Agreed: it can be carried out. {what}.")),
        Stage.OUTDATED: mark("A row has changed since you signed. Withdraw the order: {what}."),
    }

    def __init__(self, visit: Visit, folder: OrderFolder) -> None:
        record = folder.draft_record
        self.visit, self.folder, self.draft_record, self.signed_file = visit, folder, record, folder.order_file
        self.path = self.page = f"/orders/{folder.number}"
        self.maker, self.sent_back = record.by, record.sent_back
        self.document = folder.order
        self.shown: RowOrder = self.document or folder.draft
        """The signed order, or the draft if it is not signed yet."""
        self.batch, self.summary = self.shown.content.batch, order_summary(self.shown)

    @classmethod
    def find(cls, visit: Visit) -> Self | None:
        folder = find_order_folder(orders_directory(visit), visit.path_param("order"))
        return None if folder is None else cls(visit, folder)

    def draft(self) -> RowOrder:
        return self.folder.draft

    @property
    def run(self) -> StartedRun | None:
        """The payout's last run, or None if the order only settles rows, which needs no run."""
        return super().run if self.shown.is_release else None

    def stage_without_signatures(self, journal: JournalReader) -> Stage | None:
        """Return the stage if the order was carried out or sent back. Archives a carried-out order."""
        if self.document is not None and is_recorded(journal, self.document):
            self.folder.archive()
            return Stage.DONE
        return Stage.SENT_BACK if self.sent_back else None

    def recorded_approvers(self, journal: JournalReader) -> Mapping[str, str]:
        record, digest = journal.batch(self.batch), self.shown.digest()
        history = [] if record is None else journal.history(record.number)
        signers = next((parse_agreement(entry.by) for entry in history if entry.order == digest), None)
        approved_at = max((approval.approved_at for approval in self.shown.approvals), default="")
        return {} if signers is None else {signers[1]: approved_at}

    def outdated_reason(self, journal: JournalReader) -> str | None:
        return invalid_order_reason(self.visit.console.settings, journal, self.shown) or None

    def outdated_error(self, _stage: Stage | None = None) -> PageOutdated:
        if self.sent_back:
            return PageOutdated(
                say("This order has been sent back since this page was opened: {who}", who=self.sent_back)
            )
        return PageOutdated(say("This order has changed since this page was opened."))

    def write(self, document: RowOrder) -> None:
        """Store the signed order. Carry out an approved settlement, unless a run holds the journal."""
        super().write(document)
        with journal_for_planning(self.visit.console.settings) as journal:
            is_approved = read_progress(journal, self).stage is Stage.APPROVED
        if is_approved and not document.is_release:
            with suppress(JournalHeld):  # Somebody must carry out the order after the run.
                self.start()

    def redraft(self, sent_back: str = "") -> None:
        """Turn the order back into a draft with a new date, and therefore a new digest."""
        self.folder.redraft(timestamp(self.visit.console.now()), sent_back)

    def start(self) -> StartedRun | None:
        """Settle the rows, or start the run that resends them. Settling raises `JournalHeld` during a run."""
        visit, console, order = self.visit, self.visit.console, self.document
        runs, by = console.runs, visit.member.name
        if order is not None and order.is_release:
            command = [*console.program, "--json", "carry-out", str(self.folder.order_file)]
            command += ["--wait", "--force", "--out", str(runs / f"{self.batch}.reconciliation.csv"), "--by", by]
            return start_run(runs, self.batch, command, by=by, environ=visit.environ, on_end=self.record_failed_start)
        if order is not None:
            with open_journal_for_run(console.settings, "console", lambda _sentence: None) as journal:
                statements = statement_folders(statements_directory(visit), self.batch) if order.cites_gateway else ()
                folders = [statement.file.parent for statement in statements]
                carry_out_order(console.settings, journal, order, identify_person(by), folders=folders)
            self.folder.archive()  # Not before the commit, so that a failure leaves the order in the list.
        return None


def orders_directory(visit: Visit) -> Path:
    return visit.console.directory / "orders"


def statements_directory(visit: Visit) -> Path:
    return visit.console.directory / "statements"


def store_draft(visit: Visit, draft: RowOrder) -> OrderFolder:
    """Store a draft once and return its folder. Raises `PageOutdated` if a newer order covers the same rows."""
    shown_numbers = visit.form.get(SHOWN_ORDERS_FIELD, "").split()
    with _draft_lock:
        folders = open_order_folders(orders_directory(visit))
        for folder in folders:
            is_own = folder.draft_record.by == visit.member.name and not folder.draft_record.sent_back
            if is_own and folder.document.content == draft.content:
                return folder
        for folder in folders:
            order = folder.document
            overlaps = order.batch == draft.batch and set(order.numbers) & set(draft.numbers)
            if overlaps and folder.number not in shown_numbers:
                name = folder.draft_record.by
                raise PageOutdated(
                    say("{name} has drafted an order for these rows since this page was opened.", name=name)
                )
        folder = OrderFolder(create_folder(orders_directory(visit)))
        write_document(draft, folder.path / "draft.json")
        folder.write_json("drafted.json", DraftRecord(visit.member.name, timestamp(visit.console.now())))
        return folder


def open_orders(visit: Visit, batch: str = "") -> Sequence[ListedAgreement]:
    """Return the orders that have not been carried out, for the payout `batch` or, if empty, for all payouts."""
    folders = open_order_folders(orders_directory(visit))
    if not folders:
        return []
    entries = []
    with journal_for_planning(visit.console.settings) as journal:
        for folder in folders:
            try:
                order = OrderAgreement(visit, folder)
                if batch in {"", order.batch} and (progress := read_progress(journal, order)).stage is not Stage.DONE:
                    content, numbers = order.shown.content, order.shown.numbers
                    entries.append(build_list_entry(order, progress, content.sheet, order.draft_record.at, numbers))
            except (FileNotFoundError, ApprovalError):
                if folder.path.exists():  # Otherwise it has just been carried out or withdrawn.
                    raise
    return entries


def signed_order_paths(visit: Visit, batch: str) -> Mapping[str, str]:
    """Return the paths of a payout's carried-out orders by digest."""
    folders = OrderFolder.list_newest_first(orders_directory(visit) / _ARCHIVE, lambda folder: folder.draft_record.at)
    orders = ((folder.number, *_read_archived_order(folder.path)) for folder in folders)
    return {digest: f"/orders/{number}{SIGNED_QUERY}" for number, order_batch, digest in orders if order_batch == batch}


@lru_cache(maxsize=10_000)
def _read_archived_order(path: Path) -> tuple[str, str]:
    """Return the batch and digest of a carried-out order, which never change."""
    order = OrderFolder(path).document
    return order.batch, order.digest()


def order_summary(order: RowOrder) -> str:
    """Describe an order in a few words."""
    rows = order.row_count
    if order.is_release:
        return say_count(rows, "Retry {count:,} rejected row", "Retry {count:,} rejected rows")
    return say_count(rows, "Settle {count:,} row", "Settle {count:,} rows")
