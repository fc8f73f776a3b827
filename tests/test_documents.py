"""The documents are correct: their commands run, their links work, and their tables match the program."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from paygw_batch.cli.main import COMMANDS
from paygw_batch.countries.load import minor_units_by_currency
from paygw_batch.settings import sections
from paygw_batch.sheet.columns import RECONCILIATION_COLUMNS
from paygw_batch.show.summary import ExitCode
from tests.support.checkout import ROOT, copy_versioned, versioned_files

DOCUMENTS = [path for path in versioned_files(pattern="*.md") if path.relative_to(ROOT).parts[0] != "tests"]
README = (ROOT / "README.md").read_text()


def shell_lines(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_versioned(tmp_path, "config", "samples", "tooling/demo")


def test_readme_states_number_of_currencies() -> None:
    (output,) = re.findall(r"(\w+) African currencies", README)
    numbers = ("eight", "nine", "ten", "eleven", "twelve")
    assert output == numbers[len(minor_units_by_currency()) - 8]


@pytest.mark.long
def test_readme_commands_run_unchanged(checkout: Path) -> None:
    environ = {"HOME": str(checkout), "XDG_STATE_HOME": str(checkout / "state"), "PATH": "/usr/bin:/bin"}
    ran = 0
    for line in shell_lines(README):
        words = shlex.split(line, comments=True)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            environ[name] = value
        if words[0] != "paygw-batch":
            continue
        stated = re.search(r"exit (\d+)", line)
        command = [sys.executable, "-m", "paygw_batch", *words[1:]]
        completed = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False)
        assert completed.returncode == int(stated[1] if stated else 0), f"{line}\n{completed.stdout}{completed.stderr}"
        ran += 1
    assert ran >= 5


def test_demo_matches_readme_picture_and_writes_only_state(checkout: Path) -> None:
    picture = re.search(r"```text\n(Sending.*?)```", README, flags=re.DOTALL)
    assert picture
    for name, does in (
        (".venv/bin/paygw-batch", f'exec {shlex.quote(sys.executable)} -m paygw_batch "$@"'),
        ("tooling/environment", "exit 0"),  # this interpreter already has all packages
    ):
        program = checkout / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    before = {path for path in checkout.rglob("*") if path.is_file()}
    environ = {"HOME": str(checkout / "home"), "PATH": "/usr/bin:/bin"}
    completed = subprocess.run(["tooling/demo"], cwd=checkout, env=environ, capture_output=True, text=True, check=True)
    _, _, displayed = (completed.stderr + completed.stdout).partition("2 of 2: paying 200 people in the sandbox ...\n")
    assert [line.rstrip() for line in displayed.splitlines()] == picture[1].splitlines()
    new = {path for path in checkout.rglob("*") if path.is_file()} - before
    assert {path.relative_to(checkout).parts[0] for path in new} == {"sandbox-state"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_in_documents_have_existing_targets(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


NO_OFFICERS_WORDS = re.compile(
    r"```|--\w|paygw-batch|\.toml|\bexit\b"
    r"|\[[a-z_.]+\](?!\()|\b[a-z]+_[a-z_]+\b|\b(?!JavaScript|PostgreSQL)[A-Z][a-z]+[A-Z]\w+|\b(?=\d*[a-f])[0-9a-f]{12,}\b"
)
"""Commands, options, tables and keys of the configuration, class names, and digests."""


def test_finance_pages_begin_without_technical_words() -> None:
    for words in ("`[approval]`", "--amend", "quarantine_h", "a SheetError", "3f9c2a17be00d1"):
        assert NO_OFFICERS_WORDS.search(f"Then look at {words} once more.")
    (group,) = re.findall(r'"The finance team" = \[(.*?)\]', (ROOT / "zensical.toml").read_text(), flags=re.DOTALL)
    for name in re.findall(r'"([\w-]+\.md)"', group):
        page = (ROOT / "docs" / name).read_text()
        for_people = re.split(r"^## (?:Setting it up|On the command line)$", page, flags=re.MULTILINE)[0]
        assert NO_OFFICERS_WORDS.findall(for_people) == [], name


def test_interface_lists_commands_exit_codes_and_columns() -> None:
    interface = (ROOT / "docs" / "interface.md").read_text()
    assert [command for command in COMMANDS if not re.search(rf"\| `{command}[ `]", interface)] == []
    assert [code for code in ExitCode if f"\n| {int(code)} |" not in interface] == []
    assert ", ".join(RECONCILIATION_COLUMNS) in " ".join(interface.split())


@pytest.mark.parametrize(
    "section", ["gateway", "submission", "journal", "retry", "limits", "sheet", "sandbox", "status_enquiry"]
)
def test_every_key_is_documented_with_its_default(section: str) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    model: type[BaseModel] = getattr(sections, f"{section.title().replace('_', '')}Section")
    for key, field in model.model_fields.items():
        line = re.search(rf"^\| `{section}\.{key}` \| (.*?) \|", text, flags=re.MULTILINE)
        assert line, f"{section}.{key}"
        if field.default is not None:
            shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
            assert shown in line[1].strip("`")


BY_NAME = re.compile(
    r"\b(?:pip|pipx|uv|uvx)3? (?!uninstall )[^\n`|;&]*?['\"]?(?<![\w./-])paygw[-_.]batch(?![\w./-])|paygw-batch\["
)
"""Matches an installation by name from an index, where anyone may own the name; not one from a path or wheel."""


def test_no_file_installs_package_by_registry_name() -> None:
    for command, is_by_name in (
        *(("pip install 'paygw-batch[excel]'", True), ("pip install --no-cache-dir paygw-batch", True)),
        *(("uv tool install paygw_batch==0.1.0", True), ("Install `paygw-batch[cluster]` on each host", True)),
        ("pip install --no-deps ./paygw_batch-0.1.0-py3-none-any.whl", False),
        *(("pip install --no-deps --no-build-isolation .", False), ("docker run paygw-batch", False)),
        ("pip uninstall paygw-batch", False),
    ):
        assert bool(BY_NAME.search(command)) is is_by_name, command
    read = {".md", ".yaml", ".yml", ".toml", ".service", ".timer", ".py", ".po", ".conf", ""}
    paths = [path.relative_to(ROOT) for path in versioned_files() if path.suffix in read]
    ours = [path for path in paths if path.parts[0] != "tests"]
    assert [path for path in ours if BY_NAME.search((ROOT / path).read_text(encoding="utf-8"))] == []
