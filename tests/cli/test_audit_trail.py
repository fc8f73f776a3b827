"""The audit trail of the console, as commands see it: `verify` checks it, and `backup` copies it."""

import sqlite3
from contextlib import closing

import pytest

from paygw_batch.journal import AuditNote, AuditResult
from paygw_batch.opening.open_journal import place_of
from paygw_batch.settings.configuration import Settings, load_settings
from tests.support.people import newest_entries
from tests.support.program import Program, kenyan_rows


def settings_in(program: Program) -> Settings:
    return load_settings(program.config, environ=program.environ)


@pytest.fixture
def noted(program: Program) -> Program:
    """A journal with one batch, and a trail with two entries."""
    program.json("submit", program.sheet(kenyan_rows(1)))
    for act, result in (("sign in", AuditResult.DONE), ("approve", AuditResult.REFUSED)):
        note = AuditNote("Ada Wanjiru", act, "batch 0123456789abcdef", result)
        place_of(settings_in(program)).note_act(note, "2026-11-22T08:00:00.000Z")
    return program


def test_without_a_console_the_trail_is_empty(program: Program) -> None:
    program.json("submit", program.sheet(kenyan_rows(1)))
    told = program.json("verify")
    assert told["checked"]["audit_entries"] == 0
    assert "trail" not in told["message"]


def test_verify_reports_last_audit_trail_entry(noted: Program) -> None:
    told = noted.json("verify")
    newest = newest_entries(settings_in(noted), limit=1)[0]
    assert (told["exit_code"], told["checked"]["audit_entries"]) == (0, 2)
    assert f"The audit trail is intact; it ends with entry 2, {newest.hash[:16]}." in told["message"]


def test_verify_finds_a_changed_entry(noted: Program) -> None:
    with closing(sqlite3.connect(noted.journal)) as database:
        ((guard,),) = database.execute("SELECT sql FROM sqlite_schema WHERE name = 'audit_is_never_changed'")
        database.execute("DROP TRIGGER audit_is_never_changed")
        database.execute("UPDATE audit SET result = 'done' WHERE number = 2")
        database.execute(guard)
        database.commit()
    told = noted.json("verify")
    assert told["exit_code"] == 7
    assert "Entry 2 of the audit trail" in told["message"]


def test_backup_copies_the_trail_and_the_copy_verifies(noted: Program) -> None:
    copy = noted.home / "copy.sqlite3"
    assert noted.json("backup", copy)["exit_code"] == 0
    told = noted.json("--journal", copy, "verify")
    assert told["checked"]["audit_entries"] == 2
