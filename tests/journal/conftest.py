"""A private place for a journal, and journals on disk and in memory in turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.journal_rows import memory, open_at
from tests.journal.tested_journal import Journal


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that only we can write, as a journal asks for."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture(params=["disk", "memory"])
def journal(request: pytest.FixtureRequest, place: Path) -> Iterator[Journal]:
    """An empty journal, on disk and in memory."""
    opened: Journal = open_at(place) if request.param == "disk" else memory()
    yield opened
    opened.close()
