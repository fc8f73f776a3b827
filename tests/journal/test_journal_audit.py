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
from tests.support.postgres_rows import execute_as_owner, postgres_place
from tests.support.postgres_server import PostgresServer

AT = "2026-11-22T08:00:00.000Z"


def note_all(place: JournalLocation, *acts: str) -> None:
    for act in acts:
        place.add_audit_entry(AuditNote("Ben Okello", act, "batch 0123456789abcdef", AuditResult.DONE, ""), AT)


def read_trail(place: JournalLocation) -> list[tuple[int, str]]:
    """Return the numbers and acts of all entries, oldest first; all of them follow."""
    with closing(place.open_to_read()) as journal:
        entries = journal.audit_entries(limit=1_000)
        assert journal.verify()["audit_entries"] == len(entries)
    return [(entry.number, entry.act) for entry in reversed(entries)]


def change(place: JournalLocation, statement: str) -> None:
    """Change the trail as another program could, with its triggers disabled."""
    if isinstance(place, DatabaseLocation):
        guard = "TRIGGER never_changed"
        execute_as_owner(
            place, f"ALTER TABLE audit DISABLE {guard}", statement, f"ALTER TABLE audit ENABLE ALWAYS {guard}"
        )
    else:
        assert isinstance(place, FileLocation)
        tamper(place.path, statement).close()


def test_audit_trail_is_paged_newest_first(journal_place: JournalLocation) -> None:
    note_all(journal_place, "sign in", "approve", "download")
    with closing(journal_place.open_to_read()) as journal:
        assert [entry.number for entry in journal.audit_entries(limit=2)] == [3, 2]
        (first,) = journal.audit_entries(before=2, limit=2)
    assert first[:-1] == (1, AT, "Ben Okello", "sign in", "batch 0123456789abcdef", "done", "")
    assert read_trail(journal_place) == [(1, "sign in"), (2, "approve"), (3, "download")]


def test_audit_entry_is_shortened_to_one_line(journal_place: JournalLocation) -> None:
    long_text = "a\nb\x1b[31m\udcff\0" + "x" * 1000
    journal_place.add_audit_entry(AuditNote("Ben Okello", "send back", "b1", AuditResult.DONE, long_text), AT)
    with closing(journal_place.open_to_read()) as journal:
        (entry,) = journal.audit_entries(limit=1)
        assert journal.verify()["audit_entries"] == 1
    assert entry.said.startswith("a b [31m  x")
    assert len(entry.said) == 500


def test_action_is_audited_during_run(journal_place: JournalLocation) -> None:
    assert isinstance(journal_place, FileLocation | DatabaseLocation)
    with closing(journal_place.open_to_write("a test")) as journal:
        open_sheet(journal)
        (due, *_) = due_rows(journal, 1)
        note_all(journal_place, "pause")
        journal.append([intent(due)])
        note_all(journal_place, "continue")
        send(journal, 1, OutcomeKind.PAID)
    assert read_trail(journal_place) == [(1, "pause"), (2, "continue")]


def test_concurrent_entries_form_single_trail(journal_place: JournalLocation) -> None:
    start = threading.Barrier(4)

    def note_acts_as(who: str) -> None:
        start.wait()
        note_all(journal_place, *(f"{who} {number}" for number in range(5)))

    threads = [threading.Thread(target=note_acts_as, args=[who]) for who in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers, acts = zip(*read_trail(journal_place), strict=True)
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
def test_changed_or_missing_audit_entry_is_detected(journal_place: JournalLocation, statement: str) -> None:
    note_all(journal_place, "sign in", "approve", "download")
    change(journal_place, statement)
    with closing(journal_place.open_to_read()) as journal, pytest.raises(JournalCorrupt, match="audit trail"):
        journal.verify()


def test_audit_trail_of_another_journal_is_detected(place: Path, at_database: DatabaseLocation) -> None:
    create_journal_at(place)
    note_all(file_location(place), "approve")
    with closing(file_location(place).open_to_read()) as journal:
        (entry,) = journal.audit_entries(limit=1)
    change(at_database, f"INSERT INTO audit VALUES {tuple(entry)}")  # noqa: S608 - a test's own
    with closing(at_database.open_to_read()) as journal, pytest.raises(JournalCorrupt, match="another journal"):
        journal.verify()


def test_audit_entries_cannot_be_changed_or_removed(journal_place: JournalLocation) -> None:
    note_all(journal_place, "approve")
    for statement in ("UPDATE audit SET who = ''", "DELETE FROM audit"):
        if isinstance(journal_place, DatabaseLocation):
            options = "-c search_path=paygw -c session_replication_role=replica"
            owner = psycopg.connect(journal_place.server.url, options=options)
            with owner, pytest.raises(psycopg.errors.RaiseException, match="never"):
                owner.execute(statement)
        else:
            assert isinstance(journal_place, FileLocation)
            file = sqlite3.connect(journal_place.path)
            with closing(file), pytest.raises(sqlite3.IntegrityError, match="never"):
                file.execute(statement)


def test_unwritable_trail_prevents_action(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = file_location(place)
    with pytest.raises(AuditUnwritable, match=r"no journal at .*Nothing was done"):
        note_all(location, "sign in")
    assert not journal_path(place).exists()
    create_journal_at(place)
    note_all(location, "sign in")
    with failing_disk() as disk:
        disk.fail_at = disk.operations + 1
        with pytest.raises(AuditUnwritable, match="Nothing was done"):
            note_all(location, "approve")
    monkeypatch.setattr(connect, "_BUSY_TIMEOUT_MS", 1)
    journal = open_journal_at(place)
    busy = pytest.raises(AuditUnwritable, match="A run is writing")
    with closing(journal), journal._write_transaction(), busy:
        note_all(location, "approve")
    note_all(location, "approve")
    assert read_trail(location) == [(1, "sign in"), (2, "approve")]


def test_moved_journal_keeps_audit_trail(place: Path, postgres_server: PostgresServer) -> None:
    name = postgres_server.new_database()
    database_location = postgres_place(postgres_server.url(name), place)
    create_journal_at(place)
    note_all(file_location(place), "sign in", "approve")
    move_journal(file_location(place), database_location, {}, "amina")
    note_all(database_location, "download")
    assert read_trail(database_location) == [(1, "sign in"), (2, "approve"), (3, "download")]
    with pytest.raises(AuditUnwritable, match="was moved to the database"):
        note_all(file_location(place), "late")
    postgres_server.drop_database(name)


def test_workers_cannot_read_trail(at_database: DatabaseLocation, place: Path, postgres_server: PostgresServer) -> None:
    name = at_database.server.url.rpartition("/")[2]
    at_database.grant_rights()
    for role in ("desk", "worker", "reader"):
        postgres_server.execute(f"CREATE ROLE {name}_{role}_1 LOGIN IN ROLE {name}_{role}")

    def host(number: int, role: str) -> DatabaseLocation:
        return postgres_place(postgres_server.url(name, user=f"{name}_{role}_1"), place / f"host {number}")

    note_all(host(1, "desk"), "approve")
    note_all(host(2, "desk"), "start")
    for role in ("worker", "reader"):
        with pytest.raises(AuditUnwritable, match="does not have permission"):
            note_all(host(3, role), "forged")
    for place_of_host in (at_database, host(2, "desk"), host(3, "reader")):
        assert read_trail(place_of_host) == [(1, "approve"), (2, "start")]
    with closing(host(3, "worker").open_to_read()) as journal:
        assert "audit_entries" not in journal.verify()
