"""The audit trail in both stores: entries are kept in order, and every change is detected."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from paygw_batch.cluster.database_location import DatabaseLocation
from paygw_batch.cluster.move import move_journal
from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import AuditUnwritable, JournalCorrupt
from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.journal.file_location import FileLocation
from paygw_batch.journal.location import JournalLocation
from paygw_batch.journal.sqlite import connect
from tests.support.journal_disk import failing_disk
from tests.support.journal_rows import (
    create_journal_at,
    due_rows,
    file_location,
    intent,
    journal_path,
    open_journal_at,
    open_sheet,
    send,
    tamper,
)
from tests.support.postgres_rows import execute_as_owner, postgres_location
from tests.support.postgres_server import PostgresServer

AT = "2026-11-22T08:00:00.000Z"


def note_all(location: JournalLocation, *acts: str) -> None:
    for act in acts:
        location.add_audit_entry(AuditNote("Ben Okello", act, "batch 0123456789abcdef", AuditResult.DONE, ""), AT)


def read_trail(location: JournalLocation) -> list[tuple[int, str]]:
    """Return the numbers and acts of all entries, oldest first; all of them follow."""
    with closing(location.open_to_read()) as journal:
        entries = journal.audit_entries(limit=1_000)
        assert journal.verify()["audit_entries"] == len(entries)
    return [(entry.number, entry.act) for entry in reversed(entries)]


def change(location: JournalLocation, statement: str) -> None:
    """Change the trail as another program could, with its triggers disabled."""
    if isinstance(location, DatabaseLocation):
        guard = "TRIGGER never_changed"
        execute_as_owner(
            location, f"ALTER TABLE audit DISABLE {guard}", statement, f"ALTER TABLE audit ENABLE ALWAYS {guard}"
        )
    else:
        assert isinstance(location, FileLocation)
        tamper(location.path, statement).close()


def test_audit_trail_is_paged_newest_first(store_location: JournalLocation) -> None:
    note_all(store_location, "sign in", "approve", "download")
    with closing(store_location.open_to_read()) as journal:
        assert [entry.number for entry in journal.audit_entries(limit=2)] == [3, 2]
        (first,) = journal.audit_entries(before=2, limit=2)
    assert first[:-1] == (1, AT, "Ben Okello", "sign in", "batch 0123456789abcdef", "done", "")
    assert read_trail(store_location) == [(1, "sign in"), (2, "approve"), (3, "download")]


def test_audit_entry_is_shortened_to_one_line(store_location: JournalLocation) -> None:
    long_text = "a\nb\x1b[31m\udcff\0" + "x" * 1000
    store_location.add_audit_entry(AuditNote("Ben Okello", "send back", "b1", AuditResult.DONE, long_text), AT)
    with closing(store_location.open_to_read()) as journal:
        (entry,) = journal.audit_entries(limit=1)
        assert journal.verify()["audit_entries"] == 1
    assert entry.said.startswith("a b [31m  x")
    assert len(entry.said) == 500


def test_action_is_audited_during_run(store_location: JournalLocation) -> None:
    assert isinstance(store_location, FileLocation | DatabaseLocation)
    with closing(store_location.open_to_write("a test")) as journal:
        open_sheet(journal)
        (due, *_) = due_rows(journal, 1)
        note_all(store_location, "pause")
        journal.append([intent(due)])
        note_all(store_location, "continue")
        send(journal, 1, OutcomeKind.PAID)
    assert read_trail(store_location) == [(1, "pause"), (2, "continue")]


def test_concurrent_entries_form_single_trail(store_location: JournalLocation) -> None:
    start = threading.Barrier(4)

    def note_acts_as(who: str) -> None:
        start.wait()
        note_all(store_location, *(f"{who} {number}" for number in range(5)))

    threads = [threading.Thread(target=note_acts_as, args=[who]) for who in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers, acts = zip(*read_trail(store_location), strict=True)
    assert numbers == tuple(range(1, 21))
    assert set(acts) == {f"{who} {number}" for who in "abcd" for number in range(5)}


CHANGES = [
    "UPDATE audit SET at = '2026-11-22T08:00:00.001Z' WHERE number = 2",
    "UPDATE audit SET who = 'Ada Wanjiru' WHERE number = 2",
    "UPDATE audit SET act = 'download' WHERE number = 2",
    "UPDATE audit SET thing = '' WHERE number = 2",
    "UPDATE audit SET result = 'refused' WHERE number = 2",
    "UPDATE audit SET said = ' ' WHERE number = 2",
    "UPDATE audit SET hash = replace(hash, substr(hash, 1, 1), 'z') WHERE number = 2",
    "UPDATE audit SET number = 9 WHERE number = 3",
    *("DELETE FROM audit WHERE number = 2", "DELETE FROM audit WHERE number = 1"),
    "UPDATE audit SET who = (SELECT act FROM audit WHERE number = 2), act = who WHERE number = 2",
]


@pytest.mark.share(4)
@pytest.mark.parametrize("statement", CHANGES)
def test_changed_or_missing_audit_entry_is_detected(store_location: JournalLocation, statement: str) -> None:
    note_all(store_location, "sign in", "approve", "download")
    change(store_location, statement)
    with closing(store_location.open_to_read()) as journal, pytest.raises(JournalCorrupt, match="audit trail"):
        journal.verify()


def test_audit_trail_of_another_journal_is_detected(folder: Path, at_database: DatabaseLocation) -> None:
    create_journal_at(folder)
    note_all(file_location(folder), "approve")
    with closing(file_location(folder).open_to_read()) as journal:
        (entry,) = journal.audit_entries(limit=1)
    change(at_database, f"INSERT INTO audit VALUES {tuple(entry)}")  # noqa: S608 - a test's own
    with closing(at_database.open_to_read()) as journal, pytest.raises(JournalCorrupt, match="another journal"):
        journal.verify()


def test_audit_entries_cannot_be_changed_or_removed(store_location: JournalLocation) -> None:
    note_all(store_location, "approve")
    for statement in ("UPDATE audit SET who = ''", "DELETE FROM audit"):
        if isinstance(store_location, DatabaseLocation):
            options = "-c search_path=paygw -c session_replication_role=replica"
            owner = psycopg.connect(store_location.server.url, options=options)
            with owner, pytest.raises(psycopg.errors.RaiseException, match="never"):
                owner.execute(statement)
        else:
            assert isinstance(store_location, FileLocation)
            file = sqlite3.connect(store_location.path)
            with closing(file), pytest.raises(sqlite3.IntegrityError, match="never"):
                file.execute(statement)


def test_unwritable_trail_prevents_action(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = file_location(folder)
    with pytest.raises(AuditUnwritable, match=r"no journal at .*Nothing was done"):
        note_all(location, "sign in")
    assert not journal_path(folder).exists()
    create_journal_at(folder)
    note_all(location, "sign in")
    with failing_disk() as disk:
        disk.fail_at = disk.operations + 1
        with pytest.raises(AuditUnwritable, match="Nothing was done"):
            note_all(location, "approve")
    monkeypatch.setattr(connect, "_BUSY_TIMEOUT_MS", 1)
    journal = open_journal_at(folder)
    busy = pytest.raises(AuditUnwritable, match="A run is writing")
    with closing(journal), journal._write_transaction(), busy:
        note_all(location, "approve")
    note_all(location, "approve")
    assert read_trail(location) == [(1, "sign in"), (2, "approve")]


def test_moved_journal_keeps_audit_trail(folder: Path, postgres_server: PostgresServer) -> None:
    name = postgres_server.new_database()
    database_location = postgres_location(postgres_server.url(name), folder)
    create_journal_at(folder)
    note_all(file_location(folder), "sign in", "approve")
    move_journal(file_location(folder), database_location, {}, "amina")
    note_all(database_location, "download")
    assert read_trail(database_location) == [(1, "sign in"), (2, "approve"), (3, "download")]
    with pytest.raises(AuditUnwritable, match="was moved to the database"):
        note_all(file_location(folder), "late")
    postgres_server.drop_database(name)


def test_workers_cannot_read_trail(
    at_database: DatabaseLocation, folder: Path, postgres_server: PostgresServer
) -> None:
    name = at_database.server.url.rpartition("/")[2]
    at_database.grant_rights()
    for role in ("desk", "worker", "reader"):
        postgres_server.execute(f"CREATE ROLE {name}_{role}_1 LOGIN IN ROLE {name}_{role}")

    def host(number: int, role: str) -> DatabaseLocation:
        return postgres_location(postgres_server.url(name, user=f"{name}_{role}_1"), folder / f"host {number}")

    note_all(host(1, "desk"), "approve")
    note_all(host(2, "desk"), "start")
    for role in ("worker", "reader"):
        with pytest.raises(AuditUnwritable, match="does not have permission"):
            note_all(host(3, role), "forged")
    for place_of_host in (at_database, host(2, "desk"), host(3, "reader")):
        assert read_trail(place_of_host) == [(1, "approve"), (2, "start")]
    with closing(host(3, "worker").open_to_read()) as journal:
        assert "audit_entries" not in journal.verify()
