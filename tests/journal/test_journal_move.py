"""Moving a journal from its file to PostgreSQL keeps its chain, and never lets both copies pay."""

import re
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from paygw_batch.cluster import move
from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.cluster.move import JournalMove, move_journal
from paygw_batch.core.evidence import Claim, Proof
from paygw_batch.core.lifecycle import Resolution, State
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.core.shown_states import render_record
from paygw_batch.errors import JournalError, JournalHeld, JournalMissing, PaygwError
from paygw_batch.journal.evidence import Notification, encode_notification
from paygw_batch.journal.file_location import FileLocation
from paygw_batch.journal.journal import JournalReader
from paygw_batch.journal.known_journals import KnownJournals
from paygw_batch.journal.sqlite import connect
from paygw_batch.journal.values import Amendment, Arrival, KnownRow, StatementNote, StoredReply, Withdrawal
from tests.support.journal_rows import (
    AT,
    at,
    due_rows,
    file_location,
    intent,
    journal_path,
    new_instruction,
    open_journal_at,
    open_sheet,
    outcome_of,
    read_journal_at,
    resolved,
    send,
)
from tests.support.long_part import share
from tests.support.postgres_rows import open_postgres, postgres_location, read_postgres
from tests.support.postgres_server import PostgresServer

WORDS = {"approved": OutcomeKind.PAID}


@pytest.fixture
def empty_database(postgres_server: PostgresServer, folder: Path) -> Any:
    name = postgres_server.new_database()
    yield postgres_location(postgres_server.url(name), folder)
    postgres_server.drop_database(name)


def move_to_database(folder: Path, to: DatabaseLocation) -> JournalMove:
    return move_journal(file_location(folder), to, WORDS, "amina")


def make_full_journal(folder: Path) -> None:
    """Create a journal in a file with nearly every kind of content, whose last run was killed."""
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=9)
        due = due_rows(journal, 1)
        journal.append([intent(row) for row in due[:5]])
        kinds = (OutcomeKind.PAID, OutcomeKind.ACCEPTED, OutcomeKind.REJECTED, OutcomeKind.UNKNOWN)
        outcomes = [outcome_of(one.number, 1, kind) for one, kind in zip(due, kinds[:3], strict=False)]
        reply = StoredReply("HTTP/1.1 500 Internal Server Error", b"\xff not text")
        outcomes.append(replace(outcome_of(due[3].number, 1, kinds[3], reply_sha256=reply.sha256), reply=reply))
        outcomes.append(outcome_of(due[0].number, 1, OutcomeKind.REJECTED, message="a late word\x00"))
        journal.append(outcomes)
        note = StatementNote("b1", "s.csv", "f" * 64, "amina", AT)
        journal.settle([resolved(due[3].number, 1, Resolution.PAID)], note=note)
        journal.release(1, [4], suffix=True, by="chidi", at=at(1))
        rejected = new_instruction(3, "ORD-9", amount="99.00")
        open_sheet(journal, "b2", [new_instruction(2, "Ünïcode-1"), rejected], known=[KnownRow(4, 1, State.PAID)],
                   amendments=[Amendment(3, 8, "")])  # fmt: skip
        with file_location(folder).open_note_recorder() as keep:
            claim = Claim("ORD-3", "1500.50", "KES", "approved", None, Proof.PROVEN, is_current=True)
            content = encode_notification(Notification(AT, "POST", "application/json", "", b"{}", 2, "", claim))
            keep([Arrival(content, AT)])


def visible_content(journal: JournalReader) -> list[object]:
    """Return all content of a journal that people can see."""
    content: list[object] = [journal.candidates("ORD-9"), journal.replies(4)]
    for record in journal.batches():
        rows = [replace(row, message=row.message and render_record(row.message)) for row in journal.rows(record.number)]
        history = [(entry.at, entry.by, entry.row) for entry in journal.history(record.number)]
        content += [record, rows, history, journal.tallies(record.number), list(journal.pages(record.number))]
        content += [journal.messages(record.number), journal.message_counts(record.number)]
        content += [journal.carried_out_statements(record.batch), journal.signed_orders(record.batch)]
    head = journal.head()
    return [*content, head.newest_time, head.last_processed_arrival, head.seq]


def test_move_keeps_whole_journal_and_chain(folder: Path, empty_database: DatabaseLocation) -> None:
    make_full_journal(folder)
    with closing(open_journal_at(folder)) as journal:
        journal.mark_interrupted(AT)
        journal.process_arrivals(WORDS, at=AT)
        before, counts, head = visible_content(journal), journal.verify(), journal.head()
    result = move_to_database(folder, empty_database)
    assert (result.identity.journal_id, result.facts) == (head.journal_id, head.seq)
    with closing(read_postgres(empty_database)) as reader:
        assert visible_content(reader) == before
        moved = reader.verify()
        assert [moved[name] for name in counts if name in moved] == [counts[name] for name in counts if name in moved]
    with psycopg.connect(empty_database.server.url) as connection:
        query = """SELECT f.hash, p.head_hash FROM paygw.fact f
            JOIN paygw.process p ON (p.number, p.head_seq) = (f.process, f.seq)"""
        assert connection.execute(query).fetchall() == [(bytes.fromhex(head.hash), bytes.fromhex(head.hash))]


def test_moved_journal_continues_only_in_database(folder: Path, empty_database: DatabaseLocation) -> None:
    make_full_journal(folder)
    older = journal_path(folder).read_bytes()
    move_to_database(folder, empty_database)
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(
            JournalError, match=re.escape(f"was moved to the database {empty_database.server.location}")
        ):
            open_it(folder)
    assert [entry.path for entry in KnownJournals(folder / "journals").entries()] == [empty_database.server.location]
    journal_path(folder).write_bytes(older)
    with pytest.raises(JournalError):  # an older copy at its path is not known here
        open_journal_at(folder)
    assert empty_database.create("a test") is None
    with closing(open_postgres(empty_database)) as journal:
        assert [due.order_id for due in send(journal, 1, OutcomeKind.PAID)] == ["ORD-4-r2", "ORD-7", "ORD-8", "ORD-10"]
        assert [due.order_id for due in send(journal, 2, OutcomeKind.PAID)] == ["Ünïcode-1", "ORD-9"]
        assert not due_rows(journal, 1)
        journal.settle([resolved(5, 1, Resolution.PAID)])
        open_sheet(journal, "b3", [new_instruction(2, "NEW-1")])
        assert journal.compare("payout", [(1, "ORD-2", "")])[1], "its order ids are known"
        counts = journal.verify()
        assert counts["in_doubt"] == counts["in_flight"] == 0


def usable_journals(folder: Path, to: DatabaseLocation) -> list[str]:
    found = []
    openers: dict[str, partial[Any]] = {
        "file": partial(open_journal_at, folder),
        "database": partial(open_postgres, to),
    }
    for name, opened in openers.items():
        with suppress(PaygwError):
            opened().close()
            found.append(name)
    return found


STEPS = (
    *("Session", "FileLocation.open_to_write", "copy_journal", "load_identity", "finish_move"),
    *("_record_new_location", "KnownJournal"),
)


@pytest.mark.parametrize("step", share([*STEPS, "SqliteJournal.move_transaction"], every=4))
@pytest.mark.parametrize(
    "is_after", [pytest.param(False, id="before"), pytest.param(True, id="after", marks=pytest.mark.long)]
)
def test_killed_move_leaves_exactly_one_usable_journal(
    folder: Path, empty_database: DatabaseLocation, monkeypatch: pytest.MonkeyPatch, step: str, is_after: bool
) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=4)
        journal.append([intent(due_rows(journal, 1)[0])])
    owner: Any = move
    name = step
    if "." in step:
        owner_name, _, name = step.partition(".")
        owner = {"FileLocation": FileLocation, "SqliteJournal": type(journal)}[owner_name]
    real = getattr(owner, name)

    def die(*given: Any, **named: Any) -> Any:
        if is_after:
            result = real(*given, **named)
            if hasattr(result, "close"):  # a process that ends releases it
                result.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, die)
    with pytest.raises(KeyboardInterrupt):
        move_to_database(folder, empty_database)
    monkeypatch.undo()
    assert len(usable_journals(folder, empty_database)) <= 1
    if usable_journals(folder, empty_database) == ["file"]:  # the run continues meanwhile
        with closing(open_journal_at(folder)) as journal:
            journal.mark_interrupted(AT)
            send(journal, 1, OutcomeKind.PAID)
    move_to_database(folder, empty_database)
    assert usable_journals(folder, empty_database) == ["database"]
    with closing(open_postgres(empty_database)) as other:
        send(other, 1, OutcomeKind.PAID)
        assert [row.state for row in other.rows(1)] == [State.IN_DOUBT, *[State.PAID] * 3]
        assert max(row.attempts for row in other.rows(1)) == 1
        other.verify()


def test_file_cannot_be_written_during_move(
    folder: Path, empty_database: DatabaseLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=1)
    real: Any = vars(move)["copy_journal"]
    withdrawal = Withdrawal("1" * 64, "cleo", "{}", AT)

    def copy_after_write(*given: Any, **named: Any) -> Any:
        result = real(*given, **named)
        file_location(folder).withdraw(withdrawal)
        return result

    monkeypatch.setattr(move, "copy_journal", copy_after_write)
    monkeypatch.setattr(connect, "_BUSY_TIMEOUT_MS", 1)
    with pytest.raises(JournalHeld, match="is writing to the journal"):
        move_to_database(folder, empty_database)
    monkeypatch.undo()
    assert usable_journals(folder, empty_database) == ["file"]
    file_location(folder).withdraw(withdrawal)
    move_to_database(folder, empty_database)
    with closing(read_postgres(empty_database)) as reader:
        assert [withdrawal.sha256 for withdrawal in reader.withdrawals()] == ["1" * 64]
    with pytest.raises(JournalError, match="was moved to the database"):
        file_location(folder).withdraw(Withdrawal("2" * 64, "cleo", "{}", AT))


def test_unsafe_move_of_journal_is_refused(folder: Path, empty_database: DatabaseLocation, database: str) -> None:
    with pytest.raises(JournalMissing):
        move_to_database(folder, empty_database)
    with closing(open_journal_at(folder)) as journal:
        open_sheet(journal, new=1)
        with pytest.raises(JournalHeld):
            move_to_database(folder, empty_database)
    with pytest.raises(JournalError, match="There is already a journal in the database"):
        move_to_database(folder, postgres_location(database, folder))
    assert usable_journals(folder, empty_database) == ["file"]
    move_to_database(folder, empty_database)
    assert move_to_database(folder, empty_database).facts == 1, "a move that is done is done"
    with pytest.raises(JournalError, match=", not to"):
        move_to_database(folder, postgres_location(database, folder))
    assert empty_database.holder() is None
