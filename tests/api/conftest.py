"""A new machine for every test, set up for the sandbox, and its API."""

from pathlib import Path

import pytest

from paygw_batch.api import Payouts
from tests.support.program import Program, sandbox_toml


@pytest.fixture
def program(tmp_path: Path) -> Program:
    tmp_path.chmod(0o700)
    config = tmp_path / "paygw.toml"
    config.write_text(sandbox_toml())
    return Program(tmp_path, config)


@pytest.fixture
def payouts(program: Program) -> Payouts:
    return Payouts(program.config, environ=program.environ)
