"""A fresh machine for every test, set up for the sandbox."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paygw_batch.language import ENGLISH, use
from tests.cli.program import Program, sandbox_toml


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    """Leave this process in English: a command chooses the language of its whole process."""
    yield
    use(ENGLISH)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    tmp_path.chmod(0o700)
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(tmp_path, config)
