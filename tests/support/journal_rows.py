"""Rows, batches and facts for the tests of the journal."""

import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from paygw_batch.core.endpoint_identity import EndpointIdentity
from paygw_batch.core.evidence import Claim, Evidence, EvidenceSource, Proof
from paygw_batch.core.lifecycle import Basis, Concluded, Intended, Resolution, Resolved, State
from paygw_batch.core.outcome import Outcome, OutcomeKind
from paygw_batch.journal.adopt import Adoption
from paygw_batch.journal.evidence import Notification, encode_notification
from paygw_batch.journal.file_location import FileLocation, in_memory_journal
from paygw_batch.journal.new_batch import BatchPart, InstructionRows
from paygw_batch.journal.sqlite.sqlite_journal import SqliteJournal, SqliteReader
from paygw_batch.journal.values import (
    Amendment,
    Arrival,
    BatchRecord,
    DueRow,
    Entry,
    KnownRow,
    MoveResult,
    NewBatch,
    NewInstruction,
    RowState,
    Withdrawal,
)
from tests.support.tested_journal import Journal

AT = "2026-11-21T08:00:00.000Z"
ENDPOINT = EndpointIdentity.create("gateway.example", "1234", "merchant")
OPERATION = "payout"


def at(minute: int) -> str:
    return f"2026-11-21T08:{minute:02}:00.000Z"


def new_instruction(
    row: int, order_id: str | None = None, *, amount: str = "1500.50", phone: str = ""
) -> NewInstruction:
    payee = phone or f"2547{row:08}"
    minor = int(amount.replace(".", ""))
    content = f"KE|KES|{minor}|account|{payee}"
    fields = json.dumps(
        {"account_name": "Wanjiku Kamau", "account_number": payee, "phone": f"+{payee}"}, sort_keys=True
    )
    about = (row, order_id or f"ORD-{row}", "KE", "KES", amount, minor)
    return NewInstruction(*about, "account", fields, payee, content)


def open_sheet(
    journal: Journal,
    batch: str = "b1",
    new: int | Iterable[NewInstruction] = 3,
    *,
    known: Sequence[KnownRow] = (),
    amendments: Sequence[Amendment] = (),
    pages: Sequence[bytes] = (b"page one", b"page two"),
    opened_at: str = AT,
    sheet_name: str = "payroll.csv",
    operation: str = OPERATION,
    **of_batch: Any,
) -> BatchRecord:
    instructions = [new_instruction(row) for row in range(2, 2 + new)] if isinstance(new, int) else list(new)
    rows = len(instructions) + len(known)
    opened = NewBatch(batch, operation, sheet_name, f"sha-{batch}", rows, 0, **of_batch)
    parts = [BatchPart(pages, InstructionRows(instructions))]
    return journal.open_batch(opened, parts=parts, known=known, amendments=amendments, at=opened_at)


def intent(due: DueRow, when: str = AT) -> Entry:
    attempt = due.standing.attempt + 1
    nonce = f"{due.number:016x}{attempt:016x}"
    return Entry(due.number, attempt, Intended(due.order_id, nonce, 1_795_000_000, "WALLET-KE", "1234"), when)


def outcome_of(number: int, attempt: int, kind: OutcomeKind, when: str = AT, **words: object) -> Entry:
    return Entry(number, attempt, Concluded(Outcome(kind, **words)), when)  # type: ignore[arg-type]  # a test's words


def resolved(number: int, attempt: int, resolution: Resolution, when: str = AT, basis: Basis = Basis.GATEWAY) -> Entry:
    """Return a person's settlement, by default with a proven statement, so that no quarantine holds a rejected row."""
    return Entry(number, attempt, Resolved(resolution, "statement of 21 November", "amina", basis), when)


def due_rows(journal: Journal | SqliteReader, batch: int) -> Sequence[DueRow]:
    return journal.due(batch, after_row=0, limit=1_000_000)


def row_of(journal: Journal | SqliteReader, batch: int, row: int) -> RowState:
    (result,) = journal.rows(batch, numbers=[row])
    return result


def states(journal: Journal | SqliteReader, batch: int = 1) -> list[State]:
    return [row.state for row in journal.rows(batch)]


def send(journal: Journal, batch: int, kind: OutcomeKind, when: str = AT, **words: object) -> list[DueRow]:
    """Send every due row of a batch, each with the outcome `kind`."""
    due = list(due_rows(journal, batch))
    assert set(journal.append([intent(item, when) for item in due])) <= {MoveResult.MOVED}
    outcomes = [outcome_of(item.number, item.standing.attempt + 1, kind, when, **words) for item in due]
    assert set(journal.append(outcomes)) <= {MoveResult.MOVED}
    return due


def journal_of(*kinds: OutcomeKind | None) -> SqliteJournal:
    """Return a journal whose rows, from 2 on, were sent at minute 1 with these outcomes. None means not sent."""
    journal = memory_journal()
    open_sheet(journal, new=len(kinds))
    for due, kind in zip(due_rows(journal, 1), kinds, strict=True):
        if kind is not None:
            journal.append([intent(due, at(1)), outcome_of(due.number, 1, kind, at(1))])
    return journal


def journal_path(folder: Path) -> Path:
    return folder / "state" / "journal.sqlite3"


def file_location(folder: Path, path: Path | None = None, *, endpoint: EndpointIdentity = ENDPOINT) -> FileLocation:
    return FileLocation(path or journal_path(folder), endpoint=endpoint, known_dir=folder / "journals", now=lambda: AT)


def create_journal_at(folder: Path) -> None:
    file_location(folder).create("a test")


def open_journal_at(folder: Path, *, endpoint: EndpointIdentity = ENDPOINT, makes: bool = True) -> SqliteJournal:
    """Open the journal of a place for a run. Creates it first by default."""
    if makes and not journal_path(folder).exists():
        create_journal_at(folder)
    return file_location(folder, endpoint=endpoint).open_to_write("a test")


def open_sheet_at(folder: Path) -> Path:
    """Open a sheet in the journal of a place, and return the journal's path."""
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal)
    return journal_path(folder)


def adopt_journal_at(folder: Path, path: Path | None = None) -> None:
    """Confirm that the journal of a place, or the one at `path`, is the newest copy."""
    with closing(Adoption(file_location(folder, path), beside=None)) as adoption:
        adoption.carry_out("amina")


def read_journal_at(folder: Path) -> SqliteReader:
    return file_location(folder).open_to_read()


def copy_journal(folder: Path, name: str = "") -> Path:
    """Copy the journal of a place, which may be open for a run, and return the folder of the copy."""
    copies, path = folder / "copies", journal_path(folder)
    copy = copies / (name or f"copy-{len(list(copies.glob('copy-*')))}")
    copy.mkdir(parents=True)
    for file in path.parent.glob(f"{path.name}*"):
        if not file.name.endswith((".lock", "-shm")):
            shutil.copy(file, copy)
    return copy


def put_back(folder: Path, copy: Path) -> None:
    """Replace the journal of a place with a copy of it."""
    path = journal_path(folder)
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    for file in copy.iterdir():
        shutil.copy(file, path.parent)
        (path.parent / file.name).chmod(0o600)


def tamper(path: Path, change: str) -> apsw.Connection:
    """Change a journal file without leaving a trace in its tables and triggers."""
    connection = apsw.Connection(str(path))
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    before = connection.total_changes()
    connection.execute(change)
    assert connection.total_changes() > before
    for _, statement in triggers:
        connection.execute(str(statement))
    return connection


def withdrawal(sha256: str = "1" * 64) -> Withdrawal:
    return Withdrawal(sha256, "cleo", "{}", AT)


def arrival(order_id: str = "ORD-2") -> Arrival:
    """Return a notification of the gateway, which proves that it has paid an order."""
    claim = Claim(order_id, "1500.50", "KES", "approved", "ref", Proof.PROVEN)
    return Arrival(encode_notification(Notification(AT, "POST", "application/json", "", b"{}", 2, "", claim)), AT)


def memory_journal() -> SqliteJournal:
    return in_memory_journal(endpoint=ENDPOINT.name)


WORDS = {"approved": OutcomeKind.PAID, "processing": OutcomeKind.ACCEPTED, "declined": OutcomeKind.REJECTED}


def build_evidence(
    number: int,
    status: str = "approved",
    *,
    order_id: str = "ORD-2",
    proof: Proof = Proof.PROVEN,
    amount: str = "1500.50",
) -> Evidence:
    claim = Claim(order_id, amount, "KES", status, "ref", proof)
    return Evidence(EvidenceSource.NOTIFICATION, claim, json.dumps([order_id, status]), number)
