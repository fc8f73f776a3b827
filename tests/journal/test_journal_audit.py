"""The audit trail: what was noted is kept, in order, and any change of it is found."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from paygw_batch.errors import AuditDamaged, AuditUnwritable, JournalError
from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.journal.sqlite.audit_trail import AuditTrail, audit_entries, verify_audit_trail
from tests.journal.journal_disk import failing_disk

JOURNAL_ID = "a" * 32
AT = "2026-11-22T08:00:00.000Z"


def note(act: str, *, who: str = "Ben Okello", said: str = "") -> AuditNote:
    return AuditNote(who, act, "batch 0123456789abcdef", AuditResult.DONE, said)


@pytest.fixture
def journal(place: Path) -> Path:
    return place / "journal.sqlite3"


@pytest.fixture
def trail(journal: Path) -> Iterator[AuditTrail]:
    with closing(AuditTrail(journal, JOURNAL_ID)) as one:
        yield one


def tampered(journal: Path, statement: str) -> None:
    """Change the trail as another program could, its triggers put aside."""
    with closing(sqlite3.connect(f"{journal}.audit")) as database:
        for trigger in ("entry_is_never_changed", "entry_is_never_removed"):
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute(statement)
        database.commit()


def test_what_is_noted_is_read_newest_first_by_pages(journal: Path, trail: AuditTrail) -> None:
    for act in ("sign in", "approve", "download"):
        end = trail.note(note(act), AT)
    assert verify_audit_trail(journal, JOURNAL_ID) == end
    assert [(one.number, one.act) for one in audit_entries(journal, limit=2)] == [(3, "download"), (2, "approve")]
    (first,) = audit_entries(journal, before=2, limit=2)
    assert first[:-1] == (1, AT, "Ben Okello", "sign in", "batch 0123456789abcdef", "done", "")


def test_where_nothing_was_noted_there_is_no_trail(journal: Path) -> None:
    assert verify_audit_trail(journal, JOURNAL_ID) is None
    assert list(audit_entries(journal, limit=10)) == []


def test_a_trail_goes_on_where_it_ended_and_two_processes_may_note(journal: Path, trail: AuditTrail) -> None:
    trail.note(note("approve"), AT)
    with closing(AuditTrail(journal, JOURNAL_ID)) as other:
        other.note(note("start"), AT)
    assert trail.note(note("pause"), AT).number == 3
    assert verify_audit_trail(journal, JOURNAL_ID) is not None


CHANGES = [
    "UPDATE entry SET at = '2026-11-22T08:00:00.001Z' WHERE number = 2",
    "UPDATE entry SET who = 'Ada Wanjiru' WHERE number = 2",
    "UPDATE entry SET act = 'download' WHERE number = 2",
    "UPDATE entry SET thing = '' WHERE number = 2",
    "UPDATE entry SET result = 'refused' WHERE number = 2",
    "UPDATE entry SET said = ' ' WHERE number = 2",
    "UPDATE entry SET hash = replace(hash, substr(hash, 1, 1), 'z') WHERE number = 2",
    "UPDATE entry SET number = 9 WHERE number = 3",
    "DELETE FROM entry WHERE number = 2",
    "DELETE FROM entry WHERE number = 1",
    "UPDATE entry SET who = (SELECT act FROM entry WHERE number = 2), act = who WHERE number = 2",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_a_changed_or_missing_entry_is_found(journal: Path, trail: AuditTrail, statement: str) -> None:
    for act in ("sign in", "approve", "download"):
        trail.note(note(act), AT)
    tampered(journal, statement)
    with pytest.raises(AuditDamaged, match="audit trail"):
        verify_audit_trail(journal, JOURNAL_ID)


def test_the_trail_of_another_journal_is_found(journal: Path, trail: AuditTrail) -> None:
    trail.note(note("approve"), AT)
    with pytest.raises(AuditDamaged, match="another journal"):
        verify_audit_trail(journal, "b" * 32)


def test_entries_are_neither_changed_nor_removed_by_mistake(journal: Path, trail: AuditTrail) -> None:
    trail.note(note("approve"), AT)
    with closing(sqlite3.connect(f"{journal}.audit")) as database:
        for statement in ("UPDATE entry SET who = ''", "DELETE FROM entry"):
            with pytest.raises(sqlite3.IntegrityError, match="never"):
                database.execute(statement)


def test_a_text_is_kept_on_one_line_and_within_bounds(journal: Path, trail: AuditTrail) -> None:
    trail.note(note("send back", said="a\nb\x1b[31m\udcff" + "x" * 1000), AT)
    (entry,) = audit_entries(journal, limit=1)
    assert entry.said.startswith("a b [31m x")
    assert len(entry.said) == 500
    assert verify_audit_trail(journal, JOURNAL_ID) is not None


def test_on_a_full_disk_nothing_is_noted_and_it_says_that_nothing_was_done(journal: Path) -> None:
    with failing_disk() as disk, closing(AuditTrail(journal, JOURNAL_ID)) as trail:
        trail.note(note("sign in"), AT)
        disk.fail_at = disk.operations + 1
        with pytest.raises(AuditUnwritable, match="Nothing was done"):
            trail.note(note("approve"), AT)
        assert trail.note(note("approve"), AT).number == 2
    assert verify_audit_trail(journal, JOURNAL_ID) is not None


def test_a_trail_that_others_may_read_or_that_is_another_file_is_refused(journal: Path) -> None:
    audit = Path(f"{journal}.audit")
    audit.write_bytes(b"no database")
    audit.chmod(0o600)
    with pytest.raises(AuditDamaged, match="kind of file"):
        AuditTrail(journal, JOURNAL_ID)
    audit.unlink()
    AuditTrail(journal, JOURNAL_ID).close()
    assert audit.stat().st_mode & 0o777 == 0o600
    audit.chmod(0o644)
    with pytest.raises(JournalError, match="read or written by others"):
        AuditTrail(journal, JOURNAL_ID)
