"""Each command imports only the modules it needs, to start quickly and to expose less code to mistakes."""

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from paygw_batch.opening.gateway_access import load_signing_key
from paygw_batch.settings.configuration import load_settings
from tests.support.program import SAMPLES, Program, kenyan_rows, sandbox_toml

RUN = """
import atexit, json, os, runpy, sys
def say():
    with open(os.environ["LOADED"], "w") as file:
        json.dump(sorted(sys.modules), file)
atexit.register(say)
sys.argv = ["paygw-batch", *sys.argv[1:]]
runpy.run_module("paygw_batch", run_name="__main__", alter_sys=True)
"""
"""Runs the program, and writes the names of its loaded modules at the end."""


def loaded_modules(program: Program, *arguments: str | Path, exit_code: int = 0) -> list[str]:
    list_file = program.home / "loaded.json"
    command = [sys.executable, "-c", RUN, "--config", program.config, *arguments]
    environ = {**os.environ, **program.environ, "LOADED": str(list_file)}
    result = subprocess.run(command, env=environ, cwd=program.home, capture_output=True, text=True, check=False)
    assert result.returncode == exit_code, result.stderr
    names: list[str] = json.loads(list_file.read_text())
    return names


def select_modules(names: Collection[str], *unwanted: str) -> list[str]:
    """Return the modules that are, or are below, one of the unwanted ones. `ours.X` is part of the package."""
    prefixes = [prefix.replace("ours.", "paygw_batch.") for prefix in unwanted]
    return [name for name in names if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)]


def test_help_loads_nothing_heavy(program: Program) -> None:
    heavy = ("polars", "pandera", "httpx", "pydantic", "rich", "cryptography", "apsw", "uvicorn")
    assert select_modules(loaded_modules(program, "--help"), *heavy) == []


def test_validate_loads_no_journal_engine_or_network(program: Program) -> None:
    names = loaded_modules(program, "validate", SAMPLES / "payroll-mixed.csv")
    assert "paygw_batch.sheet.check.validate" in names
    ours = (
        "ours.journal",
        "ours.engine.engine",
        "ours.run",
        "ours.gateway",
        "ours.sandbox",
        "ours.listener",
        "ours.api",
    )
    assert select_modules(names, *ours, "apsw", "cryptography", "httpx", "httptools", "uvicorn", "starlette") == []


def test_status_loads_no_transport_or_sandbox(program: Program) -> None:
    sheet = program.sheet(kenyan_rows(2))
    program.run("submit", sheet)
    for arguments in (("status",), ("status", sheet)):
        names = loaded_modules(program, *arguments)
        assert "paygw_batch.journal.sqlite.sqlite_journal" in names
        ours = ("ours.sandbox", "ours.listener", "ours.engine.engine", "ours.gateway.http")
        heavy = ("httpx", "httptools", "uvicorn", "starlette", "jinja2", "h11", "cryptography", "polars", "pandera")
        assert select_modules(names, *ours, "ours.sheet.read", "ours.sheet.check", *heavy) == []


@pytest.mark.share(2)
@pytest.mark.parametrize("command", ["submit", "resume"])
def test_payout_loads_no_httpx_and_no_jinja(program: Program, command: str) -> None:
    sheet = program.sheet(kenyan_rows(2))
    if command == "resume":
        program.run("submit", sheet, "--first", "1")
    names = loaded_modules(program, command, sheet)
    assert "paygw_batch.gateway.http.transport" in names
    assert select_modules(names, "httpx", "httpcore", "ours.gateway.http.enquiry_client", "jinja2") == []
    assert "jinja2" in loaded_modules(program, "reconcile", sheet, "--out", "o.csv", "--report", "o.html")


def test_real_gateway_run_loads_no_sandbox(program: Program) -> None:
    load_signing_key(load_settings(program.config, environ={}), {})  # creates the sandbox's key, which is used as ours
    key = next(program.home.rglob("*.pem"))
    unreachable, profile = '"http://127.0.0.1:9"', f'"json-params"\nprivate_key = "{key}"'
    program.config.write_text(sandbox_toml(base_url=unreachable, signature_profile=profile))
    program.config.chmod(0o600)
    program.make_journal()
    names = loaded_modules(program, "submit", program.sheet(kenyan_rows(1)), exit_code=6)
    assert select_modules(names, "ours.sandbox", "ours.listener", "uvicorn", "h11", "starlette", "httpx") == []
    assert select_modules(loaded_modules(program, "doctor", exit_code=6), "httpx") == []
