"""The console's audit trail as commands use it: `verify` checks it, and `backup` copies it."""

import sqlite3
from contextlib import closing

import pytest

from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.opening.open_journal import journal_location
from paygw_batch.settings.configuration import Settings, load_settings
from tests.support.people import newest_entries
from tests.support.program import Program, kenyan_rows


def load_program_settings(program: Program) -> Settings:
    return load_settings(program.config, environ=program.environ)


@pytest.fixture
def program_with_trail(program: Program) -> Program:
    """Create a journal with one batch, and an audit trail with two entries."""
    program.json("submit", program.sheet(kenyan_rows(1)))
    for act, result in (("sign in", AuditResult.DONE), ("approve", AuditResult.REFUSED)):
        note = AuditNote("Ada Wanjiru", act, "batch 0123456789abcdef", result)
        journal_location(load_program_settings(program)).add_audit_entry(note, "2026-11-22T08:00:00.000Z")
    return program


def test_audit_trail_is_empty_without_console(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(1)))
    summary = program.json("verify")
    assert summary["checked"]["audit_entries"] == 0
    assert "trail" not in summary["message"]


def test_verify_reports_last_audit_trail_entry(program_with_trail: Program) -> None:
    summary = program_with_trail.json("verify")
    newest = newest_entries(load_program_settings(program_with_trail), limit=1)[0]
    assert (summary["exit_code"], summary["checked"]["audit_entries"]) == (0, 2)
    assert f"The audit trail is intact; it ends with entry 2, {newest.hash[:16]}." in summary["message"]


def test_verify_detects_changed_entry(program_with_trail: Program) -> None:
    with closing(sqlite3.connect(program_with_trail.journal)) as database:
        ((guard,),) = database.execute("SELECT sql FROM sqlite_schema WHERE name = 'audit_is_never_changed'")
        database.execute("DROP TRIGGER audit_is_never_changed")
        database.execute("UPDATE audit SET result = 'done' WHERE number = 2")
        database.execute(guard)
        database.commit()
    summary = program_with_trail.json("verify")
    assert summary["exit_code"] == 7
    assert "Entry 2 of the audit trail" in summary["message"]


def test_backup_includes_verifiable_audit_trail(program_with_trail: Program) -> None:
    copy = program_with_trail.home / "copy.sqlite3"
    assert program_with_trail.json("backup", copy)["exit_code"] == 0
    summary = program_with_trail.json("--journal", copy, "verify")
    assert summary["checked"]["audit_entries"] == 2
