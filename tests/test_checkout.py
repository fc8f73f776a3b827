"""In a used checkout, tests and wheel contain only versioned files."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import checkout
from tests.support.checkout import copy_versioned, versioned_files

SHEET = "country,client_orderid,amount,currency,account_name,account_number,phone\nKE,A,1,00,KES,x,y,z\n"
SHEETS = (
    *("samples/payroll-mixed.reconciliation.csv", "samples/mine.csv", "samples/countries/mine.csv", "mended.csv"),
    *("samples/collections/mine.rejects.csv", "sandbox-state/sandbox-record.csv"),
)
CONFIGS = ("config/mine.toml", "config/production.toml", "paygw.toml")
LEFT = {
    **dict.fromkeys(SHEETS, SHEET),
    **dict.fromkeys(("notes.md", "docs/notes.md", "samples/notes.md"), "# [Gone](gone.md), and `tests/gone.py`\n"),
    **dict.fromkeys(CONFIGS, '[gateway]\nconsumer_key = "secret"\n'),
    "docs/systemd/mine.service": "[Service]\nStateDirectory=mine\n",
    "docs/man/mine.1": ".TH mine\n",
}
READERS = (
    "tests/pins/test_pins.py::test_outputs_match_pins[samples]",
    *("tests/test_documents.py::test_links_in_documents_have_existing_targets", "tests/test_house_documents.py"),
    *("tests/test_man_pages.py", "tests/test_site.py", "tests/test_systemd_units.py"),
)
"""The tests that list files of the checkout."""


@pytest.fixture(scope="module")
def used_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_versioned(tmp_path_factory.mktemp("used"), "")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for words in (["init", "--quiet"], ["add", "--all", "--force"]):
        subprocess.run(["git", *words], cwd=folder, env=environ, check=True)
    for name, text in LEFT.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.long
def test_tests_of_versioned_files_pass_in_used_checkout(used_checkout: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *READERS]
    completed = subprocess.run(command, cwd=used_checkout, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-5000:]


def test_wheel_of_used_checkout_has_only_versioned_config(used_checkout: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=used_checkout, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    config = {name.partition("/config/")[2] for name in zipfile.ZipFile(wheel).namelist() if "/config/" in name}
    assert config == {str(path.relative_to(checkout.ROOT / "config")) for path in versioned_files("config")}


def test_unpacked_archive_counts_all_but_ignored_files(used_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versioned = {path.relative_to(checkout.ROOT) for path in versioned_files()}
    (used_checkout / ".git").rename(used_checkout / ".venv-git")
    try:
        monkeypatch.setattr(checkout, "ROOT", used_checkout)
        checkout._list_versioned_files.cache_clear()
        found = {path.relative_to(used_checkout) for path in versioned_files()}
    finally:
        (used_checkout / ".venv-git").rename(used_checkout / ".git")
        checkout._list_versioned_files.cache_clear()
    ours = {"sandbox-state", "reconciliation", "rejects", "mended", "production", "paygw"}
    assert {*map(str, found - versioned)} == {name for name in LEFT if not any(item in name for item in ours)}
