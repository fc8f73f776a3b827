"""The next writer upgrades tables of an older version. Tables of a newer one are refused."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from paygw_batch.core.outcome import OutcomeKind
from paygw_batch.errors import JournalError
from paygw_batch.journal import file_place
from paygw_batch.journal.sqlite import connect, verify
from tests.support.journal_rows import journal_path, open_journal_at, open_sheet, read_journal_at, send

MADE_UP = "CREATE TABLE remark (number INTEGER PRIMARY KEY, said TEXT NOT NULL) STRICT;"
"""A change that a later version of the tables could make."""


@pytest.fixture
def newer_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Give the program a later version until the patch is undone."""
    scripts = (*connect.migrations(), MADE_UP)
    for module in (connect, file_place, verify):
        monkeypatch.setattr(module, "migrations", lambda: scripts)
    connect._expected_schema.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    connect._expected_schema.cache_clear()


def read_versions(place: Path) -> list[int]:
    with closing(apsw.Connection(str(journal_path(place)))) as connection:
        applied = [number for (number,) in connection.execute("SELECT version FROM migration ORDER BY version")]
        assert connection.pragma("user_version") == applied[-1]
    return applied


def pay_rows(place: Path) -> None:
    with closing(open_journal_at(place)) as journal:
        open_sheet(journal)
        send(journal, 1, OutcomeKind.PAID)


def test_older_journal_is_upgraded_by_next_writer(place: Path, request: pytest.FixtureRequest) -> None:
    pay_rows(place)
    request.getfixturevalue("newer_program")
    with pytest.raises(JournalError, match="was written by an older version"):
        read_journal_at(place)
    assert read_versions(place) == [1]
    with closing(open_journal_at(place)) as journal:
        assert journal.verify()["paid"] == 3
    assert read_versions(place) == [1, 2]
    with closing(read_journal_at(place)) as reader:
        assert len(reader.batches()) == 1


def test_journal_of_newer_version_is_refused(place: Path, newer_program: pytest.MonkeyPatch) -> None:
    pay_rows(place)
    assert read_versions(place) == [1, 2]
    newer_program.undo()
    connect._expected_schema.cache_clear()
    for open_it in (open_journal_at, read_journal_at):
        with pytest.raises(JournalError, match="newer version"):
            open_it(place)
